# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever a server answers: no error but a verdict, numbers that can be, and a result that can be shown."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils import _speculation
from ansible_collections.gpuops.inference.plugins.module_utils._canary_prompts import ARITHMETIC
from ansible_collections.gpuops.inference.plugins.module_utils._canary_verdict import (
    VERDICTS,
    Expectation,
    Measurement,
    Overall,
    judge,
    tokens_per_second,
)
from ansible_collections.gpuops.inference.plugins.module_utils._chat import Reply, error_text, read_answer, read_stream
from ansible_collections.gpuops.inference.plugins.module_utils._http import Line
from ansible_collections.gpuops.inference.plugins.module_utils._prometheus import sums
from tests.unit.garbage import ANY_TEXT, hostile

SPEC = {
    "spec_accept_length": 2.6,
    "spec_accept_rate": 0.53,
    "spec_verify_ct": 98,
    "spec_num_correct_drafts": 158,
    "spec_num_proposed_drafts": 294,
}
TIMINGS = {"predicted_n": 256, "draft_n": 200, "draft_n_accepted": 150}
EVENTS = (
    {"choices": [{"delta": {"role": "assistant", "content": "The keeper", "reasoning_content": None}}]},
    {"choices": [{"delta": {"content": " climbed 391 steps"}, "finish_reason": None}], "usage": {}},
    {"choices": [{"delta": {}, "finish_reason": "stop", "meta_info": SPEC}]},
    {
        "choices": [],
        "usage": {"completion_tokens": 256},
        "sglext": {"spec_tokens_details": SPEC},
        "timings": TIMINGS,
    },
)
STREAM = "\n".join(f"data: {json.dumps(event)}\n" for event in EVENTS) + "data: [DONE]\n"
METRICS = (
    "# TYPE vllm:spec_decode_num_drafts_total counter\n"
    'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 19.0\n'
    'vllm:spec_decode_num_draft_tokens_total{engine="0"} 54.0\n'
    'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 39\n'
    "vllm:generation_tokens_total 512\n"
)

# What JSON can hold, numbers that no count can be among them.
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT, st.sampled_from([10**400, -1, 2**63, 1e308, 1e-308])
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3))


@st.composite
def mangled(draw: st.DrawFn, document: Any) -> Any:
    """The document with something else in one of its places."""
    if draw(st.integers(0, 3)) == 0 or not document:
        return draw(VALUES)
    if isinstance(document, dict):
        name = draw(st.sampled_from(sorted(document)))
        return {**document, name: draw(mangled(document[name]))}
    if isinstance(document, (list, tuple)):
        place = draw(st.integers(0, len(document) - 1))
        return [draw(mangled(one)) if number == place else one for number, one in enumerate(document)]
    return draw(VALUES)


def can_be(found: _speculation.Speculation) -> None:
    """No accept length below 1, no share beyond 1, nothing that is no number."""
    length, rate = found.accept_length, found.accept_rate
    assert length is None or (math.isfinite(length) and length >= 1)
    assert rate is None or 0 <= rate <= 1
    assert length is None or found.state == _speculation.ON


def is_judged(reply: Reply) -> None:
    """Numbers that can be, and a verdict that can be shown."""
    assert reply.tokens is None or reply.tokens >= 0
    found = _speculation.together(
        (_speculation.of_sglang(reply.details or {}, reply.tokens), _speculation.of_llamacpp(reply.timings or {}))
    )
    can_be(found)
    one = Measurement(1, ARITHMETIC, reply, 1.0, found)
    overall = Overall(tokens_per_second([one]), found, _speculation.configured(reply.details))
    expected = Expectation(82.0, 2.4, {"algorithm": "EAGLE3"}, 0.1)
    verdict = judge([one], overall, expected)
    assert verdict.code in VERDICTS
    assert verdict.reason.isprintable()


@given(hostile([STREAM]))
def test_any_stream_is_a_reply(text: str) -> None:
    is_judged(read_stream(Line(line, 0.1 * number) for number, line in enumerate(text.split("\n"))))


@given(mangled(list(EVENTS)))
def test_any_events_are_a_reply(events: Any) -> None:
    lines = [Line(f"data: {json.dumps(event)}", 0.1) for event in (events if isinstance(events, list) else [events])]
    is_judged(read_stream(lines))


@given(mangled({"choices": [{"message": {"content": "391"}, "meta_info": SPEC}], "usage": {"completion_tokens": 5}}))
def test_any_document_is_a_reply(document: Any) -> None:
    is_judged(read_answer(document))


@given(mangled(SPEC), st.none() | st.integers(0, 2**31))
def test_any_account_of_sglang_can_be(meta: Any, tokens: Any) -> None:
    if isinstance(meta, dict):
        can_be(_speculation.of_sglang(meta, tokens))


@given(mangled(TIMINGS))
def test_any_timings_of_llamacpp_can_be(timings: Any) -> None:
    if isinstance(timings, dict):
        can_be(_speculation.of_llamacpp(timings))


@given(hostile([METRICS]), hostile([METRICS]))
def test_any_metrics_can_be(before: str, after: str) -> None:
    readings = sums(before), sums(after)
    assert all(math.isfinite(value) for reading in readings for value in reading.values())
    can_be(_speculation.of_vllm(*readings))


@given(VALUES)
def test_any_configuration_is_none_or_has_all_its_fields(document: Any) -> None:
    found = _speculation.configured(document)
    assert found is None or set(found) == {"algorithm", "steps", "topk", "draft_tokens"}


@given(st.binary(max_size=300))
def test_any_refusal_can_be_quoted(body: bytes) -> None:
    assert error_text(body).isprintable()
