# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signals of life -> verdict. Pure.

Alive is not healthy: only a generation shows that a server serves. Silent is not hung: a server at work may not answer
for minutes. So ``hung`` takes two signals that do not depend on each other, or one that lasts; and what does not come
from the server itself (a proxy, a firewall, a wrong key) is ``unknown``, unless its processes tell.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Optional

HEALTHY, BUSY, STARTING, HUNG = "healthy", "busy", "starting", "hung"
DEAD, ORPHANED, UNKNOWN = "dead", "orphaned", "unknown"

# Names of signals. The value of the first three is a status, or the reason code of an HttpError.
MODELS = "models"
HEALTH = "health"
GENERATION = "generation"
# What moves or stands still.
COUNTERS, HEARTBEAT, LOG, MEMORY = "counters", "heartbeat", "log", "memory"
# Numbers.
RUNNING, WAITING = "running", "waiting"
PARENTS, ORPHANS, ELSEWHERE = "parents", "orphans", "elsewhere"
# Said by the server itself, by its log and by systemd.
LOADING, ENGINE_DEAD = "loading", "engine_dead"
PROGRESS = "progress"
UNIT = "unit"

MOVES, STILL = "moves", "still"
TEXT, EMPTY, NOT_ASKED = "text", "empty", "not_asked"
TIMEOUT, REFUSED, CLOSED = "timeout", "refused", "closed_early"

UNAUTHORIZED = (401, 403)
GATEWAY = (502, 504)


class Signal(NamedTuple):
    """Something that was seen. ``age_s``: for how many seconds it is known to have been so; 0 for a first look.

    Of PARENTS it is the age of the youngest process, of what stands still since when it does.
    """

    name: str
    value: Any
    age_s: float = 0.0
    text: str = ""


class Verdict(NamedTuple):
    """``cause`` is a stable code, ``reason`` a sentence for a person."""

    verdict: str
    cause: str
    reason: str


class Limits(NamedTuple):
    """Seconds: for how long a server must not answer to be hung, and for how long a start must stand still."""

    hung_after: float
    stall_after: float


class Signals:
    """The signals by name. What was not looked at, or could not be seen, is not there: it is None, and never 0."""

    def __init__(self, signals: Mapping[str, Signal], limits: Limits) -> None:
        self._signals = signals
        self.limits = limits

    def __getitem__(self, name: str) -> Any:
        """The value of a signal, or None."""
        signal = self._signals.get(name)
        return signal.value if signal is not None else None

    def age(self, name: str) -> float:
        """For how long it has been so."""
        signal = self._signals.get(name)
        return signal.age_s if signal is not None else 0.0

    def text(self, name: str) -> str:
        """What it said."""
        signal = self._signals.get(name)
        return signal.text if signal is not None else ""

    def stands_still(self, name: str, seconds: float) -> bool:
        """Whether it has been seen to stand still for so long."""
        return bool(self[name] == STILL and self.age(name) >= seconds)


def judge(signals: Mapping[str, Signal], limits: Limits) -> Verdict:
    """The first rule that knows something decides. The order goes from proof to guess."""
    seen = Signals(signals, limits)
    for rule in _RULES:
        verdict = rule(seen)
        if verdict is not None:
            return verdict
    return Verdict(UNKNOWN, "not_enough_seen", "Too little could be seen to say anything about the server.")


def _generates(seen: Signals) -> Optional[Verdict]:
    if seen[GENERATION] != TEXT:
        return None
    beside = f" Beside it live {_workers(seen[ORPHANS])} of an older server." if seen[ORPHANS] else ""
    return Verdict(HEALTHY, "generates", f"It answers and generates text.{beside}")


def _works(seen: Signals) -> Optional[Verdict]:
    """Work is done, so nothing hangs, whatever else does not answer."""
    if seen[COUNTERS] != MOVES:
        return None
    load = [f"{seen[name]:g} requests {verb}" for name, verb in ((RUNNING, "run"), (WAITING, "wait")) if seen[name]]
    return Verdict(BUSY, "counters_move", f"It is at work: its counters move{_listed(load)}.")


def _beats(seen: Signals) -> Optional[Verdict]:
    if seen[HEARTBEAT] == MOVES and seen[GENERATION] == NOT_ASKED and not seen[WAITING] and not seen[RUNNING]:
        return Verdict(
            HEALTHY, "heartbeat", "It is idle and its schedulers report regularly. It was not asked to generate."
        )
    return None


def _wants_key(seen: Signals) -> Optional[Verdict]:
    for name in (GENERATION, MODELS):
        if seen[name] in UNAUTHORIZED:
            return Verdict(
                UNKNOWN,
                "unauthorized",
                f"It answers, but wants a key, or another one than it was given (status {seen[name]}). Set api_key.",
            )
    return None


def _is_not_there(seen: Signals) -> Optional[Verdict]:
    """Nobody answers at the address itself, or a proxy says so. The processes tell what that means."""
    said = seen[MODELS]
    if said not in (REFUSED, CLOSED, *GATEWAY) or seen[PARENTS]:
        return None
    if seen[ELSEWHERE] and said != REFUSED:
        # Whoever has another port may be the one that the proxy stands before.
        return None
    if seen[ORPHANS]:
        return Verdict(
            ORPHANED,
            "parent_gone",
            f"The process that served is gone, but {_workers(seen[ORPHANS])} of it live on and hold what they had.",
        )
    unit_down = str(seen[UNIT]).partition(" ")[0] in ("inactive", "failed")
    # A unit that runs may run it under a name that is not known; and a port may be mistaken.
    overlooked = str(seen[UNIT]).endswith("(running)") or (seen[ELSEWHERE] and not unit_down)
    if seen[PARENTS] == 0 and not overlooked:
        return Verdict(
            DEAD, "no_process", f"No process of the server is left, and its address {_said(said)}.{_unit(seen)}"
        )
    if said == REFUSED and unit_down:
        return Verdict(DEAD, "unit_down", f"Its address refuses connections, and its unit is {seen[UNIT]}.")
    return None


def _starts(seen: Signals) -> Optional[Verdict]:
    """Not ready yet: the port is closed, or it says so itself; and it is young, or something moves."""
    closed = seen[MODELS] == REFUSED and seen[PARENTS] != 0
    says_so = bool(seen[LOADING]) or (closed and str(seen[UNIT]).startswith("activating"))
    # Its log does not say that it is ready, and indeed it does not generate.
    warms_up = seen[PROGRESS] is not None and seen[GENERATION] == TIMEOUT
    if seen[ENGINE_DEAD] or not (closed or says_so or warms_up or seen[MODELS] == 503):
        return None
    progress = f" ({seen[PROGRESS]} loaded)" if seen[PROGRESS] else ""
    # The log of a server that answers may move by being asked.
    moving = [name for name in (LOG, MEMORY) if seen[name] == MOVES and (name != LOG or seen[MODELS] != 200)]
    if moving:
        return Verdict(STARTING, "progress", f"It is starting{progress}: its {' and its '.join(moving)} moves.")
    if seen[PARENTS] and seen.age(PARENTS) < seen.limits.stall_after:
        return Verdict(STARTING, "young", f"It was started {seen.age(PARENTS):.0f} s ago and is not ready{progress}.")
    still = [name for name in (LOG, MEMORY) if seen.stands_still(name, seen.limits.stall_after)]
    if still and seen[PARENTS] and (closed or says_so):
        return Verdict(
            HUNG,
            "stalled",
            f"It is not ready{progress}, though it is not young, and its {' and its '.join(still)} has not moved for "
            f"{min(seen.age(name) for name in still):.0f} s.",
        )
    if says_so:
        return Verdict(STARTING, "says_so", f"It says itself that it is still loading{progress}.{_unit(seen)}")
    return None


def _hangs(seen: Signals) -> Optional[Verdict]:
    """No generation comes, and something that does not depend on it says the same; or none comes for very long."""
    patience = seen.limits.hung_after
    answers = seen[MODELS] == 200
    if answers and seen[ENGINE_DEAD] and seen[GENERATION] not in (None, NOT_ASKED):
        return Verdict(
            HUNG, "engine_dead", "It says that its engine is dead, generates nothing, and does not recover from that."
        )
    if answers and seen[GENERATION] == TIMEOUT and seen.age(GENERATION) >= patience:
        waited = f"A generation was not answered for {seen.age(GENERATION):.0f} s"
        for name, what in _STILL:
            if seen.stands_still(name, patience):
                return Verdict(
                    HUNG, "generation_timeout", f"{waited}, and {what} for {seen.age(name):.0f} s all the while."
                )
        if seen.age(GENERATION) >= 2 * patience:
            return Verdict(HUNG, "generation_timeout", f"{waited}. There are no counters that say more.")
    if seen[MODELS] == TIMEOUT and seen.age(MODELS) >= patience and seen[LOG] != MOVES:
        # A connection that does not come about may be a firewall's doing; whose process lives has a full queue.
        connected = seen.text(MODELS) == "headers"
        if connected or seen[PARENTS]:
            how = "It takes connections" if connected else "Its processes live, but it takes no connections"
            return Verdict(
                HUNG,
                "silent",
                f"{how} and answers nothing, not even the list of its models, for {seen.age(MODELS):.0f} s.",
            )
    return None


def _half_answers(seen: Signals) -> Optional[Verdict]:
    """Something came that says nothing of the server's health."""
    if seen[MODELS] not in (None, 200):
        said = seen[MODELS]
        return Verdict(UNKNOWN, _cause("models", said), f"Its address {_said(said)}.{_who_lives(seen)}{_unit(seen)}")
    if seen[GENERATION] in (None, NOT_ASKED):
        return None
    said = seen[GENERATION]
    if said == EMPTY:
        return Verdict(UNKNOWN, "generation_empty", "It answers a request for a generation, but with an empty text.")
    if said == TIMEOUT:
        return Verdict(
            UNKNOWN,
            "generation_timeout",
            f"A generation was not answered for {seen.age(GENERATION):.0f} s, and nothing else tells hung from slow. "
            "Ask again, or allow more time.",
        )
    words = f" It says: '{seen.text(GENERATION)}'." if seen.text(GENERATION) else ""
    return Verdict(
        UNKNOWN, _cause("generation", said), f"It lists its models, but asked for a generation it {_said(said)}.{words}"
    )


def _was_not_asked(seen: Signals) -> Optional[Verdict]:
    if seen[MODELS] == 200:
        why = seen.text(GENERATION) or "it was not asked to generate"
        return Verdict(UNKNOWN, "not_asked", f"It lists its models, which a hung server does too; {why}.")
    return None


_RULES: tuple[Callable[[Signals], Optional[Verdict]], ...] = (
    _generates,
    _works,
    _beats,
    _wants_key,
    _is_not_there,
    _starts,
    _hangs,
    _half_answers,
    _was_not_asked,
)

# What says, together with a generation that does not come, that a server hangs. Memory stands still at work too.
_STILL = (
    (COUNTERS, "its counters stood still"),
    (HEARTBEAT, "its schedulers reported nothing"),
    (LOG, "its log was silent"),
)

_SAID_OF = {
    REFUSED: "refuses connections",
    CLOSED: "closed the connection before or in the middle of an answer",
    502: "is a proxy's that does not reach the server (status 502)",
    503: "is not ready, or a proxy's that does not reach the server (status 503)",
    504: "is a proxy's that waits for the server in vain (status 504)",
    TIMEOUT: "does not answer in time",
    "unreachable": "cannot be reached",
    "unresolvable": "has a name that is not known here",
    "tls": "and this machine do not agree on TLS",
    "bad_answer": "answers with something that is no answer",
    "too_big": "answers with more than an answer can hold",
    429: "turns requests away, as there are too many (status 429)",
}

_CAUSES = {502: "gateway", 503: "unavailable", 504: "gateway", 429: "too_many_requests"}


def _said(value: Any) -> str:
    return _SAID_OF.get(value, f"answers with status {value}")


def _cause(where: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return _CAUSES.get(value, f"{where}_{value}")


def _unit(seen: Signals) -> str:
    return f" Its unit is {seen[UNIT]}." if seen[UNIT] else ""


def _who_lives(seen: Signals) -> str:
    if seen[PARENTS]:
        return " Its processes live."
    if seen[ELSEWHERE]:
        return " A server of its kind lives here on another port, and may be the one that is meant."
    return ""


def _workers(count: Any) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _listed(words: list[str]) -> str:
    return f", {' and '.join(words)}" if words else ""
