"""The client against servers that a test writes: each way to answer, to fail and to deceive ends within the deadline.

Every limit is some tenths of a second. "Within" allows a loaded machine two seconds more, against answers that last
for a minute.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._http import Answer, Client, HttpError, parse_url
from tests.integration.scripted import Conversation, Script, closed_port, scripted

KEY = "sk-made-up-0001-never-to-be-seen"
HEAD = b"HTTP/1.1 200 OK\r\n"


def ask(url: str, timeout: float = 5, **options: object) -> Answer:
    return Client(parse_url(url), **options).get("/v1/models", timeout=timeout)  # type: ignore[arg-type]


def failure(url: str, timeout: float = 5, **options: object) -> HttpError:
    began = time.monotonic()
    with pytest.raises(HttpError) as caught:
        ask(url, timeout, **options)
    assert time.monotonic() - began < timeout + 2
    return caught.value


def flood(conversation: Conversation) -> None:
    conversation.send(HEAD + b"Content-Length: 104857600\r\n\r\n")
    for _piece in range(100):
        conversation.send(b"x" * (1 << 20))


def pour(conversation: Conversation) -> None:
    conversation.send(HEAD + b"\r\n")
    while True:
        conversation.send(b"x" * 65536)


def after(head: bytes, drop: bytes = b"x") -> Script:
    """Send, then go on for ever, a drop at a time."""

    def script(conversation: Conversation) -> None:
        conversation.send(head)
        while not conversation.stay_silent(0.02):
            conversation.send(drop)

    return script


def saying(data: bytes) -> Script:
    """Send and close."""
    return lambda conversation: conversation.send(data)


def test_an_answer_comes_whole_with_its_status_headers_and_time() -> None:
    with scripted(lambda one: one.answer(200, {"data": [1]}, X_Marked="yes")) as server:
        answer = ask(server.url)
    assert (answer.status, answer.document(), answer.headers["x-marked"]) == (200, {"data": [1]}, "yes")
    assert (answer.truncated, 0 < answer.seconds < 5) == (False, True)


@pytest.mark.parametrize("status", [301, 401, 404, 500, 503])
def test_every_status_is_an_answer_and_no_redirect_is_followed(status: int) -> None:
    with scripted(lambda one: one.answer(status, "no", Location="http://192.0.2.1/")) as server:
        answer = ask(server.url)
        assert (answer.status, answer.body, server.asked) == (status, b"no", ["GET /v1/models"])


def test_a_prefix_of_the_url_is_kept_and_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    with scripted(lambda one: one.answer(200)) as server:
        ask(f"{server.url}/llm/")
        assert server.asked == ["GET /llm/v1/models"]


def test_a_body_in_chunks_and_one_that_ends_with_the_connection_come_whole() -> None:
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    for data in (chunked, HEAD + b"\r\nabcde"):
        with scripted(saying(data)) as server:
            assert ask(server.url).body == b"abcde"


@pytest.mark.parametrize("script", [flood, pour], ids=["100-mb", "endless"])
def test_a_body_that_is_too_long_is_cut_off_and_says_so(script: Script) -> None:
    with scripted(script) as server:
        answer = ask(server.url, max_bytes=100_000)
    assert (len(answer.body), answer.truncated, answer.document()) == (100_000, True, None)


@pytest.mark.parametrize(
    ("script", "phase"),
    [
        (lambda one: one.stay_silent(), "headers"),
        (after(b"HTTP/1.1 2"), "headers"),
        (after(b"HTTP/1.1 200 OK\r\nX: "), "headers"),
        (after(HEAD + b"Content-Length: 100000\r\n\r\n"), "body"),
        (after(HEAD + b"\r\n"), "body"),
        (after(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"), "body"),
        (after(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "headers"),
    ],
    ids=["silent", "status", "header", "length", "open-end", "chunks", "continue"],
)
def test_whoever_says_nothing_or_a_byte_now_and_then_is_cut_at_the_deadline(script: Script, phase: str) -> None:
    with scripted(script) as server:
        error = failure(server.url, timeout=0.4)
    assert (error.reason, error.fields["phase"]) == ("timeout", phase)
    assert error.fields["seconds"] >= 0.4
    assert error.fields["status"] == (200 if phase == "body" else None)


def test_who_takes_no_connection_at_all_is_cut_at_the_deadline() -> None:
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for one in (first, second):  # the queue is full
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        error = failure(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.4)
    assert (error.reason, error.fields["phase"]) == ("timeout", "connect")


@pytest.mark.parametrize(
    ("data", "reason", "phase"),
    [
        (b"", "closed_early", "headers"),
        (HEAD + b"Content-Length: 100\r\n\r\nabc", "closed_early", "body"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", "closed_early", "body"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "closed_early", "body"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "bad_answer", "headers"),
        (b"HTTP/1.1 abc\r\n\r\n", "bad_answer", "headers"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", "bad_answer", "headers"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", "bad_answer", "headers"),
    ],
)
def test_an_answer_that_breaks_off_and_one_that_is_none_are_told_apart(data: bytes, reason: str, phase: str) -> None:
    with scripted(saying(data)) as server:
        error = failure(server.url)
    assert (error.reason, error.fields["phase"]) == (reason, phase)


def test_a_closed_port_and_an_unknown_name_are_told_apart() -> None:
    assert failure(f"http://127.0.0.1:{closed_port()}").reason == "refused"
    assert failure("http://nobody.invalid:1", timeout=3).reason in ("unresolvable", "timeout")
    assert failure("http://a..b:1").reason == "unresolvable"


def test_the_key_is_sent_and_is_in_no_error_and_no_repr() -> None:
    keys = []
    with scripted(lambda one: keys.append(one.key)) as server:
        client = Client(parse_url(server.url), key=KEY)
        with pytest.raises(HttpError) as caught:
            client.get("/", timeout=5)
    assert keys == [KEY]
    assert KEY not in f"{caught.getrepr(showlocals=False)} {client!r} {vars(caught.value)}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A certificate that nobody signed, from the openssl command."""
    directory: Path = tmp_path_factory.mktemp("tls")
    names = {"-keyout": directory / "key.pem", "-out": directory / "cert.pem", "-subj": "/CN=127.0.0.1"}
    options = [str(word) for pair in names.items() for word in pair]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-x509", "-days", "2"]
    subprocess.run(["openssl", "req", *curve, *options], check=True, capture_output=True, env={**os.environ})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    return context


def test_tls_is_spoken_and_a_certificate_is_believed_only_when_asked_to(certificate: ssl.SSLContext) -> None:
    with scripted(lambda one: one.answer(200, "safe"), context=certificate) as server:
        url = f"https://127.0.0.1:{server.port}"
        assert ask(url, validate_certs=False).body == b"safe"
        error = failure(url)
        assert (error.reason, error.fields["phase"]) == ("tls", "tls")
        assert "self" in error.message


def test_tls_with_who_does_not_speak_it_or_is_silent() -> None:
    with scripted(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), read=False) as server:
        assert failure(f"https://127.0.0.1:{server.port}").reason in ("tls", "closed_early")
    with scripted(lambda one: one.stay_silent(), read=False) as server:
        error = failure(f"https://127.0.0.1:{server.port}", timeout=0.4)
        assert (error.reason, error.fields["phase"]) == ("timeout", "tls")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_stream_comes_line_by_line_with_the_time_of_each(chunked: bool) -> None:
    def script(one: Conversation) -> None:
        one.send(HEAD + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n"))
        for word in (b"data: a\r\n\r\n", b"data: b\n\n", b"data: [DONE]\n\n"):
            one.send(b"%x\r\n%s\r\n" % (len(word), word) if chunked else word)
            one.stay_silent(0.2)
        one.send(b"0\r\n\r\n" if chunked else b"")

    with scripted(script) as server, Client(parse_url(server.url)).stream("/x", {"a": 1}, timeout=10) as stream:
        lines = [line for line in stream.lines if line.text]
    assert (stream.status, server.asked) == (200, ["POST /x"])
    assert [line.text for line in lines] == ["data: a", "data: b", "data: [DONE]"]
    assert lines[1].seconds - lines[0].seconds > 0.1
    assert lines[2].seconds - lines[1].seconds > 0.1


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (after(HEAD + b"\r\ndata: a\n"), "timeout"),
        (pour, "too_big"),
        (saying(HEAD + b"Content-Length: 100\r\n\r\ndata: a\n"), "closed_early"),
    ],
)
def test_a_stream_ends_at_its_limits(script: Script, reason: str) -> None:
    def listen(url: str) -> None:
        with Client(parse_url(url), max_bytes=100_000).stream("/x", {}, timeout=0.5) as stream:
            list(stream.lines)

    began = time.monotonic()
    with scripted(script) as server, pytest.raises(HttpError) as caught:
        listen(server.url)
    assert caught.value.reason == reason
    assert time.monotonic() - began < 2.5


def test_nothing_is_left_open_whatever_came(recwarn: pytest.WarningsRecorder) -> None:
    unraisable: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        for script in (saying(b""), saying(HEAD), after(HEAD + b"\r\n"), saying(HEAD + b"\r\nabc")):
            with scripted(script) as server, contextlib.suppress(HttpError):
                ask(server.url, timeout=0.2)
        gc.collect()
    finally:
        sys.unraisablehook = before
    assert (unraisable, [str(one.message) for one in recwarn]) == ([], [])
