# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every engine's own counts in one measure: tokens a step, the one without a draft included."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._speculation import (
    OFF,
    ON,
    UNKNOWN,
    VLLM_ACCEPTED,
    VLLM_DRAFT_TOKENS,
    VLLM_DRAFTS,
    VLLM_GENERATED,
    Speculation,
    configured,
    of_llamacpp,
    of_sglang,
    of_vllm,
    together,
)

Expected = tuple[str, Optional[float], Optional[float]]


def seen(found: Speculation) -> Expected:
    length, rate = found.accept_length, found.accept_rate
    return found.state, None if length is None else round(length, 3), None if rate is None else round(rate, 3)


@pytest.mark.parametrize(
    ("meta", "tokens", "expected"),
    [
        # With all counts they decide: 93 steps that yielded 93 + 163 tokens.
        (
            {
                "spec_accept_length": 2.75,
                "spec_accept_rate": 0.58,
                "spec_verify_ct": 93,
                "spec_num_correct_drafts": 163,
                "spec_num_proposed_drafts": 279,
            },
            256,
            (ON, 2.753, 0.584),
        ),
        ({"spec_accept_length": 2.65, "spec_accept_rate": 0.55, "spec_verify_ct": 97}, 256, (ON, 2.65, 0.55)),
        # Only the number of steps, as in the first versions.
        ({"spec_verify_ct": 100}, 256, (ON, 2.56, None)),
        # EAGLE in place of EAGLE3: the token of the prefill makes it a little more than 1.
        ({"spec_accept_length": 1.004, "spec_accept_rate": 0.0, "spec_verify_ct": 255}, 256, (ON, 1.004, 0.0)),
        # Zeros are what stands there before any step, not an accept length.
        ({"spec_accept_length": 0.0, "spec_accept_rate": 0.0, "spec_verify_ct": 0}, 1, (UNKNOWN, None, None)),
        # A definition without the token that needs no draft would be below 1: not believed.
        ({"spec_accept_length": 0.9, "spec_verify_ct": 100}, 190, (UNKNOWN, None, None)),
        ({"spec_accept_length": 3.0}, 300, (ON, 3.0, None)),
        ({"spec_accept_length": float("nan"), "spec_verify_ct": True}, 9, (UNKNOWN, None, None)),
        ({"spec_accept_length": 10**400, "spec_verify_ct": float("inf")}, 9, (UNKNOWN, None, None)),
        ({"spec_accept_length": "2.6", "spec_verify_ct": None}, 256, (UNKNOWN, None, None)),
        ({"spec_accept_length": 2.6, "spec_accept_rate": 17, "spec_verify_ct": 98}, 256, (ON, 2.6, None)),
        ({"id": "x", "completion_tokens": 256}, 256, (OFF, None, None)),
    ],
)
def test_sglang(meta: dict[str, Any], tokens: Optional[int], expected: Expected) -> None:
    assert seen(of_sglang(meta, tokens)) == expected


def counters(drafts: float, proposed: float, accepted: float) -> dict[str, float]:
    return {VLLM_DRAFTS: drafts, VLLM_DRAFT_TOKENS: proposed, VLLM_ACCEPTED: accepted, VLLM_GENERATED: 900.0}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # As a real vLLM 0.32 counted: 19 drafts, 54 tokens, 39 accepted.
        (counters(0, 0, 0), counters(19, 54, 39), (ON, 3.053, 0.722)),
        (counters(100, 300, 200), counters(110, 330, 200), (ON, 1.0, 0.0)),
        # Nothing was drafted meanwhile: that says nothing, and least of all 0.
        (counters(19, 54, 39), counters(19, 54, 39), (UNKNOWN, None, None)),
        # Another server than before.
        (counters(19, 54, 39), counters(3, 9, 2), (UNKNOWN, None, None)),
        (counters(0, 0, 0), counters(5, 9, 12), (UNKNOWN, None, None)),
        (counters(-1e308, 0, 0), counters(1e308, 1e308, 1e308), (UNKNOWN, None, None)),
        ({}, {VLLM_GENERATED: 12.0}, (OFF, None, None)),
        ({}, {"something_else": 1.0}, (UNKNOWN, None, None)),
    ],
)
def test_vllm(before: dict[str, float], after: dict[str, float], expected: Expected) -> None:
    assert seen(of_vllm(before, after)) == expected


@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        ({"predicted_n": 100, "draft_n": 80, "draft_n_accepted": 60}, (ON, 2.5, 0.75)),
        ({"predicted_n": 100, "draft_n": 80, "draft_n_accepted": 0}, (ON, 1.0, 0.0)),
        ({"predicted_n": 100, "predicted_per_second": 40.0}, (OFF, None, None)),
        ({"predicted_n": 100, "draft_n": 80, "draft_n_accepted": 100}, (UNKNOWN, None, None)),
        ({"predicted_n": 100, "draft_n": 80, "draft_n_accepted": None}, (UNKNOWN, None, None)),
        ({"predicted_n": -1, "draft_n": 1, "draft_n_accepted": 1}, (UNKNOWN, None, None)),
        ({}, (UNKNOWN, None, None)),
    ],
)
def test_llamacpp(timings: dict[str, Any], expected: Expected) -> None:
    assert seen(of_llamacpp(timings)) == expected


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # Over all steps: 100 of 1 token and 10 of 4, not the mean of 1 and 4.
        ([Speculation(ON, 100, 100, 300, 0), Speculation(ON, 10, 40, 30, 30)], (ON, 1.273, 0.091)),
        ([Speculation(ON, 100, 200, rate=0.3), Speculation(ON, 100, 300, rate=0.5)], (ON, 2.5, 0.4)),
        ([Speculation(ON, 90, 180, rate=0.3), Speculation(ON, 10, 30, rate=0.5)], (ON, 2.1, 0.32)),
        # One short answer without a step does not hide the others.
        ([Speculation(ON, 100, 250), Speculation(UNKNOWN)], (ON, 2.5, None)),
        ([Speculation(ON, 100, 250), Speculation(OFF)], (ON, 2.5, None)),
        ([Speculation(OFF), Speculation(OFF)], (OFF, None, None)),
        ([Speculation(OFF), Speculation(UNKNOWN)], (UNKNOWN, None, None)),
        ([], (UNKNOWN, None, None)),
    ],
)
def test_all_requests_together(parts: list[Speculation], expected: Expected) -> None:
    assert seen(together(parts)) == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {
                "speculative_algorithm": "EAGLE3",
                "speculative_num_steps": 3,
                "speculative_eagle_topk": 1,
                "speculative_num_draft_tokens": 4,
                "api_key": "sk-made-up",
            },
            {"algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4},
        ),
        (
            {"speculative_algorithm": None},
            {"algorithm": None, "steps": None, "topk": None, "draft_tokens": None},
        ),
        ({"status": "ready"}, None),
        ([], None),
        (None, None),
    ],
)
def test_what_sglang_says_of_its_configuration(document: Any, expected: Optional[dict[str, Any]]) -> None:
    assert configured(document) == expected
