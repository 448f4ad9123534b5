"""The processes that the probe starts, and what /proc shows of them. It signals no others."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]

# The name of every holder: at most 15 characters, all that the kernel keeps.
TOKEN = f"gpuprobe{os.getpid() % 10**7}"


class ChildError(RuntimeError):
    """A holder did not get ready, or gave no answer, within its time."""


class Child:
    """A holder of tests/gpu/holder.py. Inside the block it is ready; whatever happens, it is gone after it."""

    def __init__(self, kind: str, *, seconds: float = 30, variables: Optional[dict[str, str]] = None, **options: Any):
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        self._seconds = seconds
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.holder", TOKEN, kind, json.dumps(options)],
            cwd=ROOT,
            env={**environment, **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid
        self.told: dict[str, Any] = {}

    def __enter__(self) -> Child:
        try:
            self.told = self._answer()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._end()

    def has_ended(self) -> bool:
        """Whether it has exited (and was reaped by this very look)."""
        return self._process.poll() is not None

    def signal(self, number: int) -> None:
        """Signal it. It is our child and not reaped, so nobody else can have its pid."""
        self._process.send_signal(number)

    def ask(self, line: str) -> dict[str, Any]:
        """Write a line, and read the line that it answers with."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        readable, _writable, _failed = select.select([stream], [], [], self._seconds)
        line = stream.readline() if readable else b""
        told: dict[str, Any] = json.loads(line) if line else {"error": f"no answer within {self._seconds:g} s"}
        if "error" in told:
            raise ChildError(told["error"])
        return told

    def _end(self) -> None:
        self._process.kill()
        # One that sleeps in the driver is ended by the kernel when it wakes.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def open_nodes(pid: int, directory: str) -> list[dict[str, Any]]:
    """The NVIDIA nodes of ``directory`` that a process has open: ``path``, ``major``, ``minor`` and ``handles``."""
    counted: Counter[str] = Counter()
    numbers: dict[str, tuple[int, int]] = {}
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            path, status = os.readlink(handle), handle.stat()
        except OSError:
            continue
        if path.startswith((f"{directory}/nvidia", f"{directory}/dri")):
            counted[path] += 1
            numbers[path] = (os.major(status.st_rdev), os.minor(status.st_rdev))
    return [
        {"path": path, "major": numbers[path][0], "minor": numbers[path][1], "handles": counted[path]}
        for path in sorted(counted)
    ]


def mapped_nodes(pid: int, directory: str) -> dict[str, int]:
    """The nodes of ``directory`` in /proc/PID/maps, and how often each is mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").split("\n")
    paths = [line.split(None, 5)[5] for line in lines if line.count(" ") >= 5 and directory in line]
    return dict(Counter(path for path in paths if path.startswith(f"{directory}/")))
