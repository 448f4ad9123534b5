# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is looked at, how often, and who counts as one that could not be. What is found: test_device_handles.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _every_process, _handle_search, _side_by_side
from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Device, Scan, find_holders
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import (
    THREAD_FD,
    DeviceNumber,
    HandleReader,
    number_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._handle_search import HandleSearch
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from tests.unit.fake_proc import FakeProc

NULL = Path("/dev/null")

# What the kernel says: threads, by process.
Named = Optional[dict[int, set[int]]]


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


@pytest.fixture
def kernel(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> Callable[..., HandleSearch]:
    """A look for a card where the kernel names these threads, by process. It is asked once for each that is given."""
    monkeypatch.setattr(_handle_search, "PROC", str(proc.root))

    def search(*named: Named, card: Path = NULL, machine_s: bool = True) -> HandleSearch:
        monkeypatch.setattr(ProcFs, "in_host_pid_namespace", lambda self: machine_s)
        answers = iter(named)
        one = HandleSearch({number_of(card.stat())}, proc.procfs, ask_kernel=lambda _wanted: next(answers))
        one.look_at_all()
        return one

    return search


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
    assert look(proc, proc.card(3)).unreadable == (2 if machine_s else 3)


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


@pytest.mark.usefixtures("soon")
def test_a_process_that_hangs_is_not_waited_for_again_until_it_goes_on(proc: FakeProc) -> None:
    one = proc.card(3)
    proc.add(100, fds=[NULL])
    proc.become(100, "D")
    hang(proc, 100)
    assert look(proc, one) == Scan((), 1)
    # From here on its mappings could be read.
    (proc.root / "100" / "maps").unlink()
    proc.mapping(100, one)
    assert look(proc, one) == Scan((), 1)
    proc.become(100, "S")
    assert [holder.process.pid for holder in look(proc, one).holders] == [100]


@pytest.mark.usefixtures("soon")
def test_a_process_no_thread_of_which_sleeps_in_the_kernel_is_not_taken_for_one_that_hangs(proc: FakeProc) -> None:
    """The child that asked died of something else, as of a lack of memory."""
    proc.add(100, fds=[NULL])
    hang(proc, 100)
    assert look(proc, proc.card(3)) == Scan((), 1)
    proc.become(100, "D")
    assert proc.procfs.known_to_hang() == set()


@pytest.mark.usefixtures("soon")
def test_another_process_with_the_number_of_one_that_hung_is_asked(proc: FakeProc) -> None:
    one = proc.card(3)
    proc.add(100, fds=[NULL])
    proc.become(100, "D")
    hang(proc, 100)
    assert look(proc, one) == Scan((), 1)
    proc.remove(100)
    proc.add(100, start=77, state="D", fds=[one])
    assert [holder.evidence for holder in look(proc, one).holders] == [{"fd"}]


def test_only_whom_the_kernel_names_is_looked_at(proc: FakeProc, kernel: Callable[..., HandleSearch]) -> None:
    for pid in (100, 101):
        proc.add(pid, fds=[NULL])
    assert list(kernel({101: {101}}).found) == [101]


def test_a_handle_of_a_thread_alone_is_looked_for_where_the_kernel_names_the_thread(
    proc: FakeProc, kernel: Callable[..., HandleSearch]
) -> None:
    proc.add(100, threads=3, fds=[proc.card(1)])
    for thread in (101, 102):
        proc.thread(100, thread, fds=[NULL])
    search = kernel({100: {102}})
    assert [handle.evidence for handle in search.found[100].handles] == [THREAD_FD]
    assert not kernel({100: {100}}, {}).found


def test_a_handle_of_a_thread_counts_beside_those_of_its_process(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has the node that CUDA opens beside the card, one thread the card itself."""
    monkeypatch.setattr(_handle_search, "PROC", str(proc.root))
    card, uvm = proc.card(3), proc.uvm()
    proc.add(100, threads=2, fds=[uvm])
    proc.thread(100, 101, fds=[card])
    device = Device(str(card), number_of(card.stat()), 1)
    named = {100: {100, 101}}
    found = find_holders([device], number_of(uvm.stat()), proc.procfs, ask_kernel=lambda _wanted: named)
    assert [(holder.evidence_list, holder.compute_context) for holder in found.holders] == [([THREAD_FD], True)]


def test_whom_the_kernel_names_and_who_has_let_go_since_or_ended_is_no_holder(
    proc: FakeProc, kernel: Callable[..., HandleSearch]
) -> None:
    proc.add(100, fds=[proc.card(1)])
    search = kernel({100: {100}, 4242: {4242, 4243}}, {})
    assert (search.found, search.unreadable) == ({}, set())
    # Of those who have ended, nobody has to be asked.
    assert kernel({4242: {4242}}).unreadable == set()


@pytest.mark.parametrize("again", [{100: {100}}, {100: {100}, 101: {101}, 4242: {4242}}, None])
def test_whom_the_kernel_names_again_though_nothing_is_to_be_seen_is_not_free(
    proc: FakeProc, kernel: Callable[..., HandleSearch], again: Named
) -> None:
    """/proc hides mappings from a root that lacks a capability, and fails at handles on some file systems."""
    for pid in (100, 101):
        proc.add(pid, fds=[proc.card(1)])
    proc.add(102, fds=[NULL])
    search = kernel({100: {100}, 102: {102}, 4242: {4242}}, again)
    assert (list(search.found), search.unreadable) == ([102], {100})


def test_who_let_go_and_took_hold_anew_is_found_at_the_second_look(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As who only watches does, each second."""
    monkeypatch.setattr(_handle_search, "PROC", str(proc.root))
    proc.add(100, threads=2, fds=[proc.card(1)])

    def name(_wanted: object) -> dict[int, set[int]]:
        named.append({100: {101}} if named else {100: {100}})
        if len(named) == 2:
            proc.thread(100, 101, fds=[NULL])
        return named[-1]

    named: list[dict[int, set[int]]] = []
    search = HandleSearch({number_of(NULL.stat())}, proc.procfs, ask_kernel=name)
    search.look_at_all()
    assert (list(search.found), search.unreadable, len(named)) == ([100], set(), 2)


@pytest.mark.parametrize("pid", [1, 100])
def test_whom_the_kernel_names_and_who_may_not_be_looked_into_counts_whoever_it_is(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    def closed(*_arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(_handle_search, "PROC", str(proc.root))
    monkeypatch.setattr(HandleReader, "handles", closed)
    for one in (1, 100):
        proc.add(one)
    card = Device("card", DeviceNumber("char", 195, 3), 1)
    assert find_holders([card], None, proc.procfs, ask_kernel=lambda _wanted: {pid: {pid}}) == Scan((), 1, True)


def test_where_the_kernel_says_nothing_and_where_it_counts_otherwise_everybody_is_asked(
    proc: FakeProc, kernel: Callable[..., HandleSearch]
) -> None:
    for pid in (100, 101):
        proc.add(pid, fds=[NULL])
    assert list(kernel(None).found) == [100, 101]
    assert list(kernel({7: {7}}, machine_s=False).found) == [100, 101]


@pytest.mark.usefixtures("soon")
def test_beside_a_process_that_hangs_the_kernel_is_not_asked(
    proc: FakeProc, kernel: Callable[..., HandleSearch]
) -> None:
    """It would hang at the same place, for as long as it is waited for."""
    for pid in (100, 101):
        proc.add(pid, fds=[NULL])
    proc.become(100, "D")
    hang(proc, 100)
    assert set(kernel(None).found) == {100, 101}
    assert set(kernel({}).found) == {100, 101}
    proc.become(100, "S")
    assert not kernel({}).found
