# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The core of pct_kill_processes: no process that matches is left in the container."""

from __future__ import annotations

import os
from typing import Any, Callable, NamedTuple, Optional, Protocol

from ansible_collections.gpuops.inference.plugins.module_utils._containers import (
    ContainerStatus,
    container_status,
    frozen,
    is_container_init,
    members,
)
from ansible_collections.gpuops.inference.plugins.module_utils._errors import ContainerError
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._pct_exec import PctContainer, may_signal
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process
from ansible_collections.gpuops.inference.plugins.module_utils._results import (
    process_diff,
    process_result,
    redact,
    redact_glued,
)
from ansible_collections.gpuops.inference.plugins.module_utils._selection import (
    CONTAINER_INIT,
    INIT,
    Pattern,
    Selection,
    select_matching,
)
from ansible_collections.gpuops.inference.plugins.module_utils._termination import (
    RESPAWNED,
    Signaller,
    Survivor,
    Termination,
    terminate,
    watch,
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

    def result(self, process: Process) -> dict[str, Any]:
        """The process as it is returned."""

    @property
    def signaller(self) -> Signaller:
        """How its processes are signalled."""


def kill_processes(request: KillRequest, machine: Machine) -> dict[str, Any]:
    """Kill what matches and look again. Returns the result; raises ContainerError before any signal is sent."""
    status = container_status(request.vmid, runner=machine.runner, pct_path=request.pct_path)
    if status.status != "running":
        return _result(request, status.status, None, Selection((), ()), Termination(), [], str)
    view, selection = _first_look(request, status, machine)
    _refuse_init_only(request.vmid, selection)
    termination = terminate(
        selection.targets,
        view.signaller,
        term_timeout=request.term_timeout,
        kill_timeout=request.kill_timeout,
        clock=machine.clock,
    )
    newcomers: list[Process] = []
    if termination.signalled and not machine.dry_run:
        known = {process.identity for process in selection.targets}
        newcomers = watch(lambda: _targets(view), known, seconds=request.respawn_timeout, clock=machine.clock)
    return _result(request, status.status, view.via, selection, termination, newcomers, view.result)


def _targets(view: View) -> tuple[Process, ...]:
    """What matches now: nothing, when the container has gone down meanwhile."""
    try:
        return view.look().targets
    except ContainerError as exc:
        if exc.reason not in ("ct_not_visible", "ct_not_running"):
            raise
        return ()


def _result(
    request: KillRequest,
    status: str,
    via: Optional[str],
    selection: Selection,
    termination: Termination,
    newcomers: list[Process],
    describe: Callable[[Process], Any],
) -> dict[str, Any]:
    def survivor(one: Survivor) -> dict[str, Any]:
        return {**describe(one.process), "reason": one.reason, "wchan": one.wchan}

    matched = [describe(process) for process in selection.targets]
    survivors = [survivor(one) for one in termination.survivors]
    respawned = [survivor(Survivor(process, RESPAWNED)) for process in newcomers]
    return {
        "changed": termination.signalled,
        "vmid": request.vmid,
        "container_status": status,
        "via": via,
        "matched": matched,
        "spared": [{**describe(one.process), "reason": one.reason} for one in selection.spared],
        "terminated": [describe(process) for process in termination.terminated],
        "killed": [describe(process) for process in termination.killed],
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
    if request.via != "pct":
        host = HostView(request, status, machine)
        try:
            selection = host.look()
        except ContainerError:
            if request.via == "host":
                raise
        else:
            if request.via == "host" or may_signal(selection.targets):
                host.refuse_frozen(selection)
                return host, selection
    view = PctView(request, machine)
    return view, view.look()


class HostView:
    """The container as the node sees it."""

    via = "host"

    def __init__(self, request: KillRequest, status: ContainerStatus, machine: Machine) -> None:
        self._request = request
        self._status = status
        self._machine = machine
        self._ourselves = frozenset(machine.procfs.ancestors(os.getpid()))
        self._members: list[Process] = []

    @property
    def signaller(self) -> Signaller:
        """See View.signaller."""
        return self._machine.signaller()

    def look(self) -> Selection:
        """See View.look."""
        self._members = members(self._status, self._machine.procfs.processes(), self._machine.procfs)
        return select_matching(
            self._members, patterns=self._request.patterns, exclude=self._request.exclude, ourselves=self._ourselves
        )

    def result(self, process: Process) -> dict[str, Any]:
        """See View.result."""
        return {**process_result(process, self._machine.procfs), "vmid": self._request.vmid}

    def refuse_frozen(self, selection: Selection) -> None:
        """Raise ContainerError when the container, or what matches in it, is frozen: no signal takes effect then, and
        the next step would be wrong.
        """
        inits = [process for process in self._members if is_container_init(process)]
        if any(frozen(process) for process in (*inits, *selection.targets)):
            raise ContainerError(
                f"Container {self._request.vmid} is frozen (a suspend-mode backup does that). Signals take no effect "
                "until it is thawed, so none was sent. Wait for the backup, or thaw it (lxc-unfreeze).",
                reason="ct_frozen",
                vmid=self._request.vmid,
            )


class PctView:
    """The container as a shell inside it sees it."""

    via = "pct"

    def __init__(self, request: KillRequest, machine: Machine) -> None:
        self._request = request
        self._machine = machine
        self._names: dict[int, str] = {}
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
        self._names = {process.pid: process.name for process in listing.processes}
        self._redact = redact_glued if listing.glued else redact
        return select_matching(
            listing.processes,
            patterns=self._request.patterns,
            exclude=self._request.exclude,
            ourselves={listing.shell_pid},
        )

    def result(self, process: Process) -> dict[str, Any]:
        """See View.result. The pids are the container's; the node's stay unknown."""
        parent = self._names.get(process.parent_pid)
        return {
            **process_result(process, self._machine.procfs),
            "pid": None,
            "container_pid": process.pid,
            "vmid": self._request.vmid,
            "command": self._redact(process.command),
            "parent": {"pid": process.parent_pid, "name": parent} if parent is not None else None,
        }
