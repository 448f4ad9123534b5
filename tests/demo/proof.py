"""Whether it is so. Pure.

The role's word is not enough: the lab reads the claims and asks the server by a road of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

Status = Mapping[str, Any]


def doubts(result: Optional[Mapping[str, Any]], before: Status, after: Status) -> list[str]:
    """Why the demo does not end well, in sentences; none when it does.

    ``before`` and ``after`` are what `python3 -m tests.lab status` prints.
    """
    if result is None:
        return ["The playbook wrote no result."]
    good = ["healthy", "not_needed"] if before["server"]["reachable"] else ["healthy"]
    if result["outcome"] not in good:
        return [f"The outcome is {result['outcome']}, not {' or '.join(good)}."]
    return world_doubts(after)


def world_doubts(status: Status) -> list[str]:
    """What is missing to a server that runs on all cards and answers."""
    found = []
    server = status["server"]
    pids = set(server["pids"])
    for card, expected in zip(status["cards"], server["expected_mib"]):
        used = card["memory_used_mib"]
        if used != expected:
            found.append(f"Card {card['index']} holds {used} MiB; with the server loaded it would be {expected}.")
        elif not any(holder["pid"] in pids for holder in card["holders"]):
            found.append(f"Card {card['index']} is held, but not by the server.")
    if not status["cards"]:
        found.append("The lab shows no card.")
    if not server["reachable"]:
        found.append("The server does not answer.")
    return found


def changes(before: Status, after: Status) -> list[str]:
    """What differs although nothing should: processes in the containers, and what the cards hold."""
    old, new = _processes(before), _processes(after)
    found = [f"Process {pid} ({old[pid, start]}) is gone." for pid, start in sorted(old.keys() - new.keys())]
    found += [f"Process {pid} ({new[pid, start]}) is new." for pid, start in sorted(new.keys() - old.keys())]
    for one, other in zip(before["cards"], after["cards"]):
        if one["memory_used_mib"] != other["memory_used_mib"]:
            found.append(f"Card {one['index']} held {one['memory_used_mib']} MiB, now {other['memory_used_mib']}.")
    return found


def _processes(status: Status) -> dict[tuple[int, int], str]:
    """Identity (pid and start time) to name, of what runs in a container."""
    return {
        (one["pid"], one["start_time"]): one["name"] for one in status["processes"] if one["container_vmid"] is not None
    }
