# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine says of its speculative decoding, in one measure for all. Pure.

Two definitions of the accept length are about: with the token that the target model itself adds to each step, and
without. Here it is always *with*: tokens that one step of the target model yields, 1.0 when no draft is ever accepted
and 1 + k when all k are. The sources, as the engines' own code has them:

========== ============================================================== ==========================
engine     where                                                          accept length
========== ============================================================== ==========================
SGLang     ``spec_*`` of a request's ``meta_info`` or                     as it says, or 1 + correct
           ``sglext.spec_tokens_details``                                 drafts / steps
vLLM       differences of ``vllm:spec_decode_*_total``                    1 + accepted / drafts
llama.cpp  ``draft_n``, ``draft_n_accepted`` of a request's ``timings``   tokens / (tokens - accepted)
========== ============================================================== ==========================

SGLang's gauge ``sglang:spec_accept_length`` is left out: it moves once in 40 steps and keeps its last value, so that it
may tell of somebody else's request.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

# Known to be off, or unknown: three states need a name each.
ON = "on"
OFF = "off"
UNKNOWN = "unknown"

# Beyond it a number is no count, and as an integer may even be more than a float can hold.
_LARGEST_COUNT = 2**53

# SGLang counts the token of the prefill to the first step, so that 256 tokens without one accepted draft are 1.004.
NOTHING_ACCEPTED = 1.05

VLLM_DRAFTS = "vllm:spec_decode_num_drafts_total"
VLLM_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
VLLM_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
VLLM_GENERATED = "vllm:generation_tokens_total"


class Speculation(NamedTuple):
    """What was counted. ``steps`` of the target model, and the ``tokens`` that they yielded; draft tokens that were
    ``proposed`` and ``accepted``, None where the engine does not say. Without steps nothing is known but the state.
    """

    state: str
    steps: float = 0.0
    tokens: float = 0.0
    proposed: Optional[float] = None
    accepted: Optional[float] = None
    rate: Optional[float] = None

    @property
    def accept_length(self) -> Optional[float]:
        """Tokens that a step yields, at least 1; None when unknown."""
        return self.tokens / self.steps if self.steps > 0 else None

    @property
    def accept_rate(self) -> Optional[float]:
        """Share of the draft tokens that were accepted, 0 to 1; None when unknown."""
        if self.proposed and self.accepted is not None:
            return self.accepted / self.proposed
        return self.rate


def of_sglang(meta: Mapping[str, Any], tokens: Optional[int]) -> Speculation:
    """From ``meta_info``, or ``spec_tokens_details``, of a request that yielded so many tokens.

    Some versions leave the keys out when speculation is off, others do so too when a request needed no step, and others
    give zeros then: only the absence of all of them says that it is off.
    """
    if not any(key in meta for key in ("spec_verify_ct", "spec_accept_length", "spec_accept_rate")):
        return Speculation(OFF)
    steps = _count(meta.get("spec_verify_ct"))
    correct, proposed = _count(meta.get("spec_num_correct_drafts")), _count(meta.get("spec_num_proposed_drafts"))
    length = _count(meta.get("spec_accept_length"))
    rate = _count(meta.get("spec_accept_rate"))
    if steps == 0:
        return Speculation(UNKNOWN)
    if steps and proposed and correct is not None and correct <= proposed:
        return Speculation(ON, steps, steps + correct, proposed, correct)
    if length is None and steps and tokens:
        length = max(1.0, tokens / steps)
    if length is None or length < 1:
        return Speculation(UNKNOWN)
    steps = steps or (tokens or 1) / length
    return Speculation(ON, steps, steps * length, rate=rate if rate is not None and rate <= 1 else None)


def of_vllm(before: Mapping[str, float], after: Mapping[str, float]) -> Speculation:
    """From two readings of the metrics (name -> sum over all labels). A counter that went back is a new server's."""
    if VLLM_DRAFTS not in after:
        # Of a server with speculation they are there from the start on.
        return Speculation(OFF if VLLM_GENERATED in after else UNKNOWN)
    drafts, proposed, accepted = (
        after.get(name, 0.0) - before.get(name, 0.0) for name in (VLLM_DRAFTS, VLLM_DRAFT_TOKENS, VLLM_ACCEPTED)
    )
    if not 0 < drafts <= _LARGEST_COUNT or not 0 <= accepted <= proposed <= _LARGEST_COUNT:
        return Speculation(UNKNOWN)
    return Speculation(ON, drafts, drafts + accepted, proposed, accepted)


def of_llamacpp(timings: Mapping[str, Any]) -> Speculation:
    """From the ``timings`` of a request. The draft's counts are there only when something was drafted."""
    tokens, proposed = _count(timings.get("predicted_n")), _count(timings.get("draft_n"))
    accepted = _count(timings.get("draft_n_accepted"))
    if proposed is None and tokens is not None:
        return Speculation(OFF)
    if not tokens or not proposed or accepted is None or accepted > proposed or accepted >= tokens:
        return Speculation(UNKNOWN)
    return Speculation(ON, tokens - accepted, tokens, proposed, accepted)


def together(parts: Iterable[Speculation]) -> Speculation:
    """All requests in one. The accept length is that of all steps, not a mean of means. One request that was
    speculated shows that it is on; it is off only where every request says so.
    """
    known = list(parts)
    on = [part for part in known if part.state == ON]
    if not on:
        return Speculation(OFF if known and all(part.state == OFF for part in known) else UNKNOWN)
    counted = all(part.proposed is not None and part.accepted is not None for part in on)
    # Every step proposes as many tokens as the next, so that rates weigh as much as their steps.
    weights = [(part.rate, part.steps) for part in on if part.rate is not None]
    return Speculation(
        ON,
        sum(part.steps for part in on),
        sum(part.tokens for part in on),
        sum(part.proposed or 0 for part in on) if counted else None,
        sum(part.accepted or 0 for part in on) if counted else None,
        None if counted else _mean(weights),
    )


def _mean(weighted: Sequence[tuple[float, float]]) -> Optional[float]:
    """The mean of values with weights; None of none."""
    total = sum(weight for _value, weight in weighted)
    return sum(value * weight for value, weight in weighted) / total if total else None


# The options of the operator -> what SGLang calls them in /server_info.
_CONFIGURED = {
    "algorithm": "speculative_algorithm",
    "steps": "speculative_num_steps",
    "topk": "speculative_eagle_topk",
    "draft_tokens": "speculative_num_draft_tokens",
}


def configured(server_info: Any) -> Optional[dict[str, Any]]:
    """What SGLang's /server_info says of the speculation; None where it does not speak of it at all."""
    if not isinstance(server_info, dict) or _CONFIGURED["algorithm"] not in server_info:
        return None
    return {name: server_info.get(field) for name, field in _CONFIGURED.items()}


def _count(value: Any) -> Optional[float]:
    """A number that may be counted with; None for anything else, however it is spelled."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= _LARGEST_COUNT else None
