# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files a process has mapped, but for those that are known to be of no interest.

Since Linux 6.11 the kernel can be asked for one mapping after another. Before, /proc/PID/maps has to be read as text,
for which the kernel writes out the path of every library in every process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from typing import NamedTuple

from ansible_collections.gpuops.inference.plugins.module_utils._procfs import says_gone

# PROCMAP_QUERY of include/uapi/linux/fs.h. The query has 13 words of 8 bytes; these are their places.
_PROCMAP_QUERY = 0xC0686611
_WORDS = 13
_SIZE, _FLAGS, _ADDRESS, _START, _END, _INODE, _DEVICE = 0, 1, 2, 3, 4, 8, 9
_NEXT_WITH_A_FILE = 0x10 | 0x20

# What is remembered of other processes: some MiB.
_MOST_REMEMBERED = 20_000

# start-end perms offset dev inode, proc(5)
_LINE = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([0-9]+)(?: |$)")


class File(NamedTuple):
    """A file as the kernel knows it: its inode, and the device of its file system."""

    inode: int
    device: int


class Mapping(NamedTuple):
    """One mapping of a file. ``span`` is its name in /proc/PID/map_files."""

    span: str
    file: File


def file_at(device: int, inode: int) -> File:
    """The file with this ``st_dev`` and ``st_ino``, for comparison with a mapping's."""
    return _file(os.major(device), os.minor(device), inode)


def _file(major: int, minor: int, inode: int) -> File:
    return File(inode, major | minor << 32)


class MappedFiles:
    """Reads mappings, process after process. Libraries are mapped by everyone: who calls tells which to leave out."""

    def __init__(self) -> None:
        self._boring: set[tuple[int, int]] = set()
        self._boring_lines: set[bytes] = set()

    def leave_out(self, file: File) -> None:
        """Never name ``file`` again."""
        if len(self._boring) > _MOST_REMEMBERED:
            self._boring.clear()
        self._boring.add(file)

    def of(self, path: str) -> list[Mapping]:
        """The mappings in ``path``, a /proc/PID/maps; none when the process has gone. Raises OSError otherwise."""
        try:
            maps = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            if not says_gone(exc):
                raise
            return []
        try:
            return self._asked(maps)
        except OSError:
            return self._read(maps)
        finally:
            os.close(maps)

    def _asked(self, maps: int) -> list[Mapping]:
        """Raises OSError where the kernel does not answer this question."""
        found = []
        ask, boring, inode, device, address, end = fcntl.ioctl, self._boring, _INODE, _DEVICE, _ADDRESS, _END
        query = bytearray(8 * _WORDS)
        words = memoryview(query).cast("Q")
        words[_SIZE] = len(query)
        words[_FLAGS] = _NEXT_WITH_A_FILE
        try:
            while True:
                ask(maps, _PROCMAP_QUERY, query)
                if (words[inode], words[device]) not in boring:
                    file = File(words[inode], words[device])
                    found.append(Mapping(f"{words[_START]:x}-{words[end]:x}", file))
                words[address] = words[end]
        except OSError as exc:
            # There is no further one, or the process has gone.
            if exc.errno not in (errno.ENOENT, errno.ESRCH):
                raise
        return found

    def _read(self, maps: int) -> list[Mapping]:
        found = []
        boring = self._boring_lines
        if len(boring) > _MOST_REMEMBERED:
            boring.clear()
        # Only the newline ends a line: a file's name may hold what else is taken for an end, and so forge the next.
        # What follows the addresses is the same in every process that has a library mapped.
        for line in [line for line in _text(maps).split(b"\n") if line.partition(b" ")[2] not in boring]:
            fields = _LINE.match(line)
            if fields is None:
                continue
            start, end, major, minor = (int(field, 16) for field in fields.groups()[:4])
            file = _file(major, minor, int(fields[5]))
            if file.inode == 0 or file in self._boring:
                boring.add(line.partition(b" ")[2])
            else:
                found.append(Mapping(f"{start:x}-{end:x}", file))
        return found


def _text(maps: int) -> bytes:
    """All of it, or what there was until the process had gone. The kernel gives a page at a time."""
    parts = []
    try:
        while part := os.read(maps, 32768):
            parts.append(part)
    except OSError as exc:
        if not says_gone(exc):
            raise
        return b""
    return b"".join(parts)
