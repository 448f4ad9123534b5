"""The HTTP door of the server: SGLang's endpoints and answers."""

from __future__ import annotations

import http.server
import json
import threading
import time
import uuid
from typing import Any, Protocol

HEALTH_TIMEOUT_S = 20.0
_OPEN_PATHS = ("/health", "/health_generate", "/metrics")


class Engine(Protocol):
    """What stands behind the door."""

    model: str
    model_path: str
    api_key: str | None
    status: str
    """'starting', 'up', 'unhealthy' or 'leaving'."""

    def generate(self, prompt: str, max_tokens: int, timeout_s: float | None) -> dict[str, Any] | None:
        """A completion (`text`, `tokens`, `finish`); None when nothing came back in time. No limit: waits for ever."""

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
            self._send(*self._answer(engine, path, body))
        finally:
            with self.server.lock:
                self.server.under_way -= 1

    def _answer(self, engine: Engine, path: str, body: dict[str, Any]) -> tuple[int, Any]:
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
                return 200, {"model_path": engine.model_path, "served_model_name": engine.model, "status": "ready"}
        elif path in ("/v1/completions", "/v1/chat/completions", "/generate"):
            return self._generate(engine, path, body)
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

    def _generate(self, engine: Engine, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        began = time.monotonic()
        chat, native = path.endswith("/chat/completions"), path == "/generate"
        if chat:
            prompt = "\n".join(str(message.get("content", "")) for message in body.get("messages", []))
            limit = body.get("max_completion_tokens") or body.get("max_tokens") or 64
        elif native:
            prompt = str(body.get("text", ""))
            limit = body.get("sampling_params", {}).get("max_new_tokens", 128)
        else:
            prompt = body.get("prompt", "")
            prompt = str(prompt[0] if isinstance(prompt, list) and prompt else prompt)
            limit = body.get("max_tokens") or 16
        asked = body.get("model", engine.model)
        if not native and asked not in (engine.model, engine.model_path, "default"):
            return 404, {"object": "error", "message": "The model '%s' does not exist" % asked, "code": 404}
        answer = engine.generate(prompt, int(limit), None)
        if answer is None:
            return 503, {"object": "error", "message": "Server is leaving", "code": 503}
        counts = engine.prompt_tokens(prompt), answer["tokens"]
        if native:
            meta = {"id": uuid.uuid4().hex, "finish_reason": {"type": answer["finish"]}, "prompt_tokens": counts[0]}
            meta.update(
                {
                    "completion_tokens": counts[1],
                    "e2e_latency": time.monotonic() - began,
                    **engine.speculation(counts[1]),
                }
            )
            return 200, {"text": answer["text"], "meta_info": meta}
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": answer["finish"]}
        if chat:
            choice["message"] = {"role": "assistant", "content": answer["text"].lstrip(), "tool_calls": None}
        else:
            choice["text"] = answer["text"]
        usage = {"prompt_tokens": counts[0], "completion_tokens": counts[1], "total_tokens": sum(counts)}
        kind = "chat.completion" if chat else "text_completion"
        head = {"id": uuid.uuid4().hex, "object": kind, "created": int(time.time()), "model": engine.model}
        return 200, {**head, "choices": [choice], "usage": usage}

    def _send(self, code: int, value: Any) -> None:
        data = b"" if value is None else json.dumps(value).encode("utf-8")
        try:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client's patience ended first


def _model_card(engine: Engine) -> dict[str, Any]:
    card = {"id": engine.model, "object": "model", "created": int(time.time()), "owned_by": "sglang"}
    return {**card, "root": engine.model_path, "max_model_len": 262144}
