"""Finding who holds a card among many processes: our scan against fuser, lsof and a loop over psutil.

All are whole processes, and take turns, so that what else the machine does meets all of them. Two processes hold the
card: one as usual, and one whose first thread has ended while another lives, at whom a tool must look twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.crowd import crowd
from tests.tooling import environment

PROCESSES, HANDLES = 3000, 60
GROWTH = (500, 1000, 2000, 4000)
ROUNDS = 5
LOOK = Path(__file__).with_name("look.py")
# As the machine allows, and as where its kernel does not let itself be asked.
HOWS: tuple[list[str], list[str]] = ([], ["--below-proc"])

# The number of /dev/zero, which nobody keeps open.
DEVICE = os.makedev(1, 5)

# What comes to mind first. It looks for plain files only, and so it does not find the holders: psutil leaves devices
# out.
PSUTIL = """
import sys, psutil
for process in psutil.process_iter():
    try:
        if any(one.path == sys.argv[1] for one in process.open_files()):
            print(process.pid)
    except psutil.Error:
        pass
"""

HOLDER = "import os, sys; os.open(sys.argv[1], os.O_RDWR); print(flush=True); sys.stdin.read()"
DEAD_LEADER = """
import ctypes, os, sys, threading
os.open(sys.argv[1], os.O_RDWR)
def live():
    while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z':
        pass
    print(flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=live).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)
"""


class Timed(NamedTuple):
    """One run: seconds as a whole process, seconds on processors, the pids it printed, and all that ours printed."""

    seconds: float
    cpu: float
    pids: frozenset[int]
    said: dict[str, Any]


def scan() -> None:
    """Measure, print."""
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, user {os.geteuid()}")
    if os.geteuid() != 0:
        print("Not root: nobody can look into the processes of others, so all tools see the crowd and little else.")
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as directory:
        node = _node(Path(directory))
        with _holder(HOLDER, node) as one, _holder(DEAD_LEADER, node):
            with crowd(PROCESSES, HANDLES):
                _compare(_tools(node, one), _handles())
            print("\nours without the start of the interpreter")
            print(f"{'processes':>9}{'s':>8}{'ms each':>9}{'below /proc, s':>16}{'ms each':>9}")
            for processes in GROWTH:
                with crowd(processes, HANDLES):
                    runs = [[_run(_ours(node, *how)).said["seconds"] for _round in range(ROUNDS)] for how in HOWS]
                one, other = map(statistics.median, runs)
                each = [seconds / processes * 1000 for seconds in (one, other)]
                print(f"{processes:9}{one:8.3f}{each[0]:9.3f}{other:16.3f}{each[1]:9.3f}")


def _node(directory: Path) -> Path:
    """What is held: a device, as far as we may make one."""
    node = directory / "nvidia0"
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, DEVICE)
    except PermissionError:
        node.touch()
    return node


def _tools(node: Path, holder: int) -> dict[str, list[str]]:
    """What takes part, by its name in the table. Says what is left out."""
    tools = {
        "ours": _ours(node),
        "ours, below /proc": _ours(node, *HOWS[1]),
        "ours, pids given": _ours(node, str(holder)),
    }
    for name, argv in {"fuser": ["fuser", str(node)], "lsof": ["lsof", "-t", str(node)]}.items():
        if shutil.which(name) is None:
            print(f"{name} is not installed, and left out.")
        else:
            tools[name] = argv
    return {**tools, "psutil": [str(environment.PYTHON), "-c", PSUTIL, str(node)]}


def _ours(node: Path, *how: str) -> list[str]:
    """-S and -I: as little else as a module has on its side of the bill."""
    return [sys.executable, "-S", "-I", str(LOOK), str(environment.COLLECTIONS), str(node), *how]


def _compare(tools: dict[str, list[str]], handles: int) -> None:
    rounds = [{name: _run(argv) for name, argv in tools.items()} for _round in range(ROUNDS)]
    print(f"{PROCESSES} processes, {handles} handles on the machine, medians of {ROUNDS} rounds\n")
    print(f"{'':18}{'s':>8}{'of fuser':>10}{'cpu s':>8}{'holders':>9}")
    for name in tools:
        runs = [one[name] for one in rounds]
        ratio = _ratio([(one[name], one.get("fuser")) for one in rounds])
        seconds, cpu = (statistics.median(values) for values in zip(*((run.seconds, run.cpu) for run in runs)))
        print(f"{name:18}{seconds:8.3f}{ratio:>10}{cpu:8.2f}{len(runs[-1].pids):9}")
    ours = [one["ours"] for one in rounds]
    inside = statistics.median(one.said["seconds"] for one in ours)
    mib = [max(one.said["mib"][which] for one in ours) for which in (0, 1)]
    print(f"\nours without the start of the interpreter: {inside:.3f} s")
    print(f"peak memory of ours: {mib[0]:.1f} MiB, the largest child {mib[1]:.1f} MiB")
    for name in ("fuser", "lsof"):
        if name in tools:
            more = all(one["ours"].pids > one[name].pids for one in rounds)
            print(f"ours found all that {name} found, and more: {'yes' if more else 'NO'}")


def _ratio(pairs: list[tuple[Timed, Timed | None]]) -> str:
    """The median of what one took of the other's time in the same round; nothing where there is no other."""
    ratios = [one.seconds / other.seconds for one, other in pairs if other is not None]
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def _run(argv: list[str]) -> Timed:
    cpu, start = _cpu(), time.perf_counter()
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    seconds, cpu = time.perf_counter() - start, _cpu() - cpu
    if done.stdout.startswith("{"):
        said = json.loads(done.stdout)
        return Timed(seconds, cpu, frozenset(said["pids"]), said)
    return Timed(seconds, cpu, frozenset(map(int, done.stdout.split())), {})


def _cpu() -> float:
    """Seconds that our ended children, and theirs, have been on processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _handles() -> int:
    """All handles of the machine, as far as they may be counted."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += len(os.listdir(process / "fd"))
    return count


@contextlib.contextmanager
def _holder(program: str, node: Path) -> Iterator[int]:
    """A process that holds the node; its pid."""
    argv = [sys.executable, "-c", program, str(node)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()
