# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks NVML through nvidia-ml-py (pynvml), in a child process, and parses what the child prints.

A call into a hung driver never returns, whatever signal comes: only a process can be given up on.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed
from ansible_collections.gpuops.inference.plugins.module_utils._driver_reasons import CODE_REASONS, failure
from ansible_collections.gpuops.inference.plugins.module_utils._errors import DriverError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import (
    ComputeProcess,
    DriverReading,
    Gpu,
    GpuError,
    in_order,
    is_possible_pid,
    normal_bus_id,
)

# Without the current directory, which `-c` puts first on the path. Everything is fetched per card and per value,
# because one lost card raises for itself alone. memory: version 2 counts the driver's reserve apart from `used`, as
# nvidia-smi does; older drivers lack it.
SCRIPT = r"""
import sys
sys.path[:] = [one for one in sys.path if one]
import json

def text(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

def main():
    try:
        import pynvml
    except ImportError as exc:
        return {"failure": {"code": None, "reason": "not_installed", "text": str(exc)}}
    errors = (pynvml.NVMLError,)

    def optional(function, *arguments):
        try:
            return function(*arguments)
        except errors + (AttributeError, TypeError):
            return None

    def memory(handle):
        version = getattr(pynvml, "nvmlMemory_v2", None)
        found = optional(pynvml.nvmlDeviceGetMemoryInfo, handle, version) if version is not None else None
        return found if found is not None else pynvml.nvmlDeviceGetMemoryInfo(handle)

    def processes(handle):
        return [[one.pid, one.usedGpuMemory] for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]

    def card(index):
        values = {"index": index}
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pci = optional(pynvml.nvmlDeviceGetPciInfo, handle)
            values["pci_bus_id"] = text(pci.busId) if pci is not None else None
            values["uuid"] = text(optional(pynvml.nvmlDeviceGetUUID, handle))
            values["minor"] = optional(pynvml.nvmlDeviceGetMinorNumber, handle)
            values["name"] = text(optional(pynvml.nvmlDeviceGetName, handle))
            found = memory(handle)
            values.update(total=found.total, used=found.used, free=found.free)
        except errors as exc:
            values.update(code=exc.value, text=str(exc))
            return values
        if sys.argv[1:] == ["processes"]:
            try:
                values["processes"] = processes(handle)
            except errors as exc:
                values["processes_text"] = str(exc)
        return values

    try:
        pynvml.nvmlInit()
        version = text(optional(pynvml.nvmlSystemGetDriverVersion))
        return {"driver_version": version, "gpus": [card(index) for index in range(pynvml.nvmlDeviceGetCount())]}
    except errors as exc:
        return {"failure": {"code": exc.value, "text": str(exc)}}

print(json.dumps(main()))
"""

_MIB = 1024 * 1024

# NVML_VALUE_NOT_AVAILABLE, where the library hands it through.
_NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF


def read(ask: Callable[[Sequence[str]], Completed], *, processes: bool) -> DriverReading:
    """Start the child and read its answer. ``ask`` runs an argv within what is left of the time limit.

    Raises DriverError (``not_installed``, ``library_not_found``, ``driver_not_loaded``, ``no_devices``, ...) and
    CommandError.
    """
    completed = ask([sys.executable, "-c", SCRIPT, *(["processes"] if processes else [])])
    return parse(completed, processes=processes)


def parse(completed: Completed, *, processes: bool) -> DriverReading:
    """The child's JSON, on its last line. Raises DriverError for a crash, other text, and NVML's own failures."""
    answer = _last_json(completed.stdout)
    if completed.rc != 0 or not isinstance(answer, dict):
        reason = "crashed" if completed.rc < 0 else "bad_output"
        raise _failure(completed, reason, _last_line(completed.stderr) or "no answer that can be read")
    if isinstance(answer.get("failure"), dict):
        told = answer["failure"]
        reason = _text(told.get("reason")) or CODE_REASONS.get(_integer(told.get("code")) or 0, "nvml_init_failed")
        raise _failure(completed, reason, _text(told.get("text")) or "no reason given")
    cards = (
        [card for card in answer.get("gpus") or () if isinstance(card, dict)]
        if isinstance(answer.get("gpus"), list)
        else []
    )
    if not cards:
        raise _failure(completed, "no_devices", "NVML counts no devices")
    listed, invalid_pids, warnings = _compute_processes(cards) if processes else (None, 0, [])
    return DriverReading(
        backend="nvml",
        driver_version=_text(answer.get("driver_version")),
        gpus=in_order([_gpu(card) for card in cards]),
        compute_processes=listed,
        invalid_pids=invalid_pids,
        warnings=tuple(warnings),
    )


def _gpu(card: dict[str, Any]) -> Gpu:
    used = _mib(card.get("used"))
    error = None
    if used is None:
        reason = CODE_REASONS.get(_integer(card.get("code")) or 0, "device_handle_error")
        error = GpuError(reason, _text(card.get("text")) or "NVML gave no memory value")
    return Gpu(
        index=_integer(card.get("index")),
        uuid=_text(card.get("uuid")),
        pci_bus_id=normal_bus_id(_text(card.get("pci_bus_id")) or ""),
        minor=_integer(card.get("minor")),
        name=_text(card.get("name")),
        memory_total_mib=_mib(card.get("total")),
        memory_used_mib=used,
        memory_free_mib=_mib(card.get("free")),
        error=error,
    )


def _compute_processes(cards: list[dict[str, Any]]) -> tuple[Optional[tuple[ComputeProcess, ...]], int, list[str]]:
    """The lists of all readable cards, how many entries were dropped, and warnings. None when a readable card gave no
    list.
    """
    found: list[ComputeProcess] = []
    invalid = 0
    for card in cards:
        if _mib(card.get("used")) is None:
            continue
        uuid, entries = _text(card.get("uuid")), card.get("processes")
        if uuid is None or not isinstance(entries, list):
            why = _text(card.get("processes_text")) or "no list"
            return None, 0, [f"NVML did not list the compute processes of GPU {card.get('index')}: {why}."]
        for entry in entries:
            pid = _integer(entry[0]) if isinstance(entry, list) and len(entry) == 2 else None
            if pid is None or not is_possible_pid(pid):
                invalid += 1
                continue
            found.append(ComputeProcess(pid, uuid, _mib(entry[1])))
    return tuple(found), invalid, []


def _failure(completed: Completed, reason: str, text: str) -> DriverError:
    # The script is long, and says nothing to an operator.
    shown = completed._replace(argv=(*completed.argv[:1], "-c", "(asks pynvml)"))
    return failure("NVML (nvidia-ml-py)", shown, reason=reason, text=text)


def _last_json(stdout: str) -> Any:
    """The value on the last line that is one; a library may have printed before it."""
    try:
        return json.loads(_last_line(stdout))
    except (ValueError, RecursionError):
        return None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _integer(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) and value else None


def _mib(value: Any) -> Optional[int]:
    """Bytes to MiB, rounded down as nvidia-smi does."""
    number = _integer(value)
    return number // _MIB if number is not None and number != _NOT_AVAILABLE else None
