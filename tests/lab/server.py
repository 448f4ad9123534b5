"""The lab's inference server: the parent process behind SGLang's command line.

It starts eight ranks and a detokenizer (worker.py), waits until they have loaded, and serves HTTP (api.py). What it
gets wrong stands in STATE/server-fault.json, read once and removed, so that the next start is well. Its environment
names the state directory and the directory of the card nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from tests.lab import answers, api, segments, worker
from tests.lab import state as lab_state

DEVICES_MARK = "GPUOPS_LAB_DEVICES"
_WARM_UP_S = 0.3
_GOING_S = 0.7
_PREFILL_STEP_S = 0.05
_PREFILL_TOKENS = 512
# 82 tokens a second without drafts, 163 with a draft model that fits, and 62 with one that does not.
_SECONDS_A_STEP = 1 / 82
_COST_OF_DRAFTS = 1.33


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

    def __init__(self, options: argparse.Namespace, ring: Ring, manner_file: str) -> None:
        self.model: str = options.served_model_name or options.model_path
        self.model_path: str = options.model_path
        self.api_key: str | None = options.api_key
        self.status = "starting"
        self._steps: int = options.speculative_num_steps if options.speculative_algorithm else 0
        self.speculates_with = {name: value for name, value in vars(options).items() if name.startswith("speculative_")}
        # `EAGLE` in place of `EAGLE3` runs, and never gets a token accepted.
        self.tokens_a_step = 1.0 if options.speculative_algorithm == "EAGLE" else 1 + 0.55 * self._steps
        self._manner_file = manner_file
        self._ring = ring
        self._lock = threading.Lock()
        self._counts = {"running": 0, "prefilled": 0, "generated": 0}

    @property
    def seconds_a_step(self) -> float:
        """A step that also verifies drafts takes longer than one without."""
        seconds = _SECONDS_A_STEP * (_COST_OF_DRAFTS if self._steps else 1)
        return float(seconds / self._manner.get("speed", 1.0))

    @property
    def _manner(self) -> dict[str, Any]:
        """How it serves while it calls itself well: `speed` (1 is its own), `says` (in place of each token),
        `prefill_s` (for so long each prompt is read, before the first token comes), `waiting` (requests in its queue).
        """
        return lab_state.read_json(self._manner_file)

    def generate(self, prompt: str, max_tokens: int, timeout_s: float | None) -> dict[str, Any] | None:
        """See api.Engine."""
        began = time.monotonic()
        self._count(running=1)
        try:
            if not self._prefill(prompt, timeout_s):
                return None
            left = None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())
            answer = self._ring.ask({"prompt": prompt, "max_tokens": max_tokens}, left)
        finally:
            self._count(running=-1)
        if answer is None:
            return None
        completion = dict(answer["completion"])
        # The ranks count, so that what they do not answer is not counted.
        self._count(prefilled=self.prompt_tokens(prompt), generated=completion["tokens"])
        if "says" in self._manner:
            completion["text"] = self._manner["says"] * completion["tokens"]
        return completion

    def _prefill(self, prompt: str, timeout_s: float | None) -> bool:
        """Read the prompt; its tokens count as they are read. False when that takes too long."""
        began, seconds = time.monotonic(), self._manner.get("prefill_s", 0)
        while time.monotonic() < began + seconds:
            if timeout_s is not None and time.monotonic() > began + timeout_s:
                return False
            self._count(prefilled=_PREFILL_TOKENS)
            time.sleep(_PREFILL_STEP_S)
        return True

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    def counts(self) -> dict[str, int]:
        """See api.Engine."""
        with self._lock:
            return {**self._counts, "waiting": self._manner.get("waiting", 0)}

    def prompt_tokens(self, prompt: str) -> int:
        """See api.Engine."""
        return len(answers.tokens(prompt))

    def speculation(self, tokens: int) -> dict[str, Any]:
        """See api.Engine."""
        if not self._steps:
            return {}
        verified = max(1, round(tokens / self.tokens_a_step))
        rate = (self.tokens_a_step - 1) / self._steps
        return {"spec_accept_length": self.tokens_a_step, "spec_accept_rate": rate, "spec_verify_ct": verified}


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
    shared = segments.make_of_server()
    trouble = lab_state.read_json(lab_state.server_manner(state)).get("start")
    if trouble == "weights":
        missing = options.model_path + "/model-00001-of-000064.safetensors"
        _log("FileNotFoundError: [Errno 2] No such file or directory: '%s'" % missing)
        segments.remove(shared, [])
        return 1
    children, outlet, inlet = _launch(worker.plans(state, devices, options.tp_size, fault, trouble))
    if fault and fault["door"] != "answers":
        return _hang(options, listens=fault["door"] == "silent")
    ring = Ring(outlet, inlet)
    if not fault and not _loaded(ring, children, leave):
        _end(children, shared)
        return 0 if leave.is_set() else 1
    engine = Engine(options, ring, lab_state.server_manner(state))
    try:
        if trouble == "port":
            raise OSError(errno.EADDRINUSE, "address already in use")
        server = api.Server((options.host, options.port), engine)
    except OSError as error:
        _log(
            "ERROR:    [Errno %s] error while attempting to bind on address ('%s', %d)"
            % (error.errno, options.host, options.port)
        )
        _end(children, shared)
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
    _end(children, shared)
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
    parser.add_argument("--speculative-num-steps", type=int)
    parser.add_argument("--speculative-eagle-topk", type=int)
    parser.add_argument("--speculative-num-draft-tokens", type=int)
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


def _end(children: list[int], shared: list[str]) -> None:
    """Every child goes: SIGTERM, a short wait, SIGKILL. So does all memory that they shared."""
    left = list(children)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left:
            os.kill(pid, number)
        deadline = time.monotonic() + _GOING_S
        while left and time.monotonic() < deadline:
            left = [pid for pid in left if os.waitpid(pid, os.WNOHANG)[0] == 0]
            time.sleep(0.01)
    segments.remove(shared, children)


def _hang(options: argparse.Namespace, *, listens: bool) -> int:
    """The kernel accepts connections, if any, nobody answers them; SIGTERM drains requests that never end."""
    listener = socket.create_server((options.host, options.port), backlog=128) if listens else None
    while listener is None or listener.fileno() >= 0:
        signal.pause()
        _log("SIGTERM received, draining 1 requests")
    return 0


def _log(text: str) -> None:
    sys.stderr.write("[%s] %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), text))
    sys.stderr.flush()
