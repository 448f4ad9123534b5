# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measurements in, one verdict out: the gravest, in a sentence that names the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _canary_verdict as verdicts
from ansible_collections.gpuops.inference.plugins.module_utils._canary_prompts import ARITHMETIC, PROSE, Prompt
from ansible_collections.gpuops.inference.plugins.module_utils._canary_verdict import (
    Expectation,
    Measurement,
    Overall,
    judge,
    tokens_per_second,
)
from ansible_collections.gpuops.inference.plugins.module_utils._chat import Reply
from ansible_collections.gpuops.inference.plugins.module_utils._speculation import OFF, ON, UNKNOWN, Speculation

NIGHT = "The keeper climbed the stair, trimmed the lamp, and wrote the hour into his book."
KIMI = {"algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4}
WELL = Speculation(ON, 400, 1040, 1200, 640)
IN_VAIN = Speculation(ON, 1000, 1004, 3000, 0)


def measured(text: str = NIGHT, prompt: Prompt = PROSE, **reply: Any) -> Measurement:
    said = {"tokens": 101, "first": 0.5, "last": 1.5, "finish": "stop", **reply}
    return Measurement(1, prompt, Reply(text, **said), 1.6, Speculation(UNKNOWN))


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({}, verdicts.OK, "160.0 tokens/s. Its accept length is 2.60"),
        ({"speculation": Speculation(OFF)}, verdicts.OK, "does not speculate"),
        ({"speculation": Speculation(UNKNOWN), "speed": None}, verdicts.OK, "not known"),
        # Speed.
        ({"tokens_per_second": 160.0}, verdicts.OK, ""),
        ({"tokens_per_second": 170.0}, verdicts.SLOW, "160.0 tokens/s, and 170.0 are expected"),
        ({"tokens_per_second": 170.0, "tolerance": 0.1}, verdicts.OK, ""),
        ({"tokens_per_second": 82.0, "speed": 41.0, "tolerance": 0.1}, verdicts.SLOW, "at least 73.8"),
        ({"tokens_per_second": 82.0, "speed": None}, verdicts.UNMEASURED, "usage"),
        # Speculation that is expected and is not there.
        ({"accept_length": 2.4, "speculation": Speculation(OFF)}, verdicts.SPECULATION_OFF, "without speculative"),
        ({"accept_length": 2.4, "speculation": Speculation(UNKNOWN)}, verdicts.UNMEASURED, "drafts"),
        ({"speculation_expected": KIMI, "configured": {**KIMI, "algorithm": None}}, verdicts.SPECULATION_OFF, ""),
        ({"accept_length": 1.0, "speculation": Speculation(OFF)}, verdicts.OK, ""),
        # Drafts in vain are a fault, whether anything is expected or not.
        ({"speculation": IN_VAIN}, verdicts.NOTHING_ACCEPTED, "1.00 over 1000 steps"),
        ({"speculation": IN_VAIN, "configured": {**KIMI, "algorithm": "EAGLE"}}, verdicts.EAGLE, "EAGLE3"),
        ({"speculation": IN_VAIN, "configured": {**KIMI, "algorithm": "NGRAM"}}, verdicts.NOTHING_ACCEPTED, "NGRAM"),
        ({"speculation": IN_VAIN, "configured": KIMI, "speculation_expected": KIMI}, verdicts.NOTHING_ACCEPTED, ""),
        ({"speculation": IN_VAIN, "accept_length": 2.4, "tolerance": 0.9}, verdicts.NOTHING_ACCEPTED, ""),
        ({"speculation": IN_VAIN, "accept_length": 1.0}, verdicts.OK, ""),
        # A few steps may fail by chance.
        ({"speculation": Speculation(ON, 40, 40, 120, 0)}, verdicts.OK, ""),
        # Slow because in vain: the cause is told, not the effect.
        ({"speculation": IN_VAIN, "speed": 41.0, "tokens_per_second": 82.0}, verdicts.NOTHING_ACCEPTED, ""),
        # Fewer accepted than expected. Just above 1.05 is not in vain, and 1.95 is not 2.4.
        ({"accept_length": 2.4, "speculation": Speculation(ON, 100, 195)}, verdicts.LOW_ACCEPT_LENGTH, "1.95"),
        ({"accept_length": 2.4, "speculation": Speculation(ON, 100, 220), "tolerance": 0.1}, verdicts.OK, ""),
        # Configuration.
        ({"speculation_expected": KIMI, "configured": KIMI}, verdicts.OK, ""),
        ({"speculation_expected": KIMI, "configured": None}, verdicts.UNMEASURED, "server_info"),
        (
            {"speculation_expected": KIMI, "configured": {**KIMI, "steps": 5, "draft_tokens": 6}},
            verdicts.WRONG_SPECULATION,
            "steps is 5 and not 3; draft_tokens is 6 and not 4",
        ),
        ({"speculation_expected": {"algorithm": "EAGLE3"}, "configured": {**KIMI, "steps": 9}}, verdicts.OK, ""),
    ],
)
def test_a_server_that_answers(given: dict[str, Any], code: str, words: str) -> None:
    arguments = dict(given)
    expected_speculation = arguments.pop("speculation_expected", {})
    measurements = (measured(),)
    overall = Overall(
        arguments.pop("speed", 160.0), arguments.pop("speculation", WELL), arguments.pop("configured", None)
    )
    found = judge(measurements, overall, Expectation(speculation=expected_speculation, **arguments))
    assert found.code == code
    assert words in found.reason
    assert found.reason.endswith(".")


@pytest.mark.parametrize(
    ("measurement", "code", "words"),
    [
        (measured("!" * 90), verdicts.DEGENERATE, "the same piece again and again"),
        (measured(""), verdicts.DEGENERATE, "an empty text"),
        (measured("\ufffd" * 90), verdicts.DEGENERATE, "no text"),
        (measured("17 x 23 is 392.", ARITHMETIC), verdicts.WRONG_ANSWER, "392"),
        (measured("17 x 23 is 391.", ARITHMETIC), verdicts.OK, ""),
        (measured("Let me see: first the rows,", ARITHMETIC, finish="length"), verdicts.OK, ""),
        (measured("", ARITHMETIC, thinking="17 rows of 23 are 391."), verdicts.OK, ""),
    ],
)
def test_what_is_said_comes_before_how_fast(measurement: Measurement, code: str, words: str) -> None:
    found = judge([measured(), measurement], Overall(1.0, WELL), Expectation())
    assert found.code == code
    assert words in found.reason


def test_text_that_is_none_outweighs_all_else() -> None:
    found = judge([measured("x " * 50)], Overall(1.0, IN_VAIN), Expectation(tokens_per_second=82.0))
    assert found.code == verdicts.DEGENERATE


def test_a_server_s_words_do_not_steer_a_terminal() -> None:
    found = judge([measured("\x1b[2J" + "nine " * 40)], Overall(1.0, WELL), Expectation())
    assert "\x1b" not in found.reason


def test_the_speed_is_that_of_all_tokens() -> None:
    slow, fast = measured(tokens=11, first=1.0, last=2.0), measured(tokens=191, first=0.5, last=1.5)
    assert tokens_per_second([slow, fast]) == pytest.approx(100.0)
    unknown = measured(tokens=None)
    assert tokens_per_second([slow, unknown]) == pytest.approx(10.0)
    assert tokens_per_second([unknown]) is None
    assert tokens_per_second([]) is None


def test_every_verdict_has_a_name_of_its_own() -> None:
    assert len(set(verdicts.VERDICTS)) == len(verdicts.VERDICTS)
