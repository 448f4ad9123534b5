# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at the machine in several processes at once, each of which may hang without taking us along.

A read below /proc can sleep for as long as the process that it asks about is stuck in the kernel. Then the child that
asked is killed and its job given up; ours go on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from typing import Callable, NoReturn, Optional, Sequence

# Each job is one byte in the pipe that hands the jobs out.
MOST_JOBS = 256

# A job takes some milliseconds. After so many seconds without the end of any, those that are left hang.
STALL_SECONDS = 3.0
# What a killed child may take to go. One that does not is left to init: it sleeps uninterruptibly.
DEATH_SECONDS = 1.0

MOST_CHILDREN = 8

Work = Callable[[int], str]


def side_by_side(work: Work, jobs: int, *, stall: Optional[float] = None) -> list[Optional[str]]:
    """``work(0)``, ``work(1)``, ... up to ``jobs`` of them, in as many children as there are processors for us.

    Each answer is one line of text, None for a job that hung: nobody answered for ``stall`` seconds. Where no child can
    be started we work ourselves.
    ``work`` must have no effects: it runs in a child, or anew where that died.
    """
    answers: dict[int, Optional[str]] = {}
    left: Sequence[int] = range(jobs)
    while left:
        crew = _Crew(work, left)
        try:
            hung = crew.listen(STALL_SECONDS if stall is None else stall)
        finally:
            crew.dismiss()
        answers.update(crew.answers)
        unanswered = [job for job in left if job not in answers]
        if hung:
            left = crew.not_begun
            answers.update((job, None) for job in unanswered if job not in left)
        else:
            left = ()
            answers.update((job, work(job)) for job in unanswered)
    return [answers[job] for job in range(jobs)]


class _Crew:
    """Children that take jobs out of one pipe, and answer each in a pipe of its own."""

    def __init__(self, work: Work, jobs: Sequence[int]) -> None:
        self.answers: dict[int, Optional[str]] = {}
        self.not_begun: list[int] = []
        self._said: dict[int, bytes] = {}
        self._children: dict[int, int] = {}
        self._jobs, offer = os.pipe()
        os.write(offer, bytes(jobs))
        os.close(offer)
        lifeline, self._life = os.pipe()
        for _child in range(min(len(os.sched_getaffinity(0)), MOST_CHILDREN, len(jobs))):
            hear, say = os.pipe()
            try:
                pid = os.fork()
            except OSError:
                # The limit on processes. Those that there are do all.
                os.close(hear)
                os.close(say)
                break
            if pid == 0:
                os.close(self._life)
                _work_and_exit(work, self._jobs, say, lifeline)
            os.close(say)
            self._children[hear] = pid
        os.close(lifeline)

    def listen(self, stall: float) -> bool:
        """Until all children have gone, or none has answered for ``stall`` seconds: then True."""
        poll = select.poll()
        for hear in self._children:
            poll.register(hear, select.POLLIN)
        living = set(self._children)
        while living:
            heard = poll.poll(stall * 1000)
            if not heard:
                return True
            for hear, _event in heard:
                said = os.read(hear, 65536)
                self._said[hear] = self._said.get(hear, b"") + said
                if not said:
                    poll.unregister(hear)
                    living.remove(hear)
        return False

    def dismiss(self) -> None:
        """End those that are left, and note what was answered and what was not begun."""
        self.not_begun = list(os.read(self._jobs, MOST_JOBS))
        os.close(self._jobs)
        os.close(self._life)
        for pid in self._children.values():
            # Not reaped yet, so the number is still its own.
            os.kill(pid, signal.SIGKILL)
        for hear, pid in self._children.items():
            self._bury(hear, pid)
            # What follows the last newline was not finished.
            for line in self._said.get(hear, b"").split(b"\n")[:-1]:
                job, _blank, text = line.decode().partition(" ")
                self.answers[int(job)] = text

    def _bury(self, hear: int, pid: int) -> None:
        poll = select.poll()
        poll.register(hear, select.POLLIN)
        while poll.poll(DEATH_SECONDS * 1000):
            said = os.read(hear, 65536)
            if not said:
                os.waitpid(pid, 0)
                break
            self._said[hear] = self._said.get(hear, b"") + said
        os.close(hear)


def _work_and_exit(work: Work, jobs: int, say: int, lifeline: int) -> NoReturn:
    """A child's life. It never comes back into its parent's code, whatever happens."""
    try:
        # Whoever waits for the end of our parent's output must not wait for us.
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        _die_at_the_end_of(lifeline)
        while True:
            job = os.read(jobs, 1)
            if not job:
                break
            os.write(say, f"{job[0]} {work(job[0])}\n".encode())
    finally:
        os._exit(0)


def _die_at_the_end_of(lifeline: int) -> None:
    """End when nobody can write to this pipe any more: then our parent has ended, in whatever way."""
    # Opened anew: whom a pipe signals is noted where it was opened, and all children have inherited that one. Without
    # /proc it remains with the last of them.
    with contextlib.suppress(OSError):
        lifeline = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if select.select([lifeline], [], [], 0)[0]:
        # It has ended before.
        os._exit(0)
