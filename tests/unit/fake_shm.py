# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container's /dev/shm that is a directory, seen through a /proc made of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional, Union

from tests.unit.fake_proc import FakeProc

DEVICE = "0:99"


class FakeShm:
    """Init 4100 of container 129 on a node, with ``root`` as its root directory."""

    def __init__(self, directory: Path) -> None:
        self.proc = FakeProc(directory / "node")
        self.procfs = self.proc.procfs
        self.root = directory / "ct"
        self.directory = self.root / "dev" / "shm"
        self.directory.mkdir(parents=True)
        self.pid: Union[int, str] = 4100
        self.proc.container(129, 4100)
        self._furnish()

    def as_machine(self) -> None:
        """The same as the machine's own, for the process that looks."""
        self.pid = "self"
        self._furnish()

    def _furnish(self) -> None:
        (self.proc.root / str(self.pid) / "root").symlink_to(self.root)
        self.knows_uids("0 0 4294967295")
        self.mount()

    def knows_uids(self, rows: str) -> None:
        (self.proc.root / str(self.pid) / "uid_map").write_text(f"{rows}\n", encoding="ascii")

    def mount(self, *, number: Optional[int] = None, root: str = "/", file_system: str = "tmpfs") -> None:
        """What the init's table of mounts says of it; ``number`` is by default the mount that is really there."""
        row = f"{_mount_id(self.directory) if number is None else number} 24 {DEVICE} {root} /dev/shm rw"
        table = f"24 1 0:5 / / rw - ext4 /dev/sda1 rw\n{row} - {file_system} shm rw\n"
        (self.proc.root / str(self.pid) / "mountinfo").write_text(table, encoding="ascii")

    def reach(self, pid: int, *, device: str = DEVICE) -> None:
        """A process has a file system mounted, by default this one."""
        table = f"31 24 {device} / /dev/shm rw - tmpfs shm rw\n"
        (self.proc.root / str(pid) / "mountinfo").write_text(table, encoding="ascii")

    def make(self, name: str, size: int) -> Path:
        """A file in it."""
        path = self.directory / name
        path.write_bytes(b"\1" * size)
        return path


def _mount_id(directory: Path) -> int:
    handle = os.open(directory, os.O_RDONLY)
    try:
        lines = Path(f"/proc/self/fdinfo/{handle}").read_text(encoding="ascii").splitlines()
    finally:
        os.close(handle)
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))
