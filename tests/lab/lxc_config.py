"""The configuration of one LXC container, as Proxmox lays it out. Text in, text out; see lxc.container.conf(5)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from tests.lab.errors import LabError

if TYPE_CHECKING:
    import pathlib

# What any container may open: null, zero, full, random, urandom, tty, ptmx and the pseudo-terminals.
_DEVICES = ("1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:1", "5:2", "136:*")

# A container has its own of these; a state directory below one of them would disappear.
_HIDDEN = ("/dev", "/proc", "/run", "/sys")


def check_path(path: str) -> None:
    """Refuse a directory that cannot be shown inside a container at the same path. Raises LabError."""
    for top in _HIDDEN:
        if path == top or path.startswith(top + os.sep):
            raise LabError(f"{path} is not visible in a container, which has its own {top}: choose another place.")
    if re.search(r"[\x00-\x1f]", path) or path != path.strip():
        raise LabError(f"LXC's configuration cannot hold the path {path!r}: choose one without control characters.")


def _fstab(path: str) -> str:
    """Escape a path for a mount entry, which has the format of fstab(5)."""
    return path.replace("\\", r"\134").replace(" ", r"\040")


def _shell(path: str) -> str:
    """Escape a path for a hook, which LXC hands to a shell. Quotes would not do: LXC strips them off a value."""
    return re.sub(r"([^A-Za-z0-9_./+@%,:=-])", r"\\\1", path)


def _bind(path: str, options: str) -> str:
    return f"lxc.mount.entry = {_fstab(path)} {_fstab(path.lstrip('/'))} none {options},create=dir 0 0"


def can_overlay(*directories: pathlib.Path) -> bool:
    """Whether LXC can name these in an overlay: it separates by colons, and the kernel by colons and commas."""
    return not any(set(str(directory)) & set(':,\\"') for directory in directories)


def render(
    *,
    vmid: int,
    root: str,
    hook: pathlib.Path,
    read_only: list[str],
    read_write: list[str],
    devices: list[tuple[int, int]],
    apparmor: bool,
) -> str:
    """The configuration.

    `root` is LXC's name of the root file system (`overlayfs:LOWER:UPPER` or `dir:PATH`); the paths in `read_only` and
    `read_write` appear inside at the same place; `devices` are the (major, minor) that may be opened; `hook` makes
    their nodes; `apparmor` says whether this machine has it.
    """
    lines = [
        f"lxc.uts.name = ct{vmid}",
        "lxc.rootfs.path = " + root,
        # Proxmox's layout (field facts): processes are at /lxc/129/ns, those that enter at /lxc/129/ns/.lxc.
        f"lxc.cgroup.dir.monitor = lxc.monitor/{vmid}",
        f"lxc.cgroup.dir.container = lxc/{vmid}",
        "lxc.cgroup.dir.container.inner = ns",
        "lxc.net.0.type = empty",  # a network namespace with nothing but loopback
        "lxc.mount.auto = cgroup:mixed proc:mixed sys:mixed",
        "lxc.autodev = 1",
        "lxc.hook.autodev = " + _shell(str(hook)),
        "lxc.pty.max = 64",
        "lxc.tty.max = 0",
        "lxc.console.path = none",
        "lxc.cap.drop = mac_admin mac_override sys_time sys_module sys_rawio",
        "lxc.cgroup2.devices.deny = a",
        "lxc.cgroup2.devices.allow = c *:* m",
        "lxc.cgroup2.devices.allow = b *:* m",
    ]
    lines += [f"lxc.cgroup2.devices.allow = c {numbers} rwm" for numbers in _DEVICES]
    lines += [f"lxc.cgroup2.devices.allow = c {major}:{minor} rwm" for major, minor in devices]
    lines += [_bind(path, "bind,ro") for path in read_only]
    # Recursive and slave: what the node mounts below it later (a frozen disk) appears inside, and goes again.
    lines += [_bind(path, "rbind,rslave") for path in read_write]
    if apparmor:  # LXC refuses the key where it was built without
        lines.append("lxc.apparmor.profile = unconfined")
    return "\n".join(lines) + "\n"


def autodev_hook(nodes: dict[str, tuple[int, int]]) -> str:
    """The script that makes the card nodes in the container's own /dev, as Proxmox's lxc-pve-autodev-hook does."""
    lines = ["#!/bin/sh", "set -e"]
    for name, (major, minor) in sorted(nodes.items()):
        lines.append(f'mknod "$LXC_ROOTFS_MOUNT/dev/{name}" c {major} {minor}')
        lines.append(f'chmod 666 "$LXC_ROOTFS_MOUNT/dev/{name}"')
    return "\n".join(lines) + "\n"
