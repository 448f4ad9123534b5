# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a generated text is one at all. Pure.

A broken server answers with status 200 all the same: with nothing, with one token again and again (``!!!!`` where the
logits are not numbers), or with bytes that are no text. Whether a text is good is not asked here.
"""

from __future__ import annotations

import re
from typing import Optional

EMPTY = "empty"
REPETITION = "repetition"
NOT_TEXT = "not_text"

# Shorter texts repeat themselves by chance: "ha ha ha".
_SHORTEST_LOOP = 32
# One look at the end is enough: a text that fell into a loop does not leave it.
_TAIL = 256
# A loop counts from so many rounds on. Tables and code repeat a unit too, but not so often at their end.
_ROUNDS = 8
_LONGEST_UNIT = _TAIL // _ROUNDS

# So much of a text may be one and the same word. In prose `the` comes to 7 %, a bracket in code to 15 %.
_SHARE_OF_ONE_WORD = 0.6
_FEWEST_WORDS = 16

# A row of dashes is one word, as the underline of a heading.
_WORD = re.compile(r"\w+|[^\w\s]+")
# What a decoder puts in place of bytes that are no character, and what no text has.
_NOT_A_CHARACTER = re.compile(r"[\ufffd\x00-\x08\x0e-\x1f\x7f]")
_SHARE_OF_NO_CHARACTERS = 0.1


def defect(text: str) -> Optional[str]:
    """What is wrong with the text: EMPTY, REPETITION, NOT_TEXT; None for one that may pass."""
    text = text.strip()
    if not text:
        return EMPTY
    if len(_NOT_A_CHARACTER.findall(text)) > _SHARE_OF_NO_CHARACTERS * len(text):
        return NOT_TEXT
    return REPETITION if _is_one_word(text) or _ends_in_a_loop(text) else None


def _is_one_word(text: str) -> bool:
    words = _WORD.findall(text)
    if len(words) < _FEWEST_WORDS:
        return False
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return max(counts.values()) > _SHARE_OF_ONE_WORD * len(words)


def _ends_in_a_loop(text: str) -> bool:
    """Whether the end is one short unit again and again. Looks at characters, since not every script has words."""
    tail = text[-_TAIL:]
    if len(tail) < _SHORTEST_LOOP:
        return False
    longest = min(_LONGEST_UNIT, len(tail) // _ROUNDS)
    return any(tail[unit:] == tail[:-unit] for unit in range(1, longest + 1))


def answers(text: str, answer: Optional[str], cut: bool) -> Optional[bool]:
    """Whether the text holds the right answer. None where no one answer is right, or where the limit on tokens ``cut``
    the text before the answer came.
    """
    if answer is None:
        return None
    if re.search(answer, text) is not None:
        return True
    return None if cut else False
