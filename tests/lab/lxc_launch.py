"""Run a command that sees nothing but cgroup2 at /sys/fs/cgroup: `python3 lxc_launch.py lxc-start ...`.

Proxmox's nodes have the pure cgroup2 layout, so a container's processes are at `/lxc/129/ns/...` of one hierarchy. On a
machine that mounts old hierarchies (for some or all controllers), LXC follows them, and so does systemd inside. So
the command gets a mount namespace of its own, in which cgroup2 covers /sys/fs/cgroup; the machine keeps its layout, and
the mount goes with the last process of the namespace. Where the layout is pure, nothing is done.

Python has os.unshare only from 3.12 on, hence ctypes. Numbers from linux/sched.h and linux/mount.h.
"""

from __future__ import annotations

import ctypes
import os
import sys

CGROUP_DIRECTORY = "/sys/fs/cgroup"

_CLONE_NEWNS = 0x00020000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000


def has_pure_layout() -> bool:
    """Whether cgroup2 itself is mounted at /sys/fs/cgroup."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        kinds = [line.partition(" - ")[2].split()[0] for line in table if line.split()[4] == CGROUP_DIRECTORY]
    return kinds[-1:] == ["cgroup2"]  # the last mount on a directory covers the others


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        sys.exit(f"lxc_launch: {what} failed: {os.strerror(number)}")


def enter_pure_layout() -> None:
    """Give this process a mount namespace with cgroup2 at /sys/fs/cgroup. Mounts that the node shares reach it."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare of the mount namespace")
    _check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None), "mount propagation of /")
    target = CGROUP_DIRECTORY.encode()
    _check(libc.mount(b"cgroup2", target, b"cgroup2", ctypes.c_ulong(0), None), "mount of cgroup2")


def main(argv: list[str]) -> None:
    """Become the command in `argv`."""
    if not has_pure_layout():
        enter_pure_layout()
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1:])
