# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has given files or sockets open or mapped: every process of the machine is asked, whatever it is called.

A file is known by its device and inode, never by a path: another mount namespace shows it under another one, and an
unlinked one has none.
"""

from __future__ import annotations

import os
import socket
from typing import Collection, NamedTuple

from ansible_collections.gpuops.inference.plugins.module_utils._errors import refusing_shortage
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import DeviceNumber
from ansible_collections.gpuops.inference.plugins.module_utils._handle_search import HandleSearch
from ansible_collections.gpuops.inference.plugins.module_utils._mapped_files import file_at
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process, ProcFs


class FileId(NamedTuple):
    """What makes two open handles the same file: ``st_dev`` and ``st_ino``."""

    device: int
    inode: int


class Holders(NamedTuple):
    """Who holds what, by file and by the inode of a socket. Of the pids in ``unreadable`` not everything is known."""

    files: dict[FileId, list[Process]]
    sockets: dict[int, list[Process]]
    unreadable: tuple[int, ...]


def find_holders(files: Collection[FileId], sockets: Collection[int], procfs: ProcFs) -> Holders:
    """Look into every process. Without anything to look for nobody is asked. Raises MachineError."""
    holders = Holders({file: [] for file in files}, {inode: [] for inode in sockets}, ())
    if not files and not sockets:
        return holders
    lists = {_number(file): holders.files[file] for file in files}
    if sockets:
        device = _device_of_sockets()
        lists.update((_number(FileId(device, inode)), holders.sockets[inode]) for inode in sockets)
    search = HandleSearch(lists.keys(), procfs, {file_at(*file): _number(file) for file in files})
    search.look_at_all()
    for _pid, held in sorted(search.found.items()):
        for number in {handle.number for handle in held.handles}:
            lists[number].append(held.process)
    return holders._replace(unreadable=tuple(sorted(search.unreadable | search.unmapped)))


def _number(file: FileId) -> DeviceNumber:
    return DeviceNumber("inode", file.device, file.inode)


def _device_of_sockets() -> int:
    """The device of the file system in which the kernel keeps all sockets."""
    with refusing_shortage("No socket can be had"), socket.socket(socket.AF_UNIX) as one:
        return os.fstat(one.fileno()).st_dev
