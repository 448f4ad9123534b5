# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has given files or sockets open or mapped: every process of the machine is asked, whatever it is called.

A file is known by its device and inode, never by a path: another mount namespace shows it under another one, and an
unlinked one has none.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Collection, Iterator, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._every_process import ask_all
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import require_readable
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process, ProcFs, Stat, says_gone

# No number is longer than the kernel's own are.
_MAPPING = re.compile(rb"[0-9a-f]+-[0-9a-f]+ \S{4} [0-9a-f]+ ([0-9a-f]{2,5}):([0-9a-f]{2,5}) ([0-9]{1,20})(?:\s|$)")


class FileId(NamedTuple):
    """What makes two open handles the same file: ``st_dev`` and ``st_ino``."""

    device: int
    inode: int


class Holders(NamedTuple):
    """Who holds what, by file and by the inode of a socket. The pids in ``unreadable`` could not be looked into."""

    files: dict[FileId, list[Process]]
    sockets: dict[int, list[Process]]
    unreadable: tuple[int, ...]


class _Found(NamedTuple):
    files: set[FileId]
    sockets: set[int]


def find_holders(files: Collection[FileId], sockets: Collection[int], procfs: ProcFs) -> Holders:
    """Look into every process. Without anything to look for nobody is asked.

    One at which the kernel never answers is unreadable.
    """
    holders = Holders({file: [] for file in files}, {inode: [] for inode in sockets}, ())

    def look(pid: int) -> Optional[tuple[int, list[FileId], list[int]]]:
        seen = procfs.stat(pid)
        if seen is None and os.path.exists(procfs.path(pid)):
            # Mounted with hidepid=1, /proc lists it and shows no more.
            raise PermissionError(procfs.path(pid))
        if seen is None or seen.kernel_thread:
            return None
        found = _look(seen, files, sockets, procfs)
        return (seen.start_ticks, sorted(found.files), sorted(found.sockets)) if any(found) else None

    asked = ask_all(procfs.pids() if files or sockets else (), look)
    for pid, (start_ticks, its_files, its_sockets) in sorted(asked.answers.items()):
        process = procfs.process(pid)
        if process is None or process.start_ticks != start_ticks:
            continue
        for file in its_files:
            holders.files[FileId(*file)].append(process)
        for inode in its_sockets:
            holders.sockets[inode].append(process)
    return holders._replace(unreadable=tuple(sorted(asked.unreadable)))


def _look(seen: Stat, files: Collection[FileId], sockets: Collection[int], procfs: ProcFs) -> _Found:
    """What one process holds of that. Raises OSError where it cannot be looked into."""
    found = _Found(set(), set())
    for directory in _tables(seen, procfs):
        for path in _entries(os.path.join(directory, "fd")):
            try:
                status = os.stat(path)
            except PermissionError:
                require_readable(path)
                continue
            except OSError as exc:
                if exc.errno == errno.ENOMEM:
                    raise
                continue
            if stat.S_ISSOCK(status.st_mode):
                if status.st_ino in sockets:
                    found.sockets.add(status.st_ino)
            elif (status.st_dev, status.st_ino) in files:
                found.files.add(FileId(status.st_dev, status.st_ino))
        if files:
            found.files.update(file for file in _mapped(os.path.join(directory, "maps")) if file in files)
    return found


def _tables(seen: Stat, procfs: ProcFs) -> Iterator[str]:
    """Where its handles and mappings are shown. A leader that has exited shows none, its living threads do."""
    yield procfs.path(seen.pid)
    if seen.state == "Z" and seen.threads > 1:
        yield from _entries(procfs.path(seen.pid, "task"))


def _entries(directory: str) -> list[str]:
    """Empty where it is gone. Raises OSError where it cannot be listed otherwise."""
    try:
        return [os.path.join(directory, name) for name in os.listdir(directory)]
    except OSError as exc:
        if not says_gone(exc):
            raise
        return []


def _mapped(path: str) -> Iterator[FileId]:
    """The files of a table of mappings. Raises OSError where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            text = stream.read()
    except OSError as exc:
        if not says_gone(exc):
            raise
        return
    # Not splitlines: a file's name may hold what that takes for an end of the line, and so forge the next.
    for line in text.split(b"\n"):
        file = parse_mapping(line)
        if file is not None:
            yield file


def parse_mapping(line: bytes) -> Optional[FileId]:
    """The file of one line of /proc/PID/maps: start-end perms offset major:minor inode [path], proc_pid_maps(5)."""
    found = _MAPPING.match(line)
    if found is None or found[3] == b"0":
        return None
    return FileId(os.makedev(int(found[1], 16), int(found[2], 16)), int(found[3]))
