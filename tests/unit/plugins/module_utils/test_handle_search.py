# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is looked at, how often, and who counts as one that could not be. What is found: test_device_handles.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _every_process, _side_by_side
from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Device, Scan, find_holders
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import (
    DeviceNumber,
    HandleReader,
    number_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._handle_search import HandleSearch
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from tests.unit.fake_proc import FakeProc

NULL = Path("/dev/null")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who never answers is not waited for as long as usual."""
    monkeypatch.setattr(_side_by_side, "STALL_SECONDS", 0.7)
    monkeypatch.setattr(_every_process, "ONE_SECONDS", 0.5)


def look(proc: FakeProc, *nodes: Path) -> Scan:
    return find_holders([Device(str(node), number_of(node.stat()), 1) for node in nodes], None, proc.procfs)


def hang(proc: FakeProc, pid: int) -> None:
    """Whoever reads its mappings sleeps, as if its memory were locked by a thread that sleeps in the driver."""
    (proc.root / str(pid) / "maps").unlink(missing_ok=True)
    os.mkfifo(proc.root / str(pid) / "maps")


@pytest.mark.parametrize("machine_s", [True, False], ids=["on the machine", "in a container"])
def test_only_the_machine_s_own_init_does_not_count_when_it_may_not_be_looked_into(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch, machine_s: bool
) -> None:
    """In a container the first process can be the server itself."""

    def closed(*_arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(HandleReader, "handles", closed)
    monkeypatch.setattr(ProcFs, "in_host_pid_namespace", lambda self: machine_s)
    for pid in (1, 2, 3):
        proc.add(pid)
    search = HandleSearch({DeviceNumber("char", 195, 3)}, proc.procfs)
    search.look_at_all()
    assert search.unreadable == ({2, 3} if machine_s else {1, 2, 3})


@pytest.mark.usefixtures("soon")
def test_a_holder_at_whose_mappings_the_kernel_never_answers_is_named_by_its_handle(proc: FakeProc) -> None:
    one = proc.card(3)
    for pid in range(100, 148):
        proc.add(pid, fds=[one])
    hang(proc, 120)
    found = look(proc, one)
    assert [holder.process.pid for holder in found.holders] == list(range(100, 148))
    assert found.unreadable == 0


@pytest.mark.usefixtures("soon")
def test_one_at_whom_the_kernel_never_answers_hides_no_neighbour(proc: FakeProc) -> None:
    """Neighbours by number are likely to be workers of the same server."""
    one = proc.card(3)
    for pid in range(100, 148):
        proc.add(pid, fds=[NULL])
        proc.mapping(pid, one)
    for pid in (120, 121):
        hang(proc, pid)
    found = look(proc, one)
    assert [holder.process.pid for holder in found.holders] == [*range(100, 120), *range(122, 148)]
    assert found.unreadable == 2
