# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The core of gpu_memory_facts: what the cards hold, read and never guessed."""

from __future__ import annotations

import math
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Runner
from ansible_collections.gpuops.inference.plugins.module_utils._driver import read_driver
from ansible_collections.gpuops.inference.plugins.module_utils._errors import DriverError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import (
    ComputeProcess,
    DriverReading,
    Gpu,
    memory_state,
    ranges,
    select_gpus,
)
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from ansible_collections.gpuops.inference.plugins.module_utils._results import process_result

# A bare CUDA context, or what an old driver's idle card shows, stays below this; a server's weights do not.
FLOOR_LIMIT_MIB = 1024

# No machine has more cards. The limit keeps a slip of the finger from becoming a list of so many missing indices.
EXPECTABLE_GPUS = range(1, 1025)


class FactsRequest(NamedTuple):
    """What the operator asked for. ``gpus`` None means all; memory in MiB, ``timeout`` in seconds for the driver."""

    gpus: Optional[tuple[str, ...]]
    idle_memory_mib: int
    expected_gpus: Optional[int]
    backend: str
    nvidia_smi_path: str
    processes: bool
    timeout: float


class MemoryFacts(NamedTuple):
    """``facts`` is the value of ``ansible_facts.gpu_memory``."""

    facts: dict[str, Any]
    warnings: tuple[str, ...]


def gather(request: FactsRequest, *, runner: Runner, procfs: ProcFs) -> MemoryFacts:
    """Ask the driver and say what every card holds.

    Raises InputError, CommandError and DriverError; when cards are missing, ``gpu_memory`` has what was read of the
    others.
    """
    _check(request)
    reading = read_driver(
        runner=runner,
        backend=request.backend,
        nvidia_smi_path=request.nvidia_smi_path,
        timeout=request.timeout,
        processes=request.processes,
        proc_root=procfs.root,
    )
    gpus = reading.gpus if request.gpus is None else select_gpus(reading.gpus, request.gpus)
    _refuse_all_idle(gpus, request.idle_memory_mib)
    facts = build(reading, gpus, request.idle_memory_mib, processes_by_card(reading.compute_processes, procfs))
    facts["host_pid_namespace"] = procfs.in_host_pid_namespace()
    if request.expected_gpus is not None:
        require_expected(reading.gpus, request.expected_gpus, facts)
    return MemoryFacts(facts, reading.warnings)


def _refuse_all_idle(gpus: Sequence[Gpu], idle_memory_mib: int) -> None:
    """Raise InputError for a limit that a full card would stay below: then every card would always be idle."""
    smallest = min((gpu.memory_total_mib for gpu in gpus if gpu.memory_total_mib is not None), default=None)
    if smallest is not None and idle_memory_mib >= smallest:
        raise InputError(
            f"idle_memory_mib is {idle_memory_mib}, but a card has only {smallest} MiB: it would be idle even when "
            "full. Give what the card shows when nobody uses it."
        )


def _check(request: FactsRequest) -> None:
    """Raise InputError before anything is asked."""
    if request.idle_memory_mib < 0:
        raise InputError(f"idle_memory_mib is {request.idle_memory_mib}. Give 0 or more MiB.")
    if request.expected_gpus is not None and request.expected_gpus not in EXPECTABLE_GPUS:
        raise InputError(
            f"expected_gpus is {request.expected_gpus}. Give {EXPECTABLE_GPUS.start} to {EXPECTABLE_GPUS.stop - 1}, "
            "or leave it out."
        )
    if not (math.isfinite(request.timeout) and request.timeout > 0):
        raise InputError(f"timeout is {request.timeout:g}. Give more than 0 seconds.")


def require_expected(gpus: Sequence[Gpu], expected: int, facts: dict[str, Any]) -> None:
    """Raise DriverError ``gpus_missing`` unless at least ``expected`` cards of the machine were read.

    The error names those that were not, and carries ``facts``, what is known of the others, as ``gpu_memory``.
    """
    unreadable = {gpu.label: gpu.error for gpu in gpus if gpu.error is not None}
    readable = sum(gpu.error is None for gpu in gpus)
    if readable >= expected:
        return
    gaps = sorted(set(range(expected)) - {gpu.index for gpu in gpus})
    sentences = [f"Expected {expected} GPU{'' if expected == 1 else 's'}, but only {readable} could be read."]
    if gaps:
        sentences.append(f"Missing: index {ranges(gaps)}.")
    sentences.extend(f"GPU {label} is unreadable ({error.reason}): {error.text}" for label, error in unreadable.items())
    sentences.append("Look for Xid messages in the kernel log; a lost card needs a reset or a reboot.")
    raise DriverError(
        " ".join(sentence if sentence.endswith(".") else f"{sentence}." for sentence in sentences),
        reason="gpus_missing",
        expected_gpus=expected,
        readable_gpus=readable,
        missing_indices=gaps,
        unreadable_gpus=list(unreadable),
        gpu_memory=facts,
    )


def processes_by_card(
    listed: Optional[Sequence[ComputeProcess]], procfs: ProcFs
) -> Optional[dict[str, list[dict[str, Any]]]]:
    """Card UUID -> its compute processes joined with /proc. None where the driver's list is not known.

    A pid that is not in this /proc belongs to another namespace, or has ended: it is listed all the same.
    """
    if listed is None:
        return None
    cards: dict[str, list[dict[str, Any]]] = {}
    for one in listed:
        cards.setdefault(one.gpu_uuid, []).append(_process(one, procfs))
    return cards


def _process(listed: ComputeProcess, procfs: ProcFs) -> dict[str, Any]:
    process = procfs.process(listed.pid)
    # One that is dead, and merely not reaped, holds nothing any more, whatever the driver says.
    if process is not None and not process.gone:
        # A leader that has exited shows as a zombie, and not that a thread of it sleeps in the driver.
        asleep = process.state == "Z" and procfs.uninterruptible_task(process.pid) is not None
        seen = process._replace(state="D") if asleep else process
        return process_result(seen, procfs, used_memory_mib=listed.used_memory_mib, visible=True)
    unknown = ("container_pid", "vmid", "name", "command", "state", "uid", "start_time", "unit", "parent")
    return {
        "pid": listed.pid,
        **dict.fromkeys(unknown),
        "used_memory_mib": listed.used_memory_mib,
        "visible": False,
    }


def build(
    reading: DriverReading,
    gpus: Sequence[Gpu],
    idle_memory_mib: int,
    processes: Optional[Mapping[str, list[dict[str, Any]]]],
) -> dict[str, Any]:
    """``ansible_facts.gpu_memory`` for the chosen ``gpus``.

    A card whose UUID is not known cannot be joined with processes: its list is None, which is not 'none'.
    """
    cards = [
        _card(
            gpu,
            memory_state(gpu, idle_memory_mib),
            None if processes is None or gpu.uuid is None else processes.get(gpu.uuid, []),
        )
        for gpu in gpus
    ]
    by_state = {
        state: [_handle(one) for one in cards if one["state"] == state] for state in ("idle", "busy", "unknown")
    }
    return {
        "backend": reading.backend,
        "driver_version": reading.driver_version,
        "count": len(cards),
        "gpus": cards,
        **by_state,
        # No cards at all are not free cards.
        "all_idle": bool(cards) and len(by_state["idle"]) == len(cards),
        # An entry that was dropped may be the holder.
        "floor_hint": None if reading.invalid_pids else _floor_hint(cards, idle_memory_mib),
        "invalid_pids": reading.invalid_pids,
    }


def _card(gpu: Gpu, state: str, processes: Optional[list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "minor": gpu.minor,
        "name": gpu.name,
        "memory_total_mib": gpu.memory_total_mib,
        "memory_used_mib": gpu.memory_used_mib,
        "memory_free_mib": gpu.memory_free_mib,
        "state": state,
        "error": None if gpu.error is None else {"reason": gpu.error.reason, "text": gpu.error.text},
        "processes": processes,
    }


def _handle(card: Mapping[str, Any]) -> Any:
    """What the option ``gpus`` takes for this card: its index, else its bus id, so that no list loses a card."""
    return card["index"] if card["index"] is not None else card["pci_bus_id"]


def _floor_hint(cards: Sequence[Mapping[str, Any]], idle_memory_mib: int) -> Optional[str]:
    """Which busy cards may merely show what an idle card of this driver always shows."""
    suspects = [
        card
        for card in cards
        if card["state"] == "busy" and card["processes"] == [] and card["memory_used_mib"] < FLOOR_LIMIT_MIB
    ]
    if not suspects:
        return None
    noun, verb = ("GPU", "holds") if len(suspects) == 1 else ("GPUs", "hold")
    names = ", ".join(str(_handle(card)) for card in suspects)
    amounts = [card["memory_used_mib"] for card in suspects]
    return (
        f"{noun} {names} {verb} {', '.join(map(str, amounts))} MiB without any process that the driver names. If that "
        f"stays, it may be the idle floor of this driver: raise idle_memory_mib, now {idle_memory_mib}, to "
        f"{max(amounts)} or more."
    )
