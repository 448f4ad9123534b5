# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role makes of the leftovers of a dead server. Pure: the result of a module in, verdict and sentences out."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._results import describe

# A server that finds less than this free in /dev/shm is likely to die with SIGBUS: NCCL alone takes some 10 MiB for
# each channel between two cards.
LOW_MIB = 64

# A machine may have hundreds of stale segments: of those the names are enough.
_KEPT_KEYS = ("name", "size_mib", "age_s", "owner_pid", "reason")


def port_verdict(leftovers: Mapping[str, Any], *, going: str = "") -> Optional[dict[str, str]]:
    """The verdict when a port of the server is still bound, or None when nobody stands in its way.

    An init that listens does so for the unit (socket activation). ``going`` is a unit whose processes are being stopped
    already: systemd starts it only after they have gone.
    """
    holders = [one for one in leftovers.get("listeners") or [] if not _harmless(one["process"], going)]
    if not holders:
        return None
    sentences = dict.fromkeys(f"{_who(one['process'])} listens on {_where(one)}" for one in holders)
    ports = ", ".join(dict.fromkeys(str(one["port"]) for one in holders))
    return {
        "outcome": "refused",
        "needs": "operator",
        "reason": f"All cards are free, but port {ports} is not: {'; '.join(sentences)}. The new server could not bind "
        "it, and was not started. End that process, then run this again. If it belongs there, as a proxy in front of "
        "the server does, set verified_restart_port to the port that the server itself binds.",
    }


def _harmless(process: Optional[Mapping[str, Any]], going: str) -> bool:
    if process is None:
        return False
    # systemctl takes a service's name without its ending too.
    return 1 in (process["pid"], process["container_pid"]) or process["unit"] in (going, f"{going}.service")


def _who(process: Optional[Mapping[str, Any]]) -> str:
    return describe(dict(process)) if process is not None else "somebody who is not to be seen from here"


def _where(listener: Mapping[str, Any]) -> str:
    address = f"[{listener['address']}]" if ":" in listener["address"] else listener["address"]
    return f"{address}:{listener['port']}"


def leftovers_summary(leftovers: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """The leftovers as the role's result shows them, with what is to be said of them in ``said``; None when nobody
    looked.
    """
    if not leftovers:
        return None
    kept = [one for one in leftovers.get("segments") or [] if not one["stale"]]
    return {
        "listeners": leftovers.get("listeners") or [],
        "shm": leftovers.get("shm"),
        "kept": [{key: one[key] for key in _KEPT_KEYS} for one in kept],
        "stale": leftovers.get("stale") or [],
        "stale_mib": leftovers.get("stale_mib") or 0,
        "removed": leftovers.get("removed") or [],
        "removed_mib": leftovers.get("removed_mib") or 0,
        "said": " ".join(_sentences(leftovers)),
    }


def _sentences(leftovers: Mapping[str, Any]) -> list[str]:
    if "segments" not in leftovers:
        return [f"Leftovers could not be looked for: {leftovers.get('msg') or 'no message'}"]
    shm = leftovers["shm"] or {}
    said = [str(shm["message"])] if shm.get("message") else []
    removed, stale = leftovers["removed"], leftovers["stale"]
    if removed:
        said.append(f"Removed from {shm['path']}: {_count(removed, 'stale')}, {leftovers['removed_mib']} MiB.")
    if len(stale) > len(removed):
        left = [name for name in stale if name not in removed]
        mib = round(leftovers["stale_mib"] - leftovers["removed_mib"], 3)
        remedy = "Not all could be removed." if removed else "With verified_restart_clean_shm they are removed."
        said.append(f"Left in {shm['path']} by dead processes: {_count(left, 'stale')}, {mib} MiB. {remedy}")
    unknown = [one["name"] for one in leftovers["segments"] if one["reason"] == "unreadable"]
    if unknown:
        said.append(
            f"Left in {shm['path']}, and perhaps still needed: {_count(unknown)}. Not every process could be looked "
            "into, so the task needs to run as root."
        )
    free = shm.get("free_mib")
    if free is not None and free < LOW_MIB:
        said.append(
            f"Only {free} of {shm['size_mib']} MiB are free in {shm['path']}: a server that needs more dies with "
            "SIGBUS (Bus error)."
        )
    return said


def _count(names: Sequence[str], kind: str = "") -> str:
    words = [str(len(names)), kind, "segment" if len(names) == 1 else "segments"]
    return " ".join(word for word in words if word)
