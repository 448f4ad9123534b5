# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes are one server's. Trees as SGLang and vLLM make them, whole and broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._engines import LLAMACPP, SGLANG, VLLM
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process
from ansible_collections.gpuops.inference.plugins.module_utils._server_processes import (
    ServerProcesses,
    engines_of,
    resident_steps,
    sort_processes,
    youngest_age,
)
from tests.unit.fake_proc import FakeProc, make_process

PARENT = make_process(100, "python3", "python3 -m sglang.launch_server --port 30000")
OTHER = PARENT._replace(command="python3 -m sglang.launch_server --port=30001")
RANKS = [make_process(101 + rank, "sglang::schedul", f"sglang::scheduler_TP{rank}", parent_pid=100) for rank in (0, 1)]
DETOKENIZER = make_process(110, "sglang::detoken", "sglang::detokenizer", parent_pid=100)
SHELL = make_process(50, "bash", "-bash")


def pids(found: ServerProcesses) -> tuple[list[int], list[int], list[int]]:
    parents, workers, orphans = ([one.pid for one in kind] for kind in (found.parents, found.workers, found.orphans))
    return parents, workers, orphans


def reparented(process: Process, start: int | None = None) -> Process:
    moved = process._replace(parent_pid=1)
    return moved if start is None else moved._replace(start_ticks=start)


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([SHELL, PARENT, *RANKS, DETOKENIZER], ([100], [101, 102, 110], [])),
        # Killed with SIGKILL: the workers live on under pid 1.
        ([SHELL, *map(reparented, (*RANKS, DETOKENIZER))], ([], [], [101, 102, 110])),
        ([SHELL], ([], [], [])),
        # A parent that nobody has reaped serves nobody.
        ([PARENT._replace(state="Z"), RANKS[0]], ([], [], [101])),
        # A worker may leave the tree of a living server, but one that is older is another server's.
        ([PARENT, reparented(RANKS[0])], ([100], [101], [])),
        ([PARENT, RANKS[1], reparented(RANKS[0], start=7)], ([100], [102], [101])),
        # Another server of the same engine is told by its port, and so are its workers.
        ([OTHER, *RANKS], ([], [], [])),
        ([PARENT._replace(command="python3 -m sglang.launch_server"), *RANKS], ([100], [101, 102], [])),
    ],
)
def test_processes_are_sorted_by_what_they_are_to_the_server(
    processes: list[Process], expected: tuple[list[int], list[int], list[int]]
) -> None:
    assert pids(sort_processes(processes, SGLANG, 30000)) == expected


def test_vllm_that_lost_its_api_server_leaves_two_orphans_and_its_tracker_is_none() -> None:
    left = [
        make_process(7, "VLLM::EngineCor", "VLLM::EngineCore"),
        make_process(8, "VLLM::Worker", "VLLM::Worker", parent_pid=7),
        make_process(9, "python", "python -c from multiprocessing.resource_tracker import main"),
    ]
    assert pids(sort_processes(left, VLLM, 8000)) == ([], [], [7, 8])


def test_the_engines_at_home_are_named_and_dead_ones_are_not() -> None:
    llama = make_process(7, "llama-server", "/usr/bin/llama-server -m x")
    assert engines_of([SHELL]) == []
    assert engines_of([PARENT, SHELL]) == [SGLANG]
    assert engines_of([RANKS[0], llama]) == [SGLANG, LLAMACPP]
    assert engines_of([PARENT._replace(state="Z"), llama]) == [LLAMACPP]


def test_a_circle_of_parents_ends() -> None:
    one = make_process(7, "x", "sglang::scheduler", parent_pid=8)
    two = make_process(8, "x", "sglang::scheduler", parent_pid=7)
    assert pids(sort_processes([one, two], SGLANG, 1)) == ([], [], [7, 8])


def test_memory_comes_in_steps_and_is_unknown_where_one_cannot_be_read(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    one = proc.add(7)
    assert resident_steps([one], proc.procfs) is None
    (proc.root / "7" / "statm").write_text("90000 8192 100 1 0 50 0\n")
    assert resident_steps([one], proc.procfs) == 2
    assert resident_steps([], proc.procfs) == 0


def test_the_identity_changes_with_any_process_and_the_age_is_the_youngest() -> None:
    before = sort_processes([PARENT, *RANKS], SGLANG, 30000)
    assert before.identity() == sort_processes([*RANKS, PARENT], SGLANG, 30000).identity()
    again = sort_processes([PARENT._replace(start_ticks=99_999), *RANKS], SGLANG, 30000)
    assert before.identity() != again.identity()
    assert youngest_age([PARENT, RANKS[0]], RANKS[0].start_ticks + 500) == 5.0
    assert youngest_age([PARENT], 0) == 0.0


def test_a_server_on_another_port_is_named_and_is_none_of_ours() -> None:
    found = sort_processes([OTHER, *RANKS], SGLANG, 30000)
    assert (found.elsewhere, found.all) == ((OTHER,), ())
    assert sort_processes([PARENT, OTHER._replace(pid=70)], SGLANG, 30000).elsewhere == (OTHER._replace(pid=70),)
