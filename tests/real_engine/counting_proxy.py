"""A proxy that hands everything through, and reads the engine's counters before each request for a generation.

So it is known what the engine counted over any of the requests, whoever asks and whatever the asker makes of it.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.real_engine.server import Server

_LIMIT_S = 120


@contextmanager
def counting(server: Server) -> Iterator[tuple[str, list[dict[str, float]]]]:
    """The proxy's address, and the readings: one before each generation so far."""
    readings: list[dict[str, float]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            readings.append(server.metrics())
            self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

        def _pass_on(self, body: bytes | None) -> None:
            beyond = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_LIMIT_S)
            kind = {} if body is None else {"Content-Type": "application/json"}
            beyond.request(self.command, self.path, body, kind)
            answer = beyond.getresponse()
            # HTTP/1.0, so that the end of the connection is that of the answer.
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.end_headers()
            while piece := answer.read1(1 << 16):
                self.wfile.write(piece)
                self.wfile.flush()
            beyond.close()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}", readings
        finally:
            proxy.shutdown()
            thread.join()
