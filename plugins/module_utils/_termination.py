# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End processes and see that they ended: TERM, wait, KILL, wait, name the survivors with the reason.

A process is signalled only when it is proven to be the one that was looked at: through a pidfd that was opened before
its start time was compared, or, where the kernel has none, after that comparison. Clock and signaller are handed in.

A stopped process (state T) acts on SIGTERM only once it runs again, so it gets SIGCONT after it, as systemd does it.
One that a debugger holds (state t) is left to SIGKILL, which needs nobody's leave.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, NamedTuple, Optional, Protocol, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._containers import frozen
from ansible_collections.gpuops.inference.plugins.module_utils._errors import noting, refusing_shortage
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Identity, Process, ProcFs

# Reasons of survivors; part of what the modules return.
UNINTERRUPTIBLE = "uninterruptible"
ZOMBIE = "zombie"
PERMISSION = "permission"
RESPAWNED = "respawned"
TIMEOUT = "timeout"
FROZEN = "frozen"

# What became of one signal.
SENT = "sent"
GONE = "gone"
DENIED = "denied"


class Clock(Protocol):
    """Time, and a way to let it pass."""

    def now(self) -> float:
        """Seconds from any fixed point."""

    def ticks(self) -> int:
        """Clock ticks since boot, as start times of processes are given."""

    def sleep(self, seconds: float) -> None:
        """Return ``seconds`` later."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def ticks(self) -> int:
        """See Clock.ticks. Seconds count in suspend, as in /proc/PID/stat (proc_pid_stat(5), field 22)."""
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))

    def sleep(self, seconds: float) -> None:
        """Really sleep."""
        time.sleep(seconds)


class Signaller(Protocol):
    """Signals processes and sees which of them live."""

    # Seconds between two looks.
    interval: float

    def send(self, processes: Sequence[Process], number: int) -> dict[Identity, str]:
        """Send the signal to each, and say of each whether it was SENT, the process is GONE, or it was DENIED."""

    def living(self, processes: Sequence[Process]) -> list[Process]:
        """Those of them that are still there, with their state of now."""

    def explain(self, process: Process) -> Survivor:
        """Why a process that was signalled is still there."""


class Survivor(NamedTuple):
    """A process that is still there. ``wchan``: the kernel function in which it sleeps, where that is known."""

    process: Process
    reason: str
    wchan: Optional[str] = None


class Termination(NamedTuple):
    """What became of the processes. One that ended by itself before its first signal is in none of the three.

    ``signalled``: at least one signal was delivered (in check mode: would have been).
    """

    terminated: tuple[Process, ...] = ()
    killed: tuple[Process, ...] = ()
    survivors: tuple[Survivor, ...] = ()
    signalled: bool = False


class HostSignaller:
    """Signals processes of this machine."""

    interval = 0.05

    def __init__(self, procfs: ProcFs) -> None:
        self._procfs = procfs

    def send(self, processes: Sequence[Process], number: int) -> dict[Identity, str]:
        """See Signaller.send."""
        answers: dict[Identity, str] = {}
        sent = False
        for process in processes:
            with noting(changed=sent):
                answers[process.identity] = self._send(process, number)
            sent = sent or answers[process.identity] == SENT
        return answers

    def living(self, processes: Sequence[Process]) -> list[Process]:
        """See Signaller.living."""
        fresh = (self._procfs.look_again(process) for process in processes)
        return [process for process in fresh if process is not None]

    def explain(self, process: Process) -> Survivor:
        """See Signaller.explain. A single thread in state D keeps the whole process. Where cgroup v1 has frozen one it
        shows D as well, which is nothing that a reboot is needed for.
        """
        if frozen(process):
            return Survivor(process, FROZEN)
        task = self._procfs.uninterruptible_task(process.pid)
        if task is not None:
            return Survivor(process._replace(state="D"), UNINTERRUPTIBLE, self._procfs.wchan(process.pid, task))
        return Survivor(process, reason_of(process), self._procfs.wchan(process.pid))

    def _send(self, process: Process, number: int) -> str:
        try:
            handle = _open_pidfd(process.pid)
        except ProcessLookupError:
            return GONE
        try:
            # Only now: the handle pins whoever has the pid, so the comparison holds for as long as the handle is open.
            if self._procfs.look_again(process) is None:
                return GONE
            if handle is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return GONE
        except PermissionError:
            return DENIED
        finally:
            if handle is not None:
                os.close(handle)
        return SENT


def _open_pidfd(pid: int) -> Optional[int]:
    """A pidfd, or None where the kernel (before 5.3) or the interpreter has none.

    Raises ProcessLookupError, and MachineError: for want of a handle nobody is signalled by his number alone.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        with refusing_shortage(f"No handle can be had on process {pid}"):
            return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


class DryRunSignaller:
    """The signaller of check mode: notes, signals nothing, and takes each process to end as asked."""

    interval = 0.0

    def __init__(self) -> None:
        self.noted: list[tuple[Identity, int]] = []

    def send(self, processes: Sequence[Process], number: int) -> dict[Identity, str]:
        """Note what would have been sent."""
        self.noted += [(process.identity, number) for process in processes]
        return {process.identity: SENT for process in processes}

    def living(self, processes: Sequence[Process]) -> list[Process]:
        """None of them: this is a plan, not an observation."""
        return []

    def explain(self, process: Process) -> Survivor:
        """Never asked, since nothing survives a plan."""
        return Survivor(process, reason_of(process))


Reinforce = Callable[[Sequence[Process]], Sequence[Process]]


def terminate(
    targets: Sequence[Process],
    signaller: Signaller,
    *,
    term_timeout: float,
    kill_timeout: float,
    clock: Clock,
    reinforce: Reinforce = tuple,
) -> Termination:
    """End the targets. ``term_timeout`` 0 goes to SIGKILL at once. Waits at most the sum of the two limits.

    ``reinforce`` is given those who are to get SIGKILL, just before, and says who gets it. A GpuopsError of it or of
    the signaller passes through, and its ``changed`` says whether a signal had been sent by then.
    """
    waiting = list(targets)
    terminated: list[Process] = []
    killed: list[Process] = []
    denied: set[Identity] = set()
    asked: set[Identity] = set()
    any_sent = False
    for number, limit, ended in ((signal.SIGTERM, term_timeout, terminated), (signal.SIGKILL, kill_timeout, killed)):
        if not waiting or (number == signal.SIGTERM and limit <= 0):
            continue
        with noting(changed=any_sent):
            if number == signal.SIGKILL:
                waiting = list(reinforce(waiting))
            answers = signaller.send(waiting, number)
        denied = {identity for identity, answer in answers.items() if answer == DENIED}
        signalled = [process for process in waiting if answers.get(process.identity) == SENT]
        any_sent = any_sent or bool(signalled)
        # Between the last look and this signal there is some time: who has used it ended of the one before.
        terminated += [one for one in waiting if one.identity in asked and answers.get(one.identity) == GONE]
        asked = {process.identity for process in signalled}
        stopped = [process for process in signalled if process.state == "T" and number == signal.SIGTERM]
        with noting(changed=any_sent):
            if stopped:
                signaller.send(stopped, signal.SIGCONT)
            left = _wait(signalled, signaller, limit, clock)
        left_identities = {process.identity for process in left}
        ended += [process for process in signalled if process.identity not in left_identities]
        waiting = left + [process for process in waiting if process.identity in denied]
    with noting(changed=any_sent):
        living = signaller.living(waiting)
        survivors = tuple(
            Survivor(process, PERMISSION) if process.identity in denied else signaller.explain(process)
            for process in living
        )
    # The same after the last one.
    there = {process.identity for process in living}
    killed += [process for process in waiting if process.identity not in denied | there]
    return Termination(tuple(terminated), tuple(killed), survivors, any_sent)


def _wait(processes: list[Process], signaller: Signaller, limit: float, clock: Clock) -> list[Process]:
    """Look until all are gone or ``limit`` seconds have passed. Returns those that were there at the last look."""
    deadline = clock.now() + limit
    left = signaller.living(processes)
    while left and clock.now() < deadline:
        clock.sleep(min(signaller.interval, max(deadline - clock.now(), 0.0)))
        left = signaller.living(left)
    return left


def reason_of(process: Process) -> str:
    """Why a process is still there, from its state alone."""
    return {"D": UNINTERRUPTIBLE, "Z": ZOMBIE}.get(process.state, TIMEOUT)
