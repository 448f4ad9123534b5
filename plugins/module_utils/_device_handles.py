# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a device, and by which evidence: found by device number, not by path or inode.

A container that made its own node with mknod has another inode under another mount; ``fuser`` and ``lsof`` on the
machine find nothing then. The number (``st_rdev``) is the same for every node of a device. A path that is no device is
matched by its inode, as fuser does.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process, ProcFs

# The kinds of evidence, best first; part of what the modules return.
DRIVER = "driver"
FD = "fd"
THREAD_FD = "thread_fd"
MAPPING = "mapping"
_EVIDENCE_ORDER = (DRIVER, FD, THREAD_FD, MAPPING)

# A CUDA context opens this node beside the card; whoever only watches through NVML does not.
COMPUTE_NODE = "nvidia-uvm"

_SPAN = re.compile(r"^[0-9a-f]+-[0-9a-f]+$")


class DeviceNumber(NamedTuple):
    """What makes two open handles the same thing: the number of a device, or device and inode of anything else."""

    kind: str
    major: int
    minor: int


class Device(NamedTuple):
    """A node to look for. ``gpu`` is the index of the card behind it, None where that is not known."""

    path: str
    number: DeviceNumber
    gpu: Optional[int] = None


@dataclass
class Holder:
    """A process that holds at least one of the devices. ``compute_context``: it also holds the node that CUDA opens."""

    process: Process
    gpus: set[int] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    evidence: set[str] = field(default_factory=set)
    compute_context: bool = False

    @property
    def evidence_list(self) -> list[str]:
        """The kinds of evidence, best first."""
        return [kind for kind in _EVIDENCE_ORDER if kind in self.evidence]


class Scan(NamedTuple):
    """Everyone who holds one of the devices; ``unreadable`` processes could not be looked into (run as root)."""

    holders: tuple[Holder, ...]
    unreadable: int


def number_of(status: os.stat_result) -> DeviceNumber:
    """The identity behind a handle."""
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        kind = "char" if stat.S_ISCHR(status.st_mode) else "block"
        return DeviceNumber(kind, os.major(status.st_rdev), os.minor(status.st_rdev))
    return DeviceNumber("inode", status.st_dev, status.st_ino)


def card_device(directory: str, minor: int, gpu: Optional[int], label: object = None) -> Device:
    """The node of a card: ``nvidia`` and its minor, which is not its index. Raises InputError when it is not there.

    ``label`` names the card in the message; a card that is lost may have no index.
    """
    path = os.path.join(directory, f"nvidia{minor}")
    try:
        return Device(path, number_of(os.stat(path)), gpu)
    except OSError as exc:
        raise InputError(
            f"GPU {gpu if label is None else label} should be {path}, but that cannot be read: {exc.strerror}. "
            "Correct device_directory, or name the devices.",
            reason="no_device_nodes",
        ) from exc


def card_devices(directory: str, cards: Iterable[tuple[int, Optional[int]]]) -> list[Device]:
    """The nodes of cards (minor, index), of those that have one here."""
    found = []
    for minor, gpu in cards:
        with contextlib.suppress(InputError):
            found.append(card_device(directory, minor, gpu))
    return found


def named_devices(patterns: Sequence[str], cards: Iterable[Device]) -> list[Device]:
    """The nodes behind paths and globs, each with its card where one of ``cards`` has the same number.

    Raises InputError for a path or glob that names nothing, or something that is no NVIDIA node: everyone holds
    /dev/null.
    """
    if not patterns:
        raise InputError("devices is an empty list. Name device nodes, or leave it out.", reason="no_device_nodes")
    gpus = {card.number: card.gpu for card in cards}
    found: dict[str, Device] = {}
    for pattern in patterns:
        paths = sorted(glob.glob(pattern))
        if not paths:
            raise InputError(f"devices: {pattern!r} names no file. Correct the path.", reason="no_device_nodes")
        for path in paths:
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                continue
            if not os.path.basename(path).startswith("nvidia"):
                raise InputError(
                    f"devices: {pattern!r} names {path}, which is no NVIDIA device node. Whoever holds it would be "
                    "ended: name the cards' nodes only, such as /dev/nvidia0.",
                    reason="no_device_nodes",
                )
            found[path] = Device(path, number_of(status), gpus.get(number_of(status)))
    if not found:
        raise InputError("devices names only directories. Name device nodes.", reason="no_device_nodes")
    return list(found.values())


def compute_node(directory: str) -> Optional[DeviceNumber]:
    """The number of the node that CUDA opens beside the cards; None where the machine has none."""
    try:
        return number_of(os.stat(os.path.join(directory, COMPUTE_NODE)))
    except OSError:
        return None


def find_holders(devices: Sequence[Device], compute: Optional[DeviceNumber], procfs: ProcFs) -> Scan:
    """Look into every process: its handles, its threads' handles where it shows none itself, and its mappings."""
    wanted: dict[DeviceNumber, list[Device]] = {}
    for device in devices:
        wanted.setdefault(device.number, []).append(device)
    mapped = _Mappings(procfs)
    holders: list[Holder] = []
    unreadable = 0

    def look(pid: int) -> list[tuple[str, DeviceNumber]]:
        """Its handles and mappings; none where it holds nothing that is wanted. Raises PermissionError."""
        handles = [*_handles(pid, procfs), *((MAPPING, number) for number in mapped.numbers(pid))]
        return handles if any(number in wanted for _kind, number in handles) else []

    for pid in procfs.pids() if wanted else ():
        try:
            process = procfs.process(pid) if look(pid) else None
            # Only now is it known whose handles they are: the pid may have been given to another process meanwhile.
            handles = look(pid) if process is not None else []
        except PermissionError:
            unreadable += 1
            continue
        if not handles or process is None or procfs.look_again(process) is None:
            continue
        holder = Holder(process, compute_context=any(number == compute for _kind, number in handles))
        for kind, number in handles:
            for device in wanted.get(number, ()):
                holder.devices.add(device.path)
                holder.evidence.add(kind)
                if device.gpu is not None:
                    holder.gpus.add(device.gpu)
        holders.append(holder)
    return Scan(tuple(holders), unreadable)


def _handles(pid: int, procfs: ProcFs) -> Iterator[tuple[str, DeviceNumber]]:
    """Handles of a process. The leader's table is empty once it has exited; its living threads still show theirs."""
    numbers = list(_numbers_in(procfs.path(pid, "fd")))
    if numbers:
        yield from ((FD, number) for number in numbers)
        return
    task_directory = procfs.path(pid, "task")
    try:
        tasks = os.listdir(task_directory)
    except OSError:
        return
    for task in tasks:
        if task != str(pid):
            yield from ((THREAD_FD, number) for number in _numbers_in(os.path.join(task_directory, task, "fd")))


def _numbers_in(directory: str) -> Iterator[DeviceNumber]:
    """Raises PermissionError where the table may not be read; yields nothing where it is gone."""
    try:
        names = os.listdir(directory)
    except PermissionError:
        raise
    except OSError:
        return
    for name in names:
        try:
            yield number_of(os.stat(os.path.join(directory, name)))
        except OSError:
            continue


class _Mappings:
    """Mapped files of a process. Libraries repeat in every process, so what a (filesystem, inode) is gets asked
    once.
    """

    def __init__(self, procfs: ProcFs) -> None:
        self._procfs = procfs
        self._known: dict[tuple[str, str], Optional[DeviceNumber]] = {}

    def numbers(self, pid: int) -> Iterator[DeviceNumber]:
        """The numbers behind the mappings of ``pid``; nothing where they may not be read."""
        # Not splitlines: a file's name may hold what that takes for an end of the line, and so forge the next.
        for line in (self._procfs.read_text(pid, "maps") or "").split("\n"):
            # start-end perms offset dev inode [path], proc(5)
            fields = line.split(None, 5)
            if len(fields) < 6 or fields[4] == "0" or not _SPAN.match(fields[0]):
                continue
            key = (fields[3], fields[4])
            if key not in self._known:
                try:
                    self._known[key] = number_of(os.stat(self._procfs.path(pid, "map_files", fields[0])))
                except PermissionError:
                    self._known[key] = None
                except OSError:
                    # This process has let go of it. The next one may not have.
                    continue
            number = self._known[key]
            if number is not None:
                yield number
