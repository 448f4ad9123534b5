# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What moves while a server works, from pages as the engines print them and from strange ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES, LLAMACPP, OPENAI, SGLANG, VLLM
from ansible_collections.gpuops.inference.plugins.module_utils._server_counters import Reading, moved, read_counters
from tests.unit.garbage import ANY_TEXT, CELLS, hostile

SGLANG_METRICS = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="kimi \\"k2\\" }",tp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="kimi"} 2.0
sglang:realtime_tokens_total{mode="prefill"} 4096.0
sglang:realtime_tokens_total{mode="decode"} 100.0
sglang:spec_accept_length{model_name="kimi"} NaN
"""
VLLM_METRICS = """\
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 81.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.2e+03 1764547200000
"""


def loads(*ranks: dict[str, Any]) -> dict[str, Any]:
    return {"timestamp": "2026-12-01T22:20:41", "version": "0.5.6", "loads": list(ranks)}


def test_metrics_are_read_with_their_labels_summed_up() -> None:
    sglang = read_counters(SGLANG, None, SGLANG_METRICS)
    assert (sglang.running, sglang.waiting, sglang.metrics["sglang:realtime_tokens_total"]) == (3, 2, 4196)
    vllm = read_counters(VLLM, None, VLLM_METRICS)
    assert (vllm.running, vllm.waiting, vllm.metrics["vllm:generation_tokens_total"]) == (1, 0, 1200)
    assert "sglang:spec_accept_length" not in sglang.metrics


def test_ranks_are_added_up_and_come_before_the_metrics() -> None:
    ranks = ({"dp_rank": rank, "num_running_reqs": 2, "num_waiting_reqs": 1, "timestamp": 7.5} for rank in range(2))
    reading = read_counters(SGLANG, loads(*ranks), SGLANG_METRICS)
    assert (reading.running, reading.waiting, reading.version) == (4, 2, "0.5.6")
    assert reading.heartbeat == "[7.5, 7.5]"


def test_the_time_of_the_http_server_is_no_heartbeat() -> None:
    assert read_counters(SGLANG, loads({"dp_rank": 0}), None).heartbeat is None


@pytest.mark.parametrize(
    ("field", "moves"),
    [
        ("num_used_tokens", True),
        ("gen_throughput", True),
        # These go up by asking, also of a scheduler that never works on it.
        ("num_waiting_reqs", False),
        ("num_running_reqs", False),
        ("timestamp", False),
    ],
)
def test_only_what_moves_with_work_is_a_counter(field: str, moves: bool) -> None:
    rank = {"num_used_tokens": 1, "gen_throughput": 0.0, "num_waiting_reqs": 0, "num_running_reqs": 1, "timestamp": 1}
    before = read_counters(SGLANG, loads(rank), None)
    after = read_counters(SGLANG, loads({**rank, field: 2}), None)
    assert moved([before.counters, after.counters]) is moves


def test_slots_of_llamacpp_move_with_what_is_decoded() -> None:
    slot = {"id": 0, "is_processing": True, "prompt": "x", "next_token": {"n_decoded": 12}}
    before = read_counters(LLAMACPP, [slot], None)
    after = read_counters(LLAMACPP, [{**slot, "prompt": "y", "next_token": {"n_decoded": 13}}], None)
    assert moved([before.counters, after.counters]) is True
    assert moved([before.counters, before.counters]) is False


def test_nothing_to_read_is_nothing_known() -> None:
    for engine in ENGINES.values():
        assert read_counters(engine, None, None) == Reading()
        assert read_counters(engine, {"detail": "Not Found"}, "<html>") == Reading()
    assert read_counters(OPENAI, [{"n": 1}], None).running is None
    assert moved([None, "a"]) is None
    assert moved([]) is None


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT, st.sampled_from(CELLS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["loads", "timestamp", "version", "num_running_reqs", "x"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@given(JSON, hostile([SGLANG_METRICS, VLLM_METRICS]))
def test_whatever_the_pages_hold_is_read_or_left(document: Any, metrics: str) -> None:
    for engine in ENGINES.values():
        reading = read_counters(engine, document, metrics)
        for count in (reading.running, reading.waiting):
            assert count is None or not math.isnan(count)
        read_counters(engine, {"loads": document}, metrics)
