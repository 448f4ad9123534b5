# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The core of nvidia_fuser_reclaim: no unprotected process holds the card."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._containers import (
    ContainerStatus,
    container_status,
    frozen,
    members,
)
from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import (
    DRIVER,
    SOURCE_PROC,
    Device,
    Holder,
    Scan,
    card_device,
    card_devices,
    compute_node,
    find_holders,
    named_devices,
)
from ansible_collections.gpuops.inference.plugins.module_utils._driver import read_driver
from ansible_collections.gpuops.inference.plugins.module_utils._errors import (
    ContainerError,
    DriverError,
    GpuopsError,
    noting,
)
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import DriverReading, Gpu, select_gpus
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._offspring import Ended, Limits, end, starter_of
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import Pattern
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Identity, Process
from ansible_collections.gpuops.inference.plugins.module_utils._results import describe, process_diff, process_result
from ansible_collections.gpuops.inference.plugins.module_utils._selection import (
    CONTAINER_INIT,
    OUTSIDE_NAMESPACE,
    HolderRules,
    Selection,
    select_holders,
)
from ansible_collections.gpuops.inference.plugins.module_utils._termination import (
    FROZEN,
    RESPAWNED,
    Survivor,
)


class ReclaimRequest(NamedTuple):
    """What the operator asked for. Times in seconds.

    ``gpus`` None means all cards, and an empty list none; ``devices`` None means the cards' own nodes.
    """

    gpus: Optional[Sequence[str]]
    devices: Optional[Sequence[str]]
    device_directory: str
    vmid: Optional[int]
    protect: tuple[Pattern, ...]
    spare_monitors: bool
    term_timeout: float
    kill_timeout: float
    respawn_timeout: float
    backend: str
    nvidia_smi_path: str
    driver_timeout: float
    pct_path: str


class Plan(NamedTuple):
    """What is looked for: the devices, the cards behind them, and where the driver lists which pid (None: unknown)."""

    devices: tuple[Device, ...]
    cards: frozenset[int] = frozenset()
    computing: Optional[dict[int, frozenset[int]]] = None
    warnings: tuple[str, ...] = ()


class Sighting(NamedTuple):
    """One look at the holders and the decision about them."""

    scan: Scan
    holders: dict[Identity, Holder]
    selection: Selection
    members: Optional[frozenset[Identity]]


def reclaim(request: ReclaimRequest, machine: Machine) -> dict[str, Any]:
    """End the holders that may be ended and look again. Returns the result; raises before any signal is sent."""
    plan = make_plan(request, machine)
    scene = _Scene(request, plan, machine)
    # Whoever is frozen acts on no signal before he is thawed, perhaps hours later and in the midst of a backup.
    icy = [process for process in scene.before.selection.targets if frozen(process)]
    ended = end(
        [process for process in scene.before.selection.targets if process not in icy],
        scene,
        machine.signaller(),
        limits=Limits(request.term_timeout, request.kill_timeout, request.respawn_timeout),
        clock=machine.clock,
        dry_run=machine.dry_run,
    )
    survivors = (*ended.termination.survivors, *(Survivor(process, FROZEN) for process in icy))
    ended = ended._replace(termination=ended.termination._replace(survivors=survivors))
    with noting(changed=ended.termination.signalled):
        return _Report(scene, request.vmid, machine).result(plan, ended)


class _Scene:
    """The cards while they are being freed. ``holders`` and ``members`` are all that any look has shown."""

    def __init__(self, request: ReclaimRequest, plan: Plan, machine: Machine) -> None:
        self._request = request
        self._plan = plan
        self._container = _container(request, machine)
        self._machine = machine
        self.lineage = machine.procfs.lineage
        self.holders: dict[Identity, Holder] = {}
        self.members: set[Identity] = set()
        self.before = self.last = self._look()

    def targets(self) -> Sequence[Process]:
        """See Scene.targets. Of those that were there at first, it is decided already who is to be ended."""
        try:
            self.last = self._look()
        except ContainerError:
            # The container has gone down meanwhile, and with it whoever could take a card again.
            return ()
        return [process for process in self.last.selection.targets if process.identity not in self.before.holders]

    def _look(self) -> Sighting:
        sighting = _look(self._request, self._plan, self._container, self._machine)
        # What was seen first counts: who is on his way out has let go of his handles.
        self.holders = {**sighting.holders, **self.holders}
        self.members |= sighting.members or set()
        return sighting


def make_plan(request: ReclaimRequest, machine: Machine) -> Plan:
    """Find the nodes of the cards that are meant. Raises InputError and DriverError.

    Where the nodes are named, a silent driver is only a warning: then the holders' own handles are the evidence.
    """
    if request.gpus == []:
        return Plan(())
    try:
        reading = read_driver(
            runner=machine.runner,
            backend=request.backend,
            nvidia_smi_path=request.nvidia_smi_path,
            timeout=request.driver_timeout,
            proc_root=machine.procfs.root,
            device_directory=request.device_directory,
        )
    except GpuopsError as exc:
        if request.devices is None:
            raise
        return Plan(
            devices=tuple(named_devices(request.devices, ())),
            warnings=(f"The driver was not asked which process computes on which card: {exc.message}",),
        )
    if request.devices is not None:
        known = [(gpu.minor, gpu.index) for gpu in reading.gpus if gpu.minor is not None]
        devices = named_devices(request.devices, card_devices(request.device_directory, known))
    else:
        chosen = reading.gpus if request.gpus is None else select_gpus(reading.gpus, request.gpus)
        devices = [_device(gpu, request) for gpu in chosen]
    cards = frozenset(device.gpu for device in devices if device.gpu is not None)
    return Plan(tuple(devices), cards, computing(reading), reading.warnings)


def _device(gpu: Gpu, request: ReclaimRequest) -> Device:
    if gpu.minor is None:
        raise DriverError(
            f"Which device node belongs to GPU {gpu.label} is not known (/proc/driver/nvidia and nvidia-smi -q were "
            "asked), and an index is not a minor. Nothing was signalled. Name the node with the option devices.",
            reason="minor_unknown",
        )
    return card_device(request.device_directory, gpu.minor, gpu.index, gpu.label)


def computing(reading: DriverReading) -> Optional[dict[int, frozenset[int]]]:
    """Pid -> indices of the cards on which the driver says that it computes. None where its list was not readable."""
    if reading.compute_processes is None:
        return None
    index_of = {gpu.uuid: gpu.index for gpu in reading.gpus if gpu.uuid is not None and gpu.index is not None}
    found: dict[int, set[int]] = {}
    for one in reading.compute_processes:
        cards = found.setdefault(one.pid, set())
        if one.gpu_uuid in index_of:
            cards.add(index_of[one.gpu_uuid])
    return {pid: frozenset(cards) for pid, cards in found.items()}


def _container(request: ReclaimRequest, machine: Machine) -> Optional[ContainerStatus]:
    """The container that is meant, None when any holder is. Raises ContainerError when it is not on this node."""
    if request.vmid is None:
        return None
    return container_status(request.vmid, runner=machine.runner, pct_path=request.pct_path)


def _look(request: ReclaimRequest, plan: Plan, container: Optional[ContainerStatus], machine: Machine) -> Sighting:
    scan = find_holders(plan.devices, compute_node(request.device_directory), machine.procfs)
    for holder in scan.holders:
        if (plan.computing or {}).get(holder.process.pid, frozenset()) & plan.cards:
            holder.evidence.add(DRIVER)
    inside = _members(container, machine)
    rules = HolderRules(
        ourselves=frozenset(machine.procfs.ancestors(os.getpid())),
        protect=request.protect,
        spare_monitors=request.spare_monitors,
        cards=plan.cards,
        computing=plan.computing,
        members=inside,
    )
    selection = select_holders(scan.holders, rules)
    return Sighting(scan, {holder.process.identity: holder for holder in scan.holders}, selection, inside)


def _members(container: Optional[ContainerStatus], machine: Machine) -> Optional[frozenset[Identity]]:
    """The processes of the container that is meant (none when it is stopped); None when any holder is meant."""
    if container is None:
        return None
    if container.status != "running":
        return frozenset()
    found = members(container, machine.procfs)
    return frozenset(process.identity for process in found)


class _Report:
    """Builds what the module returns from what was seen."""

    def __init__(self, scene: _Scene, vmid: Optional[int], machine: Machine) -> None:
        self._scene = scene
        self._before = scene.before
        self._vmid = vmid
        self._machine = machine

    def result(self, plan: Plan, ended: Ended) -> dict[str, Any]:
        """The module's result."""
        termination = ended.termination
        survivors = [self._survivor(one) for one in termination.survivors]
        respawned = [self._again(process) for process in ended.respawned]
        holders = [self._describe(holder.process) for holder in self._before.holders.values()]
        gone = {process.identity for process in (*termination.terminated, *termination.killed)}
        present = [one.process for one in self._before.holders.values()]
        present += [one.process for one in termination.survivors if one.process.identity not in self._before.holders]
        left = [self._describe(process) for process in present if process.identity not in gone]
        # Who is spared may have come later. Of those that were there at first, it is decided already.
        later = self._scene.last.selection.spared
        spared = [
            *self._before.selection.spared,
            *(one for one in later if one.process.identity not in self._before.holders),
        ]
        warnings = list(plan.warnings)
        # The first look says who was there, the last one who is: both must be complete.
        first, last = self._before.scan, self._scene.last.scan
        scan = max(first, last, key=lambda one: one.unreadable)
        if scan.unreadable:
            warnings.append(f"There may be more holders. {scan.doubt}.")
        warnings += [
            f"{describe(self._describe(one.process))} holds a card and was not signalled: it is the first process of "
            "its container, which would go down with it. Restart that container instead."
            for one in spared
            if one.reason == CONTAINER_INIT
        ]
        return {
            "changed": termination.signalled,
            "gpus": sorted(plan.cards),
            "devices": [device.path for device in plan.devices],
            "holders": holders,
            "spared": [
                *({**self._describe(one.process), "reason": one.reason} for one in spared),
                *self._outside(plan),
            ],
            "terminated": [self._describe(process) for process in termination.terminated],
            "killed": [self._describe(process) for process in termination.killed],
            "survivors": survivors,
            "respawned": respawned,
            "scan_complete": scan.unreadable == 0,
            "scan_source": first.source if first.source == last.source else SOURCE_PROC,
            "diff": process_diff(holders, left + respawned),
            "warnings": warnings,
        }

    def _describe(self, process: Process) -> dict[str, Any]:
        holder = self._scene.holders.get(process.identity)
        gpus = sorted(holder.gpus) if holder is not None else []
        evidence = holder.evidence_list if holder is not None else []
        result = process_result(process, self._machine.procfs, gpus=gpus, evidence=evidence)
        if process.identity in self._scene.members:
            result["vmid"] = self._vmid
        return result

    def _survivor(self, one: Survivor) -> dict[str, Any]:
        return {**self._describe(one.process), "reason": one.reason, "wchan": one.wchan}

    def _again(self, process: Process) -> dict[str, Any]:
        by = starter_of(process, self._scene.lineage(process), self._describe)
        return {**self._survivor(Survivor(process, RESPAWNED)), "started_by": by}

    def _outside(self, plan: Plan) -> list[dict[str, Any]]:
        """Pids that the driver lists for the cards, but that hold no card here: another namespace's, or already gone.

        A number from the driver alone proves nothing about a process of ours, so they are named and never signalled.
        """
        seen = {holder.process.pid for holder in self._before.holders.values()}
        outside = {
            pid: cards & plan.cards
            for pid, cards in (plan.computing or {}).items()
            if pid not in seen and cards & plan.cards
        }
        return [
            {
                **dict.fromkeys(
                    ("container_pid", "vmid", "name", "command", "state", "uid", "start_time", "unit", "parent")
                ),
                "pid": pid,
                "gpus": sorted(cards),
                "evidence": [DRIVER],
                "reason": OUTSIDE_NAMESPACE,
            }
            for pid, cards in sorted(outside.items())
        ]
