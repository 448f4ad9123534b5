# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a device, as the kernel says it: what its program tells, and when that is believed.

The program is run here by a machine that the tests have of their own. The kernel's runs it in test_every_holder.py.
"""

from __future__ import annotations

import os
import platform
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils import _bpf, _kernel_census
from ansible_collections.gpuops.inference.plugins.module_utils._btf import UnknownTypesError
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import DeviceNumber
from ansible_collections.gpuops.inference.plugins.module_utils._kernel_census import (
    Layout,
    Named,
    Table,
    census,
    layout_of,
    program,
)
from tests.unit.bpf_machine import Machine
from tests.unit.kernel_types import FUNCTION, described, one, structure

FILES, MAPPINGS = Table(7, 24, False), Table(8, 16, True)
LAYOUT = Layout((FILES, MAPPINGS), 48, 40, mapped_file=16, inode=32, mode=0, device=76, inode_number=64)
CARD, OTHER = DeviceNumber("char", 195, 3), DeviceNumber("block", 195, 3)

_BPF = "ansible_collections.gpuops.inference.plugins.module_utils._bpf"


class Open(NamedTuple):
    """An open or mapped file: the task, the mode, number (as the kernel has it) and inode of the file."""

    pid: int
    thread: int
    mode: int = stat.S_IFCHR | 0o666
    device: int = 195 << 20 | 3
    inode: int = 400

    def record(self) -> bytes:
        return struct.pack("<IIIIQ", *self)


def told(table: Table, wanted: Iterable[DeviceNumber], inode: Optional[int], entry: Optional[Open]) -> bytes:
    """What the program says of one entry, None: of a mapping without a file, or of the last call."""
    places = {"context": 0, "meta": 64, "task": 128, "mapping": 256, "file": 384, "inode": 512}
    memory = bytearray(1024)

    def put(place: int, layout: str, value: int) -> None:
        struct.pack_into(layout, memory, place, value)

    def point(place: int, to: str) -> None:
        put(place, "<Q", Machine.BASE + places[to])

    point(places["context"], "meta")
    point(places["context"] + 8, "task")
    put(places["meta"], "<Q", 0x5E9)
    point(places["context"] + table.place, "mapping" if table.mapping else "file")
    if entry is not None:
        put(places["task"] + LAYOUT.process, "<I", entry.pid)
        put(places["task"] + LAYOUT.thread, "<I", entry.thread)
        point(places["mapping"] + LAYOUT.mapped_file, "file")
        point(places["file"] + LAYOUT.inode, "inode")
        put(places["inode"] + LAYOUT.mode, "<H", entry.mode)
        put(places["inode"] + LAYOUT.device, "<I", entry.device)
        put(places["inode"] + LAYOUT.inode_number, "<Q", entry.inode)
    elif not table.mapping:
        put(places["context"] + 8, "<Q", 0)
    machine = Machine(bytes(memory))
    assert machine.run(program(LAYOUT, table, frozenset(wanted), inode), Machine.BASE + places["context"]) == 0
    return machine.said


minors = st.integers(0, 0xFFFFF)
numbers = st.builds(DeviceNumber, st.just("char"), st.integers(1, 0xFFF), minors)


@given(
    table=st.sampled_from([FILES, MAPPINGS]),
    wanted=st.frozensets(numbers, max_size=20),
    inode=st.integers(1, 2**64 - 1),
    entry=st.builds(
        Open,
        *[st.integers(1, 2**22)] * 2,
        mode=st.integers(0, 0xFFFF),
        device=st.integers(0, 2**32 - 1),
        inode=st.integers(1, 2**64 - 1),
    ),
    which=st.sampled_from(["as it is", "a device that is wanted", "the inode"]),
)
def test_the_program_tells_of_what_is_wanted_and_of_nothing_else(
    table: Table, wanted: frozenset[DeviceNumber], inode: int, entry: Open, which: str
) -> None:
    known = {number.major << 20 | number.minor for number in wanted}
    if which == "the inode":
        entry = entry._replace(inode=inode)
    elif which == "a device that is wanted" and known:
        entry = entry._replace(device=max(known))
    expected = entry.record() if entry.device in known or entry.inode == inode else b""
    assert told(table, wanted, inode, entry) == expected


def test_without_an_inode_the_program_tells_of_devices_alone() -> None:
    assert told(FILES, {CARD}, None, Open(50, 51)) == Open(50, 51).record()
    assert told(FILES, {CARD}, None, Open(50, 51, device=0, inode=0)) == b""


@pytest.mark.parametrize("table", [FILES, MAPPINGS])
def test_of_an_entry_without_a_file_the_program_tells_nothing(table: Table) -> None:
    assert told(table, {CARD}, 400, None) == b""


Kernel = Callable[[bytes, int], bytes]


def witness(table: int) -> Open:
    """What a true kernel says of the process that asks, beside all others. As /proc has it."""
    me = os.getpid()
    if table == FILES.number:
        handles = [os.path.realpath(f"/proc/self/fd/{handle}") for handle in os.listdir("/proc/self/fd")]
        assert "/dev/full" in handles
        return Open(me, me, device=1 << 20 | 7, inode=9)
    lines = Path("/proc/self/maps").read_text().splitlines()
    own = next(int(line.split()[4]) for line in lines if line.endswith("/dev/zero (deleted)"))
    return Open(me, me, stat.S_IFREG, 0, own)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kernel], None]:
    """Puts another kernel in the place of ours."""
    monkeypatch.setattr(_kernel_census, "_layout", lambda: LAYOUT)
    monkeypatch.setattr(_kernel_census, "STALL_SECONDS", 0.7)

    return lambda iterate: monkeypatch.setattr(_bpf, "iterate", iterate)


def true_kernel(*others: Open, mapped: Iterable[Open] = ()) -> Kernel:
    def iterate(_code: bytes, table: int) -> bytes:
        told_of = others if table == FILES.number else mapped
        return b"".join(one.record() for one in (witness(table), *told_of))

    return iterate


def test_threads_are_told_by_process_whether_they_have_it_open_or_mapped(
    kernel: Callable[[Kernel], None],
) -> None:
    kernel(true_kernel(Open(50, 50), Open(50, 51), mapped=[Open(50, 50), Open(60, 60)]))
    assert census({CARD}) == {Named(50, 50, CARD), Named(50, 51, CARD), Named(60, 60, CARD)}


def test_handles_are_asked_for_before_mappings(kernel: Callable[[Kernel], None]) -> None:
    """Who maps a card and closes it meanwhile would escape both looks otherwise."""
    asked: list[int] = []

    def iterate(code: bytes, table: int) -> bytes:
        has = FILES.number if not asked else MAPPINGS.number
        asked.append(table)
        others = [Open(50, 50)] if table == has else []
        return true_kernel(*others, mapped=others)(code, table)

    kernel(iterate)
    assert census({CARD}) == {Named(50, 50, CARD)}


def test_what_the_asking_child_has_inherited_is_its_parent_s(kernel: Callable[[Kernel], None]) -> None:
    def iterate(code: bytes, table: int) -> bytes:
        return true_kernel(Open(os.getpid(), os.getpid()), Open(50, 50))(code, table)

    kernel(iterate)
    assert census({CARD}) == {Named(50, 50, CARD)}


def test_a_device_of_the_other_kind_with_the_same_number_is_not_meant(kernel: Callable[[Kernel], None]) -> None:
    kernel(true_kernel(Open(50, 50), Open(70, 70, stat.S_IFBLK)))
    assert census({OTHER}) == {Named(70, 70, OTHER)}
    assert census({CARD, OTHER}) == {Named(50, 50, CARD), Named(70, 70, OTHER)}


def test_nobody_is_an_answer(kernel: Callable[[Kernel], None]) -> None:
    kernel(true_kernel())
    assert census({CARD}) == set()


def raising(error: Exception) -> Kernel:
    def iterate(_code: bytes, _table: int) -> bytes:
        raise error

    return iterate


def hang(_code: bytes, table: int) -> bytes:
    if table == MAPPINGS.number:
        signal.pause()
    return true_kernel(Open(50, 50))(b"", table)


def changed(table: Table, **wrong: int) -> Kernel:
    """In this table it tells something else of the process that asks."""

    def iterate(_code: bytes, number: int) -> bytes:
        own = witness(number)
        if number == table.number:
            own = own._replace(**wrong)
        return own.record() + Open(50, 50).record()

    return iterate


def numbered_otherwise(_code: bytes, table: int) -> bytes:
    """As in a pid namespace of our own, where it goes on to use the machine's numbers."""
    own = witness(table)
    return own._replace(pid=own.pid + 1).record() + Open(50, 50).record()


@pytest.mark.parametrize(
    "other",
    [
        raising(PermissionError()),
        raising(OSError("no bpf() is known for this machine")),
        raising(AttributeError("undefined symbol: syscall")),
        hang,
        changed(FILES, device=1 << 20 | 8),
        changed(FILES, pid=4242),
        changed(MAPPINGS, inode=4242),
        changed(MAPPINGS, pid=4242),
        numbered_otherwise,
        lambda _code, _table: b"",
        lambda code, table: true_kernel()(code, table)[:-1],
    ],
    ids=[
        *["not allowed", "another machine", "another C library", "hangs"],
        *["misses a device", "misses our device", "misses a mapping", "misses our mapping"],
        *["other numbers", "says nothing", "half a record"],
    ],
)
def test_who_does_not_name_those_that_are_known_is_not_believed(
    kernel: Callable[[Kernel], None], other: Kernel
) -> None:
    kernel(other)
    assert census({CARD}) is None


def test_where_no_child_may_be_started_it_is_not_asked(
    kernel: Callable[[Kernel], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could end us where it hangs."""

    def no_more_processes() -> int:
        raise BlockingIOError

    kernel(raising(AssertionError("asked")))
    monkeypatch.setattr(os, "fork", no_more_processes)
    assert census({CARD}) is None


def test_plain_files_are_not_asked_for(kernel: Callable[[Kernel], None]) -> None:
    kernel(raising(AssertionError("asked")))
    assert census({CARD, DeviceNumber("inode", 64769, 12)}) is None


@pytest.mark.parametrize("error", [FileNotFoundError(), MemoryError(), UnknownTypesError("no task_struct")])
def test_a_kernel_that_does_not_describe_itself_is_not_asked(
    kernel: Callable[[Kernel], None], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> None:
        raise error

    kernel(raising(AssertionError("asked")))
    monkeypatch.setattr(_kernel_census, "_layout", fail)
    assert census({CARD}) is None


# Where the members lie in a kernel like those of 2025, in bits.
STRUCTURES = {
    "task_struct": {"pid": 320, "tgid": 384},
    "vm_area_struct": {"vm_file": 128},
    "file": {"f_inode": 256},
    "inode": {"i_mode": 0, "i_ino": 512, "i_rdev": 608},
    "bpf_iter_seq_task_vma_info": {"task": 192, "mm": 256, "vma": 320},
}


def description(structures: dict[str, dict[str, int]]) -> bytes:
    """What a kernel with these structures says of itself."""
    functions = [one(text, FUNCTION) for text in ("bpf_iter_task_file", "bpf_iter_task_vma")]
    return described(*functions, *(structure(text, members) for text, members in structures.items()))


def test_the_layout_is_read_from_the_kernel_s_types() -> None:
    tables = (FILES._replace(number=1), MAPPINGS._replace(number=2))
    assert layout_of(description(STRUCTURES)) == LAYOUT._replace(tables=tables)


def test_a_kernel_that_could_fall_over_its_own_walk_is_not_asked() -> None:
    """Before Linux 6.1.8 the walk did not keep the memory of the process it was at: it has no such member."""
    walk = {"task": 192, "vma": 256}
    with pytest.raises(UnknownTypesError, match=r"bpf_iter_seq_task_vma_info\.mm: 0 answers"):
        layout_of(description({**STRUCTURES, "bpf_iter_seq_task_vma_info": walk}))


@pytest.mark.parametrize("missing", sorted(STRUCTURES))
def test_a_kernel_without_one_of_the_structures_is_not_asked(missing: str) -> None:
    with pytest.raises(UnknownTypesError):
        layout_of(description({text: members for text, members in STRUCTURES.items() if text != missing}))


def test_a_python_without_ctypes_does_not_ask(
    kernel: Callable[[Kernel], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel(true_kernel())
    monkeypatch.setitem(sys.modules, _BPF, None)
    assert census({CARD}) is None


@pytest.mark.parametrize("machine", ["riscv64", ""])
def test_on_another_machine_there_is_no_such_call(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(OSError, match="no bpf"):
        _bpf.iterate(b"", 1)
