# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The core of pct_kill_processes: no process that matches is left in the container."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Optional, Protocol, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._containers import (
    ContainerStatus,
    container_frozen,
    container_status,
    frozen,
    members,
)
from ansible_collections.gpuops.inference.plugins.module_utils._errors import ContainerError, noting
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._offspring import Ended, Limits, end, starter_of
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import Pattern
from ansible_collections.gpuops.inference.plugins.module_utils._pct_exec import PctContainer, may_signal
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Identity, Process
from ansible_collections.gpuops.inference.plugins.module_utils._results import (
    process_diff,
    process_result,
    redact,
    redact_glued,
)
from ansible_collections.gpuops.inference.plugins.module_utils._selection import (
    CONTAINER_INIT,
    INIT,
    Selection,
    select_matching,
)
from ansible_collections.gpuops.inference.plugins.module_utils._termination import (
    RESPAWNED,
    Signaller,
    Survivor,
    Termination,
)


class KillRequest(NamedTuple):
    """What the operator asked for. Times in seconds; ``via`` is ``auto``, ``host`` or ``pct``."""

    vmid: int
    patterns: tuple[Pattern, ...]
    exclude: tuple[Pattern, ...]
    term_timeout: float
    kill_timeout: float
    respawn_timeout: float
    via: str
    pct_path: str
    pct_timeout: float


class View(Protocol):
    """One way to see and signal a container's processes."""

    via: str

    def look(self) -> Selection:
        """What matches now."""

    def lineage(self, process: Process) -> Sequence[Process]:
        """See Scene.lineage."""

    def result(self, process: Process) -> dict[str, Any]:
        """The process as it is returned."""

    @property
    def signaller(self) -> Signaller:
        """How its processes are signalled."""


def kill_processes(request: KillRequest, machine: Machine) -> dict[str, Any]:
    """Kill what matches and look again. Returns the result; raises ContainerError before any signal is sent."""
    status = container_status(request.vmid, runner=machine.runner, pct_path=request.pct_path)
    if status.status != "running":
        return _result(request, status.status, None, Selection((), ()), Ended(Termination()))
    view, selection = _first_look(request, status, machine)
    _refuse_init_only(request.vmid, selection)
    ended = end(
        selection.targets,
        _Scene(view),
        view.signaller,
        limits=Limits(request.term_timeout, request.kill_timeout, request.respawn_timeout),
        clock=machine.clock,
        dry_run=machine.dry_run,
    )
    with noting(changed=ended.termination.signalled):
        return _result(request, status.status, view, selection, ended)


class _Scene:
    """The container while it is being cleaned up. Nobody is in it any more once it has gone down."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.lineage = view.lineage

    def targets(self) -> Sequence[Process]:
        """See Scene.targets."""
        try:
            return self._view.look().targets
        except ContainerError as exc:
            if exc.reason not in ("ct_not_visible", "ct_not_running"):
                raise
            return ()


def _result(
    request: KillRequest, status: str, view: Optional[View], selection: Selection, ended: Ended
) -> dict[str, Any]:
    """``view`` None: nobody was looked at, since the container does not run."""

    def described(*processes: Process) -> list[dict[str, Any]]:
        return [view.result(process) for process in processes] if view is not None else []

    def left(one: Survivor) -> dict[str, Any]:
        return {**described(one.process)[0], "reason": one.reason, "wchan": one.wchan}

    def again(process: Process) -> dict[str, Any]:
        by = starter_of(process, view.lineage(process), view.result) if view is not None else None
        return {**left(Survivor(process, RESPAWNED)), "started_by": by}

    termination = ended.termination
    matched = described(*selection.targets)
    survivors = [left(one) for one in termination.survivors]
    respawned = [again(process) for process in ended.respawned]
    return {
        "changed": termination.signalled,
        "vmid": request.vmid,
        "container_status": status,
        "via": view.via if view is not None else None,
        "matched": matched,
        "spared": [{**described(one.process)[0], "reason": one.reason} for one in selection.spared],
        "terminated": described(*termination.terminated),
        "killed": described(*termination.killed),
        "survivors": survivors,
        "respawned": respawned,
        "diff": process_diff(matched, survivors + respawned),
    }


def _refuse_init_only(vmid: int, selection: Selection) -> None:
    """Where only the container's init matches, the server is the container: killing it is not ours to do."""
    if not selection.targets and any(one.reason in (INIT, CONTAINER_INIT) for one in selection.spared):
        raise ContainerError(
            f"Only the init of container {vmid} matches the patterns. It is never signalled, since the whole "
            f"container would go down: restart the container (pct reboot {vmid}), or correct the patterns.",
            reason="is_container_init",
            vmid=vmid,
        )


def _first_look(request: KillRequest, status: ContainerStatus, machine: Machine) -> tuple[View, Selection]:
    """From the node where this account sees the container and may signal what matches there, else through pct."""
    if container_frozen(status, machine.procfs):
        raise _frozen_error(request.vmid)
    if request.via != "pct":
        host = HostView(request, status, machine)
        try:
            selection = host.look()
        except ContainerError:
            if request.via == "host":
                raise
        else:
            if request.via == "host" or may_signal(selection.targets):
                if any(frozen(process) for process in selection.targets):
                    raise _frozen_error(request.vmid)
                return host, selection
    view = PctView(request, machine)
    return view, view.look()


def _frozen_error(vmid: int) -> ContainerError:
    return ContainerError(
        f"Container {vmid} is frozen (a suspend-mode backup does that). What is in it acts on no signal until it is "
        "thawed, so none was sent. Wait for the backup, or thaw it (lxc-unfreeze).",
        reason="ct_frozen",
        vmid=vmid,
    )


class HostView:
    """The container as the node sees it."""

    via = "host"

    def __init__(self, request: KillRequest, status: ContainerStatus, machine: Machine) -> None:
        self._request = request
        self._status = status
        self._machine = machine
        self._ourselves = frozenset(machine.procfs.ancestors(os.getpid()))
        self._members: set[Identity] = set()

    @property
    def signaller(self) -> Signaller:
        """See View.signaller."""
        return self._machine.signaller()

    def look(self) -> Selection:
        """See View.look."""
        inside = members(self._status, self._machine.procfs)
        self._members.update(process.identity for process in inside)
        return select_matching(
            inside, patterns=self._request.patterns, exclude=self._request.exclude, ourselves=self._ourselves
        )

    def lineage(self, process: Process) -> Sequence[Process]:
        """See Scene.lineage."""
        return self._machine.procfs.lineage(process)

    def result(self, process: Process) -> dict[str, Any]:
        """See View.result."""
        result = process_result(process, self._machine.procfs)
        return {**result, "vmid": self._request.vmid} if process.identity in self._members else result


class PctView:
    """The container as a shell inside it sees it."""

    via = "pct"

    def __init__(self, request: KillRequest, machine: Machine) -> None:
        self._request = request
        self._machine = machine
        self._listed: dict[int, Process] = {}
        self._redact = redact
        self._container = PctContainer(
            request.vmid, runner=machine.runner, pct_path=request.pct_path, timeout=request.pct_timeout
        )

    @property
    def signaller(self) -> Signaller:
        """See View.signaller."""
        return self._machine.signaller(self._container)

    def look(self) -> Selection:
        """See View.look."""
        listing = self._container.list_processes()
        self._listed = {process.pid: process for process in listing.processes}
        self._redact = redact_glued if listing.glued else redact
        return select_matching(
            listing.processes,
            patterns=self._request.patterns,
            exclude=self._request.exclude,
            ourselves={listing.shell_pid},
        )

    def lineage(self, process: Process) -> Sequence[Process]:
        """See Scene.lineage. As the last look showed it."""
        above: list[Process] = []
        # Whoever is in the container decides what its /proc says, even that two are each other's parents.
        seen = {process.pid}
        while process.parent_pid in self._listed and process.parent_pid not in seen:
            process = self._listed[process.parent_pid]
            seen.add(process.pid)
            above.append(process)
        return above

    def result(self, process: Process) -> dict[str, Any]:
        """See View.result. The pids are the container's; the node's stay unknown."""
        parent = self._listed.get(process.parent_pid)
        return {
            **process_result(process, self._machine.procfs),
            "pid": None,
            "container_pid": process.pid,
            "vmid": self._request.vmid,
            "command": self._redact(process.command),
            "parent": {"pid": parent.pid, "name": parent.name} if parent is not None else None,
        }
