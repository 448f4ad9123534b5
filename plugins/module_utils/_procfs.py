# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process as /proc shows it: identity, names, state, owner, container.

Formats are those of proc(5) and Documentation/filesystems/proc.rst. Every reader returns None (or leaves the process
out) when the process went away between two reads: that is not an error but an answer. Lines end in a newline and in
nothing else: the kernel keeps newlines out of names, but not what ``splitlines`` takes for an end as well.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Collection, Iterable, Iterator, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._bounded_read import (
    StalledError,
    read_file,
    read_within,
)
from ansible_collections.gpuops.inference.plugins.module_utils._errors import refusing_shortage

# PF_KTHREAD of include/linux/sched.h: the process has no program of its own.
_KERNEL_THREAD_FLAG = 0x00200000

# PROC_PID_INIT_INO of include/linux/proc_ns.h: the pid namespace that the machine starts with, in which all others lie.
_HOST_PID_NAMESPACE = f"pid:[{0xEFFFFFFC}]"

PROC = "/proc"

# The kernel answers in microseconds, unless the process's memory is locked; see _bounded_read.
COMMAND_SECONDS = 1.0

# With 1 they are listed, and may not be looked into.
_HIDDEN = re.compile(r"\bhidepid=(?:2|4|invisible|ptraceable)\b")

_UNIT = re.compile(r"^.+\.(?:service|scope)$")

# Nothing that the kernel counts is longer. isdigit() takes more for digits than int(), and int() more than the kernel.
_NUMBER = re.compile(r"[0-9]{1,20}")


def says_gone(error: OSError) -> bool:
    """Whether what was asked about has gone. Any other error (no memory, no free handle) answers nothing."""
    return error.errno in (errno.ENOENT, errno.ESRCH)


class Identity(NamedTuple):
    """A pid is given out again; together with the start time (clock ticks since boot) it means one process for ever."""

    pid: int
    start_ticks: int


class Process(NamedTuple):
    """One process (thread group). ``namespace_pids`` goes from the reader's pid namespace to the innermost one.

    ``group`` and ``session`` are those of job control, 0 where they lie outside of the reader's pid namespace.
    ``command_known`` is false where the kernel never tells the command line, and ``command`` is empty for that reason.
    """

    pid: int
    start_ticks: int
    name: str
    command: str
    state: str
    parent_pid: int
    uid: Optional[int]
    threads: int
    namespace_pids: tuple[int, ...]
    cgroups: tuple[str, ...]
    kernel_thread: bool = False
    group: int = 0
    session: int = 0
    command_known: bool = True

    @property
    def identity(self) -> Identity:
        """(pid, start time)."""
        return Identity(self.pid, self.start_ticks)

    @property
    def gone(self) -> bool:
        """Dead, merely not reaped. A zombie leader whose other threads live (state Z, several tasks) still holds all
        it held.
        """
        return self.state in ("X", "x") or (self.state == "Z" and self.threads <= 1)

    @property
    def unit(self) -> Optional[str]:
        """The innermost systemd unit in the cgroup path: the service, else the scope."""
        return unit_of(self.cgroups)


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used here. Times in clock ticks since boot."""

    pid: int
    name: str
    state: str
    parent_pid: int
    flags: int
    threads: int
    start_ticks: int
    group: int = 0
    session: int = 0

    @property
    def kernel_thread(self) -> bool:
        """Whether the kernel runs it, and no program."""
        return bool(self.flags & _KERNEL_THREAD_FLAG)


def parse_stat(text: str) -> Optional[Stat]:
    """Parse /proc/PID/stat. The name may hold blanks, brackets and newlines: only the last ``)`` ends it."""
    head, found, tail = text.rpartition(")")
    pid_text, opened, name = head.partition("(")
    fields = tail.split()
    if not found or not opened or len(fields) < 20:
        return None
    try:
        stat = Stat(
            pid=int(pid_text),
            name=name,
            state=fields[0],
            parent_pid=int(fields[1]),
            flags=int(fields[6]),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            group=int(fields[2]),
            session=int(fields[3]),
        )
    except ValueError:
        return None
    # A longer one is no time, and could not be counted with.
    return stat if 0 <= stat.start_ticks < 1 << 64 else None


def parse_status(text: str) -> dict[str, str]:
    """Parse /proc/PID/status into key and value."""
    pairs = (line.partition(":") for line in text.split("\n"))
    return {key: value.strip() for key, colon, value in pairs if colon}


def parse_command(raw: str) -> str:
    """/proc/PID/cmdline: arguments end in NUL; a title set by the program itself may have none, or many at its end."""
    return raw.rstrip("\0").replace("\0", " ").strip()


def parse_cgroups(text: str) -> tuple[str, ...]:
    """/proc/PID/cgroup: the paths, without repetition, the unified hierarchy and systemd's own first."""
    rows = [line.split(":", 2) for line in text.split("\n") if line.count(":") >= 2]
    rows.sort(key=lambda row: 0 if row[1] == "" else 1 if row[1] == "name=systemd" else 2)
    return tuple(dict.fromkeys(path for _number, _controllers, path in rows))


def numbers(words: Iterable[str]) -> Iterator[int]:
    """Those of the words that are numbers as the kernel prints them."""
    return (int(word) for word in words if _NUMBER.fullmatch(word))


def first_number(text: str) -> Optional[int]:
    """The first word of a line such as that of the user ids, None where it is no number."""
    return next(numbers(text.split()[:1]), None)


def unit_of(cgroups: tuple[str, ...]) -> Optional[str]:
    """The innermost service (else scope) that any of the cgroup paths names."""
    for suffix in (".service", ".scope"):
        for path in cgroups:
            units = [part for part in path.split("/") if part.endswith(suffix) and _UNIT.match(part)]
            if units:
                return units[-1]
    return None


class ProcFs:
    """Reads one /proc. ``root`` is another directory only in tests."""

    def __init__(self, root: str = PROC) -> None:
        self.root = root
        # Processes whose command line nobody gets to see. To ask each time would cost a second each time.
        self._mute: set[Identity] = set()
        # Processes at whose mappings the kernel hangs.
        self._hung: set[Identity] = set()

    def read_text(self, *parts: object) -> Optional[str]:
        """A file below /proc as text (never failing on its bytes), or None where it cannot be read."""
        raw = read_file(self.path(*parts))
        return None if raw is None else raw.decode("utf-8", "replace")

    def path(self, *parts: object) -> str:
        """Join below /proc."""
        return "/".join((self.root, *map(str, parts)))

    def pids(self) -> list[int]:
        """Every process id that is listed now, rising. Raises MachineError."""
        with refusing_shortage(f"{self.root} cannot be listed"):
            return sorted(numbers(os.listdir(self.root)))

    def stat(self, pid: int) -> Optional[Stat]:
        """The process's stat, or None when it is gone."""
        text = self.read_text(pid, "stat")
        return parse_stat(text) if text is not None else None

    def note_that_it_hangs(self, pids: Collection[int]) -> None:
        """Remember processes whose mappings never come, so that not every look has to wait for them anew.

        Whose threads do not sleep in the kernel did not hang: the child that asked died of something else.
        """
        seen = (self.stat(pid) for pid in pids if self.uninterruptible_task(pid) is not None)
        self._hung |= {Identity(stat.pid, stat.start_ticks) for stat in seen if stat is not None}

    def known_to_hang(self) -> set[int]:
        """Those of them that still are the same process, and still have a thread that sleeps in the kernel."""
        seen = ((one, self.stat(one.pid)) for one in self._hung)
        same = {one.pid for one, stat in seen if stat is not None and stat.start_ticks == one.start_ticks}
        return {pid for pid in same if self.uninterruptible_task(pid) is not None}

    def process(self, pid: int) -> Optional[Process]:
        """Read one process whole. None when it is gone, also when the pid was given to another while it was read.

        The command is empty where the kernel never tells it, since a thread of the process sleeps in a driver.
        """
        before = self.stat(pid)
        if before is None:
            return None
        status = parse_status(self.read_text(pid, "status") or "")
        command = self._command(Identity(pid, before.start_ticks), before.state)
        process = Process(
            pid=pid,
            start_ticks=before.start_ticks,
            name=before.name,
            command=command,
            state=before.state,
            parent_pid=before.parent_pid,
            uid=first_number(status.get("Uid", "")),
            threads=before.threads,
            namespace_pids=tuple(numbers(status.get("NSpid", "").split())) or (pid,),
            cgroups=parse_cgroups(self.read_text(pid, "cgroup") or ""),
            kernel_thread=before.kernel_thread,
            group=before.group,
            session=before.session,
            command_known=Identity(pid, before.start_ticks) not in self._mute,
        )
        after = self.stat(pid)
        return process if after is not None and after.start_ticks == before.start_ticks else None

    def processes(self) -> Iterator[Process]:
        """Every process, dead ones that nobody has reaped included."""
        for pid in self.pids():
            process = self.process(pid)
            if process is not None:
                yield process

    def look_again(self, process: Process) -> Optional[Process]:
        """The same process now (state and threads fresh), or None when it is gone."""
        stat = self.stat(process.pid)
        if stat is None or stat.start_ticks != process.start_ticks:
            return None
        now = process._replace(state=stat.state, threads=stat.threads, parent_pid=stat.parent_pid)
        return None if now.gone else now

    def ancestors(self, pid: int) -> list[int]:
        """``pid`` itself, its parent, its parent's parent, ... up to 1."""
        chain: list[int] = []
        while pid > 0 and pid not in chain:
            chain.append(pid)
            stat = self.stat(pid)
            pid = stat.parent_pid if stat is not None else 0
        return chain

    def lineage(self, process: Process) -> list[Process]:
        """Its ancestors as they are now, the parent first. Empty when the process is gone, or all above it."""
        above = (self.process(pid) for pid in self.ancestors(process.pid)[1:])
        return [one for one in above if one is not None]

    def wchan(self, pid: int, task: Optional[int] = None) -> Optional[str]:
        """The kernel function in which the process (or one of its threads) sleeps; None where the kernel does not
        tell.
        """
        text = (self.read_text(pid, "task", pid if task is None else task, "wchan") or "").strip()
        return text if text not in ("", "0") else None

    def uninterruptible_task(self, pid: int) -> Optional[int]:
        """A thread of the process that is in state D, the leader if it is; None when none is."""
        try:
            tasks = sorted(numbers(os.listdir(self.path(pid, "task"))), key=lambda task: task != pid)
        except OSError:
            return None
        for task in tasks:
            stat = parse_stat(self.read_text(pid, "task", task, "stat") or "")
            if stat is not None and stat.state == "D":
                return task
        return None

    def boot_time(self) -> Optional[int]:
        """Seconds since the epoch at which the kernel started (``btime`` of /proc/stat)."""
        for line in (self.read_text("stat") or "").split("\n"):
            if line.startswith("btime "):
                return first_number(line[len("btime ") :])
        return None

    def pid_namespace(self, pid: int) -> Optional[str]:
        """``pid:[4026531836]``, or None where it may not be read."""
        try:
            return os.readlink(self.path(pid, "ns", "pid"))
        except OSError:
            return None

    def pid_namespace_of_reader(self) -> Optional[str]:
        """The pid namespace in which this very code runs."""
        try:
            return os.readlink(self.path("self", "ns", "pid"))
        except OSError:
            return None

    def in_host_pid_namespace(self) -> bool:
        """Whether this code runs in the machine's own pid namespace, and every process is to be seen."""
        return self.pid_namespace_of_reader() == _HOST_PID_NAMESPACE and not self.hides_processes()

    def hides_processes(self) -> bool:
        """Whether /proc is mounted so that it does not list the processes of others to us (hidepid of proc(5))."""
        if self.stat(1) is not None:
            return False
        lines = (self.read_text("self", "mountinfo") or "").split("\n")
        return any(" - proc " in line and _HIDDEN.search(line) for line in lines)

    def _command(self, identity: Identity, state: str) -> str:
        command = self._command_line(identity, identity.pid)
        if command or state != "Z":
            return command
        # A leader that has exited shows no command line; its living threads do.
        try:
            tasks = os.listdir(self.path(identity.pid, "task"))
        except OSError:
            return command
        commands = (self._command_line(identity, identity.pid, "task", task) for task in tasks)
        return next((one for one in commands if one), command)

    def _command_line(self, identity: Identity, *place: object) -> str:
        if identity in self._mute:
            return ""
        try:
            raw = read_within(self.path(*place, "cmdline"), COMMAND_SECONDS)
        except StalledError:
            self._mute.add(identity)
            return ""
        return parse_command((raw or b"").decode("utf-8", "replace"))
