# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTTP exchange with a server that may be dead, hung or hostile: it ends at its deadline, whatever comes.

The deadline is for the whole exchange (name, connection, TLS, headers, body), so an answer that drips or never ends is
cut as well. No proxy from the environment is used, no redirect is followed, no connection is kept. The key is sent as a
bearer token, and is in no exception and no repr.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import queue
import re
import socket
import ssl
import threading
import time
from typing import Any, Callable, Iterator, NamedTuple, Optional
from urllib.parse import urlsplit

from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError, InputError

MAX_BODY_BYTES = 1 << 20

_PORTS = {"http": 80, "https": 443}
_PIECE = 1 << 16

# Before Python 3.10 the timeout of a socket is no TimeoutError.
_TIMEOUTS = (TimeoutError, socket.timeout)

# Where an exchange can be; the field ``phase`` of an error.
RESOLVE, CONNECT, TLS, SEND, HEADERS, BODY = "resolve", "connect", "tls", "send", "headers", "body"

_WAITED_FOR = {
    RESOLVE: "the address of its name",
    CONNECT: "a connection",
    TLS: "the TLS handshake",
    SEND: "the request to be taken",
    HEADERS: "an answer",
    BODY: "the end of the answer",
}


class HttpError(GpuopsError):
    """No whole answer came. ``reason`` is ``unresolvable``, ``refused``, ``unreachable``, ``tls``, ``timeout``,
    ``closed_early``, ``bad_answer`` or, for streams only, ``too_big``.

    Fields: ``phase`` (see above), ``seconds`` since the beginning, ``status`` (None before the headers came).
    """


class Url(NamedTuple):
    """Where a server is. ``path`` is a prefix without a slash at its end, as a reverse proxy may want one."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def authority(self) -> str:
        """Host and port as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        """As an operator would type it."""
        return f"{self.scheme}://{self.authority}{self.path}"


class Answer(NamedTuple):
    """A whole answer, or its first bytes where it was longer than allowed (``truncated``).

    ``headers`` have lower-case names; ``seconds`` is what the exchange took.
    """

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes
    truncated: bool
    seconds: float

    def document(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Line(NamedTuple):
    """A line of a stream without its end, and when it came: ``seconds`` since the request began."""

    text: str
    seconds: float


class Stream(NamedTuple):
    """An answer whose body comes bit by bit. ``lines`` can be gone through once; it may raise HttpError."""

    status: int
    reason: str
    headers: dict[str, str]
    lines: Iterator[Line]


def parse_url(text: str, option: str = "url") -> Url:
    """The base address of a server. Raises InputError for one that cannot be meant; it quotes no secret."""
    wanted = "Give scheme, host, port and at most a path, such as http://127.0.0.1:30000."
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InputError(f"{option} is no address. {wanted}") from None
    if parts.username is not None or parts.password is not None:
        raise InputError(f"{option} holds a user or a password. Leave them out; a key has an option of its own.")
    if parts.query or parts.fragment or re.search(r"[^!-~]", text):
        raise InputError(f"{option} holds a query, a fragment, a blank or an odd character. {wanted}")
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise InputError(f"{option} is {text!r}. {wanted}")
    return Url(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], parts.path.rstrip("/"))


def require_key(key: Optional[str], option: str = "api_key") -> None:
    """Raise InputError for a key that no header can carry. It is not quoted."""
    if key is not None and re.search(r"[^!-~]", key):
        raise InputError(f"{option} holds a blank, a line end or a character beyond ASCII, and cannot be sent so.")


def request_bytes(
    url: Url, method: str, path: str, *, key: Optional[str] = None, document: Optional[Any] = None
) -> bytes:
    """The request as it goes over the wire. ``document`` is sent as JSON."""
    body = b"" if document is None else json.dumps(document).encode("ascii")
    headers = {
        "Host": url.authority,
        "User-Agent": "gpuops.inference",
        "Accept": "application/json, text/event-stream, text/plain, */*",
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    if document is not None:
        headers.update({"Content-Type": "application/json", "Content-Length": str(len(body))})
    if key:
        headers["Authorization"] = f"Bearer {key}"
    lines = [f"{method} {url.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("ascii") + body


class Client:
    """Asks one server. ``now`` gives seconds of a monotonic clock; ``max_bytes`` limits every body.

    A plain class, so that no repr shows the key.
    """

    def __init__(
        self,
        url: Url,
        *,
        key: Optional[str] = None,
        validate_certs: bool = True,
        max_bytes: int = MAX_BODY_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        require_key(key)
        self.url = url
        self._key = key
        self._validate_certs = validate_certs
        self._max_bytes = max_bytes
        self._now = now

    def get(self, path: str, *, timeout: float) -> Answer:
        """GET ``path`` within ``timeout`` seconds. Every status is an answer; raises HttpError where none came."""
        return self._ask("GET", path, None, timeout)

    def post(self, path: str, document: Any, *, timeout: float) -> Answer:
        """POST ``document`` as JSON. See get."""
        return self._ask("POST", path, document, timeout)

    @contextlib.contextmanager
    def stream(self, path: str, document: Any, *, timeout: float) -> Iterator[Stream]:
        """POST ``document`` and go through the answer line by line, as server-sent events come.

        The same deadline holds from the request to the last line. Errors are those of get, and ``too_big``.
        """
        with _Exchange(self.url, timeout, self._now) as exchange:
            response = exchange.send(self._request("POST", path, document), "POST", self._validate_certs)
            lines = exchange.lines(response, self._max_bytes)
            yield Stream(response.status, response.reason, _headers(response), lines)

    def _ask(self, method: str, path: str, document: Optional[Any], timeout: float) -> Answer:
        with _Exchange(self.url, timeout, self._now) as exchange:
            response = exchange.send(self._request(method, path, document), method, self._validate_certs)
            body, truncated = exchange.read(response, self._max_bytes)
            headers = _headers(response)
            return Answer(response.status, response.reason, headers, body, truncated, exchange.seconds())

    def _request(self, method: str, path: str, document: Optional[Any]) -> bytes:
        return request_bytes(self.url, method, path, key=self._key, document=document)


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


class _Exchange:
    """One request and its answer, from the name of the host to the end of the body."""

    def __init__(self, url: Url, timeout: float, now: Callable[[], float]) -> None:
        self._url = url
        self._timeout = timeout
        self._now = now
        self._began = now()
        self._phase = RESOLVE
        self._status: Optional[int] = None
        self._socket: Optional[socket.socket] = None
        self._response: Optional[http.client.HTTPResponse] = None

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_error: object) -> None:
        # In this order: Python 3.13 complains on stderr about an answer whose socket has gone before it.
        for one in (self._response, self._socket):
            if one is not None:
                one.close()

    def seconds(self) -> float:
        """Since the beginning."""
        return self._now() - self._began

    def left(self) -> float:
        """Seconds until the deadline. Raises TimeoutError where there are none."""
        left = self._timeout - self.seconds()
        if left <= 0:
            raise TimeoutError
        return left

    def send(self, request: bytes, method: str, validate_certs: bool) -> http.client.HTTPResponse:
        """Connect, send, and read the headers of the answer."""
        with self._explained():
            addresses = _resolve(self._url, self.left())
            self._phase = CONNECT
            self._socket = self._connect(addresses)
            if self._url.scheme == "https":
                self._phase = TLS
                self._socket.settimeout(self.left())
                context = _tls_context(validate_certs)
                self._socket = context.wrap_socket(self._socket, server_hostname=self._url.host)
            self._phase = SEND
            unsent = memoryview(request)
            while unsent:
                self._socket.settimeout(self.left())
                unsent = unsent[self._socket.send(unsent) :]
            self._phase = HEADERS
            incoming = _Incoming(self._socket, self.left)
            self._response = http.client.HTTPResponse(incoming, method=method)  # type: ignore[arg-type]
            self._response.begin()
            self._phase, self._status = BODY, self._response.status
            return self._response

    def read(self, response: http.client.HTTPResponse, max_bytes: int) -> tuple[bytes, bool]:
        """The body, at most ``max_bytes`` of it, and whether there was more."""
        body = bytearray()
        with self._explained():
            while len(body) <= max_bytes:
                piece = response.read(min(_PIECE, max_bytes + 1 - len(body)))
                if not piece:
                    self._require_end(response)
                    return bytes(body), False
                body += piece
        return bytes(body[:max_bytes]), True

    def lines(self, response: http.client.HTTPResponse, max_bytes: int) -> Iterator[Line]:
        """The lines of the body as they come."""
        left = max_bytes
        while True:
            with self._explained():
                raw = response.readline(left + 1)
                if not raw:
                    self._require_end(response)
                    return
                left -= len(raw)
            if left < 0:
                raise self._error("too_big", f"sent more than {max_bytes} bytes, and was not listened to any longer")
            yield Line(raw.decode("utf-8", "replace").rstrip("\r\n"), self.seconds())

    def _require_end(self, response: http.client.HTTPResponse) -> None:
        # http.client takes the end of the connection for the end of the body, however much was announced.
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)

    def _connect(self, addresses: list[_Address]) -> socket.socket:
        """The first address that takes the connection. One that is silent leaves time for the others."""
        failure: OSError = OSError("no address")
        for number, address in enumerate(addresses):
            try:
                return _connected(address, self.left() / (len(addresses) - number))
            except OSError as exc:
                failure = exc
        raise failure

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what the libraries raise into an HttpError. None of their texts holds the request."""
        try:
            yield
        except _TIMEOUTS as exc:
            awaited = _WAITED_FOR[self._phase]
            raise self._error("timeout", f"gave no answer within {self._timeout:g} s (waited for {awaited})") from exc
        except socket.gaierror as exc:
            raise self._error("unresolvable", f"has a name that is not known here: {exc.strerror}") from exc
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as exc:
            raise self._closed() from exc
        except ssl.SSLError as exc:
            raise self._error("tls", f"and this machine do not agree on TLS: {_why(exc)}") from exc
        except (http.client.RemoteDisconnected, http.client.IncompleteRead) as exc:
            raise self._closed() from exc
        except http.client.HTTPException as exc:
            raise self._error("bad_answer", f"does not speak HTTP: {type(exc).__name__}") from exc
        except ConnectionRefusedError as exc:
            raise self._error("refused", "refused the connection") from exc
        except OSError as exc:
            if self._phase == CONNECT:
                raise self._error("unreachable", f"cannot be reached: {_why(exc)}") from exc
            raise self._closed() from exc

    def _closed(self) -> HttpError:
        where = "in the middle of its answer" if self._phase == BODY else "before it answered"
        return self._error("closed_early", f"closed the connection {where}")

    def _error(self, reason: str, what: str) -> HttpError:
        return HttpError(
            f"{self._url} {what}.", reason=reason, phase=self._phase, seconds=self.seconds(), status=self._status
        )


_Address = tuple[socket.AddressFamily, Any]


def _resolve(url: Url, seconds: float) -> list[_Address]:
    """The addresses of the host. A resolver has its own idea of patience, so it is asked aside, and left behind.

    Raises socket.gaierror and TimeoutError.
    """
    with contextlib.suppress(socket.gaierror, UnicodeError):
        return _addresses(url, socket.AI_NUMERICHOST)
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            found.put(_addresses(url, 0))
        except (OSError, UnicodeError) as exc:
            found.put(exc)

    threading.Thread(target=look_up, daemon=True).start()
    try:
        result = found.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(result, UnicodeError):
        raise socket.gaierror(socket.EAI_NONAME, "no such name can be")
    if isinstance(result, OSError):
        raise result
    return list(result)


def _addresses(url: Url, flags: int) -> list[_Address]:
    answers = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((family, address) for family, _kind, _protocol, _name, address in answers))


def _connected(address: _Address, timeout: float) -> socket.socket:
    family, place = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(place)
    except OSError:
        sock.close()
        raise
    return sock


def _tls_context(validate_certs: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not validate_certs:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _why(error: OSError) -> str:
    return str(getattr(error, "verify_message", "") or error.strerror or error)


class _Incoming(io.RawIOBase):
    """What comes in over a socket. Each read has no more time than ``left`` says; it raises the socket's timeout."""

    def __init__(self, sock: socket.socket, left: Callable[[], float]) -> None:
        super().__init__()
        self._sock = sock
        self._left = left

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase."""
        self._sock.settimeout(self._left())
        return self._sock.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What http.client asks of a socket."""
        return io.BufferedReader(self)
