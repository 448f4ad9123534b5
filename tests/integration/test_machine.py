"""The machines that tests run in as root: what is inside meets nothing of another, and what stays is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tooling.environment import ROOT
from tests.tooling.processes import descendants

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of one's own need root")]

LIMIT_S = 30

LOOK = """
import os
print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()) == [1, os.getpid()])
print(os.listdir("/run"), os.listdir("/dev/shm"))
print(open("/proc/self/cgroup").read().splitlines()[-1])
"""
LEAVE_ONE = "import subprocess; subprocess.Popen(['sleep', '4712'], start_new_session=True)"


def start(program: str) -> subprocess.Popen[str]:
    """Run a Python program in a machine of its own."""
    argv = [sys.executable, "-m", "tests.tooling.machine", "-c", program]
    return subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def test_a_machine_shows_its_own_processes_its_own_run_and_its_own_cgroups() -> None:
    said, _errors = start(LOOK).communicate(timeout=LIMIT_S)
    assert said.splitlines() == ["True", "[] []", "0::/init.scope"]


def test_the_status_of_what_ran_is_handed_through() -> None:
    assert start("raise SystemExit(7)").wait(LIMIT_S) == 7


def test_what_is_left_inside_keeps_the_machine_there_and_is_found_from_outside() -> None:
    door = start(LEAVE_ONE)
    try:
        left = None
        while left is None:
            assert door.poll() is None
            left = next((one.pid for one in descendants() if command(one.pid) == ["sleep", "4712"]), None)
        door.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            door.wait(1)
        os.kill(left, signal.SIGKILL)
        assert door.wait(LIMIT_S) == 0
    finally:
        door.kill()
        door.wait()


def command(pid: int) -> list[str]:
    """The command line; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")[:-1]
    except OSError:
        return []
