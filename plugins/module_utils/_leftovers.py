# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The core of inference_leftovers: who still listens on the server's ports, and which segments of shared memory are
stale.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Callable, Collection, NamedTuple, Optional, Sequence, Union

from ansible_collections.gpuops.inference.plugins.module_utils._containers import container_status, is_container_init
from ansible_collections.gpuops.inference.plugins.module_utils._errors import (
    ContainerError,
    GpuopsError,
    MachineError,
    noting,
)
from ansible_collections.gpuops.inference.plugins.module_utils._file_holders import Holders, find_holders
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process, ProcFs, numbers, parse_status
from ansible_collections.gpuops.inference.plugins.module_utils._results import process_result, start_time
from ansible_collections.gpuops.inference.plugins.module_utils._shared_memory import (
    NOT_REMOVED,
    PATH,
    Evidence,
    Segment,
    SharedMemory,
    parse_uid_map,
    reaches,
    why_kept,
)
from ansible_collections.gpuops.inference.plugins.module_utils._sockets import Listening, listening

# How often a port is looked at again, in seconds.
_INTERVAL = 0.05

# The kernel tells the time of its start in whole seconds, and clocks are set: so exact is the start of a process.
_CLOCK_SLACK = 1.0

# The first pid namespace of a machine, PROC_PID_INIT_INO of include/linux/proc_ns.h. Whoever reads /proc in another
# one does not see everybody.
_FIRST_NAMESPACE = "pid:[4026531836]"

_MIB = 1024 * 1024


class LeftoversRequest(NamedTuple):
    """What the operator asked for. Times in seconds; without ``vmid`` it is this machine that is meant."""

    vmid: Optional[int]
    ports: tuple[int, ...]
    port_timeout: float
    patterns: tuple[re.Pattern[str], ...]
    min_age: float
    clean_shm: bool
    pct_path: str


class Place(NamedTuple):
    """Where the server runs. ``pid`` is the process whose namespaces are looked at: the container's init, or ``self``;
    None for a container that does not run, which has neither sockets nor memory.
    """

    vmid: Optional[int]
    status: Optional[str]
    pid: Union[int, str, None]
    init: Optional[Process] = None


class Finding(NamedTuple):
    """A segment, who has it, and why it is kept: None when it is stale. ``age`` is in seconds."""

    segment: Segment
    age: float
    owner_alive: Optional[bool]
    holders: tuple[Process, ...]
    kept: Optional[str]
    removed: bool = False


class Found(NamedTuple):
    """What there is in /dev/shm. ``error`` says why it could not be looked into; with ``blind``, it is not known who
    has it.
    """

    findings: tuple[Finding, ...] = ()
    blind: bool = False
    total: Optional[int] = None
    free: Optional[int] = None
    error: Optional[GpuopsError] = None


def find_leftovers(
    request: LeftoversRequest, machine: Machine, wall_time: Callable[[], float] = time.time
) -> dict[str, Any]:
    """Look, remove what is stale if that is asked for, and return the result. Raises ContainerError."""
    place = _place(request, machine)
    if place.pid is None:
        return _result(place, [], Found(), machine.procfs)
    sockets = _wait_for_ports(request, place, machine)
    try:
        with SharedMemory(place.pid, machine.procfs) as memory:
            segments = memory.segments(request.patterns)
            holders = _holders(segments, sockets, machine.procfs)
            blind = bool(segments) and _blind(holders, place, memory.device, machine.procfs)
            living = _living(segments, place, memory.device, machine.procfs)
            findings = _judge(segments, holders, living, blind, request, place, machine.procfs, wall_time())
            _require_same(place, machine.procfs)
            if request.clean_shm:
                findings = _clean(findings, _would_remove if machine.dry_run else memory.remove)
            with noting(**_done(findings)):
                found = Found(findings, blind, *memory.space())
    except MachineError:
        raise
    except GpuopsError as exc:
        holders = _holders((), sockets, machine.procfs)
        found = Found(error=exc)
    with noting(**_done(found.findings)):
        listeners = _listeners(sockets, holders, request, place, machine.procfs)
        _require_same(place, machine.procfs)
        return _result(place, listeners, found, machine.procfs)


# -- where ----------------------------------------------------------------------------------------------------------


def _place(request: LeftoversRequest, machine: Machine) -> Place:
    if request.vmid is None:
        return Place(None, None, "self")
    status = container_status(request.vmid, runner=machine.runner, pct_path=request.pct_path)
    if status.status != "running":
        return Place(request.vmid, status.status, None)
    init = machine.procfs.process(status.init_pid) if status.init_pid is not None else None
    if init is None or not is_container_init(init):
        raise ContainerError(
            f"Container {request.vmid} runs, but its init cannot be seen from here. Run the task on the node itself, "
            "as root.",
            reason="ct_not_visible",
            vmid=request.vmid,
        )
    return Place(request.vmid, status.status, init.pid, init)


def _require_same(place: Place, procfs: ProcFs) -> None:
    """Raise ContainerError when the init has ended: what was read by its pid since may be another process's."""
    if place.init is not None and procfs.look_again(place.init) is None:
        raise ContainerError(
            f"Container {place.vmid} was stopped while it was looked into, and may run again. Look again.",
            reason="ct_not_running",
            vmid=place.vmid,
        )


# -- ports ----------------------------------------------------------------------------------------------------------


def _wait_for_ports(request: LeftoversRequest, place: Place, machine: Machine) -> list[Listening]:
    """Who listens once the time for going is over. A socket goes with the last process that has it."""
    until = machine.clock.now() + request.port_timeout
    while True:
        sockets = _sockets(request, place, machine.procfs)
        if not sockets or machine.clock.now() >= until:
            return sockets
        machine.clock.sleep(_INTERVAL)


def _sockets(request: LeftoversRequest, place: Place, procfs: ProcFs) -> list[Listening]:
    if not request.ports:
        return []
    everyone = listening(place.pid, procfs)
    if everyone is None:
        raise ContainerError(
            f"The table of sockets cannot be read ({procfs.path(place.pid, 'net', 'tcp')}). Run the task as root.",
            reason="sockets_unreadable",
        )
    return [one for one in everyone if one.port in request.ports]


def _listeners(
    sockets: Sequence[Listening], holders: Holders, request: LeftoversRequest, place: Place, procfs: ProcFs
) -> list[dict[str, Any]]:
    """One entry for each process that has a listening socket; one without a process where nobody is seen to have it."""
    entries: list[dict[str, Any]] = []
    still = set(_sockets(request, place, procfs)) if sockets else set()
    for one in sockets:
        who: list[Optional[dict[str, Any]]] = [
            _process(process, place, procfs) for process in holders.sockets[one.inode]
        ]
        if not who and one in still:
            who = [None]
        entries += [{"port": one.port, "address": one.address, "process": process} for process in who]
    return entries


# -- shared memory --------------------------------------------------------------------------------------------------


def _holders(segments: Sequence[Segment], sockets: Sequence[Listening], procfs: ProcFs) -> Holders:
    return find_holders({one.file for one in segments if one.regular}, {one.inode for one in sockets}, procfs)


def _blind(holders: Holders, place: Place, device: str, procfs: ProcFs) -> bool:
    """Whether somebody may have the memory open who cannot be looked into, or is not even to be seen from here."""
    if place.vmid is None and _namespace("self", "pid", procfs) != _FIRST_NAMESPACE:
        return True
    return procfs.hides_processes() or any(
        os.path.exists(procfs.path(pid)) and reaches(pid, device, procfs) for pid in holders.unreadable
    )


def _judge(
    segments: Sequence[Segment],
    holders: Holders,
    living: Collection[int],
    blind: bool,
    request: LeftoversRequest,
    place: Place,
    procfs: ProcFs,
    now: float,
) -> tuple[Finding, ...]:
    known_uids = parse_uid_map(procfs.read_text(place.pid, "uid_map") or "")
    # Those who use such memory now. Whoever began before a segment was made may have made it.
    users = {process.identity: process for one in holders.files.values() for process in one}.values()
    since = [start_time(process, procfs) for process in users]

    def judge(segment: Segment) -> Finding:
        who = tuple(holders.files.get(segment.file, ()))
        age = now - segment.changed
        alive = None if segment.owner_pid is None else segment.owner_pid in living
        evidence = Evidence(
            in_use=bool(who),
            owner_alive=bool(alive),
            unreadable=blind,
            foreign_owner=not any(segment.uid in uids for uids in known_uids),
            maker_may_live=any(begin is None or begin <= segment.changed + _CLOCK_SLACK for begin in since),
            age=age,
            min_age=request.min_age,
        )
        return Finding(segment, age, alive, who, why_kept(segment, evidence))

    return tuple(judge(segment) for segment in segments)


def _living(segments: Sequence[Segment], place: Place, device: str, procfs: ProcFs) -> set[int]:
    """Those of the pids in the segments' names that a living process has which can reach this memory.

    A name holds the pid as its maker sees it. A container within the container has pids of its own, and may share the
    memory: so whoever has the file system mounted counts, with each pid that it has below the machine's own.
    """
    named = {one.owner_pid for one in segments if one.owner_pid is not None}
    found: set[int] = set()
    for pid in procfs.pids() if named else ():
        # One file for each of thousands of processes; the rest is read of the few that matter.
        status = parse_status(procfs.read_text(pid, "status") or "")
        pids = tuple(numbers(status.get("NSpid", "").split())) or (pid,)
        owned = named.intersection(pids[1:] or pids)
        process = procfs.process(pid) if owned else None
        if process is not None and not process.gone and _can_reach(process, place, device, procfs):
            found |= owned
    return found


def _can_reach(process: Process, place: Place, device: str, procfs: ProcFs) -> bool:
    mounts = _namespace(place.pid, "mnt", procfs)
    same = mounts is not None and mounts == _namespace(process.pid, "mnt", procfs)
    return same or reaches(process.pid, device, procfs)


def _namespace(pid: Union[int, str, None], kind: str, procfs: ProcFs) -> Optional[str]:
    """A namespace of a process, such as ``pid:[4026531836]``; None where it may not be read."""
    try:
        return os.readlink(procfs.path(pid, "ns", kind))
    except OSError:
        return None


def _clean(findings: Sequence[Finding], remove: Callable[[Segment], bool]) -> tuple[Finding, ...]:
    def clean(one: Finding) -> Finding:
        if one.kept is not None:
            return one
        removed = remove(one.segment)
        return one._replace(removed=removed, kept=None if removed else NOT_REMOVED)

    return tuple(clean(one) for one in findings)


def _done(findings: Sequence[Finding]) -> dict[str, Any]:
    """What a failure has to say of the segments."""
    removed = [one.segment.shown_name for one in findings if one.removed]
    return {"changed": bool(removed), "removed": removed}


def _would_remove(_segment: Segment) -> bool:
    """Check mode: nothing is removed, and it is said that it would be."""
    return True


# -- the result -----------------------------------------------------------------------------------------------------


def _process(process: Process, place: Place, procfs: ProcFs) -> dict[str, Any]:
    result = process_result(process, procfs)
    if place.vmid is not None and _namespace(process.pid, "pid", procfs) == _namespace(place.pid, "pid", procfs):
        result["vmid"] = place.vmid
    return result


def _result(place: Place, listeners: list[dict[str, Any]], found: Found, procfs: ProcFs) -> dict[str, Any]:
    stale = [one for one in found.findings if one.kept in (None, NOT_REMOVED)]
    removed = [one for one in stale if one.removed]
    left = [one for one in found.findings if not one.removed]
    return {
        "vmid": place.vmid,
        "container_status": place.status,
        "listeners": listeners,
        "segments": [_segment(one, place, procfs) for one in found.findings],
        "shm": _shm(found) if place.pid is not None else None,
        "stale": [one.segment.shown_name for one in stale],
        "stale_mib": _total(stale),
        **_done(found.findings),
        "removed_mib": _total(removed),
        "scan_complete": not found.blind,
        "diff": {"before": _paths(found.findings), "after": _paths(left)},
    }


def _segment(one: Finding, place: Place, procfs: ProcFs) -> dict[str, Any]:
    segment = one.segment
    return {
        "name": segment.shown_name,
        "path": f"{PATH}/{segment.shown_name}",
        "size_mib": _mib(segment.size),
        "age_s": round(one.age, 1),
        "owner_pid": segment.owner_pid,
        "owner_alive": one.owner_alive,
        "in_use_by": [_process(process, place, procfs) for process in one.holders],
        "stale": one.kept in (None, NOT_REMOVED),
        "removed": one.removed,
        "reason": one.kept,
    }


def _shm(found: Found) -> dict[str, Any]:
    return {
        "path": PATH,
        "size_mib": None if found.total is None else _mib(found.total),
        "free_mib": None if found.free is None else _mib(found.free),
        "reason": None if found.error is None else found.error.reason,
        "message": None if found.error is None else found.error.message,
    }


def _mib(size: int) -> float:
    return round(size / _MIB, 3)


def _total(findings: Sequence[Finding]) -> float:
    return _mib(sum(one.segment.size for one in findings))


def _paths(findings: Sequence[Finding]) -> str:
    return "".join(f"{PATH}/{one.segment.shown_name}\n" for one in findings)
