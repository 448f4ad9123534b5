# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the machine says of a server without asking it: its processes, their memory, its log, its unit."""

from __future__ import annotations

import os
import time
from typing import Iterator, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils import _health as health
from ansible_collections.gpuops.inference.plugins.module_utils._containers import container_status, members, vmid_of
from ansible_collections.gpuops.inference.plugins.module_utils._engines import Engine
from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._health import Signal
from ansible_collections.gpuops.inference.plugins.module_utils._http import Url
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process
from ansible_collections.gpuops.inference.plugins.module_utils._server_log import (
    LogTail,
    loading_progress,
    read_journal,
    read_tail,
    unit_state,
)
from ansible_collections.gpuops.inference.plugins.module_utils._server_processes import (
    ServerProcesses,
    engines_of,
    resident_steps,
    sort_processes,
    youngest_age,
)


class Sources(NamedTuple):
    """Where to look. ``processes``: whether the server's are to be seen from here; ``vmid``: in which container."""

    processes: bool
    vmid: Optional[int]
    log_path: Optional[str]
    unit: Optional[str]
    pct_path: str


class Witness(NamedTuple):
    """One look. ``engine``: whose processes were found, where nobody had said it. ``memory``: steps of 16 MiB."""

    engine: Optional[Engine] = None
    processes: Optional[ServerProcesses] = None
    memory: Optional[int] = None
    log: Optional[LogTail] = None

    @property
    def identity(self) -> str:
        """The same text as long as the server has the same processes."""
        return self.processes.identity() if self.processes is not None else ""


def is_this_machine(url: Url) -> bool:
    """Whether the address always means the machine that asks."""
    return url.host in ("localhost", "::1") or url.host.startswith("127.")


def first_look(sources: Sources, engine: Optional[Engine], url: Url, machine: Machine) -> Witness:
    """Look for the processes of ``engine`` (None: of any), and at the log. Raises InputError and ContainerError.

    Where several engines are at home nothing is known of the processes until one of them is named.
    """
    log = _read_log(sources, machine)
    if not sources.processes or (engine is not None and not engine.patterns):
        return Witness(engine, log=log)
    candidates = _candidates(sources, url, machine)
    engines = [engine] if engine is not None else engines_of(candidates)
    if len(engines) > 1:
        return Witness(log=log)
    found = sort_processes(candidates, engines[0], url.port) if engines else ServerProcesses()
    return Witness(next(iter(engines), None), found, resident_steps(found.all, machine.procfs), log)


def second_look(first: Witness, sources: Sources, machine: Machine) -> Witness:
    """What has become of it: memory and log."""
    processes = first.processes
    memory = resident_steps(processes.all, machine.procfs) if processes is not None else None
    return first._replace(memory=memory, log=_read_log(sources, machine))


def process_signals(witness: Witness, sources: Sources, machine: Machine) -> Iterator[Signal]:
    """How many processes of each kind there are; nothing where they were not to be seen."""
    if witness.processes is None:
        return
    parents = witness.processes.parents
    yield Signal(health.PARENTS, len(parents), youngest_age(parents, machine.clock.ticks()) if parents else 0.0)
    yield Signal(health.ORPHANS, len(witness.processes.orphans))
    elsewhere = [one for one in witness.processes.elsewhere if not _is_another_service(one.unit, sources.unit)]
    yield Signal(health.ELSEWHERE, len(elsewhere))


def _is_another_service(unit: Optional[str], ours: Optional[str]) -> bool:
    """Whether what runs in ``unit`` cannot be ours. A scope can: that of a container which our service has started."""
    if unit is None or ours is None or not unit.endswith(".service"):
        return False
    return unit not in (ours, f"{ours}.service")


def log_signals(first: Witness, second: Witness, engine: Optional[Engine]) -> Iterator[Signal]:
    """Whether the log moves, and how far a start has come by it."""
    if first.log is None or second.log is None:
        return
    moves = first.log.mark != second.log.mark
    silent = 0.0 if moves else max(0.0, time.time() - second.log.written)
    yield Signal(health.LOG, health.MOVES if moves else health.STILL, silent)
    progress = loading_progress(second.log, engine) if engine is not None else None
    if progress is not None:
        yield Signal(health.PROGRESS, progress)


def unit_signals(sources: Sources, machine: Machine) -> Iterator[Signal]:
    """What systemd says of the unit."""
    state = unit_state(sources.unit, machine.runner) if sources.unit is not None else None
    if state is not None:
        yield Signal(health.UNIT, state)


def _read_log(sources: Sources, machine: Machine) -> Optional[LogTail]:
    if sources.log_path is not None:
        return read_tail(sources.log_path)
    if sources.unit is not None:
        return read_journal(sources.unit, machine.runner)
    return None


def _candidates(sources: Sources, url: Url, machine: Machine) -> list[Process]:
    """The processes among which the server's may be: of the container that is meant, or of the one we are in."""
    procfs = machine.procfs
    if sources.vmid is None:
        ours = procfs.process(os.getpid())
        home = vmid_of(ours) if ours is not None else None
        return [one for one in procfs.processes() if vmid_of(one) == home]
    status = container_status(sources.vmid, runner=machine.runner, pct_path=sources.pct_path)
    if status.status != "running":
        return []
    if status.init_pid is not None and is_this_machine(url):
        _require_same_network(status.init_pid, sources.vmid, url, machine)
    return members(status, procfs)


def _require_same_network(init: int, vmid: int, url: Url, machine: Machine) -> None:
    """Refuse to ask this machine's own port for a server in a container that has a network of its own."""
    try:
        inside, here = (os.readlink(machine.procfs.path(one, "ns", "net")) for one in (init, "self"))
    except OSError:
        return
    if inside != here:
        raise InputError(
            f"url is {url}, which is this node and not container {vmid}. Give the container's address, or run the task "
            "in the container, without vmid."
        )
