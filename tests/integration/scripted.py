"""A server whose every answer is written by the test: it takes connections and hands each to a function."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Conversation:
    """One connection. ``request`` is its head and body, '' where the server did not read it."""

    def __init__(self, connection: socket.socket, leaving: threading.Event, request: str) -> None:
        self._connection = connection
        self._leaving = leaving
        self.request = request

    @property
    def path(self) -> str:
        """What was asked for, without the query."""
        return self.request.split(" ")[1].partition("?")[0]

    @property
    def method(self) -> str:
        return self.request.split(" ")[0]

    @property
    def key(self) -> str | None:
        """The bearer token that came along."""
        return next(
            (line[22:] for line in self.request.split("\r\n") if line.startswith("Authorization: Bearer ")), None
        )

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def answer(self, status: int, body: object = None, **headers: str) -> None:
        """A whole answer. ``body``: text as it is, anything else as JSON, None for none."""
        data = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.send(f"HTTP/1.1 {status} So\r\nContent-Length: {len(data)}\r\n{more}\r\n".encode() + data)

    def stay_silent(self, seconds: float = 60) -> bool:
        """Wait until the test is over (True), or for ``seconds``."""
        return self._leaving.wait(seconds)


Script = Callable[[Conversation], object]


class Server(NamedTuple):
    """Where it listens, and the paths that it was asked for, in order. ``most_at_once``: connections."""

    port: int
    asked: list[str]
    most_at_once: Callable[[], int]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def scripted(script: Script, *, read: bool = True, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve until the block ends; then every conversation ends. With ``read`` the request is read before."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    leaving, asked, open_now, most = threading.Event(), [], set(), [0]

    def talk(connection: socket.socket) -> None:
        open_now.add(connection)
        most[0] = max(most[0], sum(map(_is_held, tuple(open_now))))
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(open_now.discard, connection)
            talking = stack.enter_context(connection if context is None else context.wrap_socket(connection, True))
            conversation = Conversation(talking, leaving, _request(talking) if read else "")
            asked.append(f"{conversation.method} {conversation.path}" if conversation.request else "")
            script(conversation)

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield Server(listener.getsockname()[1], asked, lambda: most[0])
    finally:
        leaving.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _is_held(connection: socket.socket) -> bool:
    """Whether who asked has not hung up yet. We may be a little late to notice that."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _request(connection: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < _length(data):
        piece = connection.recv(65536)
        if not piece:
            break
        data += piece
    return data.decode()


def _length(data: bytes) -> int:
    lines = data.lower().split(b"\r\n")
    return next((int(line[16:]) for line in lines if line.startswith(b"content-length: ")), 0)


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
