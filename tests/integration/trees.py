"""Hostile process trees for the tests, each a few lines of Python, and a way to run one module without a play.

Whatever goes wrong, none outlives a test by long: each process ends by itself, a tree forks a limited number of times,
and all of a tree is found by a mark in its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.tooling.environment import COLLECTIONS, PYTHON, environment

_MARK = "GPUOPS_TREE"
_LIFE_S = 120
_FORKS = 300
_CLEAN_UP_S = 20.0

# `fork` is os.fork with a life of its own for each child, and gives None once the tree has forked often enough: the
# bytes in a pipe are the count, which no race gets round.
_PRELUDE = f"""
import os, signal, sys, time
signal.alarm({_LIFE_S})
_left, _end = os.pipe()
os.write(_end, b"." * {_FORKS})
os.close(_end)
def fork():
    if not os.read(_left, 1):
        return None
    pid = os.fork()
    if pid == 0:
        signal.alarm({_LIFE_S})
    return pid
def ready():
    os.write(1, b"ready\\n")
def stay():
    while True:
        signal.pause()
def wait_for(pid, state):
    deadline = time.monotonic() + 20
    while open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < deadline
        time.sleep(0.005)
"""

WAITS = "ready(); stay()"

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); stay()"

# Its children die of SIGTERM and are replaced at once; so are theirs; and an orphan begins a tree of its own.
STORM = """
def member(depth):
    parent, children = os.getppid(), set()
    while True:
        while depth and len(children) < 3:
            pid = fork()
            if pid is None:
                break
            if pid == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                member(depth - 1)
            children.add(pid)
        if depth == 2 and len(children) == 3:
            ready()
        try:
            while True:
                pid, _status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                children.discard(pid)
        except ChildProcessError:
            pass
        if os.getppid() != parent:
            parent, depth = os.getppid(), 2
        time.sleep(0.005)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
member(2)
"""

# A worker that left its session, then its parent, as daemons do.
DAEMON = """
if fork():
    os.wait()
    stay()
os.setsid()
if fork():
    os._exit(0)
ready()
stay()
"""

# argv[2] is started again as soon as it ends; how often is written to argv[3]. Not called what its child is called.
SUPERVISOR = """
import subprocess
title, count = sys.argv[2], sys.argv[3]
code = "import signal; signal.alarm(%d); signal.pause()" % 120
for starts in range(1, 50):
    child = subprocess.Popen([sys.executable, "-S", "-E", "-c", code, title[::-1]])
    with open(count, "w") as stream:
        stream.write(str(starts))
    if starts == 1:
        ready()
    child.wait()
    time.sleep(0.05)
"""

# Never reaps its child. The child is called argv[2], reversed.
NEGLIGENT = """
import subprocess
code = "import signal; signal.alarm(%d); signal.pause()" % 120
child = subprocess.Popen([sys.executable, "-S", "-E", "-c", code, sys.argv[2][::-1]])
ready()
stay()
"""

# The first thread is gone, another one lives.
DEAD_LEADER = """
import ctypes, threading
def live():
    wait_for(os.getpid(), "Z")
    ready()
    time.sleep(120)
    os._exit(0)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
threading.Thread(target=live).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""

# Stopped, as by Ctrl-Z. argv[2]: how it takes SIGTERM once it runs again.
STOPPED = """
pid = fork()
if pid == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[2] == "deaf" else signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSTOP)
    stay()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
wait_for(pid, "T")
ready()
os.waitpid(pid, 0)
"""

# A debugger (not called argv[1]) holds its child, which is.
TRACED = """
import ctypes
pid = fork()
if pid == 0:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    stay()
wait_for(pid, "t")
ready()
time.sleep(120)
"""

# Holds the files from argv[2] on.
HOLDS = "files = [os.open(path, os.O_RDWR) for path in sys.argv[2:]]; ready(); stay()"


class Tree:
    """A standing tree. ``marker`` is in the command line of those that are meant."""

    def __init__(self, marker: str, mark: str) -> None:
        self.marker = marker
        self._mark = f"{_MARK}={mark}".encode()

    def processes(self) -> dict[int, str]:
        """Its living processes as this machine numbers them, with the state of each."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and self._mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (
                        (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
                    )
        return found

    def meant(self) -> list[int]:
        """Those of them that run its code, unlike those who wait for them on the node."""
        return [pid for pid in self.processes() if _words(pid)[4:5] == [self.marker]]

    def zombies(self) -> list[int]:
        """Dead children of its own that nobody has reaped. They have lost their environment."""
        parents = self.processes()
        return [pid for pid, (state, parent) in _states().items() if state == "Z" and parent in parents]

    def end(self) -> None:
        """Kill them all, those included that are born meanwhile."""
        deadline = time.monotonic() + _CLEAN_UP_S
        while self.processes():
            assert time.monotonic() < deadline, f"{self.processes()} stay"
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def _states() -> dict[int, tuple[str, int]]:
    """State and parent of every process, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit():
                fields = Path(f"/proc/{name}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                found[int(name)] = (fields[0], int(fields[1]))
    return found


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")
    except OSError:
        return ["", ""]


@contextlib.contextmanager
def tree(enter: Sequence[str], code: str, *arguments: str) -> Iterator[Tree]:
    """Run ``code`` behind ``enter`` (an argv that enters a container) until the block ends. Begins when it is ready."""
    made = Tree(marker := f"hostile-{uuid.uuid4().hex}", mark := uuid.uuid4().hex)
    # A file, so that no command line holds the code.
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(_PRELUDE + code)
        script.flush()
        os.chmod(script.name, 0o644)
        argv = [*enter, sys.executable, "-S", "-E", script.name, marker, *arguments]
        environ = {**os.environ, _MARK: mark}
        with subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as started:
            try:
                assert started.stdout is not None
                assert started.stdout.readline() == b"ready\n", "the tree did not come to stand"
                yield made
            finally:
                made.end()


def run_module(name: str, arguments: dict[str, Any], before: Sequence[str] = ()) -> dict[str, Any]:
    """Run a module of this collection in a process of its own, which is what Ansible does. Returns its one JSON.

    ``before``: words in front of the interpreter, such as a shell that waits for it.
    """
    code = (
        "import importlib, json, sys\n"
        "from ansible.module_utils.testing import patch_module_args\n"
        f"door = importlib.import_module('ansible_collections.gpuops.inference.plugins.modules.{name}')\n"
        "with patch_module_args(json.loads(sys.argv[1])):\n"
        "    door.main()\n"
    )
    done = subprocess.run(
        [*before, str(PYTHON), "-c", code, json.dumps(arguments)],
        env={**environment(os.environ), "PYTHONPATH": str(COLLECTIONS)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip().startswith("{"), done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return {"failed": False, **result}
