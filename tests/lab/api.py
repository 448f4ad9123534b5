"""The HTTP door of the server: SGLang's endpoints and answers."""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Any, Protocol

from tests.lab import chat

HEALTH_TIMEOUT_S = 20.0
VERSION = "0.5.6"
_OPEN_PATHS = ("/health", "/health_generate", "/metrics")
_GENERATING = (chat.CHAT, chat.NATIVE, "/v1/completions")


class Engine(Protocol):
    """What stands behind the door."""

    model: str
    model_path: str
    api_key: str | None
    status: str
    """'starting', 'up', 'unhealthy' or 'leaving'."""
    speculates_with: dict[str, Any]
    """What `/server_info` says of the configuration of the speculation."""
    tokens_a_step: float

    @property
    def seconds_a_step(self) -> float:
        """How long the model takes for a step."""

    def generate(self, prompt: str, max_tokens: int, timeout_s: float | None) -> dict[str, Any] | None:
        """A completion (`text`, `tokens`, `finish`); None when nothing came back in time. No limit: waits for ever."""

    def counts(self) -> dict[str, int]:
        """Requests that are `running` and `waiting`, and tokens `prefilled` and `generated` since the start."""

    def prompt_tokens(self, prompt: str) -> int:
        """Length of a prompt."""

    def speculation(self, tokens: int) -> dict[str, Any]:
        """What `meta_info` says about speculative decoding; empty when it is off."""


class Server(http.server.ThreadingHTTPServer):
    """Counts the requests under way, so that a shutdown can drain them."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], engine: Engine) -> None:
        super().__init__(address, _Handler)
        self.engine = engine
        self.lock = threading.Lock()
        self.under_way = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    server_version = "uvicorn"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._handle({})

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        except ValueError:
            self._send(400, {"object": "error", "message": "There was an error parsing the body", "code": 400})
            return
        self._handle(body)

    def _handle(self, body: dict[str, Any]) -> None:
        engine, path = self.server.engine, self.path.partition("?")[0]
        authorized = engine.api_key is None or self.headers.get("Authorization") == "Bearer %s" % engine.api_key
        if path not in _OPEN_PATHS and not authorized:
            self._send(401, {"error": "Unauthorized"})
            return
        with self.server.lock:
            self.server.under_way += 1
        try:
            self._reply(engine, path, body)
        finally:
            with self.server.lock:
                self.server.under_way -= 1

    def _reply(self, engine: Engine, path: str, body: dict[str, Any]) -> None:
        if self.command != "POST" or path not in _GENERATING:
            self._send(*self._answer(engine, path))
            return
        asked = chat.question(path, body)
        status, said = self._generate(engine, asked)
        if not isinstance(said, chat.Said):
            self._send(status, said)
        elif asked.streams:
            self._stream(engine, asked, said)
        else:
            self._send(status, chat.answer(asked, said, engine.model))

    def _answer(self, engine: Engine, path: str) -> tuple[int, Any]:
        if self.command == "GET":
            if path in ("/health", "/health_generate"):
                return self._health(engine), None
            if path == "/v1/models":
                return 200, {"object": "list", "data": [_model_card(engine)]}
            if path in ("/model_info", "/get_model_info"):
                return 200, {
                    "model_path": engine.model_path,
                    "tokenizer_path": engine.model_path,
                    "is_generation": True,
                }
            if path in ("/server_info", "/get_server_info"):
                engine.generate("", 1, None)  # it asks the schedulers, and so never answers when they hang
                names = {"model_path": engine.model_path, "served_model_name": engine.model, "version": VERSION}
                return 200, {**names, **engine.speculates_with, "status": "ready"}
            if path == "/v1/loads":
                return 200, _loads(engine)
            if path == "/metrics":
                return 200, _metrics(engine)
        return 404, {"detail": "Not Found"}

    def _health(self, engine: Engine) -> int:
        if engine.status in ("starting", "leaving"):
            return 503
        if engine.generate("", 1, HEALTH_TIMEOUT_S) is None:
            engine.status = "unhealthy"
            self.log_message(
                "Health check failed. Server couldn't get a response from detokenizer for last %d seconds.",
                HEALTH_TIMEOUT_S,
            )
            return 503
        engine.status = "up"
        return 200

    def _generate(self, engine: Engine, asked: chat.Question) -> tuple[int, Any]:
        began = time.monotonic()
        name = asked.body.get("model", engine.model)
        if asked.path != chat.NATIVE and name not in (engine.model, engine.model_path, "default"):
            return 404, {"object": "error", "message": "The model '%s' does not exist" % name, "code": 404}
        if asked.streams and asked.body.get("return_meta_info"):
            return 400, {"object": "error", "message": chat.REFUSED_IN_A_STREAM, "code": 400}
        answer = engine.generate(asked.prompt, asked.limit, None)
        if answer is None:
            return 503, {"object": "error", "message": "Server is leaving", "code": 503}
        tokens = answer["tokens"]
        if not asked.streams:
            time.sleep(engine.seconds_a_step * tokens / engine.tokens_a_step)
        return 200, chat.Said(
            answer["text"],
            tokens,
            answer["finish"],
            engine.prompt_tokens(asked.prompt),
            engine.speculation(tokens),
            time.monotonic() - began,
        )

    def _stream(self, engine: Engine, asked: chat.Question, said: chat.Said) -> None:
        """Server-sent events, at the model's own pace."""
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for of_a_step, event in chat.events(asked, said, engine.model, engine.tokens_a_step):
                time.sleep(engine.seconds_a_step if of_a_step else 0)
                self._chunk("data: %s\n\n" % json.dumps(event))
            self._chunk("data: [DONE]\n\n")
            self._chunk("")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _chunk(self, text: str) -> None:
        data = text.encode("utf-8")
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _send(self, code: int, value: Any) -> None:
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        data = text.encode("utf-8")
        try:
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(value, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client's patience ended first


def _model_card(engine: Engine) -> dict[str, Any]:
    card = {"id": engine.model, "object": "model", "created": int(time.time()), "owned_by": "sglang"}
    return {**card, "root": engine.model_path, "max_model_len": 262144}


def _loads(engine: Engine) -> dict[str, Any]:
    """From memory that the schedulers write to; the time is the HTTP server's, and moves while they hang."""
    counts = engine.counts()
    rank = {"dp_rank": 0, "num_running_reqs": counts["running"], "num_waiting_reqs": counts["waiting"]}
    rank["num_used_tokens"] = counts["prefilled"] + counts["generated"]
    return {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()), "version": VERSION, "loads": [rank]}


def _metrics(engine: Engine) -> str:
    """As with --enable-metrics."""
    counts = engine.counts()
    labels = 'engine_type="unified",model_name="%s",tp_rank="0"' % engine.model
    rows = (
        ("num_running_reqs", "gauge", labels, counts["running"]),
        ("num_queue_reqs", "gauge", labels, counts["waiting"]),
        ("realtime_tokens_total", "counter", labels + ',mode="prefill_compute"', counts["prefilled"]),
        ("realtime_tokens_total", "counter", labels + ',mode="decode"', counts["generated"]),
        ("generation_tokens_total", "counter", labels, counts["generated"]),
    )
    return "".join(
        "# TYPE sglang:%s %s\nsglang:%s{%s} %.1f\n" % (name, kind, name, where, value)
        for name, kind, where, value in rows
    )
