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
import stat
from typing import Collection, Iterable, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import (
    FD,
    MAPPING,
    THREAD_FD,
    DeviceNumber,
    Handle,
    number_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._handle_search import HandleSearch
from ansible_collections.gpuops.inference.plugins.module_utils._kernel_census import Census, census
from ansible_collections.gpuops.inference.plugins.module_utils._mapped_files import File, file_at
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process, ProcFs

# The kinds of evidence, best first; part of what the modules return.
DRIVER = "driver"
_EVIDENCE_ORDER = (DRIVER, FD, THREAD_FD, MAPPING)

# Who said which processes may hold a card; part of what the modules return, too.
SOURCE_KERNEL, SOURCE_PROC = "kernel", "proc"

# A CUDA context opens this node beside the card; whoever only watches through NVML does not.
COMPUTE_NODE = "nvidia-uvm"


class Device(NamedTuple):
    """A node to look for. ``gpu`` is the index of the card behind it, None where that is not known."""

    path: str
    number: DeviceNumber
    gpu: Optional[int] = None


class Holder:
    """A process that holds at least one of the devices. ``compute_context``: it also holds the node that CUDA opens."""

    def __init__(
        self,
        process: Process,
        gpus: Iterable[int] = (),
        devices: Iterable[str] = (),
        evidence: Iterable[str] = (),
        compute_context: bool = False,
    ) -> None:
        self.process = process
        self.gpus = set(gpus)
        self.devices = set(devices)
        self.evidence = set(evidence)
        self.compute_context = compute_context

    @property
    def evidence_list(self) -> list[str]:
        """The kinds of evidence, best first."""
        return [kind for kind in _EVIDENCE_ORDER if kind in self.evidence]


class Scan(NamedTuple):
    """Everyone who holds one of the devices; ``unreadable`` processes could not be looked into (run as root).

    ``source``: whether the ``kernel`` named those who were looked into, or ``proc`` all there are. None: nobody was.
    """

    holders: tuple[Holder, ...]
    unreadable: int
    source: Optional[str] = None

    @property
    def doubt(self) -> str:
        """Why there may be more holders, and what to do about it; empty where nobody was overlooked."""
        if not self.unreadable:
            return ""
        keeps = "a missing capability, a security module or a process that hangs keeps even root from it"
        advice = "run this as root" if os.geteuid() else keeps
        return f"{self.unreadable} processes could not be looked into: {advice}"


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
            try:
                status = os.stat(path)
            except OSError as exc:
                raise InputError(
                    f"devices: {path} cannot be read: {exc.strerror}. Correct the path.", reason="no_device_nodes"
                ) from exc
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


def find_holders(
    devices: Sequence[Device],
    compute: Optional[DeviceNumber],
    procfs: ProcFs,
    pids: Optional[Collection[int]] = None,
    ask_kernel: Census = census,
) -> Scan:
    """Look for everyone who has one of the devices open in a handle, his own or a thread's, or mapped.

    With ``pids`` only at these, where it is known that nobody else matters. ``ask_kernel`` names those who matter, or
    says nothing, and then every process is looked into.
    """
    wanted: dict[DeviceNumber, list[Device]] = {}
    for device in devices:
        wanted.setdefault(device.number, []).append(device)
    if not wanted:
        return Scan((), 0)
    numbers = frozenset((*wanted, *(() if compute is None else (compute,))))
    search = HandleSearch(numbers, procfs, _nodes(devices), ask_kernel)
    if pids is None:
        search.look_at_all()
    else:
        search.look_at(pids)
    holders = [
        _holder(process, handles, wanted, compute)
        for process, handles in (search.found[pid] for pid in sorted(search.found))
        if any(handle.number in wanted for handle in handles)
    ]
    # Who has something open may have a card mapped.
    unreadable = search.unreadable | (search.unmapped - {holder.process.pid for holder in holders})
    if not search.by_kernel and procfs.in_host_pid_namespace():
        # Into the machine's first process even root may not look everywhere (some security modules, micro virtual
        # machines). It opens no cards.
        unreadable = unreadable - {1}
    source = SOURCE_KERNEL if search.by_kernel else SOURCE_PROC
    # Those who are not even listed count as one.
    return Scan(tuple(holders), len(unreadable) + procfs.hides_processes(), source)


def _holder(
    process: Process,
    handles: Sequence[Handle],
    wanted: Mapping[DeviceNumber, Sequence[Device]],
    compute: Optional[DeviceNumber],
) -> Holder:
    holder = Holder(process, compute_context=any(handle.number == compute for handle in handles))
    for evidence, number in handles:
        for device in wanted.get(number, ()):
            holder.devices.add(device.path)
            holder.evidence.add(evidence)
            if device.gpu is not None:
                holder.gpus.add(device.gpu)
    return holder


def _nodes(devices: Iterable[Device]) -> dict[File, DeviceNumber]:
    """The numbers of the nodes by file, as far as the paths still lead to them."""
    found = {}
    for device in devices:
        with contextlib.suppress(OSError):
            status = os.stat(device.path)
            if number_of(status) == device.number:
                found[file_at(status.st_dev, status.st_ino)] = device.number
    return found
