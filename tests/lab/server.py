"""The lab's inference server: the parent process behind SGLang's command line.

It starts eight ranks and a detokenizer (worker.py), waits until they have loaded, and serves HTTP (api.py). What it
gets wrong stands in STATE/server-fault.json, read once and removed, so that the next start is well. Its environment
names the state directory and the directory of the card nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from tests.lab import answers, api, worker
from tests.lab import state as lab_state

DEVICES_MARK = "GPUOPS_LAB_DEVICES"
_WARM_UP_S = 0.3
_GOING_S = 0.7


class Ring:
    """The parent's two ends of the ring of pipes, and the requests that are in it."""

    def __init__(self, outlet: int, inlet: int) -> None:
        self._outlet, self._inlet = outlet, inlet
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[threading.Event, dict[str, Any]]] = {}
        self._last = 0
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, request: dict[str, Any], timeout_s: float | None) -> dict[str, Any] | None:
        """Send a request round the ring; None when it does not come back in time."""
        arrived: tuple[threading.Event, dict[str, Any]] = (threading.Event(), {})
        with self._lock:
            self._last += 1
            number = self._last
            self._waiting[number] = arrived
        line = json.dumps({**request, "id": number}).encode("utf-8") + b"\n"
        # A write to a full pipe blocks: it must not take the limit of whoever asked with it.
        threading.Thread(target=self._write, args=(line,), daemon=True).start()
        came = arrived[0].wait(timeout_s)
        with self._lock:
            self._waiting.pop(number, None)
        return arrived[1] if came else None

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # rank 0 is gone: nothing will answer
            os.write(self._outlet, line)

    def _read(self) -> None:
        with os.fdopen(self._inlet, "rb") as incoming:
            for line in incoming:
                answer = json.loads(line)
                with self._lock:
                    waiting = self._waiting.get(answer["id"])
                if waiting is not None:
                    waiting[1].update(answer)
                    waiting[0].set()


class Engine:
    """See api.Engine."""

    def __init__(self, options: argparse.Namespace, ring: Ring) -> None:
        self.model: str = options.served_model_name or options.model_path
        self.model_path: str = options.model_path
        self.api_key: str | None = options.api_key
        self.status = "starting"
        self._steps = options.speculative_num_steps if options.speculative_algorithm else 0
        # `EAGLE` in place of `EAGLE3` runs, and never gets a token accepted.
        self._accept_length = 1.0 if options.speculative_algorithm == "EAGLE" else 1 + 0.55 * self._steps
        self._ring = ring

    def generate(self, prompt: str, max_tokens: int, timeout_s: float | None) -> dict[str, Any] | None:
        """See api.Engine."""
        answer = self._ring.ask({"prompt": prompt, "max_tokens": max_tokens}, timeout_s)
        return None if answer is None else dict(answer["completion"])

    def prompt_tokens(self, prompt: str) -> int:
        """See api.Engine."""
        return len(answers.tokens(prompt))

    def speculation(self, tokens: int) -> dict[str, Any]:
        """See api.Engine."""
        if not self._steps:
            return {}
        verified = max(1, round(tokens / self._accept_length))
        rate = (self._accept_length - 1) / self._steps
        return {"spec_accept_length": self._accept_length, "spec_accept_rate": rate, "spec_verify_ct": verified}


def main(arguments: list[str]) -> int:
    """Launch, serve, and return the exit code after SIGTERM."""
    options = _parse(arguments)
    state, devices = os.environ[lab_state.MARK], os.environ[DEVICES_MARK]
    fault = lab_state.read_json(lab_state.server_fault(state))
    if fault:
        os.unlink(lab_state.server_fault(state))
    _log(
        "server_args=ServerArgs(model_path='%s', tp_size=%d, port=%d)"
        % (options.model_path, options.tp_size, options.port)
    )
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    children, outlet, inlet = _launch(worker.plans(state, devices, options.tp_size, fault))
    if fault:
        return _hang(options)
    ring = Ring(outlet, inlet)
    if not _loaded(ring, children, leave):
        _end(children)
        return 0 if leave.is_set() else 1
    engine = Engine(options, ring)
    try:
        server = api.Server((options.host, options.port), engine)
    except OSError as error:
        _log(
            "ERROR:    [Errno %s] error while attempting to bind on address ('%s', %d)"
            % (error.errno, options.host, options.port)
        )
        _end(children)
        return 1
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    leave.wait(_WARM_UP_S)
    if not leave.is_set():
        engine.status = "up"
        _log("The server is fired up and ready to roll!")
        leave.wait()
    # Requests under way are drained without a limit, unless the server knows already that it is unhealthy.
    known_unhealthy, engine.status = engine.status == "unhealthy", "leaving"
    _log("SIGTERM received, draining %d requests" % server.under_way)
    while server.under_way and not known_unhealthy:
        time.sleep(0.02)
    _end(children)
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sglang.launch_server")
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--api-key")
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-num-steps", type=int, default=0)
    return parser.parse_known_args(arguments)[0]


def _launch(plans: list[worker.Plan]) -> tuple[list[int], int, int]:
    """Start all, before this process has any thread.

    Returns the children's pids and the parent's ends: to rank 0, from the last.
    """
    pipes = [os.pipe() for _plan in range(len(plans) + 1)]
    ends = [end for pipe in pipes for end in pipe]
    children = []
    for place, plan in enumerate(plans):
        inlet, outlet = pipes[place][0], pipes[place + 1][1]
        pid = worker.start(plan, inlet, outlet, [end for end in ends if end not in (inlet, outlet)])
        children += [pid] if pid else []
    outlet, inlet = pipes[0][1], pipes[-1][0]
    for end in ends:
        if end not in (outlet, inlet):
            os.close(end)
    return children, outlet, inlet


def _loaded(ring: Ring, children: list[int], leave: threading.Event) -> bool:
    """Wait until every rank has loaded and passed the warm-up on; False when one ended, or the server is to leave."""
    came = threading.Event()

    def warm_up() -> None:
        ring.ask({}, None)
        came.set()

    threading.Thread(target=warm_up, daemon=True).start()
    while not came.wait(0.05):
        if leave.is_set():
            return False
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            children.remove(pid)
            _log("Child process %d failed while loading (status %d). Killing the tree." % (pid, status))
            return False
    return True


def _end(children: list[int]) -> None:
    """Every child goes: SIGTERM, a short wait, SIGKILL."""
    left = list(children)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left:
            os.kill(pid, number)
        deadline = time.monotonic() + _GOING_S
        while left and time.monotonic() < deadline:
            left = [pid for pid in left if os.waitpid(pid, os.WNOHANG)[0] == 0]
            time.sleep(0.01)


def _hang(options: argparse.Namespace) -> int:
    """The kernel accepts connections, nobody answers them; SIGTERM drains requests that never end."""
    listener = socket.create_server((options.host, options.port), backlog=128)
    while listener.fileno() >= 0:
        signal.pause()
        _log("SIGTERM received, draining 1 requests")
    return 0


def _log(text: str) -> None:
    sys.stderr.write("[%s] %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), text))
    sys.stderr.flush()
