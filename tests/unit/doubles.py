# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for what touches the machine: a clock that nobody waits for, a kernel that only moves files about."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Callable, Iterator, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Identity, Process
from ansible_collections.gpuops.inference.plugins.module_utils._termination import (
    DENIED,
    GONE,
    SENT,
    HostSignaller,
    Survivor,
)
from tests.unit.fake_proc import FakeProc


class FakeClock:
    """Time passes only by sleeping. ``at`` is called, with the time, after every sleep.

    ``boot``: clock ticks since boot at the beginning. Processes of FakeProc start later than 0.
    """

    def __init__(self, at: Optional[Callable[[float], None]] = None, boot: int = 0) -> None:
        self.time = 0.0
        self.boot = boot
        self.sleeps: list[float] = []
        self._at = at

    def now(self) -> float:
        return self.time

    def ticks(self) -> int:
        return self.boot + int(self.time * 100)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0, "a wait of nothing never ends"
        self.sleeps.append(seconds)
        self.time += seconds
        if self._at is not None:
            self._at(self.time)


@dataclass
class FakeKernel:
    """A Signaller over a fake /proc. A process dies of SIGTERM (a stopped one once it is continued) and of SIGKILL,
    unless it is named here by its pid.

    ``stubborn`` die of SIGKILL only, ``stuck`` of nothing, ``denied`` may not be signalled, ``lost`` end just before
    the first signal. ``after`` is called after every signal.
    """

    proc: FakeProc
    stubborn: Sequence[int] = ()
    stuck: Sequence[int] = ()
    denied: Sequence[int] = ()
    lost: Sequence[int] = ()
    after: Optional[Callable[[], None]] = None
    sent: list[tuple[int, int]] = field(default_factory=list)
    pending: set[int] = field(default_factory=set)
    interval: float = HostSignaller.interval

    def send(self, processes: Sequence[Process], number: int) -> dict[Identity, str]:
        answers = {process.identity: self._send(process, number) for process in processes}
        if self.after is not None:
            self.after()
        return answers

    def living(self, processes: Sequence[Process]) -> list[Process]:
        return HostSignaller(self.proc.procfs).living(processes)

    def explain(self, process: Process) -> Survivor:
        return HostSignaller(self.proc.procfs).explain(process)

    def _send(self, process: Process, number: int) -> str:
        if process.pid in self.lost:
            self.proc.remove(process.pid)
        if self.proc.procfs.look_again(process) is None:
            return GONE
        if process.pid in self.denied:
            return DENIED
        self.sent.append((process.pid, number))
        state = self.proc.process(process.pid).state
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self.proc.become(process.pid, "T" if number == signal.SIGSTOP else "S")
        elif number == signal.SIGTERM and state == "T":
            self.pending.add(process.pid)
            return SENT
        fatal = number == signal.SIGKILL or (
            process.pid not in self.stubborn
            and (number == signal.SIGTERM or (number == signal.SIGCONT and process.pid in self.pending))
        )
        if fatal and process.pid not in self.stuck:
            self.proc.remove(process.pid)
        return SENT


@contextlib.contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A real process of ours that runs ``code``; the block begins when it has printed a line, and ends it.

    Whatever goes wrong, it ends by itself within a minute.
    """
    limited = f"import signal\nsignal.alarm(60)\n{code}"
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", limited, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() != b"", "the child did not get ready"
            yield process
        finally:
            process.kill()


# Prints a line when it is ready, and ends with its standard input.
WAITS = "import sys; print(flush=True); sys.stdin.read()"

# Its first thread exits, and it is ready as soon as that shows. Holds the file that it is given, if any.
DEAD_LEADER = """
import ctypes, os, sys, threading, time
files = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
def live():
    deadline = time.monotonic() + 20
    while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z' and time.monotonic() < deadline:
        time.sleep(0.001)
    print(flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=live).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)
"""
