"""How the server says what it generated: SGLang's answers, in one piece or as a stream of events. Pure."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.lab import answers

CHAT = "/v1/chat/completions"
NATIVE = "/generate"
REFUSED_IN_A_STREAM = (
    "return_meta_info is not supported with streaming. Please set stream=false when using return_meta_info=true."
)


class Question(NamedTuple):
    """What was asked. `limit` is in tokens; `body` is the request as it came."""

    path: str
    prompt: str
    limit: int
    body: dict[str, Any]

    @property
    def streams(self) -> bool:
        """Whether the answer is wanted piece by piece. Only the chat's is told so here."""
        return self.path == CHAT and bool(self.body.get("stream"))


class Said(NamedTuple):
    """What was generated, and what it took. `speculation` is empty when there is none."""

    text: str
    tokens: int
    finish: str
    prompt_tokens: int
    speculation: dict[str, Any]
    seconds: float

    @property
    def usage(self) -> dict[str, int]:
        """The counts."""
        total = self.prompt_tokens + self.tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens, "total_tokens": total}

    @property
    def meta_info(self) -> dict[str, Any]:
        """SGLang's own account of a request."""
        return {
            "id": uuid.uuid4().hex,
            "finish_reason": {"type": self.finish},
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "e2e_latency": self.seconds,
            **self.speculation,
        }


def question(path: str, body: dict[str, Any]) -> Question:
    """Read a request to one of the three endpoints that generate."""
    if path == CHAT:
        prompt = "\n".join(str(message.get("content", "")) for message in body.get("messages", []))
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 64
    elif path == NATIVE:
        prompt = str(body.get("text", ""))
        limit = body.get("sampling_params", {}).get("max_new_tokens", 128)
    else:
        prompt = body.get("prompt", "")
        prompt = str(prompt[0] if isinstance(prompt, list) and prompt else prompt)
        limit = body.get("max_tokens") or 16
    return Question(path, prompt, int(limit), body)


def answer(asked: Question, said: Said, model: str) -> dict[str, Any]:
    """The answer in one piece."""
    if asked.path == NATIVE:
        return {"text": said.text, "meta_info": said.meta_info}
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": said.finish}
    if asked.path == CHAT:
        choice["message"] = {"role": "assistant", "content": said.text.lstrip(), "tool_calls": None}
        if asked.body.get("return_meta_info"):
            choice["meta_info"] = said.meta_info
        return {**_head("chat.completion", model), "choices": [choice], "usage": said.usage, **_extension(asked, said)}
    choice["text"] = said.text
    return {**_head("text_completion", model), "choices": [choice], "usage": said.usage}


def events(asked: Question, said: Said, model: str, tokens_a_step: float) -> Iterator[tuple[bool, dict[str, Any]]]:
    """The answer as a stream: each event, and whether a step of the model yielded it."""
    head = _head("chat.completion.chunk", model)
    yield False, {**head, "choices": [_delta({"role": "assistant", "content": ""}, None)]}
    pieces = answers.tokens(said.text.lstrip())
    done = step = 0
    while done < len(pieces):
        step += 1
        upto = max(done + 1, min(len(pieces), round(step * tokens_a_step)))
        yield True, {**head, "choices": [_delta({"content": "".join(pieces[done:upto])}, None)]}
        done = upto
    yield False, {**head, "choices": [_delta({}, said.finish)], **_extension(asked, said)}
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        yield False, {**head, "choices": [], "usage": said.usage}


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": uuid.uuid4().hex, "object": kind, "created": int(time.time()), "model": model}


def _delta(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _extension(asked: Question, said: Said) -> dict[str, Any]:
    """What SGLang adds for whoever asks how the speculation went. Without speculation there is nothing."""
    if not asked.body.get("return_spec_tokens_details") or not said.speculation:
        return {}
    return {"sglext": {"spec_tokens_details": said.speculation}}
