"""The canary on a real engine that speculates by n-grams: its accept length is what the engine's own counters say."""

from __future__ import annotations

import pytest

from tests.real_engine.conftest import Ask
from tests.real_engine.counting_proxy import counting
from tests.real_engine.server import ACCEPTED, DRAFTS, Server, accept_length

pytestmark = pytest.mark.real_engine

# `long_input` has more tokens than the tiny model takes.
PROMPTS = ["prose", "code", "arithmetic"]


def test_the_accept_length_is_that_of_the_counters_over_the_same_requests(ask: Ask, server: Server) -> None:
    with counting(server) as (url, readings):
        # Random weights make no sane text, so only what was measured counts here.
        found = ask("inference_canary", url=url, prompts=PROMPTS, requests=3, max_tokens=128, fail_on_verdict=False)
    readings.append(server.metrics())
    assert (found["engine"], found["model"], found["accept_source"]) == ("vllm", "tiny", "counters"), found
    assert [one["prompt"] for one in found["requests"]] == PROMPTS
    _warm_up, *measured, end = readings
    assert len(measured) == len(PROMPTS)
    spans = list(zip(measured, [*measured[1:], end]))
    counted = [accept_length(*span) for span in spans]
    drafts = [after[DRAFTS] - before[DRAFTS] for before, after in spans]
    accepted = [after[ACCEPTED] - before[ACCEPTED] for before, after in spans]
    print(f"counters: {drafts} drafts, {accepted} accepted, accept lengths {counted}, of all")
    print(f"{accept_length(measured[0], end)}; canary: {[one['accept_length'] for one in found['requests']]}, of all")
    print(f"{found['accept_length']} at {found['tokens_per_second']} tokens/s: {found['verdict']}, {found['reason']}")
    assert found["speculation"] == "on"
    assert found["accept_length"] == round(accept_length(measured[0], end), 3)
    assert [one["accept_length"] for one in found["requests"]] == [round(one, 3) for one in counted]
    assert found["accept_length"] > 1
