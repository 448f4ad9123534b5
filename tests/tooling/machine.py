"""A machine of one's own for whatever runs labs: ``python -m tests.tooling.machine WORDS`` runs this Python with WORDS.

A lab with LXC takes a whole node: container 129 of its cgroups, the claims in /run, eight device numbers, and a list of
processes out of which modules choose whom to kill. Two such labs at once would meet in each of these. So each worker of
the tests gets namespaces for them: it sees the same files, and of processes, mounts, cgroups, shared memory and
/run only its own.

It ends when its last process has: what a test left running inside is still there to be found by whoever looks for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.lab import cgroup2, host
from tests.tooling.processes import ENDING_SIGNALS

# linux/sched.h, linux/mount.h
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
MS_REC = 0x4000
MS_SLAVE = 0x80000
# umount(2)
MNT_DETACH = 2

CGROUP = "gpuops-tests-"

_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Become the door of a new machine: its cgroups are made and removed from here. Needs root."""
    # Whoever wants the tests to end signals our group, so pytest as well. We go when its machine is empty.
    for one in ENDING_SIGNALS:
        signal.signal(one, lambda *_: None)
    with cgroup2.hierarchy() as top:
        # Whoever kills a door leaves the cgroups of its machine behind, which nobody is in.
        for old in top.glob(f"{CGROUP}*"):
            if not Path("/proc", old.name.removeprefix(CGROUP)).exists():
                cgroup2.remove(old)
        root = top / f"{CGROUP}{os.getpid()}"
        # On a machine with systemd, pid 1 is in init.scope, and LXC puts its containers beside that.
        (root / "init.scope").mkdir(parents=True)
        try:
            # From here on, children are in the new namespace; the first of them is its init.
            _call("unshare", CLONE_NEWPID)
            init = os.fork()
            if init == 0:
                _serve_as_init(root)
            _pid, status = os.waitpid(init, 0)
        finally:
            cgroup2.remove(root)
    return max(os.waitstatus_to_exitcode(status), 0)


def _serve_as_init(root: Path) -> None:
    """Set the machine up, run the worker in it, and reap until nobody is left. Does not return."""
    code = 1
    try:
        _enter_cgroup(root)
        _mount_what_is_ours()
        worker = subprocess.Popen([sys.executable, *sys.argv[1:]])
        while True:
            pid, status = os.wait()
            if pid == worker.pid:
                code = worker.returncode = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        os._exit(max(code, 0))
    except OSError as exc:
        sys.stderr.write(f"No machine for the tests: {exc}\n")
    finally:
        os._exit(1)


def _enter_cgroup(root: Path) -> None:
    """Make ``root`` the root of all cgroups that can be seen from here. 0 means whoever writes it."""
    (root / "cgroup.procs").write_text("0", encoding="ascii")
    _call("unshare", CLONE_NEWCGROUP)
    (root / "init.scope" / "cgroup.procs").write_text("0", encoding="ascii")


def _mount_what_is_ours() -> None:
    """Replace what shows the other machine: its cgroups, its /run, its shared memory, its processes."""
    _call("unshare", CLONE_NEWNS | CLONE_NEWIPC)
    _call("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None)
    for mount in host.mounts():
        if mount.file_system == "cgroup2":
            # Not above it: the kernel refuses a file system on top of itself.
            _call("umount2", os.fsencode(mount.point), MNT_DETACH)
            _mount("cgroup2", mount.point)
    resolver = Path("/etc/resolv.conf").resolve()
    servers = resolver.read_bytes() if resolver.is_relative_to("/run") and resolver.exists() else None
    _mount("tmpfs", "/run")
    _mount("tmpfs", "/dev/shm")
    if servers is not None:
        resolver.parent.mkdir(parents=True, exist_ok=True)
        resolver.write_bytes(servers)
    _mount("proc", "/proc")


def _mount(file_system: str, point: str) -> None:
    name = file_system.encode()
    _call("mount", name, os.fsencode(point), name, ctypes.c_ulong(0), None)


def _call(function: str, *arguments: object) -> None:
    """A function of the C library that returns -1 on error. Raises OSError that names it."""
    if getattr(_LIBC, function)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main())
