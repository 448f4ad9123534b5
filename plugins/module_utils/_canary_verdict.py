# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the canary's measurements mean, against what the operator expects. Pure.

Each verdict is a code to test for and a sentence to act on. The gravest one is given: text that is none before drafts
that are not accepted, and those before a speed that may only be their consequence.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils import _speculation, _text_sanity
from ansible_collections.gpuops.inference.plugins.module_utils._canary_prompts import Prompt
from ansible_collections.gpuops.inference.plugins.module_utils._chat import Reply, quoted
from ansible_collections.gpuops.inference.plugins.module_utils._chat_client import (
    BAD_ANSWER,
    TIMEOUT,
    UNAUTHORIZED,
    UNREACHABLE,
)
from ansible_collections.gpuops.inference.plugins.module_utils._speculation import Speculation

OK = "ok"
DEGENERATE = "degenerate"
WRONG_ANSWER = "wrong_answer"
SPECULATION_OFF = "speculation_off"
EAGLE = "eagle_instead_of_eagle3"
NOTHING_ACCEPTED = "no_draft_accepted"
WRONG_SPECULATION = "wrong_speculation"
LOW_ACCEPT_LENGTH = "low_accept_length"
SLOW = "slow"
UNMEASURED = "unmeasured"
SOAK_FAILED = "soak_failed"

VERDICTS = (
    OK,
    UNREACHABLE,
    UNAUTHORIZED,
    TIMEOUT,
    BAD_ANSWER,
    DEGENERATE,
    WRONG_ANSWER,
    SPECULATION_OFF,
    EAGLE,
    NOTHING_ACCEPTED,
    WRONG_SPECULATION,
    LOW_ACCEPT_LENGTH,
    SLOW,
    UNMEASURED,
    SOAK_FAILED,
)

# Fewer steps than these may show an accept length of 1 by chance.
FEWEST_STEPS = 64


class Verdict(NamedTuple):
    """``code`` is one of VERDICTS, ``reason`` a sentence."""

    code: str
    reason: str


class Expectation(NamedTuple):
    """What the operator expects, each None where nothing is. ``tolerance`` is the share by which a measured value may
    stay below. ``speculation`` has those of ``algorithm``, ``steps``, ``topk`` and ``draft_tokens`` that were given.
    """

    tokens_per_second: Optional[float] = None
    accept_length: Optional[float] = None
    speculation: Mapping[str, Any] = MappingProxyType({})
    tolerance: float = 0.0

    @property
    def speculates(self) -> bool:
        """Whether the server is expected to speculate."""
        return bool(self.speculation) or (self.accept_length or 1) > _speculation.NOTHING_ACCEPTED


class Measurement(NamedTuple):
    """One request that was answered. ``number`` counts from 1; ``seconds`` is how long it took in all."""

    number: int
    prompt: Prompt
    reply: Reply
    seconds: float
    speculation: Speculation

    @property
    def defect(self) -> Optional[str]:
        """What is wrong with the text, see _text_sanity."""
        return _text_sanity.defect(self.reply.everything)

    @property
    def answer_right(self) -> Optional[bool]:
        """Whether the answer is the right one; None where no one answer is, or where it was cut off before."""
        return _text_sanity.answers(self.reply.everything, self.prompt.answer, self.reply.finish == "length")

    @property
    def sane(self) -> bool:
        """Whether it is a text, and not a wrong answer."""
        return self.defect is None and self.answer_right is not False


class Overall(NamedTuple):
    """All measurements in one. ``configured`` is what the server itself says of its speculation: the keys of
    Expectation.speculation, and None where it does not say anything.
    """

    tokens_per_second: Optional[float]
    speculation: Speculation
    configured: Optional[Mapping[str, Any]] = None


def tokens_per_second(measurements: Sequence[Measurement]) -> Optional[float]:
    """Decoding speed of one request, over all tokens whose time is known; None when there are none."""
    timed = [one.reply for one in measurements if one.reply.tokens_per_second is not None]
    tokens = sum((reply.tokens or 0) - 1 for reply in timed)
    seconds = sum((reply.last or 0.0) - (reply.first or 0.0) for reply in timed)
    return tokens / seconds if seconds > 0 else None


def judge(measurements: Sequence[Measurement], overall: Overall, expected: Expectation) -> Verdict:
    """The verdict on a server that answered every request."""
    return (
        _judge_texts(measurements)
        or _judge_speculation(overall, expected)
        or _judge_speed(overall, expected)
        or Verdict(OK, _praise(overall))
    )


def _judge_texts(measurements: Sequence[Measurement]) -> Optional[Verdict]:
    for one in measurements:
        if one.defect is not None:
            return Verdict(
                DEGENERATE,
                f"The server answers the prompt {one.prompt.name} with {_DEFECTS[one.defect]}"
                f"{_excerpt(one.reply.everything)}. Restart it, and if that does not help look at its weights, its "
                "quantization and its draft model.",
            )
    for one in measurements:
        if one.answer_right is False:
            return Verdict(
                WRONG_ANSWER,
                f"The server answers the prompt {one.prompt.name} wrongly{_excerpt(one.reply.everything)}. It "
                "generates fluently, but not what the model should: see that model and weights are the right ones.",
            )
    return None


_DEFECTS = {
    _text_sanity.EMPTY: "an empty text",
    _text_sanity.REPETITION: "the same piece again and again",
    _text_sanity.NOT_TEXT: "what is no text",
}


def _excerpt(text: str) -> str:
    start = quoted(text[:160])
    return f": '{start}'" if start else ""


def _judge_speculation(overall: Overall, expected: Expectation) -> Optional[Verdict]:
    found, length, configured = overall.speculation, overall.speculation.accept_length, overall.configured
    if expected.speculates and (found.state == _speculation.OFF or _says_off(configured)):
        return Verdict(
            SPECULATION_OFF,
            "The server answers well, but without speculative decoding, which is expected. See the --speculative-... "
            "options of its command line and the warnings at the beginning of its log.",
        )
    accepts_none = length is not None and length <= _speculation.NOTHING_ACCEPTED and found.steps >= FEWEST_STEPS
    if accepts_none and (expected.accept_length is None or expected.speculates):
        return _judge_useless(found, configured)
    wrong = _differences(configured, expected)
    if wrong:
        return Verdict(WRONG_SPECULATION, f"The server speculates, but not as expected: {'; '.join(wrong)}.")
    if expected.speculation and configured is None:
        return Verdict(
            UNMEASURED,
            "The server does not say how its speculative decoding is configured, so what is expected of it cannot be "
            "compared. Only SGLang's /server_info says that.",
        )
    if expected.accept_length is None:
        return None
    if length is None and expected.speculates:
        return Verdict(
            UNMEASURED,
            "The server answers well, but nothing tells how many of its drafts were accepted. With vLLM that is in "
            "/metrics; every other engine says it in its answers, unless something in between leaves it out.",
        )
    floor = expected.accept_length * (1 - expected.tolerance)
    if length is not None and length < floor:
        return Verdict(
            LOW_ACCEPT_LENGTH,
            f"The server speculates with an accept length of {length:.2f}, and {expected.accept_length:.2f} is "
            f"expected (at least {floor:.2f}). See whether the draft model is the one for these weights.",
        )
    return None


def _says_off(configured: Optional[Mapping[str, Any]]) -> bool:
    return configured is not None and not configured.get("algorithm")


def _judge_useless(found: Speculation, configured: Optional[Mapping[str, Any]]) -> Verdict:
    lost = (
        f"The server speculates in vain: an accept length of {found.accept_length:.2f} over {found.steps:.0f} steps. "
        "No draft is ever accepted, and it is slower than without any."
    )
    algorithm = str((configured or {}).get("algorithm") or "")
    if algorithm == "EAGLE":
        return Verdict(
            EAGLE,
            f"{lost} It was started with the algorithm EAGLE; a draft model made for EAGLE-3 needs "
            "--speculative-algorithm EAGLE3.",
        )
    named = f" (its algorithm is {quoted(algorithm)})" if algorithm else ""
    return Verdict(
        NOTHING_ACCEPTED,
        f"{lost} See that algorithm and draft model belong together{named}, and the draft model to these weights; "
        "EAGLE in place of EAGLE3 has this effect.",
    )


def _differences(configured: Optional[Mapping[str, Any]], expected: Expectation) -> list[str]:
    if configured is None:
        return []
    return [
        f"{name} is {quoted(str(configured.get(name)))} and not {wanted}"
        for name, wanted in expected.speculation.items()
        if configured.get(name) != wanted
    ]


def _judge_speed(overall: Overall, expected: Expectation) -> Optional[Verdict]:
    wanted, speed = expected.tokens_per_second, overall.tokens_per_second
    if wanted is None:
        return None
    if speed is None:
        return Verdict(
            UNMEASURED,
            "The server answers well, but its speed cannot be told: either it does not count its tokens (usage), or "
            "something in between gathers its answers and hands them over at once.",
        )
    floor = wanted * (1 - expected.tolerance)
    if speed >= floor:
        return None
    return Verdict(
        SLOW,
        f"The server generates {speed:.1f} tokens/s, and {wanted:.1f} are expected (at least {floor:.1f}). "
        f"{_speculation_said(overall.speculation)} See whether somebody else uses it or its cards, and whether the "
        "cards are throttled.",
    )


def _praise(overall: Overall) -> str:
    speed = overall.tokens_per_second
    at = f" at {speed:.1f} tokens/s" if speed is not None else ""
    return f"The server generates{at}. {_speculation_said(overall.speculation)}"


def _speculation_said(found: Speculation) -> str:
    if found.accept_length is not None:
        return f"Its accept length is {found.accept_length:.2f}."
    return "It does not speculate." if found.state == _speculation.OFF else "Its accept length is not known."
