"""Processes as /proc shows them. What vanishes meanwhile, or may not be read, is left out or empty, never an error."""

from __future__ import annotations

import os
import time

_SIGKILL = 9


FileId = tuple[int, int, int]
"""What an open descriptor refers to, the same in every mount namespace: st_dev, st_ino, st_rdev."""


class Stat:
    """From /proc/PID/stat. `start_time` is in clock ticks since boot; with `pid` it identifies a process."""

    def __init__(self, pid: int, name: str, fields: list[str]) -> None:
        self.pid, self.name = pid, name
        self.state, self.parent, self.start_time = fields[0], int(fields[1]), int(fields[19])
        self.arg_start, self.arg_end = int(fields[45]), int(fields[46])


def pids() -> list[int]:
    """All processes visible here."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except OSError:
        return None
    # The name may hold blanks and brackets: it ends at the last bracket.
    before, _bracket, after = text.rpartition(")")
    return Stat(pid, before.partition("(")[2], after.split())


def command(pid: int) -> str:
    """The command line, separated by blanks; the name in brackets when it is empty (kernel threads, zombies)."""
    text = _read_bytes(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    if text:
        return text
    stat = read_stat(pid)
    return "[%s]" % stat.name if stat else ""


def environment_has(pid: int, name: str, value: str) -> bool:
    """Whether the process was started with NAME=VALUE."""
    return os.fsencode("%s=%s" % (name, value)) in _read_bytes(pid, "environ").split(b"\0")


def environment_value(pid: int, name: str) -> str | None:
    """The variable as the process was started with; None when it is not set or not readable."""
    prefix = os.fsencode(name + "=")
    for item in _read_bytes(pid, "environ").split(b"\0"):
        if item.startswith(prefix):
            return os.fsdecode(item[len(prefix) :])
    return None


def pid_namespace(pid: int | str) -> str | None:
    """Name of the pid namespace a process lives in, such as 'pid:[4026531836]'."""
    try:
        return os.readlink("/proc/%s/ns/pid" % pid)
    except OSError:
        return None


def open_files(pid: int) -> set[FileId]:
    """What the process holds open. A leader that has exited shows nothing: then its other threads are asked."""
    found = _descriptors("/proc/%d/fd" % pid)
    if not found:
        try:
            threads = os.listdir("/proc/%d/task" % pid)
        except OSError:
            threads = []
        for thread in threads:
            found |= _descriptors("/proc/%d/task/%s/fd" % (pid, thread))
    return found


def is_alive(pid: int, start_time: int) -> bool:
    """Whether this very process still runs; a zombie without threads does not."""
    stat = read_stat(pid)
    if stat is None or stat.start_time != start_time:
        return False
    return stat.state != "Z" or len(_list("/proc/%d/task" % pid)) > 1


def kill(pid: int, start_time: int, number: int = _SIGKILL) -> None:
    """Signal this very process, if it is still there; the pidfd pins it while the start time is compared."""
    import signal  # only here: it costs nvidia-smi a tenth of its time, and it signals nobody

    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        stat = read_stat(pid)
        if stat is not None and stat.start_time == start_time:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def wait_gone(processes: list[Stat], timeout_s: float) -> list[Stat]:
    """Wait until none of them lives; return those that still do."""
    deadline = time.monotonic() + timeout_s
    while True:
        processes = [process for process in processes if is_alive(process.pid, process.start_time)]
        if not processes or time.monotonic() > deadline:
            return processes
        time.sleep(0.02)


def _descriptors(directory: str) -> set[FileId]:
    found = set()
    for name in _list(directory):
        try:
            info = os.stat("%s/%s" % (directory, name))
        except OSError:
            continue
        found.add((info.st_dev, info.st_ino, info.st_rdev))
    return found


def _list(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _read_bytes(pid: int, name: str) -> bytes:
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as stream:
            return stream.read()
    except OSError:
        return b""
