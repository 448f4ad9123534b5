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
import json
import os
import select
import signal
import traceback
from typing import Callable, NoReturn, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._errors import refusing_shortage
from ansible_collections.gpuops.inference.plugins.module_utils._own_children import children_wait_for_us

# Each job is one byte in the pipe that hands the jobs out.
MOST_JOBS = 256

# A job takes some milliseconds. After so many seconds without the end of any, those that are left hang.
STALL_SECONDS = 3.0
# What a killed child may take to go. One that does not is left to init: it sleeps uninterruptibly.
DEATH_SECONDS = 1.0

MOST_CHILDREN = 8

# What a child says in place of a job's number when the work is at fault.
_MISTAKE = "mistake"

Work = Callable[[int], str]


def side_by_side(work: Work, jobs: int, *, stall: Optional[float] = None) -> list[Optional[str]]:
    """``work(0)``, ``work(1)``, ... up to ``jobs`` of them, in as many children as there are processors for us.

    Each answer is one line of text. It is None for a job that hung (nobody answered for ``stall`` seconds), and for one
    at which its child died. Where no child can be started we work ourselves, and wait for as long as that takes.
    Raises RuntimeError for an exception in ``work``, and MachineError where there is no handle for a pipe.
    """
    with children_wait_for_us():
        answers = _answers(work, range(jobs), STALL_SECONDS if stall is None else stall)
    return [answers.get(job) for job in range(jobs)]


def _answers(work: Work, left: Sequence[int], stall: float) -> dict[int, Optional[str]]:
    answers: dict[int, Optional[str]] = {}
    while left:
        with refusing_shortage("No pipe to a child can be had"):
            crew = _Crew(work, left)
        try:
            crew.listen(stall)
        finally:
            crew.dismiss()
        if crew.mistakes:
            raise RuntimeError(crew.mistakes[0])
        answers.update(crew.answers)
        if not crew.size:
            answers.update((job, work(job)) for job in left)
            break
        # What was begun and not answered is not tried again. Where nothing was begun, nothing can be.
        left = crew.not_begun if len(crew.not_begun) < len(left) else ()
    return answers


class _Crew:
    """Children that take jobs out of one pipe, and answer each in a pipe of its own."""

    def __init__(self, work: Work, jobs: Sequence[int]) -> None:
        self.answers: dict[int, Optional[str]] = {}
        self.not_begun: list[int] = []
        self.mistakes: list[str] = []
        self._said: dict[int, bytes] = {}
        self._children: dict[int, int] = {}
        self._jobs, offer = os.pipe()
        os.write(offer, bytes(jobs))
        os.close(offer)
        try:
            lifeline, self._life = os.pipe()
        except OSError:
            os.close(self._jobs)
            raise
        for _child in range(min(len(os.sched_getaffinity(0)), MOST_CHILDREN, len(jobs))):
            if not self._start(work, lifeline):
                # Those that there are do all.
                break
        os.close(lifeline)

    @property
    def size(self) -> int:
        """How many children there are."""
        return len(self._children)

    def _start(self, work: Work, lifeline: int) -> bool:
        """Start one more, if there are a pipe and a process to be had."""
        try:
            hear, say = os.pipe()
        except OSError:
            return False
        try:
            pid = os.fork()
        except OSError:
            os.close(hear)
            os.close(say)
            return False
        if pid == 0:
            os.close(self._life)
            _work_and_exit(work, self._jobs, say, lifeline)
        os.close(say)
        self._children[hear] = pid
        return True

    def listen(self, stall: float) -> None:
        """Until all children have gone, or none has answered for ``stall`` seconds."""
        poll = select.poll()
        for hear in self._children:
            poll.register(hear, select.POLLIN)
        living = set(self._children)
        while living:
            heard = poll.poll(stall * 1000)
            if not heard:
                return
            for hear, _event in heard:
                said = os.read(hear, 65536)
                self._said[hear] = self._said.get(hear, b"") + said
                if not said:
                    poll.unregister(hear)
                    living.remove(hear)

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
                if job == _MISTAKE:
                    self.mistakes.append(json.loads(text))
                else:
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
        jobs, say, lifeline = map(_above_the_standard_handles, (jobs, say, lifeline))
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
    except (OSError, MemoryError):
        # It dies like one that was killed.
        pass
    # The edge of a process: what is not said to the parent here is lost.
    except Exception:
        os.write(say, f"{_MISTAKE} {json.dumps(traceback.format_exc())}\n".encode())
        raise
    finally:
        os._exit(0)


def _above_the_standard_handles(handle: int) -> int:
    """The same pipe under a number above 2. Who was started without standard input gets 0 for what it opens first."""
    return handle if handle > 2 else fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)


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
