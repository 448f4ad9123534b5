"""What the lab's model says: it goes on counting, and it adds. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(r"\s?\w+|\s?[^\w\s]|\s")
_COUNTING = re.compile(r"\d+(?:\s*,\s*\d+)+\s*,?")
_SUM = re.compile(r"(\d+)\s*([+*-])\s*(\d+)(\s*=)?")
_ROWS = re.compile(r"(\d+) rows of (\d+)")
_OTHERWISE = (
    " The quick brown fox jumps over the lazy dog while the eight cards hum along in their rack and wait for work."
)


class Completion(NamedTuple):
    """`finish` is SGLang's finish reason: 'stop', or 'length' when the limit cut the text."""

    text: str
    tokens: int
    finish: str


def tokens(text: str) -> list[str]:
    """The text in tokens; joined they are the text again."""
    return _TOKEN.findall(text)


def complete(prompt: str, max_tokens: int) -> Completion:
    """Go on from the prompt for at most `max_tokens` tokens."""
    prompt = _ROWS.sub(r"\1 * \2", prompt)
    sums, runs = list(_SUM.finditer(prompt)), list(_COUNTING.finditer(prompt))
    if sums:
        left, operator, right, equals = sums[-1].groups()
        value = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[operator]
        words = tokens(" %d" % value if equals else "%s %s %s = %d" % (left, operator, right, value))
    elif runs:
        words = _count_on(runs[-1].group(), max_tokens + 1)
    else:
        sentence = tokens(_OTHERWISE)
        words = sentence * (1 + max_tokens // len(sentence))
    cut = words[:max_tokens]
    return Completion("".join(cut), len(cut), "stop" if sums and len(cut) == len(words) else "length")


def _count_on(run: str, wanted: int) -> list[str]:
    numbers = [int(number) for number in re.findall(r"\d+", run)]
    step = numbers[-1] - numbers[-2]
    words: list[str] = [] if run.rstrip().endswith(",") else [","]
    number = numbers[-1]
    while len(words) < wanted:
        number += step
        words += [*tokens(" %d" % number), ","]
    return words
