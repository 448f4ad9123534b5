# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a start moves."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._start_progress import (
    Limits,
    Progress,
    line,
    moved,
    sentence,
)


def look(state: str = "starting", **values: Any) -> dict[str, Any]:
    return {
        "state": state,
        "said": "refused the connection",
        "main_pid": 312,
        "shards_loaded": 12,
        "shards_total": 64,
        "memory_used_mib": [14263, 14263],
        "log_position": "file:1:100",
        "log_last_line": "Loading",
        "cause": None,
        "advice": None,
        **values,
    }


def ends(*looks: tuple[float, dict[str, Any]], stall_after: float = 60, limit: float = 600) -> Optional[str]:
    progress = Progress(Limits(stall_after, limit), 0)
    answers = [progress.take(one, now) for now, one in looks]
    assert answers[:-1] == [None] * (len(looks) - 1)
    return answers[-1]


@pytest.mark.parametrize("state", ["ready", "exited"])
def test_a_look_that_knows_the_end_ends_the_wait(state: str) -> None:
    assert ends((0, look()), (5, look(state))) == state
    assert ends((1e9, look(state))) == state


def test_a_start_that_stands_still_has_stalled() -> None:
    assert ends((0, look()), (30, look()), (59, look())) is None
    assert ends((0, look()), (30, look()), (60, look())) == "stalled"


def test_stalled_at_the_last_shard_with_a_silent_log_is_stalled() -> None:
    full = look(shards_loaded=64, memory_used_mib=[76115, 76115])
    assert ends((0, look()), (20, full), (79, full)) is None
    assert ends((0, look()), (20, full), (80, full)) == "stalled"


@pytest.mark.parametrize(
    "change",
    [
        {"log_position": "file:1:101"},
        {"shards_loaded": 13},
        {"memory_used_mib": [14263, 15452]},
        {"memory_used_mib": [14263, 3]},
        {"main_pid": 313},
    ],
)
def test_every_kind_of_movement_keeps_the_wait_alive(change: dict[str, Any]) -> None:
    assert moved(look(), look(**change))
    assert ends((0, look()), (59, look(**change)), (61, look(**change))) is None


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"memory_used_mib": [14263, 14270]},
        {"memory_used_mib": None},
        {"memory_used_mib": [14263, None]},
        {"log_position": None},
        {"shards_loaded": None},
        {"log_last_line": "other words at the same place"},
    ],
)
def test_wavering_and_what_cannot_be_read_is_no_movement(change: dict[str, Any]) -> None:
    assert not moved(look(), look(**change))
    assert not moved(look(**change), look())


def test_a_start_that_moves_for_ever_ends_at_the_limit() -> None:
    steps = [(float(now), look(log_position=f"file:1:{now}")) for now in range(0, 601, 50)]
    assert ends(*steps) == "timeout"


def test_a_line_tells_a_person_what_there_is_to_know() -> None:
    assert line(look(), 35.4, 0) == "35 s, 12 of 64 shards, cards 14263 MiB, log: Loading"
    uneven = look(memory_used_mib=[51, None, 39], shards_total=None, log_last_line=None)
    assert line(uneven, 5, 31) == "5 s, cards 51 ? 39 MiB, nothing has moved for 31 s"
    assert line(look(memory_used_mib=None, shards_total=None, log_last_line=None), 0, 0) == "0 s"


def test_the_end_is_told_in_a_sentence() -> None:
    assert sentence("ready", look("ready"), 214.6, 0) == "The server was ready after 215 s."
    said = sentence("exited", look("exited", said="the unit is failed", cause="port_in_use", advice="End it."), 9, 0)
    assert "ended while it started, after 9 s; 12 of 64 shards" in said
    assert said.endswith("(the unit is failed). Likely cause: port_in_use. End it.")
    assert "for 600 s nothing moved" in sentence("stalled", look(), 700, 600)
    assert "not ready within 3600 s" in sentence("timeout", look(), 3600, 1)
