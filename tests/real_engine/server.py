"""One vLLM server as a child of the tests, and what the world says of it: /proc and its own pages, asked without any of
the code under test.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.lab import procfs
from tests.tooling.real_engine import RealEngine

ENGINE, WORKER = "VLLM::EngineCore", "VLLM::Worker"

# On two cores it takes half a minute, and was seen to take five where they had other work to do.
START_LIMIT_S = 600.0
# A worker whose engine was killed goes by itself; on a busy machine it was seen to take more than 30 s for that.
END_LIMIT_S = 120.0

# The marks of speculation, by their names in /metrics.
DRAFTS, ACCEPTED = "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"


def argv(engine: RealEngine, port: int) -> list[str]:
    """How the tiny model is served, with speculation by n-grams, which needs no second model."""
    return [
        *(str(engine.home / "bin" / "vllm"), "serve", str(engine.model), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager", "--speculative-config"),
        '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3}',
    ]


def environment(engine: RealEngine, home: Path) -> dict[str, str]:
    """What it needs: the CPU named, since without AVX-512 the wheel does not see it by itself; nothing from a hub."""
    return {
        "PATH": f"{engine.home / 'bin'}:/usr/bin:/bin",
        "HOME": str(home),
        "LD_LIBRARY_PATH": str(engine.libraries),
        # Where it keeps what it found out about the model's class, for which it starts a process of its own.
        "VLLM_CACHE_ROOT": str(engine.home / "vllm-cache"),
        "LC_ALL": "C.UTF-8",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


class Server:
    """One server with its log. As a context manager it is ended after the block, whatever became of it."""

    def __init__(self, engine: RealEngine, home: Path) -> None:
        self.home = home
        self.log = home / "vllm.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        with self.log.open("wb") as log:
            self._parent = subprocess.Popen(
                argv(engine, self.port),
                cwd=home,
                env=environment(engine, home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.parent = self._parent.pid

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def wait_until_ready(self) -> None:
        """Until it generates."""
        deadline = time.monotonic() + START_LIMIT_S
        while not self.generates():
            assert self._parent.poll() is None, f"vLLM ended: {self.log_tail()}"
            assert time.monotonic() < deadline, f"vLLM was not ready within {START_LIMIT_S:g} s: {self.log_tail()}"
            time.sleep(0.5)

    def processes(self) -> dict[int, str]:
        """Pid -> command line of whatever is in its session, by /proc. A title takes the place of the environment."""
        return {pid: procfs.command(pid) for pid in procfs.pids() if _session(pid) == self.parent}

    def pid(self, title: str) -> int:
        """The one process whose title begins so."""
        [found] = [pid for pid, command in self.processes().items() if command.startswith(title)]
        return found

    def wait_until_gone(self, *pids: int) -> None:
        """Until none of these is left."""
        deadline = time.monotonic() + END_LIMIT_S
        while any(_session(pid) for pid in pids):
            self._parent.poll()
            assert time.monotonic() < deadline, f"Of {pids} some are still there: {self.processes()}"
            time.sleep(0.1)

    def generates(self, timeout: float = 60) -> bool:
        """Whether a completion comes, asked for over HTTP."""
        body = b'{"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0}'
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return bool(answer.status == 200 and b'"text"' in answer.read())
        except OSError:
            return False

    def status(self, path: str) -> int | None:
        """What it answers to a GET; None when it refuses."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def metrics(self) -> dict[str, float]:
        """/metrics, each name summed up over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        found: dict[str, float] = {}
        for name, value in re.findall(r"(?m)^([a-z_:]+)(?:\{.*\})? ([0-9.e+-]+)$", text):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    @contextmanager
    def stopped(self, title: str) -> Iterator[int]:
        """One of its processes is stopped meanwhile, and goes on afterwards. Yields its pid."""
        pid = self.pid(title)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)

    def kill(self, pid: int) -> None:
        """SIGKILL, and reap."""
        os.kill(pid, signal.SIGKILL)
        if pid == self.parent:
            self._parent.wait()

    def end(self) -> None:
        """Kill what is left of it."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        if self._parent.poll() is None:
            self._parent.kill()
        self._parent.wait()

    def log_tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:]


def _session(pid: int) -> int | None:
    """The session that a process is in (proc_pid_stat(5)); None when it has gone, or is a zombie."""
    try:
        state, _parent, _group, session = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
        )
    except OSError:
        return None
    return None if state == "Z" else int(session)


def accept_length(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Tokens that a step yielded between two readings: the one that needs no draft, and the drafts that were taken."""
    return 1 + (after[ACCEPTED] - before[ACCEPTED]) / (after[DRAFTS] - before[DRAFTS])
