# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is sent, and where to. That each way to fail ends in time is shown with real sockets in tests/integration."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._http import (
    Answer,
    Client,
    Url,
    parse_url,
    request_bytes,
    require_key,
)


@pytest.mark.parametrize(
    ("text", "url", "authority"),
    [
        ("http://127.0.0.1:30000", Url("http", "127.0.0.1", 30000, ""), "127.0.0.1:30000"),
        ("http://127.0.0.1:30000/", Url("http", "127.0.0.1", 30000, ""), "127.0.0.1:30000"),
        ("HTTPS://Kimi.example", Url("https", "kimi.example", 443, ""), "kimi.example"),
        ("https://kimi.example:80/llm/", Url("https", "kimi.example", 80, "/llm"), "kimi.example:80"),
        ("http://[2001:db8::1]:8000", Url("http", "2001:db8::1", 8000, ""), "[2001:db8::1]:8000"),
    ],
)
def test_an_address_is_taken_apart_and_put_together(text: str, url: Url, authority: str) -> None:
    assert parse_url(text) == url
    assert url.authority == authority
    assert parse_url(str(url)) == url


@pytest.mark.parametrize(
    "text",
    [
        *("", "127.0.0.1:30000", "ftp://x", "unix:/run/x", "http://", "http://:80", "http:///v1", "http://x:0"),
        *("http://x:65536", "http://x:-1", "http://x:abc", "http://x:٣", "http://[::1", "http://[zz]"),
        *(
            "http://x/?key=sk-1",
            "http://x/#sk-1",
            "http://x/a b",
            "http://x/\r\nHost: y",
            "http://\uff58",
            "http://x\0",
        ),
        *("http://me:sk-1@x", "http://sk-1@x", "http://me:sk-1"),
    ],
)
def test_what_cannot_be_an_address_is_refused_and_no_secret_is_quoted(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_url(text)
    assert caught.value.message.startswith("url ")
    assert "sk-1" not in caught.value.message


@pytest.mark.parametrize("key", ["sk-1 sk-2", "sk-1\n", "sk-1\r\nX: y", "sk-é", "\0"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_quoted(key: str) -> None:
    with pytest.raises(InputError) as caught:
        Client(parse_url("http://x"), key=key)
    assert caught.value.message.startswith("api_key ")
    assert "sk-" not in caught.value.message


def test_no_key_is_no_key() -> None:
    for key in (None, ""):
        require_key(key)
        assert b"Authorization" not in request_bytes(parse_url("http://x"), "GET", "/", key=key)


def test_a_request_says_all_that_a_server_needs_and_nothing_else() -> None:
    url = parse_url("http://127.0.0.1:30000/llm")
    head, _blank, body = request_bytes(url, "POST", "/generate", key="sk-1", document={"text": "é"}).partition(
        b"\r\n\r\n"
    )
    first, *headers = head.decode().split("\r\n")
    assert first == "POST /llm/generate HTTP/1.1"
    assert json.loads(body) == {"text": "é"}
    assert {"Host: 127.0.0.1:30000", "Authorization: Bearer sk-1", f"Content-Length: {len(body)}"} <= set(headers)
    assert "Connection: close" in headers
    assert request_bytes(url, "GET", "/health").endswith(b"close\r\n\r\n")


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (b'{"a": 1}', {"a": 1}),
        *((text, None) for text in (b"", b"<html>", b"\xff\xfe\xfa", b"[" * 100_000, b"9" * 10_000, b'{"a": ')),
    ],
)
def test_a_body_is_json_or_nothing(body: bytes, document: Any) -> None:
    assert Answer(200, "OK", {}, body, False, 0.1).document() == document
