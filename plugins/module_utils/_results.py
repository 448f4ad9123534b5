# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The dictionaries that every module returns for processes and cards, and what must not be in them."""

from __future__ import annotations

import os
import re
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._containers import container_pid_of, vmid_of
from ansible_collections.gpuops.inference.plugins.module_utils._errors import SurvivorsError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process, ProcFs

HIDDEN = "********"

_WORD = r"(?:api[_-]?key|access[_-]?key|private[_-]?key|password|passwd|secret|credential)"
_KEY = rf"(?:{_WORD}|token)s?"
_SECRET_WORD = rf"(?<![\w-])[\w-]*{_KEY}"
# Each finds what leads to a secret, and the secret.
_SECRETS = (
    # `--api-key X`. vLLM takes several of them, and an argument may hold blanks; `-hft X` is llama.cpp's.
    re.compile(rf"(?i)((?<![\w-])(?:--?[\w-]*{_KEY}|-hft)\s+)((?!--)\S+(?:\s+[^\s-]\S*)*)"),
    # `--hf-token=X`, `HF_TOKEN=X`, `X-Api-Key: X`, `"password": "X"`
    re.compile(rf"""(?i)({_SECRET_WORD}["']?(?:=|\s*:\s*))("[^"]*"|'[^']*'|[^\s"',}}]+)"""),
    re.compile(r"""(?i)(authorization["']?\s*[:=]\s*["']?(?:(?:basic|bearer|digest|token)\s+)?)([^\s"']+)"""),
    re.compile(r"""(?i)(\bbearer\s+)([^\s"']+)"""),
    # `http://user:X@proxy`
    re.compile(r"(://[^\s/:@]*:)([^\s/@]+)(?=@)"),
)
# In a command line that lost the borders between its arguments a secret has no end.
_GLUED_SECRET = re.compile(rf"(?is)({_WORD}|token(?!iz|s?=?\d)|authorization|bearer).*")


def redact(command: str) -> str:
    """A command line without the secrets that servers are given on theirs. ``--max-total-tokens 4096`` is left."""
    for pattern in _SECRETS:
        command = pattern.sub(_hide, command)
    return command


def _hide(found: re.Match[str]) -> str:
    lead, secret = found.groups()
    is_count = lead.rstrip(" =:\"'").lower().endswith("tokens") and re.match(r"\d+(?!\w)", secret)
    return found[0] if is_count else f"{lead}{HIDDEN}"


def redact_glued(command: str) -> str:
    """A command line whose arguments ran together, up to the first word that announces a secret."""
    return _GLUED_SECRET.sub(lambda found: f"{found[1]}{HIDDEN}", command)


def process_result(process: Process, procfs: ProcFs, **more: Any) -> dict[str, Any]:
    """A process as the contract describes it. ``more`` are the keys of survivors and holders (reason, wchan, ...)."""
    return {
        "pid": process.pid,
        "container_pid": container_pid_of(process),
        "vmid": vmid_of(process),
        "name": process.name,
        "command": redact(process.command),
        "state": process.state,
        "uid": process.uid,
        "start_time": start_time(process, procfs),
        "unit": process.unit,
        "parent": parent_result(process, procfs),
        **more,
    }


def parent_result(process: Process, procfs: ProcFs) -> Optional[dict[str, Any]]:
    """The parent's ``pid`` and ``name``; None for the first process and for parents outside the namespace."""
    stat = procfs.stat(process.parent_pid) if process.parent_pid else None
    return {"pid": stat.pid, "name": stat.name} if stat is not None else None


def start_time(process: Process, procfs: ProcFs) -> Optional[float]:
    """Seconds since the epoch, in hundredths (the kernel counts clock ticks since boot)."""
    boot = procfs.boot_time()
    return round(boot + process.start_ticks / os.sysconf("SC_CLK_TCK"), 2) if boot is not None else None


def process_diff(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, str]:
    """What ``--diff`` shows: the processes before and after, one a line."""
    return {"before": _lines(before), "after": _lines(after)}


def _lines(processes: list[dict[str, Any]]) -> str:
    return "".join(f"{describe(one)}\n" for one in sorted(processes, key=lambda one: one["pid"] or 0))


def describe(process: dict[str, Any]) -> str:
    """One process in a sentence: ``4242 (pt_main_thread, state D, container 129, unit x.service)``."""
    marks = [_printable(process["name"] or "unknown")]
    if process.get("state") not in (None, "S", "R"):
        marks.append(f"state {process['state']}")
    if process.get("wchan"):
        marks.append(f"asleep in {process['wchan']}")
    if process.get("vmid") is not None:
        marks.append(f"container {process['vmid']}")
    if process.get("unit"):
        marks.append(f"unit {process['unit']}")
    pid = process["pid"] if process["pid"] is not None else f"{process['container_pid']} inside"
    return f"{pid} ({', '.join(marks)})"


def describe_starter(process: dict[str, Any]) -> str:
    """Who starts a process of ``respawned`` again, from its ``started_by``: ``unit x.service``, or its parent."""
    by = process.get("started_by")
    if by is None:
        return "somebody who is not to be seen"
    return f"unit {by['unit']}" if by["kind"] == "unit" else f"its parent {describe(by)}"


def _printable(name: str) -> str:
    """A process may call itself anything, and its name must not break a line or steer a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in name)


def refuse_survivors(result: dict[str, Any], where: str) -> None:
    """Raise SurvivorsError, which carries the whole result, when a process is left that should not be."""
    left = [f"{describe(one)}: {_WHAT_TO_DO[one['reason']]}" for one in result["survivors"]]
    left += [
        f"{describe(one)}: started again by {describe_starter(one)}; stop that first" for one in result["respawned"]
    ]
    if left:
        raise SurvivorsError(
            f"{len(left)} process{'es are' if len(left) > 1 else ' is'} left {where}. {'; '.join(left)}.",
            **{**result, "reason": "survivors" if result["survivors"] else "respawned"},
        )


_WHAT_TO_DO = {
    "uninterruptible": "in uninterruptible sleep, not even SIGKILL ends it; what it waits for must end, "
    "or the machine must be rebooted",
    "zombie": "its first thread is dead but others live; see what they wait for",
    "permission": "this account may not signal it; run as root",
    "timeout": "still there after the time limit; raise kill_timeout, or see what it waits for",
    "frozen": "its container is frozen, and it acts on no signal until it is thawed; wait for the backup that froze "
    "it, or thaw it (lxc-unfreeze)",
}
