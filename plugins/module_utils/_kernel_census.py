# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the kernel in one go who has a device open or mapped, where it lets itself be asked that.

Below /proc each handle of each process has to be asked for by itself. Here a program in the kernel walks over all its
tables, and says only who has what is wanted: a tenth of the work, and a thread with handles of its own is seen as well.
It is believed only after it has named this very process, which for the while holds something of either kind.

Before Linux 6.1.8 the walk over the mappings of a process that ends meanwhile could bring the kernel down, and whom we
look at is often about to end. Such a kernel is not asked; it is told by its types.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import stat
import struct
from typing import AbstractSet, Callable, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._bpf_program import R1, R2, R6, R7, R8, Program
from ansible_collections.gpuops.inference.plugins.module_utils._btf import KernelTypes, UnknownTypesError
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import DeviceNumber, number_of
from ansible_collections.gpuops.inference.plugins.module_utils._mapped_files import MappedFiles
from ansible_collections.gpuops.inference.plugins.module_utils._side_by_side import side_by_side

_TYPES = "/sys/kernel/btf/vmlinux"

# It takes a tenth of a second. Whoever has its memory locked for ever holds up the walk over all mappings.
STALL_SECONDS = 2.0

# A device that does nothing, and that hardly anyone has open.
_WITNESS = "/dev/full"

# What is said of one handle or mapping: process, thread, mode, device number, inode. 24 bytes.
_RECORD = struct.Struct("<IIIIQ")


class Named(NamedTuple):
    """A thread that has a device open or mapped, as the machine itself numbers it."""

    pid: int
    thread: int
    number: DeviceNumber


# What ``census`` is.
Census = Callable[[AbstractSet[DeviceNumber]], Optional[set[Named]]]


class Table(NamedTuple):
    """One of the kernel's tables: the number of its type, where an entry has its file, and whether it is a mapping."""

    number: int
    place: int
    mapping: bool


class Layout(NamedTuple):
    """Both tables of this kernel, and the offsets of what is read of an entry, in bytes."""

    tables: tuple[Table, Table]
    process: int
    thread: int
    mapped_file: int
    inode: int
    mode: int
    device: int
    inode_number: int


def census(wanted: AbstractSet[DeviceNumber]) -> Optional[set[Named]]:
    """Which threads have which of these devices open or mapped.

    None where the kernel does not say (older than Linux 6.1.8, or we are not root), does not answer in time, or is not
    to be believed; and for plain files. Then each process has to be asked.
    """
    if any(number.kind == "inode" for number in wanted):
        return None
    try:
        layout = _layout()
    except (OSError, MemoryError, UnknownTypesError):
        return None

    parent = os.getpid()

    def ask(_job: int) -> str:
        # We do not do it ourselves: where it hangs, nobody could end us.
        return json.dumps(_ask(layout, wanted) if os.getpid() != parent else None)

    (answer,) = side_by_side(ask, 1, stall=STALL_SECONDS)
    told = json.loads(answer) if answer is not None else None
    return None if told is None else {Named(pid, thread, DeviceNumber(*number)) for pid, thread, number in told}


@functools.lru_cache(maxsize=1)
def _layout() -> Layout:
    """Raises OSError or UnknownTypesError where this kernel does not describe itself."""
    with open(_TYPES, "rb") as stream:
        return layout_of(stream.read())


def layout_of(description: bytes) -> Layout:
    """What a kernel's description of its types says. Raises UnknownTypesError, also where it must not be asked."""
    files, mappings, walk = "bpf_iter_task_file", "bpf_iter_task_vma", "bpf_iter_seq_task_vma_info"
    types = KernelTypes(description, (files, mappings, walk, "task_struct", "vm_area_struct", "file", "inode"))
    # Only a walk that keeps the memory of the process it is at survives the end of that process. It does since the
    # kernel's commit 7ff94f276f8e, which distributions took over under older numbers.
    types.offset(walk, "mm")
    return Layout(
        # The places are those in struct bpf_iter__task_file and bpf_iter__task_vma.
        tables=(Table(types.function(files), 24, False), Table(types.function(mappings), 16, True)),
        process=types.offset("task_struct", "tgid"),
        thread=types.offset("task_struct", "pid"),
        mapped_file=types.offset("vm_area_struct", "vm_file"),
        inode=types.offset("file", "f_inode"),
        mode=types.offset("inode", "i_mode"),
        device=types.offset("inode", "i_rdev"),
        inode_number=types.offset("inode", "i_ino"),
    )


def program(layout: Layout, table: Table, wanted: AbstractSet[DeviceNumber], inode: Optional[int] = None) -> bytes:
    """Code that tells of each entry whose file has the number of one of these devices, or this ``inode``."""
    code = Program()
    code.copy(R6, R1)
    # When the walk is over, the kernel calls once more, without a task.
    code.load(R7, R6, 8)
    code.jump_if_null(R7, "done")
    code.load(R8, R6, table.place)
    code.jump_if_null(R8, "done")
    if table.mapping:
        # Not all mappings are of a file.
        code.load(R8, R8, layout.mapped_file)
        code.jump_if_null(R8, "done")
    code.load(R8, R8, layout.inode)
    code.load(R1, R8, layout.device, 4)
    for number in sorted({_kernel_s(one) for one in wanted}):
        code.jump_if(R1, number, "tell")
    if inode is not None:
        code.load(R1, R8, layout.inode_number)
        code.set(R2, inode)
        code.jump_if_same(R1, R2, "tell")
    code.jump("done")
    code.label("tell")
    for source, offset, size, place in (
        (R7, layout.process, 4, -24),
        (R7, layout.thread, 4, -20),
        (R8, layout.mode, 2, -16),
        (R8, layout.device, 4, -12),
        (R8, layout.inode_number, 8, -8),
    ):
        code.load(R1, source, offset, size)
        code.store(place, R1, max(size, 4))
    # The file that is read, by way of what is the same for all tables.
    code.load(R1, R6, 0)
    code.load(R1, R1, 0)
    code.write_out(R1, -24)
    code.label("done")
    code.end()
    return code.code()


def _ask(layout: Layout, wanted: AbstractSet[DeviceNumber]) -> Optional[list[Named]]:
    """Everyone but us who has one of these, in either table; None where that is not to be known.

    Handles come first: who opens, maps and closes a device meanwhile is seen by the one or the other.
    """
    files, mappings = layout.tables
    try:
        opened = _opened(layout, files, wanted)
        mapped = _mapped(layout, mappings, wanted) if opened is not None else None
    # Also what an unusual Python or C library lacks.
    except (ImportError, AttributeError, BufferError, OSError, struct.error):
        return None
    if opened is None or mapped is None:
        return None
    # What we have open is our parent's.
    named = {entry.named for entry in (*opened, *mapped)}
    return sorted(one for one in named if one.number in wanted and one.pid != os.getpid())


def _opened(layout: Layout, table: Table, wanted: AbstractSet[DeviceNumber]) -> Optional[list[_Entry]]:
    """What the kernel tells of open files; None where it does not tell of ours."""
    with open(_WITNESS, "rb", buffering=0) as device:
        mine = number_of(os.fstat(device.fileno()))
        entries = _told(program(layout, table, {*wanted, mine}), table)
    seen = any(entry.named.pid == os.getpid() and entry.named.number == mine for entry in entries)
    return entries if seen else None


def _mapped(layout: Layout, table: Table, wanted: AbstractSet[DeviceNumber]) -> Optional[list[_Entry]]:
    """What the kernel tells of mapped files; None where it does not tell of ours."""
    # Shared memory without a name is a mapped file like any other, and can be had everywhere.
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        inode = _inode_of(memory)
        entries = _told(program(layout, table, wanted, inode), table)
    seen = any(entry.named.pid == os.getpid() and entry.inode == inode for entry in entries)
    return entries if seen else None


def _inode_of(memory: mmap.mmap) -> int:
    """That of the file without a name behind shared memory. Raises OSError where it is not to be known."""
    import ctypes

    begins = "%x-" % ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for span, file in MappedFiles().of("/proc/self/maps"):
        if span.startswith(begins):
            return file.inode
    raise FileNotFoundError("our own mapping is not listed")


def _told(code: bytes, table: Table) -> list[_Entry]:
    """All entries of the table of which the program tells. Raises OSError, struct.error, and ImportError."""
    # Only here: a Python may lack what it needs.
    from ansible_collections.gpuops.inference.plugins.module_utils._bpf import iterate

    return [_entry(*record) for record in _RECORD.iter_unpack(iterate(code, table.number))]


class _Entry(NamedTuple):
    """What the program tells of one handle or mapping."""

    named: Named
    inode: int


def _entry(pid: int, thread: int, mode: int, device: int, inode: int) -> _Entry:
    kind = "char" if stat.S_ISCHR(mode) else "block" if stat.S_ISBLK(mode) else "inode"
    return _Entry(Named(pid, thread, DeviceNumber(kind, device >> 20, device & 0xFFFFF)), inode)


def _kernel_s(number: DeviceNumber) -> int:
    """A device number as the kernel has it: 12 bits and 20 bits (MKDEV of include/linux/kdev_t.h)."""
    return number.major << 20 | number.minor
