# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Streams as SGLang, vLLM and llama.cpp send them, and what no server should send."""

from __future__ import annotations

import json
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._chat import (
    error_text,
    question,
    quoted,
    read_answer,
    read_stream,
)
from ansible_collections.gpuops.inference.plugins.module_utils._http import Line

DONE = "data: [DONE]"


def lines(*events: Any, every: float = 0.5) -> list[Line]:
    """Server-sent events, one each ``every`` seconds, with the empty lines between them."""
    found = []
    for number, event in enumerate(events):
        text = event if isinstance(event, str) else f"data: {json.dumps(event)}"
        found += [Line(text, (number + 1) * every), Line("", (number + 1) * every)]
    return found


def piece(content: Optional[str] = None, finish: Optional[str] = None, **delta: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": content, **delta}
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}], "usage": None}


def usage(tokens: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}, **more}


def test_a_stream_is_put_together_and_timed() -> None:
    details = {"spec_accept_length": 2.5, "spec_verify_ct": 4}
    reply = read_stream(
        lines(
            piece(""),
            piece("The keeper "),
            piece("climbed "),
            piece("the stair."),
            piece(None, "stop"),
            usage(10, sglext={"spec_tokens_details": details}),
            DONE,
        )
    )
    assert (reply.text, reply.tokens, reply.finish, reply.error) == ("The keeper climbed the stair.", 10, "stop", None)
    # The empty first piece is no text, and neither is the end: three pieces, from 1.0 to 2.0 s.
    assert (reply.first, reply.last) == (1.0, 2.0)
    assert reply.tokens_per_second == pytest.approx(9.0)
    assert reply.details == details


def test_thoughts_are_text_as_well() -> None:
    for name in ("reasoning_content", "reasoning"):
        reply = read_stream(lines(piece(**{name: "17 rows "}), piece(**{name: "of 23"}), piece("391", "stop"), DONE))
        assert (reply.thinking, reply.text) == ("17 rows of 23", "391")
        assert (reply.first, reply.last) == (0.5, 1.5)
        assert "391" in reply.everything


def test_a_server_that_counts_along_counts_in_the_end() -> None:
    events = [{**piece("a"), **usage(2)}, {**piece("b"), **usage(7)}]
    events = [{**event, "choices": piece("x")["choices"]} for event in events]
    assert read_stream(lines(*events, piece(None, "length"), DONE)).tokens == 7


def test_llamacpp_tells_its_timings_at_the_end() -> None:
    timings = {"predicted_n": 10, "draft_n": 8, "draft_n_accepted": 6}
    reply = read_stream(lines(piece("a"), piece("b", "stop"), usage(10, timings=timings), DONE))
    assert reply.timings == timings
    assert reply.details is None


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([piece("The kee")], "stopped in the middle"),
        ([piece("The kee"), "data: {broken", DONE], "no JSON object"),
        (["data: [1, 2]", DONE], "no JSON object"),
        ([piece("The"), {"error": {"message": "CUDA out of\nmemory", "code": 500}}], "an error: CUDA out of memory"),
        ([{"object": "error", "message": "no", "code": 400}, DONE], "an error: no"),
        ([piece("", "abort"), DONE], "abort"),
        ([], "no JSON object"),
        (["<html>502 Bad Gateway</html>"], "no JSON object"),
    ],
)
def test_what_is_no_whole_answer_says_so(events: list[Any], error: str) -> None:
    reply = read_stream(lines(*events))
    assert reply.error is not None
    assert error in reply.error


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"choices": None},
        {"choices": {}},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": ["x"]}}]},
        {"choices": [{"delta": {"content": 7}, "finish_reason": 7}]},
        {"usage": [], "sglext": [], "timings": 3},
        {"usage": {"completion_tokens": True}},
        {"usage": {"completion_tokens": "12"}},
        {"usage": {"completion_tokens": -3}},
        {"usage": {"completion_tokens": 10**400}},
    ],
)
def test_fields_of_the_wrong_kind_are_none(event: Any) -> None:
    reply = read_stream(lines(event, DONE))
    assert (reply.text, reply.tokens, reply.details, reply.timings) == ("", None, None, None)
    assert reply.tokens_per_second is None


def test_deep_nesting_is_no_answer() -> None:
    reply = read_stream([Line("data: " + "[" * 200_000, 0.1)])
    assert reply.error is not None


def test_after_the_end_nothing_is_read() -> None:
    reply = read_stream(lines(piece("a", "stop"), DONE, {"error": "too late"}))
    assert reply.error is None


def test_an_answer_in_one_piece_has_no_speed() -> None:
    document = {
        "choices": [{"message": {"content": "391"}, "finish_reason": "stop", "meta_info": {"spec_verify_ct": 3}}],
        "usage": {"completion_tokens": 5},
    }
    for reply in (read_answer(document), read_stream([Line(json.dumps(document), 0.2)])):
        assert (reply.text, reply.tokens, reply.error) == ("391", 5, None)
        assert reply.tokens_per_second is None
        assert reply.details == {"spec_verify_ct": 3}


def test_all_at_once_has_no_speed() -> None:
    together = lines(piece("a"), piece("b", "stop"), usage(200), DONE, every=0.0)
    assert read_stream(together).tokens_per_second is None


def test_the_question_is_greedy_and_asks_for_a_count() -> None:
    body = question("Hello", "m", 12, {"thinking": False}, return_spec_tokens_details=True)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 12,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"thinking": False},
        "return_spec_tokens_details": True,
    }
    assert "stream" not in question("Hello", "m", 12, {}, stream=False)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": {"message": "model is loading"}}', "model is loading"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"a": 1}', '{"a": 1}'),
        (b"<h1>502\n Bad Gateway</h1>", "<h1>502 Bad Gateway</h1>"),
        (b"", ""),
        (b"\xff\x1b[31m", "\ufffd [31m"),
    ],
)
def test_a_refusal_in_the_server_s_words(body: bytes, expected: str) -> None:
    assert error_text(body) == expected


def test_a_quote_is_one_short_line() -> None:
    assert quoted("a\nb\x1b[2Jc") == "a b [2Jc"
    assert len(quoted("x" * 5000)) == 203


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"choices": [{"text": " 9,"}]}, " 9,"),
        ({"choices": [{"message": {"content": "9"}}]}, "9"),
        ({"choices": [{"message": {"content": None, "reasoning": "so"}}]}, "so\n"),
        ({"choices": [{"message": {"content": "9", "reasoning_content": "so"}}]}, "so\n9"),
        ({"choices": []}, ""),
    ],
)
def test_text_is_found_where_the_engines_put_it(document: Any, said: str) -> None:
    reply = read_answer(document)
    assert (reply.everything, reply.error) == (said, None)


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"object": "list"}, "without choices"),
        ({"choices": {}}, "without choices"),
        ({"error": {"message": "no"}}, "an error: no"),
        ({"choices": [{"text": "", "finish_reason": "abort"}]}, "abort"),
        (None, "no JSON object"),
    ],
)
def test_an_answer_that_is_none_says_so(document: Any, error: str) -> None:
    found = read_answer(document).error
    assert found is not None
    assert error in found
