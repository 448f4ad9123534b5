# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands between the cards and a start, in one sentence that a person can act on. Pure: results of modules in,
verdict out.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._results import describe

# What an operator has to do or allow, the gravest last.
OPERATOR = "operator"
GPU_RESET = "gpu_reset"
REBOOT = "reboot"
_GRAVITY = (OPERATOR, GPU_RESET, REBOOT)

# What is needed, and a sentence.
Finding = tuple[str, str]

# A card without any holder that shows less than this may be idle: older drivers show up to about 600 MiB then.
IDLE_FLOOR_MIB = 1024

# They have every card open for as long as the machine runs.
_DRIVER_DAEMON = re.compile(r"nvidia-|nv-|nvlsm|dcgm")

_WHY_SPARED = {
    "other_container": "it is not in the container that is restarted",
    "protected": "it is protected",
    "monitor": "it only watches, so the memory is somebody else's",
    "computes_elsewhere": "it computes on other cards",
    "outside_namespace": "the driver names it, but it is not to be seen from here",
    "container_init": "it is a container's init",
    "init": "it is the machine's init",
    "ourselves": "it runs this very task",
    "kernel_thread": "it is a kernel thread",
}

_WHY_LEFT = {
    "uninterruptible": "sleeps in the kernel and cannot be ended, not even by SIGKILL",
    "zombie": "has a dead first thread and living others, and did not end",
    "permission": "may not be signalled by this account",
    "timeout": "did not end within the time limit",
    "respawned": "was started again",
}


def verdict(
    *,
    reading: Optional[Mapping[str, Any]],
    error: Optional[str] = None,
    kill: Optional[Mapping[str, Any]] = None,
    reclaim: Optional[Mapping[str, Any]] = None,
) -> Optional[dict[str, str]]:
    """Judge what the last look at the cards and the two killers returned.

    ``reading`` is ``ansible_facts.gpu_memory``, None when the driver gave none; ``error`` says why it gave none, or
    not all. Returns None when nothing stands in the way, else ``outcome``, ``needs`` and ``reason`` as the role's
    result has them.
    """
    if reading is None or not reading.get("gpus"):
        return _verdict("gpus_not_free", [(REBOOT if _hangs(error) else OPERATOR, _no_reading(error))])
    not_idle = [card for card in reading["gpus"] if card["state"] != "idle"]
    findings = [finding for card in not_idle for finding in _card(card, reclaim or {})]
    if findings:
        return _verdict("gpus_not_free", findings)
    if not reading.get("all_idle"):
        return _verdict("gpus_not_free", [(OPERATOR, _no_reading(error))])
    left = _left(kill or {})
    return _verdict("refused", left) if left else None


def respawn_verdict(kill: Mapping[str, Any]) -> Optional[dict[str, str]]:
    """The verdict when what was killed came back at once, or None when it did not."""
    newcomers = kill.get("respawned") or []
    if not newcomers:
        return None
    starters = sorted({one["unit"] for one in newcomers if one.get("unit")})
    if starters:
        remedy = (
            f"Unit {', '.join(starters)} starts it: name it in verified_restart_service, so that it is stopped first."
        )
    else:
        parents = sorted({describe_parent(one) for one in newcomers})
        remedy = f"Its parent is {', '.join(parents)}: stop that first."
    who = ", ".join(describe(one) for one in newcomers[:3])
    more = f" and {len(newcomers) - 3} more" if len(newcomers) > 3 else ""
    return _verdict("refused", [(OPERATOR, f"What was killed was started again: {who}{more}. {remedy}")])


def describe_parent(process: Mapping[str, Any]) -> str:
    """The parent in words."""
    parent = process.get("parent")
    return f"{parent['pid']} ({parent['name']})" if parent else "unknown"


def _verdict(outcome: str, findings: Sequence[Finding]) -> dict[str, str]:
    needs = _gravest(findings)
    sentences = dict.fromkeys(sentence for _need, sentence in findings)
    return {"outcome": outcome, "needs": needs, "reason": " ".join(sentences)}


def _hangs(error: Optional[str]) -> bool:
    return error is not None and "unkillable" in error


def _no_reading(error: Optional[str]) -> str:
    return f"The cards could not be read, and unknown is not free: {error or 'the driver gave no answer'}"


def _card(card: Mapping[str, Any], reclaim: Mapping[str, Any]) -> list[Finding]:
    """Why one card is not idle: one finding for each process, or one for the card itself."""
    name = f"GPU {card['index'] if card['index'] is not None else card['pci_bus_id']}"
    if card["state"] == "unknown":
        error = card.get("error") or {}
        need = {"requires_reset": GPU_RESET, "gpu_lost": REBOOT}.get(error.get("reason", ""), OPERATOR)
        said = error.get("text") or error.get("reason") or "no value"
        return [(need, f"{name} could not be read ({said}), and unknown is not free. {_REMEDY[need]}")]
    holds = f"{name} holds {card['memory_used_mib']} MiB"
    findings = _holders_left(card, holds, reclaim) or _holders_listed(card, holds, reclaim)
    if findings:
        need = _gravest(findings)
        return [*findings[:-1], (need, f"{findings[-1][1]} {_REMEDY[need]}")]
    if card["processes"] is None:
        return [(OPERATOR, f"{holds}, and who holds it could not be read. {_REMEDY[OPERATOR]}")]
    hint = ""
    if card["memory_used_mib"] < IDLE_FLOOR_MIB:
        hint = " It may be what the card shows when idle: then raise verified_restart_idle_memory_mib."
    return [(GPU_RESET, f"{holds} and no process holds it: the driver leaked it. {_REMEDY[GPU_RESET]}{hint}")]


def _holders_left(card: Mapping[str, Any], holds: str, reclaim: Mapping[str, Any]) -> list[Finding]:
    """Those whom the reclaim found on the card and could not end, or had to spare."""
    survivors = [*(reclaim.get("survivors") or []), *(reclaim.get("respawned") or [])]
    findings = [
        (_need(one), f"{holds}: {describe(one)} {_WHY_LEFT[one['reason']]}.")
        for one in survivors
        if card["index"] in one["gpus"]
    ]
    findings += [
        (OPERATOR, f"{holds}: {describe(one)} was spared, since {_WHY_SPARED.get(one['reason'], one['reason'])}.")
        for one in reclaim.get("spared") or []
        if card["index"] in one["gpus"] and not _without_memory(one)
    ]
    return findings


def _without_memory(spared: Mapping[str, Any]) -> bool:
    """Whether one who was spared merely has the card open: he explains nothing, and must not hide a leak."""
    if spared["reason"] == "protected":
        return _DRIVER_DAEMON.match(spared["name"]) is not None and "driver" not in spared["evidence"]
    return spared["reason"] in ("monitor", "computes_elsewhere")


def _holders_listed(card: Mapping[str, Any], holds: str, reclaim: Mapping[str, Any]) -> list[Finding]:
    """Those whom the driver lists on the card, but for the ones that the reclaim has seen go."""
    gone = {one["pid"] for one in [*(reclaim.get("terminated") or []), *(reclaim.get("killed") or [])]}
    return [
        (OPERATOR, f"{holds}: {describe(one)} holds it.")
        for one in card.get("processes") or []
        if one["pid"] not in gone
    ]


def _need(process: Mapping[str, Any]) -> str:
    return REBOOT if process["reason"] == "uninterruptible" else OPERATOR


def _gravest(findings: Sequence[Finding]) -> str:
    return max((need for need, _sentence in findings), key=_GRAVITY.index)


_REMEDY = {
    OPERATOR: "The server was not started: free the card, then run this again.",
    GPU_RESET: "The server was not started: reset the card (nvidia-smi --gpu-reset, with nothing holding it), "
    "or reboot the node.",
    REBOOT: "The server was not started: reboot the node.",
}


def _left(kill: Mapping[str, Any]) -> list[Finding]:
    """Processes of the old server that hold no card but would be in the way of the new one."""
    return [
        (
            _need(one),
            f"The cards are free, but {describe(one)} of the old server {_WHY_LEFT[one['reason']]}, and might answer "
            "in its place. The server was not started.",
        )
        for one in kill.get("survivors") or []
    ]
