# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the kernel shows what a process holds: its handles, its threads' handles, its mappings.

A machine has some hundred thousand handles, and for each the kernel takes longer than all that Python does with it. So
nothing is looked at twice, and no value is built for a handle before it is known to be wanted.
"""

from __future__ import annotations

import os
import stat
from typing import AbstractSet, Collection, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from ansible_collections.gpuops.inference.plugins.module_utils._errors import SHORTAGES
from ansible_collections.gpuops.inference.plugins.module_utils._mapped_files import File, MappedFiles
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import PROC, ProcFs, says_gone

# The kinds of evidence that /proc gives; part of what the modules return.
FD = "fd"
THREAD_FD = "thread_fd"
MAPPING = "mapping"

# Handles are numbered from 0. To try the numbers saves listing a table, a quarter of all work, unless it has many holes
# or is long.
_NUMBERS = tuple(b"%d" % number for number in range(1024))
_MOST_HOLES = 8
# So many are tried before the holes are counted.
_SOME = 16


class DeviceNumber(NamedTuple):
    """What makes two open handles the same thing: the number of a device, or device and inode of anything else."""

    kind: str
    major: int
    minor: int


class Handle(NamedTuple):
    """What a process holds, and by which evidence that is known."""

    evidence: str
    number: DeviceNumber


def number_of(status: os.stat_result) -> DeviceNumber:
    """The identity behind a handle."""
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        kind = "char" if stat.S_ISCHR(status.st_mode) else "block"
        return DeviceNumber(kind, os.major(status.st_rdev), os.minor(status.st_rdev))
    return DeviceNumber("inode", status.st_dev, status.st_ino)


class HandleReader:
    """Finds the ``wanted`` things among what processes hold. It remembers what is mapped: use one for one look only.

    ``nodes``: the numbers of files that are known. They are all that an ordinary user can recognise among mappings.
    """

    def __init__(
        self,
        wanted: AbstractSet[DeviceNumber],
        procfs: ProcFs,
        nodes: Optional[Mapping[File, DeviceNumber]] = None,
    ) -> None:
        self._wanted = wanted
        self._procfs = procfs
        self._devices = {os.makedev(one.major, one.minor) for one in wanted if one.kind != "inode"}
        self._inodes = {one.minor for one in wanted if one.kind == "inode"}
        self._mapped: dict[File, Optional[DeviceNumber]] = dict(nodes or {})
        self._files = MappedFiles()

    def handles(self, pid: int) -> Iterator[Handle]:
        """The wanted things that ``pid`` holds. Raises OSError where it cannot be looked into, or not any further.

        Handles come first: they can be read while a thread of the process has its memory locked and sleeps in the
        driver. Whoever then reads its mappings sleeps, too.
        """
        held, dead = self._open(pid)
        yield from held
        # Only a process has map_files. /proc/TID is one, too, though it is not listed.
        for task in (pid, *(self._threads(pid) if dead else ())):
            for number in self._mappings(task):
                yield Handle(MAPPING, number)

    def open_handles(self, pid: int) -> list[Handle]:
        """Those that are no mappings. Raises OSError where it cannot be looked into."""
        return self._open(pid)[0]

    def handles_of_threads(self, pid: int, threads: Collection[int]) -> list[Handle]:
        """Those in the tables of these threads of ``pid``. Raises OSError where one cannot be looked into."""
        tables = [self._table(self._procfs.path(pid, "task", thread, "fd")) for thread in threads]
        return [Handle(THREAD_FD, number) for numbers in tables for number in numbers or ()]

    def _open(self, pid: int) -> tuple[list[Handle], bool]:
        """What is wanted among all handles of ``pid``, and whether its threads had to be asked.

        A leader that has exited has an empty table (to its own user a closed one) and no mappings. Its living threads
        show them all.
        """
        try:
            table, denied = self._table(self._procfs.path(pid, "fd")), None
        except OSError as exc:
            table, denied = None, exc
        if table is not None:
            return [Handle(FD, number) for number in table], False
        threads = self._threads(pid)
        if denied is not None and not threads:
            raise denied
        return self.handles_of_threads(pid, threads), True

    def _threads(self, pid: int) -> list[int]:
        """The threads of ``pid`` but for the leader; none when it is gone."""
        try:
            tasks = os.listdir(self._procfs.path(pid, "task"))
        except OSError as exc:
            if not says_gone(exc):
                raise
            return []
        return [int(task) for task in tasks if int(task) != pid]

    def _table(self, directory: str) -> Optional[list[DeviceNumber]]:
        """What is wanted in one table of handles; None where it is empty or gone. Raises OSError."""
        try:
            table = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            if not says_gone(exc):
                raise
            return None
        try:
            # Since Linux 6.2 the size is the number of handles; before, and in an empty table, it is 0.
            size = os.fstat(table).st_size
            held: list[DeviceNumber] = []
            seen = tried = 0
            while seen < size and tried - seen <= _MOST_HOLES and tried < len(_NUMBERS):
                some = _NUMBERS[tried : tried + min(size - seen, _SOME)]
                seen += self._look(table, some, held)
                tried += len(some)
            # What follows is listed in any case: a handle that was opened meanwhile, in a hole that was still to come,
            # stands for the last one in the count. The kernel's offset of a handle is its number and 2.
            if self._procfs.root == PROC:
                os.lseek(table, tried + 2, os.SEEK_SET)
            seen += self._look(table, [name for name in os.listdir(table) if int(name) >= tried], held)
        except OSError as exc:
            if not says_gone(exc):
                raise
            return None
        finally:
            os.close(table)
        return held if seen else None

    def _look(self, table: int, names: Sequence[Union[str, bytes]], held: list[DeviceNumber]) -> int:
        """Add to ``held`` what is wanted among these handles of an open table. Returns how many of them there are.

        Raises OSError where the process cannot be looked into.
        """
        missing = 0
        look, devices, inodes = os.stat, self._devices, self._inodes
        for name in names:
            try:
                status = look(name, dir_fd=table)
            except FileNotFoundError:
                missing += 1
                continue
            except PermissionError:
                require_readable(os.fsdecode(name), table)
                continue
            except OSError as exc:
                if exc.errno in SHORTAGES:
                    raise
                # A file system that does not answer; the nodes of devices lie on none of those.
                continue
            if status.st_rdev in devices or status.st_ino in inodes:
                number = number_of(status)
                if number in self._wanted:
                    held.append(number)
        return len(names) - missing

    def _mappings(self, pid: int) -> Iterator[DeviceNumber]:
        """What is wanted among the mapped files of ``pid``. Raises OSError where they cannot be read."""
        for span, file in self._files.of(self._procfs.path(pid, "maps")):
            try:
                number = self._number_behind(pid, span, file)
            except OSError as exc:
                if exc.errno in SHORTAGES:
                    raise
                # This process has let go of it. The next one may not have.
                continue
            if number is not None and number in self._wanted:
                yield number
            else:
                self._files.leave_out(file)

    def _number_behind(self, pid: int, span: str, file: File) -> Optional[DeviceNumber]:
        """What the mapping of ``file`` at ``span`` is, None where nobody may know. Raises OSError when it has gone."""
        if file not in self._mapped:
            try:
                self._mapped[file] = number_of(os.stat(self._procfs.path(pid, "map_files", span)))
            except PermissionError:
                # Only root may follow it.
                self._mapped[file] = None
        return self._mapped[file]


def require_readable(name: str, table: Optional[int] = None) -> None:
    """Raise PermissionError where a handle that may not be looked at means that the process may not.

    Some file systems (FUSE, above all from within a container) hide their files even from root. They hold no devices
    and no segments, and the link to the file can be read.
    """
    try:
        os.readlink(name, dir_fd=table)
    except PermissionError:
        raise
    except OSError:
        return
