"""A frozen file system: whoever writes there sleeps uninterruptibly (state D) until it is thawed, SIGKILL or not.

A small ext4 image, mounted through a loop device at STATE/frozen/disk, then `fsfreeze --freeze`. Nothing is noted down:
what has to be undone is read from the mount table and from losetup, so `thaw` works after a crash, too, and anywhere.
"""

from __future__ import annotations

import json
import os
import pathlib
import time

from tests.lab import host
from tests.lab.errors import LabError

_IMAGE_MIB = 16
_PACKAGES = {"mkfs.ext4": "e2fsprogs", "losetup": "mount", "fsfreeze": "util-linux"}


def mount_point(state: pathlib.Path) -> pathlib.Path:
    """Where the file system is mounted, on the node and, when `prepare` came before the container's start, inside."""
    return pathlib.Path(os.path.realpath(state)) / "frozen" / "disk"


def _image(state: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(os.path.realpath(state)) / "frozen.ext4"


def _mounted(point: pathlib.Path) -> list[host.Mount]:
    return [mount for mount in host.mounts() if mount.point == str(point)]


def prepare(state: pathlib.Path) -> None:
    """Make STATE/frozen a shared mount, so that a disk mounted later appears inside containers that run already.

    Call it before a container binds the state directory (recursively, as slave). `release` takes it away.
    """
    point = mount_point(state)
    point.parent.mkdir(exist_ok=True)
    if not _mounted(point.parent):
        host.run_tool(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "gpuops-lab", str(point.parent)])
    if not point.exists():  # the mark that the following was done
        # Private first: else a node whose mounts are shared already would propagate the disk everywhere.
        host.run_tool(["mount", "--make-private", "--", str(point.parent)])
        host.run_tool(["mount", "--make-shared", "--", str(point.parent)])
        point.mkdir()


def mount_disk(state: pathlib.Path) -> pathlib.Path:
    """Make and mount the disk, not frozen yet. Returns where it is. Does nothing when it is mounted. Needs root."""
    host.require(_PACKAGES)
    point, image = mount_point(state), _image(state)
    if _mounted(point):
        return point
    point.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as stream:
        stream.truncate(_IMAGE_MIB * 1024 * 1024)
    host.run_tool(["mkfs.ext4", "-q", "-F", str(image)])
    host.run_tool(["mount", "-o", "loop", "--", str(image), str(point)])  # this loop device goes with its mount
    point.chmod(0o777)
    return point


def freeze(state: pathlib.Path) -> pathlib.Path:
    """Freeze the disk (mounted first where needed) and return its path: writing or creating a file there now hangs."""
    point = mount_disk(state)
    host.run_tool(["fsfreeze", "--freeze", str(point)])
    return point


def _loop_devices(image: pathlib.Path) -> list[str]:
    """Loop devices whose backing file is, or was, the image."""
    text = host.run_tool(["losetup", "--list", "--json", "--output", "NAME,BACK-FILE"])
    rows = json.loads(text)["loopdevices"] if text.strip() else []
    return [row["name"] for row in rows if (row["back-file"] or "").replace(" (deleted)", "") == str(image)]


def thaw(state: pathlib.Path) -> None:
    """Thaw, unmount, detach the loop device, remove the image. Idempotent.

    Whoever hung there goes on (or dies, when it was killed meanwhile). The disk of a process that keeps a file open
    there is detached from the tree, and its loop device goes when that process does.
    """
    point, image = mount_point(state), _image(state)
    while _mounted(point):  # more than once, when two freezes were cut off
        try:
            host.run_tool(["fsfreeze", "--unfreeze", str(point)])
        except LabError as error:
            if "Invalid argument" not in str(error):  # EINVAL: it was not frozen
                raise
        _unmount(point)
    # A mount that was cut off can leave a device without a mount.
    for device in _loop_devices(image) if image.exists() else []:
        host.run_tool(["losetup", "--detach", device])
    image.unlink(missing_ok=True)


def _unmount(point: pathlib.Path) -> None:
    """Unmount, giving those that were just woken two seconds to finish or die."""
    deadline = time.monotonic() + 2.0
    lazy: list[str] = []
    while True:
        try:
            host.run_tool(["umount", *lazy, "--", str(point)])
        except LabError:
            if lazy:
                raise
        else:
            return
        if time.monotonic() > deadline:
            lazy = ["--lazy"]
        time.sleep(0.05)


def release(state: pathlib.Path) -> None:
    """`thaw`, and also take away what `prepare` made. For when no container of the lab runs any more. Idempotent."""
    thaw(state)
    point = mount_point(state)
    host.unmount_under(point.parent)
    for directory in (point, point.parent):
        if directory.exists():
            directory.rmdir()
