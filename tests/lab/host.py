"""What the root half of the lab asks of the machine: run a tool, read and change the mount table, find processes.

Used by the LXC containers, the root file system and the frozen file system; nothing in here knows about those.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from typing import NamedTuple

from tests.lab import procfs
from tests.lab.errors import LabError


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo. `shared`: mounts below it propagate to other mount namespaces."""

    point: str
    file_system: str
    source: str
    root: str
    options: str
    shared: bool


def run_tool(argv: list[str], *, timeout: float = 60.0, stdin: str | None = None) -> str:
    """Run a tool of the machine and return its stdout. Raises LabError with the tool's own words when it fails."""
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    except FileNotFoundError:
        raise LabError(f"{argv[0]} is not installed: install the package that brings it.") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"'{' '.join(argv)}' did not end within {timeout:g} s") from None
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise LabError(f"'{' '.join(argv)}' failed with status {done.returncode}: {words}")
    return done.stdout


def require(packages: dict[str, str]) -> None:
    """Check root and tools before anything is touched; `packages` maps a tool to the Debian package that brings it."""
    if os.geteuid() != 0:
        raise LabError("LXC containers, loop devices and device nodes need root: run as root, or without --container.")
    missing = sorted({package for tool, package in packages.items() if shutil.which(tool) is None})
    if missing:
        raise LabError(f"Tools are missing on this machine: run 'apt-get install {' '.join(missing)}'.")


def _unescape(field: str) -> str:
    """Undo the octal escapes of proc(5) mountinfo (space, tab, newline, backslash)."""
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        field = field.replace(code, character)
    return field


def mounts() -> list[Mount]:
    """The mount table of this mount namespace, in the order of mounting (format: proc(5), /proc/PID/mountinfo)."""
    table = []
    text = pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    for line in text.splitlines():
        before, _dash, after = line.partition(" - ")
        fields, tail = before.split(), after.split()
        shared = any(tag.startswith("shared:") for tag in fields[6:])
        table.append(Mount(_unescape(fields[4]), tail[0], _unescape(tail[1]), _unescape(fields[3]), fields[5], shared))
    return table


def mounts_under(directory: pathlib.Path) -> list[Mount]:
    """Mounts at or below `directory`, the deepest and latest first: the order to unmount them in."""
    top = os.path.realpath(directory)
    inside = [mount for mount in mounts() if mount.point == top or mount.point.startswith(top + os.sep)]
    return inside[::-1]


def unmount_under(directory: pathlib.Path) -> None:
    """Unmount everything at or below `directory`; what is busy is detached at once and goes when its last user does."""
    for mount in mounts_under(directory):
        try:
            run_tool(["umount", "--", mount.point])
        except LabError:
            run_tool(["umount", "--lazy", "--", mount.point])


def allow_devices(directory: pathlib.Path) -> None:
    """Make sure that character devices in `directory` can be opened, whatever file system it lies on.

    /tmp is often mounted nodev (systemd's tmp.mount does). Then a small tmpfs without that option is put on the
    directory; `unmount_under` takes it away again.
    """
    if os.statvfs(directory).f_flag & os.ST_NODEV:
        run_tool(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "gpuops-lab", str(directory)])


def processes_with(*words: str) -> list[procfs.Stat]:
    """Processes whose command line holds every one of `words`, each as a whole argument or in a rewritten title."""
    found = []
    for pid in procfs.pids():
        try:
            raw = pathlib.Path("/proc", str(pid), "cmdline").read_bytes()
        except OSError:
            continue  # gone in between
        arguments = raw.decode("utf-8", "surrogateescape").split("\0")
        # A process that rewrote its title (the LXC monitor) has everything in its first argument.
        if all(word in arguments or word in arguments[0] for word in words):
            found.append(procfs.read_stat(pid))
    return [stat for stat in found if stat is not None and stat.pid != os.getpid()]
