"""What stands on this machine because of us: processes, mounts, cgroups, loop devices, shared memory, files.

Read from /proc and /sys and not by the modules, which must not be their own witnesses.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.lab import cgroup2, procfs

# Kind and name without its numbers, to the names as they are: pids and random hexadecimal differ from round to round.
Traces = dict[tuple[str, str], list[str]]

# A field of a name that is a number, such as the process id in sgl_shm_mm_4711_1f2e3d4c.
_HEX_FIELD = re.compile(r"(?<![^\s._/-])[0-9a-f]+(?![^\s._/-])")
_NUMBER = re.compile(r"\d+")

# plugins/modules/inference_health_info.py tells where.
_NOTE = re.compile(r"/gpuops(-[^/]*)?(/health-[^/]*\.json)?$")

# Where a container of its own root file system keeps what may be forgotten there.
_ROOMS_INSIDE = ("dev/shm", "run/lock", "run/gpuops", "tmp", "var/tmp")
# LXC and mount(8) make these once in an empty /run, and keep them.
_MADE_BY_TOOLS = ("/run/lxc", "/run/lxc/lock", "/run/mount")
# Not below the lab's directory: its logs, its notes of dead holders, and the root file systems of its containers.
_NOT_COUNTED = ("log", "claims", "lxc")


def look(directory: Path) -> Traces:
    """All of it, now. ``directory`` holds the lab and the temporary files of whatever is started from here."""
    below = _below_us()
    views = _views([os.getpid(), *(stat.pid for stat in below)])
    kinds: tuple[tuple[str, Iterable[str]], ...] = (
        ("process", (_told(stat) for stat in below)),
        ("mount", _mounts(views)),
        ("cgroup", _cgroups()),
        ("loop device", _loop_devices(directory)),
        ("System V object", _system_v()),
        ("file", _files(directory, views)),
    )
    return sorted_out((kind, name) for kind, names in kinds for name in names)


def sorted_out(found: Iterable[tuple[str, str]]) -> Traces:
    """Kinds and names, put together where they differ in nothing but numbers."""
    together: Traces = defaultdict(list)
    for kind, name in found:
        together[kind, _NUMBER.sub("#", _HEX_FIELD.sub("#", name))].append(name)
    return dict(together)


def changed(before: Traces, after: Traces) -> list[str]:
    """What there is more of and what less, each with how many there were and are, and with one name."""
    found = []
    for kind, plain in sorted({*before, *after}):
        old, new = before.get((kind, plain), []), after.get((kind, plain), [])
        if len(old) != len(new):
            word, name = ("more", new[-1]) if len(new) > len(old) else ("less", old[-1])
            found.append(f"{word}: {kind} {name} ({len(old)} before, {len(new)} now)")
    return found


def without_notes(found: Traces) -> Traces:
    """All but what inference_health_info notes down about a server, one file for each, on purpose."""
    return {one: names for one, names in found.items() if one[0] != "file" or not _NOTE.search(names[0])}


def _below_us() -> list[procfs.Stat]:
    """Every descendant, zombies too. We are the parent of whoever lost his."""
    children: dict[int, list[procfs.Stat]] = defaultdict(list)
    for stat in map(procfs.read_stat, procfs.pids()):
        if stat is not None:
            children[stat.parent].append(stat)
    found: list[procfs.Stat] = []
    queue = [os.getpid()]
    while queue:
        some = children[queue.pop()]
        found += some
        queue += [stat.pid for stat in some]
    return found


def _told(stat: procfs.Stat) -> str:
    """A zombie is another thing than the process that it was."""
    return f"{procfs.command(stat.pid)[:100]} (pid {stat.pid}{', a zombie' if stat.state == 'Z' else ''})"


def _views(pids: list[int]) -> dict[str, int]:
    """One process of each mount namespace."""
    views: dict[str, int] = {}
    for pid in pids:
        try:
            views.setdefault(os.readlink(f"/proc/{pid}/ns/mnt"), pid)
        except OSError:
            continue  # gone, or not ours to look into
    return views


def _mounts(views: dict[str, int]) -> Iterator[str]:
    """File system and place of each; the format of mountinfo is in proc(5)."""
    for pid in views.values():
        for line in _lines(f"/proc/{pid}/mountinfo"):
            before, _dash, after = line.partition(" - ")
            yield f"{after.split()[0]} on {before.split()[4]}"


def _cgroups() -> Iterator[str]:
    """Those of our machine. Nobody but root makes any."""
    if os.geteuid() == 0:
        with cgroup2.hierarchy() as top:
            for path, _directories, _names in os.walk(top):
                yield os.path.relpath(path, top)


def _loop_devices(directory: Path) -> Iterator[str]:
    """They are the kernel's, and so also other people's: ours are those of files of ours."""
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        for line in _lines(str(backing)):
            if line.startswith(str(directory)):
                yield f"{backing.parts[3]} of {line}"


def _system_v() -> Iterator[str]:
    """Segments, semaphores and queues: sysvipc(7); an ordinary user's own."""
    for kind in ("shm", "sem", "msg"):
        header, *rows = _lines(f"/proc/sysvipc/{kind}") or [""]
        for row in rows:
            fields = dict(zip(header.split(), row.split()))
            if os.geteuid() in (0, int(fields["uid"])):
                yield f"{kind} {fields['key']} of uid {fields['uid']}"


def _files(directory: Path, views: dict[str, int]) -> Iterator[str]:
    for path, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if name not in _NOT_COUNTED]
        yield from (os.path.join(path, name) for name in [*directories, *names])
    for room in ("/dev/shm", "/run") if os.geteuid() == 0 else ("/dev/shm",):
        for path, directories, names in os.walk(room):
            found = (os.path.join(path, name) for name in [*directories, *names])
            yield from (one for one in found if one not in _MADE_BY_TOOLS and _is_ours(one))
    for pid in views.values():
        for room in _ROOMS_INSIDE:
            inside = f"/proc/{pid}/root/{room}"
            if not _same(inside, f"/{room}"):
                yield from (f"inside /{room}/{name}" for name in _list(inside))


def _is_ours(path: str) -> bool:
    """Root has a machine of its own, and so all that is in it; a user shares /dev/shm with others."""
    try:
        return os.geteuid() in (0, os.lstat(path).st_uid)
    except OSError:
        return False


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _list(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
