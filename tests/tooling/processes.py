"""Children, and the promise that none of them outlives us.

A lab starts daemons in sessions of their own, so ending the child that started them is not enough. We ask the kernel to
hand every orphan among our descendants to us (a *subreaper*): what is left in the end is then below us, and is ended.
A subreaper must reap, as init does: a zombie that nobody collects would look to the code under test like a survivor.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Callable, NoReturn, Optional, Union

# prctl(2)
PR_SET_CHILD_SUBREAPER = 36

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# What a child may take that was asked to end: pytest tears its fixtures down, the lab its containers.
STOP_SECONDS = 60.0
# What it may take after being told so.
KILL_SECONDS = 5.0
# What a descendant may take to end by itself after the child that started it.
SETTLE_SECONDS = 2.0
LOOK_EVERY_SECONDS = 0.05

Argv = Sequence[Union[str, Path]]
Output = Union[None, int, IO[bytes]]


class Interrupted(BaseException):
    """A signal asked us to end. Not an Exception, so that nobody swallows it by accident."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it. ``state`` is one letter."""

    pid: int
    parent: int
    name: str
    state: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}, state {self.state})"


def own_descendants() -> None:
    """Become the parent of every orphan below us, and let the first signal that asks us to end raise Interrupted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for one in ENDING_SIGNALS:
        signal.signal(one, _interrupt)


def _interrupt(signum: int, _frame: object) -> NoReturn:
    for one in ENDING_SIGNALS:
        signal.signal(one, _ask_for_patience)
    raise Interrupted(signum)


def _ask_for_patience(_signum: int, _frame: object) -> None:
    """Cleaning up is limited in time, and a second signal would only leave something behind."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), b"Already ending; cleaning up first.\n")


def run(
    argv: Argv,
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdout: Output = None,
    stderr: Output = None,
    pass_fds: Sequence[int] = (),
) -> int:
    """Run ``argv`` in a session of its own until it ends. Returns its exit status, negative for a signal.

    When we are interrupted meanwhile, the child is asked to end, as by Ctrl-C, before Interrupted goes on its way.
    """
    with subprocess.Popen(
        [str(word) for word in argv],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    ) as child:
        try:
            while child.returncode is None:
                _collect(child, os.waitpid(-1, 0))
        except BaseException:
            _stop(child)
            raise
        return child.returncode


def end_descendants(settle: float = SETTLE_SECONDS) -> list[str]:
    """End whatever is left below us. Returns those that did not end by themselves within ``settle`` seconds."""
    if _until(lambda: not descendants(), settle):
        return []
    left = [str(one) for one in descendants()]
    for signum in (signal.SIGTERM, signal.SIGKILL):
        _signal(descendants(), signum)
        # The second look catches what a process started while it was ending.
        if _until(lambda: not descendants(), KILL_SECONDS):
            break
    return left


def descendants() -> list[Process]:
    """Every process below us, except zombies, which need no signal."""
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        process = _read(entry) if entry.name.isdigit() else None
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found.extend(below)
        queue.extend(one.pid for one in below)
    return [one for one in found if one.state not in "ZX"]


def _read(entry: Path) -> Optional[Process]:
    """One /proc/PID/stat: pid (name) state parent ... ; the name may hold spaces and parentheses. None: it is gone."""
    try:
        text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    head, _closing, tail = text.rpartition(")")
    state, parent = tail.split()[:2]
    return Process(pid=int(entry.name), parent=int(parent), name=head.partition("(")[2], state=state)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, then SIGTERM, then SIGKILL, to the child's process group."""
    steps = ((signal.SIGINT, STOP_SECONDS), (signal.SIGTERM, KILL_SECONDS), (signal.SIGKILL, KILL_SECONDS))
    for signum, patience in steps:
        if child.returncode is not None:
            return
        # The child is ours and not reaped yet, so its group's number belongs to nobody else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signum)
        _until(lambda: child.returncode is not None, patience, child)


def _until(done: Callable[[], bool], seconds: float, child: Optional[subprocess.Popen[bytes]] = None) -> bool:
    """Reap and look until ``done``, for at most ``seconds``. True when it is."""
    deadline = time.monotonic() + seconds
    while True:
        _reap(child)
        if done():
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_EVERY_SECONDS)


def _reap(child: Optional[subprocess.Popen[bytes]]) -> None:
    """Collect every zombie there is, without waiting."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitpid(-1, os.WNOHANG)
            if ended[0] == 0:
                return
            if child is not None:
                _collect(child, ended)


def _collect(child: subprocess.Popen[bytes], ended: tuple[int, int]) -> None:
    """Note the exit status if it was ``child`` that ended; others were orphans, which nobody asks about."""
    if ended[0] == child.pid:
        child.returncode = os.waitstatus_to_exitcode(ended[1])


def _signal(processes: Sequence[Process], signum: int) -> None:
    for one in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one.pid, signum)
