# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A /proc made of files, with the processes that a test needs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Optional, Sequence, Union

from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process, ProcFs

HOST = "pid:[4026531836]"
BOOT_TIME = 1_700_000_000

Text = Union[str, bytes]


def inside(vmid: int, below: str = "") -> str:
    """/proc/PID/cgroup of a process in a container on Proxmox with cgroup v2."""
    return f"0::/lxc/{vmid}/ns{below}\n"


def raw(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def stat_line(
    pid: int, name: Text, state: str, parent: int, flags: int, threads: int, start: int, job: tuple[int, int] = (1, 1)
) -> bytes:
    """``job``: process group and session."""
    head = b"%d (%s) %s %d %d %d 0 -1 %d" % (pid, raw(name), state.encode(), parent, *job, flags)
    return head + b" 9 9 9 9 8 8 8 8 20 0 %d 0 %d 4096 1 18446744073709551615\n" % (threads, start)


class FakeProc:
    """Writes the tree below ``root``, which also has the machine's ``dev`` beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "proc"
        self.devices = root / "dev"
        self.devices.mkdir(parents=True)
        (self.root / "self" / "ns").mkdir(parents=True)
        (self.root / "self" / "ns" / "pid").symlink_to(HOST)
        (self.root / "stat").write_text(f"cpu  1 2 3\nbtime {BOOT_TIME}\nprocesses 7\n")
        self.procfs = ProcFs(str(self.root))

    def add(
        self,
        pid: int,
        name: Text = "python3",
        command: Text = "",
        *,
        state: str = "S",
        parent: int = 1,
        uid: int = 0,
        start: Optional[int] = None,
        threads: int = 1,
        inner: Sequence[int] = (),
        cgroup: Text = "0::/\n",
        namespace: str = HOST,
        flags: int = 0,
        fds: Sequence[Path] = (),
        job: tuple[int, int] = (1, 1),
    ) -> Process:
        """``command``: NULs between arguments as the kernel has them. ``inner``: its pids in the namespaces below.
        ``job``: process group and session.
        """
        start = 100 * pid if start is None else start
        directory = self.root / str(pid)
        (directory / "ns").mkdir(parents=True)
        (directory / "fd").mkdir()
        stat = stat_line(pid, name, state, parent, flags, threads, start, job)
        (directory / "stat").write_bytes(stat)
        pids = "\t".join(map(str, (pid, *inner)))
        owners = "\t".join([str(uid)] * 4)
        (directory / "status").write_text(f"Umask:\t0022\nState:\t{state}\nUid:\t{owners}\nNSpid:\t{pids}\n")
        (directory / "cgroup").write_bytes(raw(cgroup))
        (directory / "cmdline").write_bytes(raw(command))
        (directory / "ns" / "pid").symlink_to(namespace)
        self.thread(pid, pid, stat=stat)
        for number, path in enumerate(fds):
            (directory / "fd" / str(number)).symlink_to(path)
        return self.process(pid)

    def thread(
        self,
        pid: int,
        task: int,
        *,
        stat: Optional[bytes] = None,
        state: str = "S",
        command: Text = "",
        fds: Sequence[Path] = (),
        wchan: str = "0",
    ) -> None:
        directory = self.root / str(pid) / "task" / str(task)
        (directory / "fd").mkdir(parents=True, exist_ok=True)
        (directory / "stat").write_bytes(stat or stat_line(task, "worker", state, 1, 0, 2, 7))
        (directory / "cmdline").write_bytes(raw(command))
        (directory / "wchan").write_text(wchan)
        for number, path in enumerate(fds):
            (directory / "fd" / str(number)).symlink_to(path)

    def mapping(self, pid: int, path: Path, *, device: str = "00:06", inode: int = 77, broken: bool = False) -> None:
        """``pid`` has ``path`` mapped; ``broken``: it has let go of it when it is looked at."""
        directory = self.root / str(pid)
        (directory / "map_files").mkdir(exist_ok=True)
        with (directory / "maps").open("a") as stream:
            stream.write(f"7f00-7f10 rw-s 00000000 {device} {inode}    {path}\n7ffe-7fff rw-p 0 00:00 0 [stack]\n")
        if not broken:
            (directory / "map_files" / "7f00-7f10").symlink_to(path)

    def become(self, pid: int, state: str, *, threads: int = 1, wchan: str = "0") -> None:
        """Another state, of the leader and in all that shows it."""
        process = self.process(pid)
        job = process.group, process.session
        stat = stat_line(pid, process.name, state, process.parent_pid, 0, threads, process.start_ticks, job)
        (self.root / str(pid) / "stat").write_bytes(stat)
        self.thread(pid, pid, stat=stat, wchan=wchan)

    def remove(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid), ignore_errors=True)

    def process(self, pid: int) -> Process:
        process = self.procfs.process(pid)
        assert process is not None
        return process

    def container(self, vmid: int, init: int, *, cgroup: Optional[str] = None) -> str:
        """A container's init; returns its pid namespace."""
        namespace = f"pid:[{vmid}]"
        lines = inside(vmid, "/init.scope") if cgroup is None else cgroup
        self.add(init, "systemd", "/sbin/init\0", inner=(1,), cgroup=lines, namespace=namespace)
        return namespace

    def card(self, minor: int) -> Path:
        """The node of a card. A plain file: what makes it one thing is then its inode."""
        path = self.devices / f"nvidia{minor}"
        path.touch()
        return path

    def uvm(self) -> Path:
        """The node that CUDA opens beside the cards."""
        path = self.devices / "nvidia-uvm"
        path.touch()
        return path


def make_process(pid: int = 4242, name: str = "python3", command: str = "", **fields: object) -> Process:
    """A process without any /proc."""
    known = {
        "start_ticks": 100 * pid,
        "state": "S",
        "parent_pid": 1,
        "uid": 0,
        "threads": 1,
        "namespace_pids": (pid,),
        "cgroups": ("/",),
    }
    return Process(pid=pid, name=name, command=command, **{**known, **fields})  # type: ignore[arg-type]


def is_root() -> bool:
    return os.geteuid() == 0
