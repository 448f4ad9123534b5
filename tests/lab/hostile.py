"""What a rank can do that is harder to end than a process that merely ignores SIGTERM. None of these returns."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from typing import NoReturn

_CHILDREN, _DEPTH = 2, 2
_FORKS = 150
_SYS_EXIT = {"x86_64": 60, "aarch64": 93}


def live(deed: str) -> NoReturn:
    """Do one of `stop`, `lose_leader` and `storm` (scenarios.Fault.rank1_deed) for the rest of this process's life."""
    if deed == "stop":
        # As by Ctrl-Z. It would act on SIGTERM, if it only ran.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif deed == "lose_leader":
        # A thread lives on and holds all that the process held; /proc shows a zombie.
        threading.Thread(target=time.sleep, args=(1e6,)).start()
        ctypes.CDLL(None).syscall(_SYS_EXIT[os.uname().machine], 0)
    elif deed == "storm":
        # The bytes in a pipe are how often all of them may still fork: a limit that no race gets round.
        left, end = os.pipe()
        os.write(end, b"." * _FORKS)
        os.close(end)
        _storm(left, _DEPTH)
    while True:
        signal.pause()


def _storm(left: int, depth: int) -> NoReturn:
    """Have children that have children; replace each as soon as it ends; as an orphan begin anew."""
    parent = os.getppid()
    children: set[int] = set()
    while True:
        while depth and len(children) < _CHILDREN and os.read(left, 1):
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _storm(left, depth - 1)
            children.add(pid)
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                children.discard(pid)
        if os.getppid() != parent:
            parent, depth = os.getppid(), _DEPTH
        time.sleep(0.01)
