"""The cgroup2 hierarchy as the node sees it: find it, list what is in a directory of it, kill and remove a directory.

LXC puts the containers there (`lxc_launch`), also on machines whose controllers still sit in the old hierarchies.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import tempfile
import time
from typing import TYPE_CHECKING

from tests.lab import host

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def hierarchy() -> Iterator[pathlib.Path]:
    """The root of the cgroup2 hierarchy: where it is mounted, else a mount of its own for as long as the block runs.

    There is only one such hierarchy in a kernel, so every mount of it shows the same directories.
    """
    for mount in host.mounts():
        top = pathlib.Path(mount.point)
        # The file tells a mount that is seen from one that a later mount covers.
        if mount.file_system == "cgroup2" and mount.root == "/" and (top / "cgroup.controllers").exists():
            yield top
            return
    with tempfile.TemporaryDirectory(prefix="gpuops-cgroup2-") as directory:
        host.run_tool(["mount", "-t", "cgroup2", "cgroup2", directory])
        try:
            yield pathlib.Path(directory)
        finally:
            host.run_tool(["umount", "--", directory])


def _directories(top: pathlib.Path) -> list[str]:
    """`top` and every directory below it, children before parents; empty when there is none."""
    return [path for path, _subdirectories, _files in os.walk(top, topdown=False)]


def members(top: pathlib.Path) -> list[int]:
    """Pids of the processes at and below `top`; empty when there is no such cgroup."""
    pids = []
    for directory in _directories(top):
        try:
            text = pathlib.Path(directory, "cgroup.procs").read_text(encoding="ascii")
        except OSError:
            continue  # removed in between, or a threaded cgroup, whose processes its parent lists
        # A process of another pid namespace than ours reads as 0.
        pids += [int(word) for word in text.split() if word != "0"]
    return pids


def kill(top: pathlib.Path) -> None:
    """SIGKILL to everything at and below `top` at once (cgroup.kill, Linux 5.14), else one by one."""
    try:
        (top / "cgroup.kill").write_text("1", encoding="ascii")
    except FileNotFoundError:
        for pid in members(top):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_until_empty(top: pathlib.Path, timeout: float) -> list[int]:
    """Wait up to `timeout` seconds until nothing runs below `top`; return what still does."""
    deadline = time.monotonic() + timeout
    while True:
        pids = members(top)
        if not pids or time.monotonic() > deadline:
            return pids
        time.sleep(0.02)


def remove(top: pathlib.Path) -> None:
    """Remove `top` and everything below; a directory that is still in use stays."""
    for directory in _directories(top):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
