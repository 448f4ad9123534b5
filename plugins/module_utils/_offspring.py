# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End processes together with what they fork meanwhile, and tell that from what somebody else starts again.

Offspring is ended as well, in rounds and with a limit. Whoever is started again by somebody else is named and left
alone: it would only come back, and a pile of killed ones would hide who brings it.

A storm forks faster than one can look and kill, and each killed process makes room (pids.max, RLIMIT_NPROC) for another
one. So as soon as offspring shows, everyone found is stopped before anyone is killed: a stopped process forks nothing,
keeps its place, and stays the parent by which its offspring is known.

The container's cgroup is not frozen for that. It would hold still its init and everyone else in it too, and a run that
is cut off between freeze and thaw would leave the whole container hanging; cut off here, it leaves stopped processes
that were to be killed anyway, and that the next run kills.
"""

from __future__ import annotations

import signal
from typing import Any, Callable, Mapping, NamedTuple, Optional, Protocol, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Identity, Process
from ansible_collections.gpuops.inference.plugins.module_utils._termination import (
    TIMEOUT,
    Clock,
    Reinforce,
    Signaller,
    Survivor,
    Termination,
    terminate,
)

# Seconds between two looks for newcomers.
WATCH_INTERVAL = 0.1

# Kills of offspring, and looks before each of them. A tree that is not through then outruns us.
ROUNDS = 8


class Scene(Protocol):
    """Where processes are ended."""

    def targets(self) -> Sequence[Process]:
        """Whoever is to be ended, by a fresh look."""

    def lineage(self, process: Process) -> Sequence[Process]:
        """Its living ancestors, the parent first; empty where nobody is to be seen above it."""


class Limits(NamedTuple):
    """Seconds: to wait after SIGTERM, after SIGKILL (all rounds together), and for somebody who starts it again."""

    term: float
    kill: float
    respawn: float


class Ended(NamedTuple):
    """What became of the targets and their offspring, and who was started again by somebody else meanwhile."""

    termination: Termination
    respawned: tuple[Process, ...] = ()


def end(
    targets: Sequence[Process], scene: Scene, signaller: Signaller, *, limits: Limits, clock: Clock, dry_run: bool
) -> Ended:
    """End the targets and their offspring, then look for ``limits.respawn`` seconds (once when 0) who comes again.

    Offspring that outran us survives with the reason TIMEOUT. A dry run does not look again. A GpuopsError passes
    through, and its ``changed`` says whether a signal had been sent by then.
    """
    hunt = _Hunt(targets, scene, signaller, limits, clock)
    try:
        return hunt.run(dry_run)
    except GpuopsError as exc:
        exc.fields["changed"] = hunt.changed or exc.fields.get("changed", False)
        raise


class _Hunt:
    """The state of one ``end``: who was found so far, and when they last could fork."""

    def __init__(
        self, targets: Sequence[Process], scene: Scene, signaller: Signaller, limits: Limits, clock: Clock
    ) -> None:
        self._found = {process.identity: process for process in targets}
        self._targets = targets
        self._scene = scene
        self._signaller = signaller
        self._limits = limits
        self._clock = clock
        self._deadline: Optional[float] = None
        self._signalled_at = clock.ticks()
        self._storm = False
        self.changed = False

    def run(self, dry_run: bool) -> Ended:
        if dry_run:
            return Ended(self._end(self._targets, self._limits.term, tuple))
        ended = self._end(self._targets, self._limits.term, self._hold)
        self.changed = ended.signalled
        rounds, until = 0, self._clock.now() + self._limits.respawn
        while ended.signalled:
            offspring, strangers = self._newcomers()
            if offspring and (rounds == ROUNDS or self._seconds_left() <= 0):
                outran = tuple(Survivor(process, TIMEOUT) for process in offspring)
                return Ended(ended._replace(survivors=ended.survivors + outran), strangers)
            if offspring:
                self._storm = True
                ended = _sum(ended, self._end(offspring, 0.0, self._hold))
                rounds, until = rounds + 1, self._clock.now() + self._limits.respawn
            elif strangers or self._clock.now() >= until:
                return Ended(ended, strangers)
            else:
                self._clock.sleep(min(WATCH_INTERVAL, max(until - self._clock.now(), 0.0)))
        return Ended(ended)

    def _end(self, processes: Sequence[Process], term_timeout: float, reinforce: Reinforce) -> Termination:
        self._found.update((process.identity, process) for process in processes)
        return terminate(
            processes,
            self._signaller,
            term_timeout=term_timeout,
            kill_timeout=self._seconds_left(),
            clock=self._clock,
            reinforce=reinforce,
        )

    def _hold(self, doomed: Sequence[Process]) -> Sequence[Process]:
        """Stop those who are to be killed and their offspring, until a look shows no more of it. Returns them all."""
        if self._deadline is None:
            self._deadline = self._clock.now() + self._limits.kill
        held = list(doomed)
        running = held if self._storm else []
        for _look in range(ROUNDS):
            if running:
                self._signaller.send(running, signal.SIGSTOP)
                self.changed = True
            offspring, _strangers = self._newcomers()
            if not offspring:
                break
            running = list(offspring) if self._storm else [*held, *offspring]
            self._storm = True
            held += offspring
            self._found.update((process.identity, process) for process in offspring)
        self._signalled_at = self._clock.ticks()
        return held

    def _newcomers(self) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
        """Offspring, and those whom somebody else started."""
        offspring: list[Process] = []
        strangers: list[Process] = []
        for process in self._scene.targets():
            if process.identity not in self._found:
                lineage = self._scene.lineage(process)
                ours = is_offspring(process, lineage, self._found, self._signalled_at)
                (offspring if ours else strangers).append(process)
        return tuple(offspring), tuple(strangers)

    def _seconds_left(self) -> float:
        return self._limits.kill if self._deadline is None else max(self._deadline - self._clock.now(), 0.0)


def is_offspring(
    process: Process, lineage: Sequence[Process], found: Mapping[Identity, Process], signalled_at: int
) -> bool:
    """Whether a newcomer was forked by one of those ``found``, as far as one can tell. Pure.

    Below one of them, it was. Below anybody else who lives, it was not. An orphan (adopted by an init) was, when it
    stands in a process group or session of theirs: only a fork leads there. Where it left these too, their cgroup must
    do, and that it started before the last of them was signalled (``signalled_at``, clock ticks since boot): a service
    manager starts the next one later.
    """
    if any(one.identity in found for one in lineage):
        return True
    adopter = lineage[0] if lineage else None
    if adopter is not None and not is_init(adopter):
        return False
    jobs = {job for one in found.values() for job in (one.group, one.session)}
    jobs -= {0} if adopter is None else {0, adopter.group, adopter.session}
    if process.group in jobs or process.session in jobs:
        return True
    return process.start_ticks < signalled_at and any(process.cgroups == one.cgroups for one in found.values())


def is_init(process: Process) -> bool:
    """The first process of the machine or of any container: orphans become its children."""
    return process.pid <= 1 or process.namespace_pids[-1] == 1


def starter_of(process: Process, lineage: Sequence[Process], describe: Callable[[Process], dict[str, Any]]) -> Any:
    """Who starts a process again: ``kind`` is ``unit`` or ``process``, beside the process that is its parent.

    None where nobody is to be seen above it. A process in another unit than its parent was put there by a service
    manager; what supervisord and its like start stays in their unit.
    """
    if not lineage:
        return None
    by_unit = (process.unit or "").endswith(".service") and process.unit != lineage[0].unit
    parent = describe(lineage[0])
    shown = {key: parent[key] for key in ("pid", "container_pid", "vmid", "name", "command", "state", "unit")}
    return {**shown, "unit": process.unit, "kind": "unit"} if by_unit else {**shown, "kind": "process"}


def _sum(first: Termination, second: Termination) -> Termination:
    return Termination(
        first.terminated + second.terminated,
        first.killed + second.killed,
        first.survivors + second.survivors,
        first.signalled or second.signalled,
    )
