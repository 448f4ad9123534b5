"""The HTTP door of the controller, on 127.0.0.1. It notes every request, so that a test knows who changed something."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tests.awx.controller.store import Refusal, Store

TOKEN = "made-up-token-0004"


class Request(NamedTuple):
    method: str
    path: str
    body: Any


class Controller:
    """A controller that answers. ``requests`` are all that came, in order."""

    def __init__(self, store: Store, url: str, requests: list[Request]) -> None:
        self.store = store
        self.url = url
        self.requests = requests

    def writes(self) -> list[Request]:
        """The requests that were to change something, and forget them all."""
        found = [one for one in self.requests if one.method != "GET"]
        self.requests.clear()
        return found


@contextmanager
def running(store: Store) -> Iterator[Controller]:
    """A controller on a port of its own, until the block ends."""
    requests: list[Request] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._handle(None)

        def do_POST(self) -> None:
            self._handle(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        do_PATCH = do_POST

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

        def _handle(self, body: Any) -> None:
            with lock:
                requests.append(Request(self.command, self.path, body))
                try:
                    if self.headers["Authorization"] != f"Bearer {TOKEN}":
                        raise Refusal(401, "Authentication credentials were not provided.")
                    status, answer = _answer(store, self.command, self.path, body)
                except Refusal as exc:
                    status, answer = exc.status, {"detail": str(exc)}
            text = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            # What the modules of awx.awx compare their own version with.
            self.send_header("X-API-Product-Name", "AWX")
            self.send_header("X-API-Product-Version", "24.6.1")
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Controller(store, f"http://127.0.0.1:{server.server_address[1]}", requests)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(store: Store, method: str, path: str, body: Any) -> tuple[int, Any]:
    """Status and answer. Raises Refusal."""
    split = urlsplit(path)
    parts = split.path.strip("/").split("/")
    if parts[:2] != ["api", "v2"]:
        raise Refusal(404, path)
    match (method, parts[2:]):
        case ("GET", [kind]):
            return 200, _listed(store.search(kind, dict(parse_qsl(split.query, keep_blank_values=True))))
        case ("POST", [kind]):
            return 201, store.create(kind, body)
        case ("GET", ["project_updates", _]):
            return 200, {"status": "successful"}
        case ("GET", [kind, number]):
            return 200, store.show(kind, int(number))
        case ("PATCH", [kind, number]):
            return 200, store.change(kind, int(number), body)
        case ("GET", [_, number, "survey_spec"]):
            return 200, store.survey(int(number))
        case ("POST", [_, number, "survey_spec"]):
            store.set_survey(int(number), body)
            return 200, {}
        case ("POST", ["workflow_job_template_nodes", number, "create_approval_template"]):
            return 201, store.approval(int(number), body)
        case ("GET", [kind, number, name]):
            return 200, _listed(store.linked(kind, int(number), name))
        case ("POST", [kind, number, name]):
            store.link(kind, int(number), name, body)
            return 204, None
    raise Refusal(405, f"{method} {path}")


def _listed(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {"count": len(found), "next": None, "previous": None, "results": found}
