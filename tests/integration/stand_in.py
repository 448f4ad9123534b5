"""A stand-in for an inference server: one process, a few threads, and every way to answer badly.

It speaks HTTP as SGLang, vLLM and llama.cpp do. Its texts come step by step, at the speed and with the accept length
that it is told, and it counts them as its engine would.
"""

from __future__ import annotations

import http.server
import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PROSE = (
    "The keeper climbed the stair while wind number {n} threw itself at pane {n} of the lantern, and he counted {n} "
    "ropes before he wrote line {n} of the night. "
)


@dataclass
class Manner:
    """How it answers. ``accept_length`` None: it does not speculate. ``speed`` is in tokens a second."""

    engine: str = "sglang"
    accept_length: float | None = 2.5
    algorithm: str = "EAGLE3"
    speed: float = 800.0
    says: str = "prose"
    """prose, nothing, repetition, wrong."""
    begins_after_s: float = 0.0
    key: str | None = None
    fault: str | None = None
    """silent, no_body, closes, endless, drips, huge, error_event, abort, echoes, or a status."""
    tells: str = "stream"
    """Where an SGLang tells of its speculation: stream, answer, native."""
    counts_tokens: bool = True
    gathers: bool = False
    hangs_after: int | None = None
    """It answers so many chat requests, and no further one."""


class StandIn(http.server.ThreadingHTTPServer):
    """The server, with what it has been asked."""

    daemon_threads = True

    def __init__(self, manner: Manner) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.manner = manner
        self.url = "http://127.0.0.1:%d" % self.server_port
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.lock = threading.Lock()
        self.under_way = self.most_under_way = 0
        self.steps = self.tokens = 0
        self.leave = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is what some tests are about."""


@contextmanager
def stand_in(**manner: Any) -> Iterator[StandIn]:
    """One that serves until the end of the block."""
    server = StandIn(Manner(**manner))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.leave.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: StandIn
    under_way = False
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """It is quiet."""

    def do_GET(self) -> None:
        manner = self.server.manner
        self.server.asked.append((self.path, {}))
        if self._turned_away(self.path.startswith("/metrics")):
            return
        if self.path == "/v1/models":
            owner = {"sglang": "sglang", "vllm": "vllm", "llamacpp": "llamacpp"}.get(manner.engine, "somebody")
            self._send(200, {"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": owner}]})
        elif self.path == "/metrics" and manner.engine == "vllm":
            self._send(200, self._metrics())
        elif self.path == "/server_info" and manner.engine == "sglang":
            self._send(200, self._configuration())
        else:
            self._send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.asked.append((self.path, body))
        if self._turned_away(False):
            return
        self.under_way = True
        with server.lock:
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
            number = sum(path == "/v1/chat/completions" for path, _body in server.asked)
        try:
            if server.manner.hangs_after is not None and number > server.manner.hangs_after:
                server.leave.wait()
            elif self.path == "/v1/chat/completions":
                self._chat(body)
            elif self.path == "/generate" and server.manner.engine == "sglang":
                tokens = body["sampling_params"]["max_new_tokens"]
                self._send(200, {"text": "well", "meta_info": self._meta(self._work(tokens, 0), tokens)})
            else:
                self._send(404, {"detail": "Not Found"})
        finally:
            self._answered()

    def _answered(self) -> None:
        """Before the client gets to know it: it may ask again at once."""
        with self.server.lock:
            self.server.under_way -= self.under_way
            self.under_way = False

    def _turned_away(self, is_open: bool) -> bool:
        manner = self.server.manner
        if manner.fault == "silent":
            self.server.leave.wait()
            return True
        if manner.fault and manner.fault.isdigit():
            self._send(int(manner.fault), "<h1>%s</h1>" % manner.fault)
            return True
        if manner.fault == "echoes":
            self._send(400, {"error": {"message": "Cannot read %s" % self.headers.get("Authorization")}})
            return True
        if manner.key and not is_open and self.headers.get("Authorization") != "Bearer %s" % manner.key:
            # Some servers quote what they were given.
            self._send(401, {"error": "Unauthorized: %s" % self.headers.get("Authorization")})
            return True
        return False

    # -- texts --------------------------------------------------------------------------------------------------------

    def _chat(self, body: dict[str, Any]) -> None:
        manner, limit = self.server.manner, body["max_tokens"]
        words = self._words(body["messages"][0]["content"], limit)
        if not body.get("stream"):
            steps = self._work(len(words), 0)
            choice = {"message": {"role": "assistant", "content": "".join(words)}, "finish_reason": "stop"}
            if manner.tells == "answer" and body.get("return_meta_info"):
                choice["meta_info"] = self._meta(steps, len(words))
            self._send(200, {"choices": [choice], "usage": {"completion_tokens": len(words)}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if manner.fault == "no_body":
            self.server.leave.wait()
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        if manner.fault in ("endless", "drips", "huge"):
            self._go_on_for_ever()
        if manner.fault == "error_event":
            self._event({"error": {"message": "CUDA error: an illegal memory access was encountered", "code": 500}})
            return
        time.sleep(manner.begins_after_s)
        steps = self._work(len(words), 0, words)
        if manner.fault == "closes":
            self.close_connection = True
            self.connection.close()
            return
        finish = "abort" if manner.fault == "abort" else "length" if len(words) == limit else "stop"
        self._event({"choices": [{"delta": {}, "finish_reason": finish}]})
        self._event(self._last_event(body, steps, len(words)))
        self._answered()
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _last_event(self, body: dict[str, Any], steps: int, tokens: int) -> dict[str, Any]:
        manner = self.server.manner
        event: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}
        if not manner.counts_tokens or not body["stream_options"]["include_usage"]:
            del event["usage"]
        if manner.engine == "llamacpp":
            event["timings"] = {"predicted_n": tokens, "predicted_per_second": manner.speed}
            if manner.accept_length is not None:
                event["timings"].update({"draft_n": 3 * steps, "draft_n_accepted": tokens - steps})
        told = manner.tells == "stream" and body.get("return_spec_tokens_details")
        if manner.engine == "sglang" and told and manner.accept_length is not None:
            event["sglext"] = {"spec_tokens_details": self._meta(steps, tokens)}
        return event

    def _go_on_for_ever(self) -> None:
        fault = self.server.manner.fault
        while not self.server.leave.wait(0.2 if fault == "drips" else 0):
            words = "gust " * 20_000 if fault == "huge" else "gust "
            self._event({"choices": [{"delta": {"content": words}, "finish_reason": None}]})

    def _words(self, prompt: str, limit: int) -> list[str]:
        says = self.server.manner.says
        if says == "nothing":
            return [""] * 3
        if says == "repetition":
            return ["!"] * limit
        if "17 rows of 23" in prompt:
            return ["17 ", "times ", "23 ", "is ", "392" if says == "wrong" else "391", "."]
        text = "".join(PROSE.format(n=number) for number in range(limit // 20 + 1))
        return [word + " " for word in text.split()][:limit]

    def _work(self, tokens: int, done: int, words: list[str] | None = None) -> int:
        """Take steps, and say what they yield where there are ``words``. Returns how many steps it took."""
        manner = self.server.manner
        length = manner.accept_length or 1.0
        steps = math.ceil(tokens / length)
        for step in range(steps):
            time.sleep(0 if manner.gathers else length / manner.speed)
            upto = min(tokens, round((step + 1) * length))
            if words is not None and upto > done:
                self._event({"choices": [{"delta": {"content": "".join(words[done:upto])}, "finish_reason": None}]})
            done = upto
        with self.server.lock:
            self.server.steps += steps
            self.server.tokens += tokens
        return steps

    # -- numbers ------------------------------------------------------------------------------------------------------

    def _meta(self, steps: int, tokens: int) -> dict[str, Any]:
        meta: dict[str, Any] = {"id": "x", "completion_tokens": tokens}
        if self.server.manner.accept_length is not None:
            rate = (tokens - steps) / (3 * steps)
            meta.update({"spec_accept_length": tokens / steps, "spec_accept_rate": rate, "spec_verify_ct": steps})
        return meta

    def _metrics(self) -> str:
        server = self.server
        counters = {"vllm:generation_tokens_total": server.tokens}
        if server.manner.accept_length is not None:
            counters["vllm:spec_decode_num_drafts_total"] = server.steps
            counters["vllm:spec_decode_num_draft_tokens_total"] = 3 * server.steps
            counters["vllm:spec_decode_num_accepted_tokens_total"] = server.tokens - server.steps
        return "# HELP x y\n" + "".join('%s{engine="0"} %d.0\n' % counter for counter in counters.items())

    def _configuration(self) -> dict[str, Any]:
        manner = self.server.manner
        speculates = manner.accept_length is not None
        return {
            "model_path": "/models/tiny",
            "api_key": manner.key,
            "speculative_algorithm": manner.algorithm if speculates else None,
            "speculative_num_steps": 3 if speculates else None,
            "speculative_eagle_topk": 1 if speculates else None,
            "speculative_num_draft_tokens": 4 if speculates else None,
        }

    # -- the wire -----------------------------------------------------------------------------------------------------

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, status: int, value: Any) -> None:
        self._answered()
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
