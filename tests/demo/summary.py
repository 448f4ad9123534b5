"""The role's result as a person reads it. Pure: a dictionary in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

Result = Mapping[str, Any]
# Memory used by each card, by index; a text where it is not a number.
Column = Mapping[int, str]

MISSING = "-"


def summarize(result: Result, now: Sequence[Mapping[str, Any]]) -> str:
    """The ladder, the cards and the outcome. ``now``: the cards as the lab itself reads them."""
    return "\n\n".join([ladder(result), cards(result, now), outcome(result)])


def ladder(result: Result) -> str:
    """Each rung with its time."""
    rows = [("rung", "began (UTC)", "took", "changed anything")]
    for rung in result["rungs"]:
        began = str(rung["started"]).partition("T")[2].rstrip("Z")
        rows.append((rung["name"], began, f"{rung['duration_s']:.1f} s", "yes" if rung["changed"] else "no"))
    return "\n".join(["The ladder", *_aligned(rows, left=4)])


def cards(result: Result, now: Sequence[Mapping[str, Any]]) -> str:
    """What each card held, in MiB: at first, after the kill, after the reclaim, and now."""
    current = {int(card["index"]): str(card["memory_used_mib"]) for card in now}
    columns = {
        "before": _first_reading(result),
        "after the kill": _reading_after(result, "kill"),
        "after the reclaim": _reading_after(result, "reclaim"),
        "now": current,
    }
    indices = sorted({index for column in columns.values() for index in column})
    rows = [("card", *columns)]
    rows += [(str(index), *(column.get(index, MISSING) for column in columns.values())) for index in indices]
    return "\n".join(["The cards, MiB used (* more than an idle card holds)", *_aligned(rows, left=0)])


def outcome(result: Result) -> str:
    """How it ended, and what is left to do."""
    lines = [f"Outcome: {result['outcome']}"]
    if result.get("needs"):
        lines.append(f"Needs:   {result['needs']}")
    lines.append(f"Reason:  {result['reason']}")
    if result.get("downtime_s") is not None:
        lines.append(f"Down:    {result['downtime_s']:.1f} s")
    return "\n".join(lines)


def _first_reading(result: Result) -> Column:
    """The first time that the cards were read."""
    for rung in result["rungs"]:
        for gpus in (rung.get("gpus_before"), rung.get("gpus_after")):
            if gpus:
                return _column(gpus)
    return {}


def _reading_after(result: Result, name: str) -> Column:
    """The last reading before whatever was done next: that of the rung itself, and of a verify right after it."""
    rungs = list(result["rungs"])
    found: Optional[Column] = None
    for position, rung in enumerate(rungs):
        if rung["name"] == name:
            following = rungs[position + 1] if position + 1 < len(rungs) else {}
            verified = following.get("gpus_after") if following.get("name") == "verify" else None
            found = _column(verified or rung.get("gpus_after") or [])
    return found or {}


def _column(gpus: Sequence[Mapping[str, Any]]) -> Column:
    """Unknown is not a number, and is said."""
    column = {}
    for card in gpus:
        used = card["memory_used_mib"]
        mark = "*" if card["state"] == "busy" else ""
        column[int(card["index"])] = "unknown" if used is None else f"{used}{mark}"
    return column


def _aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Columns as wide as they must be; the first ``left`` of them begin, the others end, at one edge."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        words = [
            word.ljust(width) if column < left else word.rjust(width)
            for column, (word, width) in enumerate(zip(row, widths))
        ]
        lines.append("  " + "  ".join(words).rstrip())
    return lines
