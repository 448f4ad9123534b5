# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why one card is not free, and what it takes. Pure: results of modules in, verdict out.

That memory has no holder is said only where everyone was looked at: a reset pulls a card away from whoever has it.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._results import describe

# What an operator has to do or allow.
OPERATOR = "operator"
CONTAINER_RESTART = "container_restart"
GPU_RESET = "gpu_reset"
REBOOT = "reboot"

# What a card that is not free is; part of the role's result.
HELD = "held"
UNKILLABLE = "unkillable"
NO_HOLDER = "no_holder"
HOLDER_UNKNOWN = "holder_unknown"
UNKNOWN = "unknown"

# A card without any holder that shows less than this may be idle: older drivers show up to about 600 MiB then.
IDLE_FLOOR_MIB = 1024

# They have every card open for as long as the machine runs.
_DRIVER_DAEMONS = ("nvidia-", "nv-", "nvlsm", "dcgm")

WHY_LEFT = {
    "uninterruptible": "sleeps in the kernel and cannot be ended, not even by SIGKILL",
    "zombie": "has a dead first thread and living others, and did not end",
    "permission": "may not be signalled by this account",
    "timeout": "did not end within the time limit",
    "frozen": "is in a frozen container and acts on no signal until that is thawed (a backup freezes it)",
    "respawned": "was started again",
}

_WHY_SPARED = {
    "other_container": "it is not in the container that is restarted",
    "protected": "it is protected",
    "monitor": "it only watches, so the memory is somebody else's",
    "computes_elsewhere": "it computes on other cards",
    "outside_namespace": "the driver names it, but it is not to be seen from here",
    "container_init": "it is the first process of its container, which would go down with it: restart that container",
    "init": "it is the machine's init",
    "ourselves": "it runs this very task",
    "kernel_thread": "it is a kernel thread",
    "command_unknown": "the kernel does not tell its command line, by which a pattern may protect it",
}

# What helps when a card, or the driver as a whole, cannot be read. Everything else is for a person to find out.
_NEED_OF_REASON = {
    "requires_reset": GPU_RESET,
    "gpu_lost": REBOOT,
    "device_handle_error": REBOOT,
    "not_listed": REBOOT,
    "version_mismatch": REBOOT,
}

# Why a reset failed after which another one would fail too.
_RESET_IN_VAIN = ("still_busy", "reset_not_supported", "reset_failed", "gpu_lost")


class Evidence(NamedTuple):
    """What is known beside the card itself: results of the modules, as they returned them.

    ``unended`` are the processes that the kill could not end, by pid. ``host_pid_namespace``: the look was taken in
    the machine's own pid namespace, so no process is outside of it. ``invalid_pids``: how many entries of the driver's
    list named no possible process. ``container_restarted``: the container was restarted before this look.
    """

    unended: Mapping[int, dict[str, Any]]
    reclaim: Mapping[str, Any]
    reset: Mapping[str, Any]
    vmid: Optional[int]
    host_pid_namespace: bool
    invalid_pids: int
    container_restarted: bool = False


class CardVerdict(NamedTuple):
    """One card that is not free. ``holders`` explain its memory; ``bystanders`` merely have it open.

    ``memory_used_mib`` is None where it could not be read.
    """

    index: Optional[int]  # type: ignore[assignment]  # it hides tuple.index, which nobody asks of a card
    pci_bus_id: Optional[str]
    memory_used_mib: Optional[int]
    verdict: str
    needs: str
    sentence: str
    holders: list[dict[str, Any]]
    bystanders: list[dict[str, Any]]


def need_of(reason: Optional[str], *, unkillable: bool = False) -> str:
    """What helps against a driver that gave no answer for this reason (a code of gpu_memory_facts)."""
    return REBOOT if unkillable else _NEED_OF_REASON.get(reason or "", OPERATOR)


def judge_card(card: Mapping[str, Any], seen: Evidence) -> CardVerdict:
    """The one verdict on a card (as gpu_memory_facts returns it) that is busy or unknown."""
    if card["state"] == "unknown":
        error = card.get("error") or {}
        return unread_card(card, need_of(error.get("reason")), error.get("text") or error.get("reason") or "no value")
    holds = f"{_name(card)} holds {card['memory_used_mib']} MiB"
    holders = _holders(card, seen)
    bystanders = [one for one in _on(card, seen.reclaim, "spared") if _without_memory(one)]
    if holders:
        stuck = any(one["reason"] == "uninterruptible" for one in holders)
        sentence = f"{holds}: {'; '.join(f'{describe(one)} {_why(one)}' for one in holders)}."
        if stuck:
            return _verdict(card, UNKILLABLE, REBOOT, sentence, holders, bystanders)
        inits = all(one["reason"] == "container_init" for one in holders)
        if inits and seen.container_restarted:
            sentence += " A restart of the container did not change that."
        need = CONTAINER_RESTART if inits and not seen.container_restarted else OPERATOR
        return _verdict(card, HELD, need, sentence, holders, bystanders)
    doubt = _doubt(card, seen)
    if doubt is not None:
        need, clause = doubt
        return _verdict(card, HOLDER_UNKNOWN, need, f"{holds}{clause}", [], bystanders)
    need, sentence = _leak(card, holds, bystanders, seen.reset)
    return _verdict(card, NO_HOLDER, need, sentence, [], bystanders)


def unread_card(card: Mapping[str, Any], need: str, said: str) -> CardVerdict:
    """The verdict on a card of which the driver ``said`` something else than its memory."""
    sentence = f"{_name(card)} could not be read ({said}), and unknown is not free."
    return _verdict({**card, "memory_used_mib": None}, UNKNOWN, need, sentence, [], [])


def _verdict(
    card: Mapping[str, Any],
    verdict: str,
    needs: str,
    sentence: str,
    holders: list[dict[str, Any]],
    bystanders: list[dict[str, Any]],
) -> CardVerdict:
    index, place, used = card.get("index"), card.get("pci_bus_id"), card.get("memory_used_mib")
    return CardVerdict(index, place, used, verdict, needs, sentence, holders, bystanders)


def _name(card: Mapping[str, Any]) -> str:
    return f"GPU {card['index'] if card.get('index') is not None else card.get('pci_bus_id')}"


def _on(card: Mapping[str, Any], reclaim: Mapping[str, Any], *fields: str) -> list[dict[str, Any]]:
    """Those of the reclaim's processes that have this card open."""
    return [one for field in fields for one in reclaim.get(field) or [] if card["index"] in one["gpus"]]


def _holders(card: Mapping[str, Any], seen: Evidence) -> list[dict[str, Any]]:
    """Whoever may have the memory, each once and with the ``reason`` why it is still there.

    On the machine itself, a pid that the driver lists and nobody has is one that has just ended.
    """
    named = _on(card, seen.reclaim, "survivors", "respawned")
    for one in _on(card, seen.reclaim, "spared"):
        stale = one["reason"] == "outside_namespace" and seen.host_pid_namespace
        if not stale and not _without_memory(one):
            named.append(one)
    settled = {one["pid"] for one in [*named, *_ended(seen.reclaim)]}
    for one in card.get("processes") or []:
        stale = not one["visible"] and seen.host_pid_namespace
        if one["pid"] not in settled and not stale:
            named.append(_listed(one, seen))
    return named


def _listed(process: dict[str, Any], seen: Evidence) -> dict[str, Any]:
    """A process that the driver lists, with the reason why it is left.

    One in state D without any handle is being torn down, and stuck in that: only the driver still knows of it.
    """
    if process["pid"] in seen.unended:
        return seen.unended[process["pid"]]
    has_handles = any(one["pid"] == process["pid"] for one in seen.reclaim.get("holders") or [])
    stuck = process["state"] == "D" and not has_handles
    return {**process, "reason": "uninterruptible" if stuck else "listed"}


def _ended(reclaim: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*(reclaim.get("terminated") or []), *(reclaim.get("killed") or [])]


def _without_memory(spared: Mapping[str, Any]) -> bool:
    """Whether one who was spared merely has the card open: he explains nothing, and must not hide a leak."""
    if spared["reason"] == "protected":
        return spared["name"].startswith(_DRIVER_DAEMONS) and "driver" not in spared["evidence"]
    return spared["reason"] in ("monitor", "computes_elsewhere")


def _why(holder: Mapping[str, Any]) -> str:
    reason = holder["reason"]
    if reason == "listed":
        return "holds it"
    return WHY_LEFT.get(reason) or f"was spared, since {_WHY_SPARED.get(reason, reason)}"


def _doubt(card: Mapping[str, Any], seen: Evidence) -> Optional[tuple[str, str]]:
    """Why a holder may have been overlooked, as need and clause; None when everyone was looked at."""
    hidden = OPERATOR if seen.vmid is None or seen.container_restarted else CONTAINER_RESTART
    if card["index"] not in (seen.reclaim.get("gpus") or []):
        return OPERATOR, ", and nobody has looked who holds it."
    if card["processes"] is None:
        return OPERATOR, ", and who holds it could not be read."
    if not seen.host_pid_namespace:
        return (
            OPERATOR,
            " and no process that is to be seen from here holds it. This is not the machine's own pid namespace, so "
            "the holder may be outside: let verified_restart_node name the machine itself.",
        )
    if not seen.reclaim.get("scan_complete"):
        return hidden, " and no process that could be looked into holds it. Others could not be: run this as root."
    if seen.invalid_pids:
        return (
            hidden,
            " and no process that can be named holds it, but the driver lists "
            f"{seen.invalid_pids} that it gives no possible pid for.",
        )
    return None


def _leak(
    card: Mapping[str, Any], holds: str, bystanders: list[dict[str, Any]], reset: Mapping[str, Any]
) -> tuple[str, str]:
    """Need and sentence for memory that nobody holds."""
    if card["index"] in (reset.get("reset") or []):
        return REBOOT, f"{holds} and no process holds it, and a reset did not free it."
    sentence = f"{holds} and no process holds it: the driver leaked it."
    if reset.get("msg"):
        need = REBOOT if reset.get("reason") in _RESET_IN_VAIN or reset.get("unkillable") else GPU_RESET
        return need, f"{sentence} It could not be reset: {reset['msg']}"
    if bystanders:
        names = ", ".join(describe(one) for one in bystanders)
        sentence += f" It cannot be reset while others have it open: {names}."
    if card["memory_used_mib"] < IDLE_FLOOR_MIB:
        sentence += " It may be what the card shows when idle: then raise verified_restart_idle_memory_mib."
    return GPU_RESET, sentence
