# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks an inference server for chat completions. What is no whole answer is a NoAnswer, with a sentence to act on."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, TypeVar

from ansible_collections.gpuops.inference.plugins.module_utils._chat import (
    Reply,
    error_text,
    question,
    read_answer,
    read_stream,
)
from ansible_collections.gpuops.inference.plugins.module_utils._engines import (
    CHAT,
    MODELS,
    OPENAI,
    SGLANG,
    model_cards,
    recognize,
)
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._http import Answer, Client, HttpError, Line
from ansible_collections.gpuops.inference.plugins.module_utils._results import redact

# Kinds of NoAnswer; its ``reason``.
UNREACHABLE = "unreachable"
UNAUTHORIZED = "unauthorized"
TIMEOUT = "timeout"
BAD_ANSWER = "bad_answer"

# Lines of a refusal that are read. It is one document as a rule.
_LINES_OF_A_REFUSAL = 50

Got = TypeVar("Got")


class NoAnswer(GpuopsError):
    """A request was not answered as it should have been. ``reason`` is one of the four kinds above."""


class Server(NamedTuple):
    """Who answers: one of sglang, vllm, llamacpp and openai, and the name that it serves its model under."""

    engine: str
    model: str


class ChatClient:
    """Greedy chat completions of one server. ``timeout`` is in seconds, for each request to its last byte."""

    def __init__(self, client: Client, server: Server, timeout: float, template: Mapping[str, Any]) -> None:
        self.server = server
        self._client = client
        self._timeout = timeout
        self._template = template

    def stream(self, text: str, max_tokens: int) -> Reply:
        """Ask, and note when the pieces came. SGLang is asked to tell of its speculation, where it can in a stream."""
        more = {"return_spec_tokens_details": True} if self.server.engine == SGLANG.name else {}
        body = question(text, self.server.model, max_tokens, self._template, **more)

        def exchange() -> Reply:
            with self._client.stream(CHAT, body, timeout=self._timeout) as stream:
                if stream.status != 200:
                    said = "\n".join(line.text for line in _first(stream.lines, _LINES_OF_A_REFUSAL))
                    raise _refused(self._client, CHAT, stream.status, said.encode("utf-8"))
                return read_stream(stream.lines)

        return self._whole(CHAT, _explained(exchange))

    def ask(self, text: str, max_tokens: int, **more: Any) -> Reply:
        """Ask for the answer in one piece. ``more`` are fields of the engine's own."""
        body = question(text, self.server.model, max_tokens, self._template, stream=False, **more)
        answer = _explained(lambda: self._client.post(CHAT, body, timeout=self._timeout))
        _require_ok(self._client, CHAT, answer)
        return self._whole(CHAT, read_answer(answer.document()))

    def ask_natively(self, text: str, max_tokens: int) -> Reply:
        """Ask over SGLang's own endpoint, which knows no chat template. An empty Reply where there is none."""
        body = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens}}
        answer = _explained(lambda: self._client.post("/generate", body, timeout=self._timeout))
        document = answer.document() if answer.status == 200 else None
        meta = document.get("meta_info") if isinstance(document, dict) else None
        if not isinstance(meta, dict):
            return Reply()
        tokens = meta.get("completion_tokens")
        return Reply(details=meta, tokens=tokens if isinstance(tokens, int) else None)

    def optional(self, path: str) -> Optional[Answer]:
        """A page that not every server has; None where it is not given, or not whole."""
        try:
            answer = self._client.get(path, timeout=self._timeout)
        except HttpError:
            return None
        return answer if answer.status == 200 and not answer.truncated else None

    def _whole(self, path: str, reply: Reply) -> Reply:
        if reply.error is not None:
            said = redact(reply.error)
            raise NoAnswer(f"{self._client.url}{path} {said}. Read the server's log.", reason=BAD_ANSWER)
        return reply


def find_server(client: Client, engine: str, model: Optional[str], timeout: float) -> Server:
    """Who answers there. With the engine ``auto``, or without a model, the server is asked. Raises NoAnswer."""
    if engine != "auto" and model:
        return Server(engine, model)
    answer = _explained(lambda: client.get(MODELS, timeout=timeout))
    _require_ok(client, MODELS, answer)
    cards = model_cards(answer.document())
    if engine == "auto":
        engine = (recognize(cards, answer.headers.get("server")) or OPENAI).name
    name = model or (cards[0].get("id") if cards else None)
    if not name or not isinstance(name, str):
        raise NoAnswer(f"{client.url}{MODELS} names no model. Set the option model.", reason=BAD_ANSWER)
    return Server(engine, name)


def _require_ok(client: Client, path: str, answer: Answer) -> None:
    if answer.status != 200:
        raise _refused(client, path, answer.status, answer.body)
    if answer.truncated:
        raise NoAnswer(f"{client.url}{path} answers with more than an answer can hold; it was cut.", reason=BAD_ANSWER)


def _refused(client: Client, path: str, status: int, body: bytes) -> NoAnswer:
    where = f"{client.url}{path}"
    if status in (401, 403):
        return NoAnswer(
            f"{where} wants a key, or another one than it was given (status {status}). Set the option api_key.",
            reason=UNAUTHORIZED,
        )
    said = redact(error_text(body))
    words = f": '{said}'" if said else ""
    return NoAnswer(f"{where} answers with status {status}{words}. {_what_to_do(status)}", reason=BAD_ANSWER)


def _what_to_do(status: int) -> str:
    if status in (502, 503, 504):
        return "Either the server is not ready, or a proxy before it does not reach it: see whether it runs."
    return "Read the server's log."


def _explained(exchange: Callable[[], Got]) -> Got:
    """Ask, and turn the failure of the connection into a NoAnswer."""
    try:
        return exchange()
    except HttpError as exc:
        kind = _KINDS.get(exc.reason, UNREACHABLE)
        raise NoAnswer(f"{exc.message} {_HINTS[kind]}", reason=kind) from exc


_KINDS = {"timeout": TIMEOUT, "closed_early": BAD_ANSWER, "bad_answer": BAD_ANSWER, "too_big": BAD_ANSWER}

_HINTS = {
    TIMEOUT: "A server that takes connections and never answers is hung; one under heavy load needs a longer timeout.",
    BAD_ANSWER: "Read the server's log.",
    UNREACHABLE: "See whether the server runs, and whether url is right as seen from the host that the task ran on.",
}


def _first(lines: Iterator[Line], count: int) -> Iterator[Line]:
    for _number, line in zip(range(count), lines):
        yield line
