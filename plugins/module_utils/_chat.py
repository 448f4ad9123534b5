# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One completion, of a chat as a rule: what is asked, and what came back. Pure.

Asked over ``/v1/chat/completions``, so that the server's own chat template is applied: without it a draft model that
was trained on chats guesses worse. Tokens are never counted by pieces, since with speculation one piece holds several:
only what the server itself counted (``usage``) is believed.
"""

from __future__ import annotations

import json
from typing import Any, Iterable, Mapping, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._http import Line

# No answer has more; a number beyond it is no count.
_MOST_TOKENS = 2**31

# So much of a server's own words goes into a message.
_LONGEST_QUOTE = 200


class Reply(NamedTuple):
    """What came. ``first`` and ``last`` are when the first and the last piece of text came, in seconds since the
    request began; None without any text. ``thinking`` is what a reasoning model says before its answer.

    ``error`` says why the answer is none or not whole; None for a whole one. ``details`` is SGLang's account of its
    speculation, ``timings`` llama.cpp's.
    """

    text: str = ""
    thinking: str = ""
    tokens: Optional[int] = None
    finish: Optional[str] = None
    first: Optional[float] = None
    last: Optional[float] = None
    details: Optional[Mapping[str, Any]] = None
    timings: Optional[Mapping[str, Any]] = None
    error: Optional[str] = None

    @property
    def everything(self) -> str:
        """All that the model said, thoughts included."""
        return f"{self.thinking}\n{self.text}" if self.thinking else self.text

    @property
    def tokens_per_second(self) -> Optional[float]:
        """Speed of the decoding alone: the first token is left out, and the time until it came.

        None when the tokens were not counted, or when all came at once, as through a proxy that gathers answers.
        """
        if self.tokens is None or self.tokens < 2 or self.first is None or self.last is None or self.last <= self.first:
            return None
        return (self.tokens - 1) / (self.last - self.first)


def question(
    text: str, model: str, max_tokens: int, template: Mapping[str, Any], *, stream: bool = True, **more: Any
) -> dict[str, Any]:
    """The body of a greedy request. ``template`` goes to the chat template, ``more`` are an engine's own fields."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        **more,
    }
    if template:
        body["chat_template_kwargs"] = dict(template)
    if stream:
        body.update({"stream": True, "stream_options": {"include_usage": True}})
    return body


def read_stream(lines: Iterable[Line]) -> Reply:
    """The answer to a streamed request, whose lines are server-sent events. Raises what ``lines`` raises.

    A server that does not stream answers with one JSON document; it is taken, but has no speed.
    """
    reply, other = _Gathered(), []
    for line in lines:
        if line.text.startswith("data:"):
            data = line.text[5:].strip()
            if data == "[DONE]":
                return reply.whole(ended=True)
            reply.take(_document(data), line.seconds)
        elif not reply.begun:
            other.append(line.text)
    if not reply.begun:
        return read_answer(_document("\n".join(other)))
    return reply.whole(ended=False)


def read_answer(document: Any) -> Reply:
    """The answer to a request that was not streamed, for a chat or for the continuation of a text."""
    if isinstance(document, dict) and not isinstance(document.get("choices"), list) and not _is_error(document):
        return Reply(error="sent an answer without choices")
    gathered = _Gathered()
    gathered.take(document, None)
    return gathered.whole(ended=True)


class _Gathered:
    """An answer in the making."""

    def __init__(self) -> None:
        self.begun = False
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._tokens: Optional[int] = None
        self._finish: Optional[str] = None
        self._first: Optional[float] = None
        self._last: Optional[float] = None
        self._details: Optional[Mapping[str, Any]] = None
        self._timings: Optional[Mapping[str, Any]] = None
        self._error: Optional[str] = None

    def take(self, document: Any, seconds: Optional[float]) -> None:
        """One event, or the one document of an answer that is not streamed (``seconds`` None)."""
        self.begun = True
        if not isinstance(document, dict):
            self._error = self._error or "sent something that is no JSON object"
            return
        if _is_error(document):
            self._error = self._error or f"sent an error: {quoted(_words(document))}"
            return
        choice = _first(document.get("choices"))
        chat = _mapping(choice.get("delta")) or _mapping(choice.get("message"))
        self._take_text(chat or {"content": choice.get("text")}, seconds)
        self._finish = _string(choice.get("finish_reason")) or self._finish
        # SGLang and vLLM may count along with every piece: the last count is the whole.
        tokens = _mapping(document.get("usage")).get("completion_tokens")
        if isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens <= _MOST_TOKENS:
            self._tokens = tokens
        details = _mapping(document.get("sglext")).get("spec_tokens_details")
        self._details = _mapping(details) or _mapping(choice.get("meta_info")) or self._details
        self._timings = _mapping(document.get("timings")) or self._timings

    def _take_text(self, said: Mapping[str, Any], seconds: Optional[float]) -> None:
        text = _string(said.get("content"))
        # SGLang and llama.cpp call it reasoning_content, newer vLLM reasoning.
        thinking = _string(said.get("reasoning_content")) or _string(said.get("reasoning"))
        self._text.append(text)
        self._thinking.append(thinking)
        if (text or thinking) and seconds is not None:
            self._first = seconds if self._first is None else self._first
            self._last = seconds

    def whole(self, *, ended: bool) -> Reply:
        """The answer. One that ended neither by its own word nor by a finish reason was cut off."""
        error = self._error
        if error is None and not ended and self._finish is None:
            error = "stopped in the middle of its answer"
        if error is None and self._finish == "abort":
            error = "gave the request up (finish reason abort)"
        return Reply(
            "".join(self._text),
            "".join(self._thinking),
            self._tokens,
            self._finish,
            self._first,
            self._last,
            self._details,
            self._timings,
            error,
        )


def quoted(text: str) -> str:
    """A server's words as they may stand in a message: one line, printable, not long."""
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return line if len(line) <= _LONGEST_QUOTE else f"{line[:_LONGEST_QUOTE]}..."


def error_text(body: bytes) -> str:
    """What the body of a refusal says, as it may stand in a message."""
    document = _document(body.decode("utf-8", "replace"))
    return quoted(_words(document) if isinstance(document, dict) else body.decode("utf-8", "replace"))


def _is_error(document: Mapping[str, Any]) -> bool:
    return bool(document.get("error")) or document.get("object") == "error"


def _words(document: Mapping[str, Any]) -> str:
    """The message of an error, as OpenAI, SGLang, FastAPI or a proxy spells it."""
    error = document.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    for said in (error, document.get("message"), document.get("detail")):
        if isinstance(said, str) and said:
            return said
    return json.dumps(document)


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _first(value: Any) -> Mapping[str, Any]:
    return _mapping(value[0]) if isinstance(value, list) and value else {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
