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
from ansible_collections.gpuops.inference.plugins.module_utils._handle_search import MOST_QUESTIONS, HandleSearch
from ansible_collections.gpuops.inference.plugins.module_utils._kernel_census import Named
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from tests.unit.fake_proc import FakeProc

NULL = Path("/dev/null")

# Threads, by process.
Threads = dict[int, set[int]]


def named(told: Threads, *numbers: DeviceNumber) -> set[Named]:
    """What the kernel says where all these threads have all these devices."""
    return {Named(pid, thread, number) for pid, threads in told.items() for thread in threads for number in numbers}


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

    def search(*told: Optional[Threads], card: Path = NULL, machine_s: bool = True) -> HandleSearch:
        monkeypatch.setattr(ProcFs, "in_host_pid_namespace", lambda self: machine_s)
        number = number_of(card.stat())
        answers = iter([None if threads is None else named(threads, number) for threads in told])
        one = HandleSearch({number}, proc.procfs, ask_kernel=lambda _wanted: next(answers))
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
    assert look(proc, one) == Scan((), 1, "proc")
    # From here on its mappings could be read.
    (proc.root / "100" / "maps").unlink()
    proc.mapping(100, one)
    assert look(proc, one) == Scan((), 1, "proc")
    proc.become(100, "S")
    assert [holder.process.pid for holder in look(proc, one).holders] == [100]


@pytest.mark.usefixtures("soon")
def test_a_process_no_thread_of_which_sleeps_in_the_kernel_is_not_taken_for_one_that_hangs(proc: FakeProc) -> None:
    """The child that asked died of something else, as of a lack of memory."""
    proc.add(100, fds=[NULL])
    hang(proc, 100)
    assert look(proc, proc.card(3)) == Scan((), 1, "proc")
    proc.become(100, "D")
    assert proc.procfs.known_to_hang() == set()


@pytest.mark.usefixtures("soon")
def test_another_process_with_the_number_of_one_that_hung_is_asked(proc: FakeProc) -> None:
    one = proc.card(3)
    proc.add(100, fds=[NULL])
    proc.become(100, "D")
    hang(proc, 100)
    assert look(proc, one) == Scan((), 1, "proc")
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
    node = number_of(uvm.stat())
    told = {Named(100, 100, node), Named(100, 101, device.number)}
    found = find_holders([device], node, proc.procfs, ask_kernel=lambda _wanted: told)
    assert [(holder.evidence_list, holder.compute_context) for holder in found.holders] == [([THREAD_FD], True)]


def test_whom_the_kernel_names_and_who_has_let_go_since_or_ended_is_no_holder(
    proc: FakeProc, kernel: Callable[..., HandleSearch]
) -> None:
    proc.add(100, fds=[proc.card(1)])
    search = kernel({100: {100}, 4242: {4242, 4243}}, {})
    assert (search.found, search.unreadable) == ({}, set())


def test_to_whom_a_card_was_handed_on_is_looked_at(proc: FakeProc, kernel: Callable[..., HandleSearch]) -> None:
    """Each had ended when he was looked at, and his child had it."""
    proc.add(103, fds=[NULL])
    search = kernel({101: {101}}, {102: {102}}, {103: {103}})
    assert (list(search.found), search.unreadable) == ([103], set())


@pytest.mark.parametrize("last", [100, 4242], ids=["lives", "has ended"])
def test_whom_the_kernel_names_again_and_again_though_nothing_is_to_be_seen_is_not_free(
    proc: FakeProc, kernel: Callable[..., HandleSearch], last: int
) -> None:
    """/proc hides mappings from a root that lacks a capability, and fails at handles on some file systems."""
    for pid in (100, 101):
        proc.add(pid, fds=[proc.card(1)])
    proc.add(102, fds=[NULL])
    told = {last: {last}, 102: {102}}
    search = kernel({**told, 101: {101}, 4243: {4243}}, *[told] * (MOST_QUESTIONS - 1))
    assert (list(search.found), search.unreadable, search.by_kernel) == ([102], {last}, True)


def test_who_has_one_device_to_be_seen_and_another_one_not_is_no_known_holder(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process that computes has the node that CUDA opens; the card itself may only be mapped."""
    monkeypatch.setattr(_handle_search, "PROC", str(proc.root))
    card, uvm = proc.card(3), proc.uvm()
    proc.add(100, fds=[uvm])
    device, node = Device(str(card), number_of(card.stat()), 1), number_of(uvm.stat())
    opened, everything = named({100: {100}}, node), named({100: {100}}, node, device.number)
    assert find_holders([device], node, proc.procfs, ask_kernel=lambda _wanted: opened) == Scan((), 0, "kernel")
    assert find_holders([device], node, proc.procfs, ask_kernel=lambda _wanted: everything) == Scan((), 1, "kernel")


def test_what_was_seen_of_one_process_at_any_look_counts(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes from one device to the other, and is never seen with both."""
    monkeypatch.setattr(_handle_search, "PROC", str(proc.root))
    cards = proc.card(3), proc.card(4)
    numbers = [number_of(card.stat()) for card in cards]
    asked: list[object] = []

    def name(_wanted: object) -> set[Named]:
        proc.remove(100)
        proc.add(100, fds=[cards[len(asked) % 2]])
        asked.append(None)
        return named({100: {100}}, *numbers)

    search = HandleSearch(set(numbers), proc.procfs, ask_kernel=name)
    search.look_at_all()
    assert ({handle.number for handle in search.found[100].handles}, search.unreadable) == (set(numbers), set())
    assert len(asked) == 2


def test_where_the_kernel_no_longer_says_everybody_is_looked_at(
    proc: FakeProc, kernel: Callable[..., HandleSearch]
) -> None:
    for pid in (100, 101):
        proc.add(pid, fds=[NULL])
    search = kernel({100: {100}, 4242: {4242}}, None)
    assert (list(search.found), search.unreadable, search.by_kernel) == ([100, 101], set(), False)


@pytest.mark.usefixtures("soon")
def test_who_has_something_open_and_mappings_that_hang_may_have_the_card_mapped(proc: FakeProc) -> None:
    card, uvm = proc.card(3), proc.uvm()
    proc.add(100, fds=[uvm])
    hang(proc, 100)
    device = Device(str(card), number_of(card.stat()), 1)
    assert find_holders([device], number_of(uvm.stat()), proc.procfs) == Scan((), 1, "proc")
    proc.add(101, fds=[uvm, card])
    hang(proc, 101)
    found = find_holders([device], number_of(uvm.stat()), proc.procfs)
    assert ([holder.process.pid for holder in found.holders], found.unreadable) == ([101], 1)


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
    told = named({pid: {pid}}, card.number)
    assert find_holders([card], None, proc.procfs, ask_kernel=lambda _wanted: told) == Scan((), 1, "kernel")


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
