# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Segments of shared memory in /dev/shm, this machine's or a container's, and which of them nobody needs any more.

A container's /dev/shm is reached through /proc/PID/root of its init. Its root may plant there what it likes, so no
symbolic link is followed, the mount is proven to be a tmpfs of the init's own, and a file is removed below the opened
directory only while it still is the one that was looked at.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from typing import Iterator, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError, InputError, refusing_shortage
from ansible_collections.gpuops.inference.plugins.module_utils._file_holders import FileId
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs, first_number, numbers

PATH = "/dev/shm"

# Whole names. The group `pid` is the owner's process id as it saw itself, `pid_hex` the same in hexadecimal. Sources:
# sglang/srt/utils/stale_shm_cleanup.py and load_snapshot.py; vLLM's CPU offloading; ncclShmOpen in NCCL's shmutils.cc;
# torch/multiprocessing (file_system strategy; CUDA reference counters); CPython's multiprocessing (shared_memory.py,
# synchronize.py); loky/backend/synchronize.py.
DEFAULT_NAMES = (
    r"sgl_shm_.+_(?P<pid>[0-9]+)_[0-9A-Za-z]+",
    r"multi_tokenizer_args_(?P<pid>[0-9]+)",
    r"sglang_loads_.+\.shm",
    r"vllm_offload_.+",
    r"nccl-[0-9A-Za-z_-]+",
    r"cuda\.shm\.[0-9a-f]+\.(?P<pid_hex>[0-9a-f]+)\.[0-9a-f]+",
    r"torch_(?P<pid>[0-9]+)_[0-9]+_[0-9]+",
    r"psm_[0-9a-f]+",
    r"sem\.mp-[0-9A-Za-z_]+",
    r"sem\.loky-(?P<pid>[0-9]+)-[0-9A-Za-z_]+",
)

# Names that have nothing in common with each other: a pattern that finds all of them finds everything.
_UNLIKE = ("a", "Z.0", "PostgreSQL.1804289383", "pulse-shm-1", "lsm.db")

# Why a segment is kept. The codes are part of what the module returns.
NOT_A_FILE = "not_a_file"
FOREIGN_OWNER = "foreign_owner"
IN_USE = "in_use"
OWNER_ALIVE = "owner_alive"
UNREADABLE = "unreadable"
TOO_YOUNG = "too_young"
MAKER_MAY_LIVE = "maker_may_live"
NOT_REMOVED = "not_removed"


class Segment(NamedTuple):
    """A name in /dev/shm that matches. ``size`` is in bytes of memory; ``changed`` (its ctime) in seconds since the
    epoch, when it was made or resized: writing through a mapping does not move it.
    """

    name: str
    file: FileId
    regular: bool
    size: int
    changed: float
    uid: int
    owner_pid: Optional[int]

    @property
    def shown_name(self) -> str:
        """The name, which may be any bytes, as text that JSON can hold."""
        return os.fsencode(self.name).decode("utf-8", "backslashreplace")


class Evidence(NamedTuple):
    """What is known of those who may need a segment. ``age`` and ``min_age`` are in seconds."""

    in_use: bool
    owner_alive: bool
    unreadable: bool
    foreign_owner: bool
    maker_may_live: bool
    age: float
    min_age: float


def why_kept(segment: Segment, evidence: Evidence) -> Optional[str]:
    """The reason to leave a segment alone, or None when it is stale. Unknown is not stale."""
    if not segment.regular:
        return NOT_A_FILE
    if evidence.foreign_owner:
        return FOREIGN_OWNER
    if evidence.in_use:
        return IN_USE
    if evidence.owner_alive:
        return OWNER_ALIVE
    if evidence.unreadable:
        return UNREADABLE
    # A dead owner is proof. Without one, the name may just be on its way from one process to another, or be kept in
    # mind by its maker, who has neither a handle nor a mapping then.
    if segment.owner_pid is None and evidence.age < evidence.min_age:
        return TOO_YOUNG
    if segment.owner_pid is None and evidence.maker_may_live:
        return MAKER_MAY_LIVE
    return None


# -- names ----------------------------------------------------------------------------------------------------------


def compile_names(patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Compile ``shm_patterns``. Raises InputError for one that is empty, invalid, or matches every name."""
    compiled = []
    for text in patterns:
        try:
            pattern = re.compile(text)
        except (re.error, OverflowError, RecursionError) as exc:
            raise InputError(
                f"shm_patterns holds an invalid regular expression, {text!r}: {exc}. Correct it.",
                reason="invalid_pattern",
            ) from exc
        if not text.strip() or all(pattern.fullmatch(name) for name in _UNLIKE):
            raise InputError(
                f"shm_patterns holds {text!r}, which is empty or matches every name. Name the segments that are meant.",
                reason="empty_pattern",
            )
        compiled.append(pattern)
    return tuple(compiled)


def owner_in_name(found: re.Match[str]) -> Optional[int]:
    """The process id that a name holds: the group ``pid`` (decimal) or ``pid_hex`` of the pattern; None without one."""
    groups = found.groupdict()
    for group, base in (("pid", 10), ("pid_hex", 16)):
        with contextlib.suppress(ValueError):
            pid = int(groups.get(group) or "", base)
            if pid > 0:
                return pid
    return None


# -- the mount ------------------------------------------------------------------------------------------------------


class Mount(NamedTuple):
    """A row of /proc/PID/mountinfo: ``device`` as ``major:minor``, ``root`` the directory of it that is mounted."""

    device: str
    root: str
    file_system: str


def parse_mounts(text: str) -> dict[int, Mount]:
    """Parse mountinfo, proc_pid_mountinfo(5), by mount id. Rows that are none are left out."""
    mounts = {}
    for line in text.split("\n"):
        before, _dash, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        number = first_number(fields[0])
        if len(fields) >= 6 and number is not None and kinds[0]:
            mounts[number] = Mount(fields[2], fields[3], kinds[0])
    return mounts


def parse_uid_map(text: str) -> list[range]:
    """The user ids, as this machine counts them, that a user namespace knows: /proc/PID/uid_map."""
    rows = (list(numbers(line.split())) for line in text.split("\n"))
    # First id inside, first id outside, how many; user_namespaces(7).
    return [range(row[1], row[1] + row[2]) for row in rows if len(row) == 3]


def reaches(pid: int, device: str, procfs: ProcFs) -> bool:
    """Whether a process has the file system mounted; also true where that cannot be read."""
    text = procfs.read_text(pid, "mountinfo")
    return text is None or any(mount.device == device for mount in parse_mounts(text).values())


class SharedMemory:
    """The opened /dev/shm that a process sees. Close it."""

    def __init__(self, pid: object, procfs: ProcFs) -> None:
        """``pid``: whose, ``self`` for our own. Raises GpuopsError where it is not what it should be."""
        self._descriptor = _open_step_by_step(procfs.path(pid, "root"), "dev", "shm")
        try:
            mount = _mount_of(self._descriptor, pid, procfs)
        except GpuopsError:
            self.close()
            raise
        self.device = mount.device

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self._descriptor)

    def space(self) -> tuple[int, int]:
        """Size of the file system and what is free of it, in bytes."""
        with refusing_shortage(f"{PATH} cannot be measured"):
            space = os.fstatvfs(self._descriptor)
        return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize

    def segments(self, patterns: Sequence[re.Pattern[str]]) -> list[Segment]:
        """What is in it now whose whole name matches one of the patterns, by name."""
        with refusing_shortage(f"{PATH} cannot be listed"):
            return self._segments(patterns)

    def _segments(self, patterns: Sequence[re.Pattern[str]]) -> list[Segment]:
        found = []
        for name in sorted(os.listdir(self._descriptor)):
            matches = [match for match in (pattern.fullmatch(name) for pattern in patterns) if match]
            segment = self._segment(name, next(filter(None, map(owner_in_name, matches)), None)) if matches else None
            if segment is not None:
                found.append(segment)
        return found

    def _segment(self, name: str, owner_pid: Optional[int]) -> Optional[Segment]:
        try:
            status = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return Segment(
            name=name,
            file=FileId(status.st_dev, status.st_ino),
            regular=stat.S_ISREG(status.st_mode),
            size=status.st_blocks * 512,
            changed=status.st_ctime,
            uid=status.st_uid,
            owner_pid=owner_pid,
        )

    def remove(self, segment: Segment) -> bool:
        """Remove a segment if it still is the same, unchanged file. Whether it is gone."""
        try:
            if self._segment(segment.name, segment.owner_pid) != segment:
                return False
            os.unlink(segment.name, dir_fd=self._descriptor)
        except OSError:
            return False
        return True


def _open_step_by_step(root: str, *names: str) -> int:
    """Open a directory below ``root`` without following a link; ``root`` itself is the kernel's own."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        with refusing_shortage(f"{PATH} cannot be opened"):
            descriptor = os.open(root, flags)
            for name in names:
                above = descriptor
                try:
                    descriptor = os.open(name, flags | os.O_NOFOLLOW, dir_fd=above)
                finally:
                    os.close(above)
    except OSError as exc:
        raise GpuopsError(
            f"{PATH} cannot be looked into: {exc.strerror}. {_REMEDY.get(exc.errno or 0, 'Look what is there.')}",
            reason=_REASON.get(exc.errno or 0, "shm_unreadable"),
        ) from exc
    return descriptor


# O_DIRECTORY with O_NOFOLLOW answers ENOTDIR for a symbolic link, open(2).
_REASON = {errno.ENOENT: "shm_missing", errno.ENOTDIR: "shm_not_a_directory", errno.ELOOP: "shm_not_a_directory"}
_REMEDY = {
    errno.ENOENT: "Servers that share memory need it: mount a tmpfs there.",
    errno.ENOTDIR: "A symbolic link or a file is in its place, and links are not followed.",
    errno.ELOOP: "A symbolic link is in its place, and links are not followed.",
    errno.EACCES: "Run the task as root.",
    errno.EPERM: "Run the task as root.",
}


def _mount_of(descriptor: int, pid: object, procfs: ProcFs) -> Mount:
    """The mount behind an opened directory, if it is a whole tmpfs in the mount namespace of ``pid``."""
    number = next(_mount_ids(descriptor), None)
    mount = parse_mounts(procfs.read_text(pid, "mountinfo") or "").get(number) if number is not None else None
    if mount is None or mount.file_system != "tmpfs" or mount.root != "/":
        what = "not a mount of its own" if mount is None else f"{mount.file_system}, of which it shows {mount.root}"
        raise GpuopsError(
            f"{PATH} is no tmpfs of its own ({what}), so what lies there may be another's. It was left alone.",
            reason="shm_not_tmpfs",
        )
    return mount


def _mount_ids(descriptor: int) -> Iterator[int]:
    # Our own handle: this is the real /proc, whichever one is looked at.
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as stream:
        for line in stream:
            if line.startswith("mnt_id:"):
                yield int(line.split()[1])
