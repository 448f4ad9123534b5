# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a start moves, from one look to the next. Pure: looks and their times in, a decision and a line out."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional

# What one look says of the server, part of what the module returns.
READY = "ready"
STARTING = "starting"
EXITED = "exited"

# How a wait ends, beside READY and EXITED.
STALLED = "stalled"
TIMED_OUT = "timeout"

# A card that loads gains more than this between two looks; one that idles wavers by less. MiB.
_WAVER_MIB = 8


class Limits(NamedTuple):
    """Seconds. ``stall_after``: without any movement; ``limit``: in all."""

    stall_after: float
    limit: float


class Progress:
    """The wait as far as it has come. ``now`` is any clock in seconds, read by whoever looks."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._began = now
        self._moved = now
        self._last: Optional[Mapping[str, Any]] = None

    def take(self, look: Mapping[str, Any], now: float) -> Optional[str]:
        """How the wait ends with this look: READY, EXITED, STALLED, TIMED_OUT, or None when it goes on."""
        if look["state"] in (READY, EXITED):
            return str(look["state"])
        if self._last is None or moved(self._last, look):
            self._moved = now
        self._last = look
        if now - self._moved >= self._limits.stall_after:
            return STALLED
        return TIMED_OUT if now - self._began >= self._limits.limit else None

    def still(self, now: float) -> float:
        """Seconds since anything moved."""
        return now - self._moved


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether anything went on between two looks: the log, the shards, the memory of a card, the server's processes.

    A value that could not be read is no movement, and neither is one that can be read again.
    """
    for key in ("log_position", "shards_loaded", "main_pid"):
        if None not in (before[key], after[key]) and before[key] != after[key]:
            return True
    cards = zip(before["memory_used_mib"] or (), after["memory_used_mib"] or ())
    return any(None not in (one, other) and abs(other - one) > _WAVER_MIB for one, other in cards)


def line(look: Mapping[str, Any], seconds: float, still: float) -> str:
    """One line for a person who waits: seconds, shards, MiB of each card, and what the log said last."""
    parts = [f"{seconds:.0f} s"]
    if look["shards_total"]:
        parts.append(f"{look['shards_loaded']} of {look['shards_total']} shards")
    if look["memory_used_mib"]:
        parts.append(f"cards {_memory(look['memory_used_mib'])} MiB")
    if still >= 30:
        parts.append(f"nothing has moved for {still:.0f} s")
    if look["log_last_line"]:
        parts.append(f"log: {look['log_last_line'][:160]}")
    return ", ".join(parts)


def sentence(end: str, look: Mapping[str, Any], seconds: float, still: float) -> str:
    """How the wait ended, for the result of the play."""
    if end == READY:
        return f"The server was ready after {seconds:.0f} s."
    so_far = _so_far(look)
    if end == EXITED:
        cause = f" Likely cause: {look['cause']}. {look['advice']}" if look["cause"] else ""
        return f"The server ended while it started, after {seconds:.0f} s{so_far} ({look['said']}).{cause}"
    if end == STALLED:
        return f"The start has stalled: for {still:.0f} s nothing moved, neither log nor cards{so_far}."
    return f"The server was not ready within {seconds:.0f} s{so_far}, though its start still moved."


def _so_far(look: Mapping[str, Any]) -> str:
    said = [f"{look['shards_loaded']} of {look['shards_total']} shards were loaded"] if look["shards_total"] else []
    if look["memory_used_mib"]:
        said.append(f"the cards held {_memory(look['memory_used_mib'])} MiB")
    if look["log_last_line"]:
        said.append(f"the log ended with {look['log_last_line'][:200]!r}")
    return f"; {', '.join(said)}" if said else ""


def _memory(values: Any) -> str:
    """``76115`` when all cards agree, else each of them in the order of their indices."""
    words = ["?" if value is None else str(value) for value in values]
    return words[0] if len(set(words)) == 1 else " ".join(words)
