# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an answer to a request for a short generation holds one. Pure."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional


class Completion(NamedTuple):
    """``text``: all that was generated, thoughts included. ``error``: why there is none, though the status was good.

    ``timings`` are llama.cpp's.
    """

    text: str = ""
    error: Optional[str] = None
    timings: Mapping[str, Any] = {}


def read_completion(document: Any) -> Completion:
    """The document of a completion or of a chat completion; anything may be in it."""
    if not isinstance(document, dict):
        return Completion(error="it is no JSON object")
    choices = document.get("choices")
    if not isinstance(choices, list):
        return Completion(error="it has no choices")
    choice = _mapping(choices[0] if choices else None)
    if choice.get("finish_reason") == "abort":
        return Completion(error="the server gave the request up (finish reason abort)")
    message = _mapping(choice.get("message"))
    # SGLang and llama.cpp call it reasoning_content, newer vLLM reasoning.
    parts = (choice.get("text"), message.get("reasoning_content"), message.get("reasoning"), message.get("content"))
    return Completion(
        "".join(part for part in parts if isinstance(part, str)), timings=_mapping(document.get("timings"))
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
