"""A container with nothing in it but busybox, for what LXC needs minutes for: a bare root file system, an unprivileged
one with uid 100000 for its root, a frozen one. Needs root and a busybox that is linked statically.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHIFT = 100_000

# Enters new namespaces; waits until its ids are mapped; then its child is the init, and goes with it.
_INIT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
root, unprivileged = sys.argv[1], sys.argv[2] == "unprivileged"
NEWNS, NEWUSER, NEWPID, PRIVATE, PDEATHSIG = 0x00020000, 0x10000000, 0x20000000, 0x44000, 1
call("unshare", (NEWUSER if unprivileged else 0) | NEWNS | NEWPID)
print(flush=True)
sys.stdin.readline()
if unprivileged:
    os.setgid(0)
    os.setuid(0)
call("mount", b"none", b"/", None, PRIVATE, None)
init = os.fork()
if init == 0:
    call("mount", b"proc", os.fsencode(root + "/proc"), b"proc", 0, None)
    os.chroot(root)
    os.chdir("/")
    call("prctl", PDEATHSIG, 9, 0, 0, 0)
    os.execv("/bin/busybox", ["busybox", "sleep", "120"])
print(init, flush=True)
os.waitpid(init, 0)
"""

_PCT = """#!/bin/sh
case $1 in
    status) echo 'status: running'; echo 'pid: {init}'; echo 'vmid: 129' ;;
    exec) shift 3; exec nsenter -t {init} {user} -m -p --root --wd "$@" ;;
esac
"""


class MiniContainer:
    """``init_pid`` as the node sees it; ``pct`` is the path of a tool that knows this container only."""

    def __init__(self, init_pid: int, pct: Path) -> None:
        self.init_pid = init_pid
        self.pct = pct


@contextmanager
def mini_container(*, unprivileged: bool = False) -> Iterator[MiniContainer]:
    """Container 129, up inside the block."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with tempfile.TemporaryDirectory(prefix="gpuops-mini-") as directory:
        root = Path(directory)
        _fill(root)
        kind = "unprivileged" if unprivileged else "privileged"
        argv = [sys.executable, "-S", "-E", "-c", _INIT, directory, kind]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as entering:
            try:
                assert entering.stdin is not None
                assert entering.stdout is not None
                assert entering.stdout.readline() == "\n", "no new namespaces"
                for name in ("uid_map", "gid_map") if unprivileged else ():
                    Path(f"/proc/{entering.pid}/{name}").write_text(f"0 {SHIFT} 65536\n")
                entering.stdin.write("\n")
                entering.stdin.flush()
                init_pid = int(entering.stdout.readline())
                _wait_for_init(init_pid)
                pct = root / "pct"
                pct.write_text(_PCT.format(init=init_pid, user="-U" if unprivileged else ""))
                pct.chmod(0o755)
                yield MiniContainer(init_pid, pct)
            finally:
                entering.kill()


def _fill(root: Path) -> None:
    """A shell, /dev/null, a place for /proc, and not one tool more. Readable for whoever is root inside."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs busybox")
    root.chmod(0o755)
    (root / "proc").mkdir()
    (root / "bin").mkdir()
    (root / "dev").mkdir()
    os.mknod(root / "dev" / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (root / "dev" / "null").chmod(0o666)
    shutil.copy(busybox, root / "bin" / "busybox")
    (root / "bin" / "sh").symlink_to("busybox")
    if subprocess.run(["chroot", str(root), "/bin/busybox", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a busybox that is linked statically (package busybox-static)")


def _wait_for_init(pid: int) -> None:
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/comm").read_text() != "busybox\n":
        assert time.monotonic() < deadline, "the init of the container did not come up"
        time.sleep(0.01)
