"""What a round must end with, and what it did not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tests.lab.cards import CARDS

_UP_TO_THE_KILL = ["detect", "stop", "kill", "verify"]
_FROM_THE_START = ["start", "prove"]

# The rungs of each scenario that can be put into a standing lab again and again.
LADDERS = {
    "incident": [*_UP_TO_THE_KILL, "reclaim", "verify", *_FROM_THE_START],
    "renamed-worker": [*_UP_TO_THE_KILL, *_FROM_THE_START],
    "slow-release": [*_UP_TO_THE_KILL, *_FROM_THE_START],
}

_IDLE = [card.floor_mib for card in CARDS]
_AFTER_THE_KILL = {"incident": [*_IDLE[:1], 76115, *_IDLE[2:]]}


def doubts(scenario: str, result: Mapping[str, Any] | None) -> list[str]:
    """What is wrong with the role's result, in sentences; none when it is right."""
    if result is None:
        return ["The playbook wrote no result."]
    rungs = [rung["name"] for rung in result["rungs"]]
    if (result["outcome"], result["needs"], rungs) != ("healthy", None, LADDERS[scenario]):
        return [f"Outcome {result['outcome']}, needs {result['needs']}, rungs {', '.join(rungs)}: {result['reason']}"]
    looks = [[card["memory_used_mib"] for card in rung["gpus_after"]] for rung in _verifies(result)]
    expected = _AFTER_THE_KILL.get(scenario, _IDLE)
    found = []
    if looks[0] != expected:
        found.append(f"After the kill the cards hold {looks[0]} MiB, not {expected}.")
    if looks[-1] != _IDLE:
        found.append(f"Before the start the cards hold {looks[-1]} MiB, not {_IDLE}.")
    return found


def seconds_to_free(result: Mapping[str, Any]) -> float:
    """From the beginning of the stop until the cards were seen free."""
    [stop] = [rung for rung in result["rungs"] if rung["name"] == "stop"]
    last = _verifies(result)[-1]
    end = _time(last["started"]) + timedelta(seconds=last["duration_s"])
    return (end - _time(stop["started"])).total_seconds()


def _verifies(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [rung for rung in result["rungs"] if rung["name"] == "verify"]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
