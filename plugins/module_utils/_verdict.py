# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands between the cards and a start, in words that a person can act on. Pure: results of modules in, verdict
out.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._card_verdict import (
    CONTAINER_RESTART,
    GPU_RESET,
    OPERATOR,
    REBOOT,
    WHY_LEFT,
    CardVerdict,
    Evidence,
    judge_card,
    need_of,
    unread_card,
)
from ansible_collections.gpuops.inference.plugins.module_utils._results import describe

# The gravest last. Whoever has to reboot the node need not reset a card first.
_GRAVITY = (OPERATOR, CONTAINER_RESTART, GPU_RESET, REBOOT)

_REMEDY = {
    OPERATOR: "free the card, then run this again",
    CONTAINER_RESTART: "restart the container (verified_restart_allow_container_restart), which ends every process in "
    "it, then run this again",
    GPU_RESET: "reset the card (verified_restart_allow_gpu_reset, or nvidia-smi --gpu-reset with nothing holding it), "
    "or reboot the node",
    REBOOT: "reboot the node",
}


def verdict(
    *,
    reading: Optional[Mapping[str, Any]],
    failure: Optional[Mapping[str, Any]] = None,
    kill: Optional[Mapping[str, Any]] = None,
    reclaim: Optional[Mapping[str, Any]] = None,
    reset: Optional[Mapping[str, Any]] = None,
    container: Optional[Mapping[str, Any]] = None,
    known: Sequence[Mapping[str, Any]] = (),
) -> Optional[dict[str, Any]]:
    """Judge what the last look at the cards, the two killers, the reset and the restart of the container returned.

    ``reading`` is ``ansible_facts.gpu_memory``, None when the driver gave none; ``failure`` is the failed result that
    says why it gave none, or not all; ``known`` are the cards as they were last seen. Returns None when nothing stands
    in the way, else ``outcome``, ``needs``, ``reason`` and ``cards_not_free`` as the role's result has them.
    """
    kill = kill or {}
    if not (reading and reading.get("gpus")):
        return _silence(failure, known)
    seen = Evidence(
        unended={one["pid"]: dict(one) for one in kill.get("survivors") or []},
        reclaim=reclaim or {},
        reset=reset or {},
        vmid=kill.get("vmid"),
        host_pid_namespace=bool(reading.get("host_pid_namespace")),
        invalid_pids=reading.get("invalid_pids") or 0,
        container_restarted=bool((container or {}).get("changed")),
    )
    cards = [judge_card(card, seen) for card in reading["gpus"] if card["state"] != "idle"]
    if cards:
        reason = " ".join([*dict.fromkeys(card.sentence for card in cards), _remedy(card.needs for card in cards)])
        return _verdict("gpus_not_free", [card.needs for card in cards], reason, cards)
    if not reading.get("all_idle"):
        return _verdict("gpus_not_free", [_need_of(failure)], _no_reading(failure), _missing(failure))
    left = kill.get("survivors") or []
    return _verdict("refused", [_need(one) for one in left], _left(left), []) if left else None


def reading_verdict(
    reading: Optional[Mapping[str, Any]], failure: Optional[Mapping[str, Any]] = None
) -> Optional[dict[str, Any]]:
    """The verdict on cards that cannot all be read, or None when they can. Busy is no trouble yet."""
    if not (reading and reading.get("gpus")):
        return {**_silence(failure, ()), "outcome": "refused"}
    nobody = Evidence({}, {}, {}, None, host_pid_namespace=False, invalid_pids=0)
    cards = [judge_card(card, nobody) for card in reading["gpus"] if card["state"] == "unknown"]
    if not cards and failure is None:
        return None
    needs = [card.needs for card in cards] or [_need_of(failure)]
    reason = (failure or {}).get("msg") or " ".join(card.sentence for card in cards)
    return _verdict("refused", needs, reason, [*cards, *_missing(failure)])


def respawn_verdict(kill: Mapping[str, Any]) -> Optional[dict[str, str]]:
    """The verdict when what was killed came back at once, or None when it did not."""
    newcomers = kill.get("respawned") or []
    if not newcomers:
        return None
    starters = [one.get("started_by") for one in newcomers]
    units = sorted({by["unit"] for by in starters if by is not None and by["kind"] == "unit"})
    if units:
        remedy = f"Unit {', '.join(units)} starts it: name it in verified_restart_service, so that it is stopped first."
    else:
        parents = sorted({describe(by) for by in starters if by is not None}) or ["unknown"]
        remedy = f"Its parent is {', '.join(parents)}: stop that first."
    who = ", ".join(describe(one) for one in newcomers[:3])
    more = f" and {len(newcomers) - 3} more" if len(newcomers) > 3 else ""
    return {
        "outcome": "refused",
        "needs": OPERATOR,
        "reason": f"What was killed was started again: {who}{more}. {remedy}",
    }


def _verdict(outcome: str, needs: Iterable[str], reason: str, cards: Sequence[CardVerdict]) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "needs": max(needs, key=_GRAVITY.index),
        "reason": reason,
        "cards_not_free": [card._asdict() for card in cards],
    }


def _silence(failure: Optional[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The verdict on a driver that said nothing of any card."""
    need = _need_of(failure)
    cards = [unread_card(card, need, "the driver does not answer") for card in known]
    return _verdict("gpus_not_free", [need], _no_reading(failure), cards)


def _no_reading(failure: Optional[Mapping[str, Any]]) -> str:
    said = (failure or {}).get("msg") or "the driver gave no answer"
    return f"The cards could not be read, and unknown is not free: {said}"


def _need_of(failure: Optional[Mapping[str, Any]]) -> str:
    failed = failure or {}
    return need_of(failed.get("reason"), unkillable=bool(failed.get("unkillable")))


def _missing(failure: Optional[Mapping[str, Any]]) -> list[CardVerdict]:
    """The cards that should be there and of which the driver says nothing. Perhaps too many were expected."""
    indices = (failure or {}).get("missing_indices") or []
    return [unread_card({"index": index}, OPERATOR, "the driver does not list it") for index in indices]


def _remedy(needs: Iterable[str]) -> str:
    """What is to be done, the gravest first. A reboot resets the cards as well."""
    wanted = sorted(set(needs), key=_GRAVITY.index, reverse=True)
    if REBOOT in wanted:
        wanted = [need for need in wanted if need not in (GPU_RESET, CONTAINER_RESTART)]
    return f"The server was not started: {'; '.join(_REMEDY[need] for need in wanted)}."


def _need(process: Mapping[str, Any]) -> str:
    return REBOOT if process["reason"] == "uninterruptible" else OPERATOR


def _left(survivors: Sequence[Mapping[str, Any]]) -> str:
    """Processes of the old server that hold no card but would be in the way of the new one."""
    return " ".join(
        f"The cards are free, but {describe(dict(one))} of the old server {WHY_LEFT[one['reason']]}, and might answer "
        "in its place. The server was not started."
        for one in survivors
    )
