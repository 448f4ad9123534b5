"""One process of the server behind the HTTP door: a tensor-parallel rank, or the detokenizer.

All of them form a ring of pipes, from the parent through every rank and the detokenizer back to the parent: a request
is answered only when each of them lives and runs, as tensor parallelism has it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from typing import IO, NamedTuple

from tests.lab import answers, claims, hostile, segments
from tests.lab.cards import CARDS, MEMORY_TOTAL_MIB, Card
from tests.lab.titles import set_title

SHARDS = 64
LOADING_S = 2.0
_TROUBLED = 3
_TOKENS_PER_S = 400.0


class Plan(NamedTuple):
    """How one rank behaves.

    `card` None: the detokenizer. Hung: it loads, then never looks at the ring, deaf to SIGTERM.
    """

    title: str
    state: str
    devices: str
    card: Card | None
    mib: int
    hung: bool
    detached: bool = False
    linger_s: float = 0
    leak: bool = False
    write_to: str | None = None
    deed: str | None = None
    trouble: str | None = None
    """What happens at the 12th shard: `oom` or `sigbus`. `stall`: nothing any more after the last."""


def plans(state: str, devices: str, ranks: int, fault: dict[str, object], trouble: str | None) -> list[Plan]:
    """The ranks and the detokenizer; `fault` (scenarios.Fault as JSON, or empty) changes rank 1 and hangs all."""
    made = []
    hung = bool(fault) or trouble == "stall"
    for card in CARDS[:ranks]:
        plan = Plan("sglang::scheduler_TP%d" % card.index, state, devices, card, card.server_mib, hung)
        plan = plan._replace(trouble=trouble if card.index == _TROUBLED else None)
        if card.index == 1 and fault:
            plan = plan._replace(
                title=str(fault["rank1_title"] or plan.title),
                detached=bool(fault["rank1_detached"]),
                mib=plan.mib if fault["rank1_mib"] is None else int(str(fault["rank1_mib"])),
                linger_s=float(str(fault["rank1_linger_s"])),
                leak=bool(fault["rank1_leak"]),
                write_to=None if fault["write_to"] is None else str(fault["write_to"]),
                deed=None if fault["rank1_deed"] is None else str(fault["rank1_deed"]),
            )
        made.append(plan)
    return [*made, Plan("sglang::detokenizer", state, devices, None, 0, hung)]


def start(plan: Plan, inlet: int, outlet: int, others: list[int]) -> int:
    """Fork the process, with its two ends of the ring; returns its pid (0 for a detached one: nobody is its parent)."""
    child = os.fork()
    if child:
        if plan.detached:
            os.waitpid(child, 0)
            return 0
        return child
    if plan.detached:
        # Out of the tree: its parent is gone at once, and the container's init takes it in.
        os.setsid()
        if os.fork():
            os._exit(0)
    code = 1
    try:
        code = _run(plan, inlet, outlet, others)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(plan: Plan, inlet: int, outlet: int, others: list[int]) -> int:
    for end in others:
        os.close(end)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if plan.hung else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_title(plan.title)
    held = None
    if plan.card is not None:
        segments.make_of_rank(plan.card.index)
        held = _load(plan, plan.card)
        if held is None:
            return 1
    if plan.write_to is not None:
        with open(plan.write_to, "wb") as stream:
            stream.write(b"the cache of a compiler")
    if plan.deed is not None:
        hostile.live(plan.deed)
    while plan.hung:
        signal.pause()
    with os.fdopen(inlet, "rb") as incoming, os.fdopen(outlet, "wb", buffering=0) as outgoing:
        _pass_on(plan, incoming, outgoing)
    while held is not None:  # the parent is gone without a word: a rank stays, and keeps its card
        signal.pause()
    return 0


def _load(plan: Plan, card: Card) -> claims.HeldClaim | None:
    """Load the weights, and more of the card with every shard; None when the card has no room for them."""
    used = claims.usage(plan.state)[card.index].used_mib
    if used + plan.mib > MEMORY_TOTAL_MIB:
        text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %d MiB. "
        text += "GPU %d has a total capacity of %d MiB of which %d MiB is free.\n"
        sys.stderr.write(text % (plan.mib, card.index, MEMORY_TOTAL_MIB, MEMORY_TOTAL_MIB - used))
        return None
    held = claims.HeldClaim(plan.state, plan.devices, card, linger_s=plan.linger_s, leak=plan.leak)
    began = time.monotonic()
    for shard in range(1, SHARDS + 1):
        time.sleep(max(0.0, began + LOADING_S * shard / SHARDS - time.monotonic()))
        held.set_mib(plan.mib * shard // SHARDS)
        if shard == 12 and plan.trouble == "oom":
            sys.stderr.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7168 MiB.\n")
            return None
        if shard == 12 and plan.trouble == "sigbus":
            faulthandler.enable()  # as SGLang does; it writes what the process died of
            os.kill(os.getpid(), signal.SIGBUS)
        if card.index == 0:
            progress = "Loading safetensors checkpoint shards: %3d%% Completed | %d/%d" % (
                100 * shard // SHARDS,
                shard,
                SHARDS,
            )
            sys.stderr.write("%s [%05.2fs]\n" % (progress, time.monotonic() - began))
    return held


def _pass_on(plan: Plan, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """Hand every request to the next in the ring; rank 0 computes the text before."""
    for line in incoming:
        request = json.loads(line)
        if plan.card is not None and plan.card.index == 0 and "prompt" in request:
            completion = answers.complete(request["prompt"], request["max_tokens"])
            time.sleep(completion.tokens / _TOKENS_PER_S)
            request["completion"] = completion._asdict()
        try:
            outgoing.write(json.dumps(request).encode("utf-8") + b"\n")
        except BrokenPipeError:
            return
