# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a card is, when it is idle, and which cards are meant. Pure: nothing here asks anything.

Index, CUDA ordinal and device minor are three different numbers; the PCI bus id joins them. Unknown is None, never 0,
and unknown is not free.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError

# The kernel's own upper bound (PID_MAX_LIMIT), whatever kernel.pid_max says. Pid 1 is an init, never a holder to act
# on.
_PID_LIMIT = 4194304

_BUS_ID = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_INDEX = re.compile(r"[0-9]{1,6}")


class GpuError(NamedTuple):
    """Why a card could not be read: a stable ``reason`` code, and the driver's own ``text``."""

    reason: str
    text: str


@dataclass(frozen=True)
class Gpu:
    """One card as the driver describes it. ``index`` is the driver's, ``minor`` the N of /dev/nvidiaN, memory in MiB.

    ``pci_bus_id`` is spelled as the kernel does (0000:0f:00.0). With ``error`` set nothing about its memory may be
    believed.
    """

    index: Optional[int]
    uuid: Optional[str]
    pci_bus_id: Optional[str]
    minor: Optional[int]
    name: Optional[str]
    memory_total_mib: Optional[int]
    memory_used_mib: Optional[int]
    memory_free_mib: Optional[int]
    error: Optional[GpuError]

    @property
    def label(self) -> str:
        """``3 (0000:34:00.0)``, or as much of it as is known."""
        parts = [str(self.index) if self.index is not None else None, self.pci_bus_id or self.uuid]
        known = [part for part in parts if part is not None]
        return f"{known[0]} ({known[1]})" if len(known) == 2 else (known or ["unknown"])[0]


class ComputeProcess(NamedTuple):
    """A process with a context on a card, as the driver lists it. ``pid`` is of the namespace that the driver speaks
    in.
    """

    pid: int
    gpu_uuid: str
    used_memory_mib: Optional[int]


class DriverReading(NamedTuple):
    """One answer of the driver. ``compute_processes`` is None when they were not asked or not readable: that is not
    'none'.

    ``invalid_pids`` counts list entries that named no possible process (0, 4294967295) or no card, and were dropped.
    """

    backend: str
    driver_version: Optional[str]
    gpus: tuple[Gpu, ...]
    compute_processes: Optional[tuple[ComputeProcess, ...]]
    invalid_pids: int
    warnings: tuple[str, ...]


def unreadable_gpu(error: GpuError, *, index: Optional[int] = None, pci_bus_id: Optional[str] = None) -> Gpu:
    """A card of which nothing but its place is known."""
    return Gpu(index, None, pci_bus_id, None, None, None, None, None, error)


def is_possible_pid(pid: int) -> bool:
    """Whether a number out of the driver's list can be a process at all. 0 and -1 would mean groups of processes to
    kill(2).
    """
    return 1 < pid <= _PID_LIMIT


def normal_bus_id(text: str) -> Optional[str]:
    """A PCI bus id in the kernel's spelling: ``00000000:0F:00.0`` and ``0f:00.0`` are 0000:0f:00.0. None for anything
    else.
    """
    found = _BUS_ID.fullmatch(text.strip())
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function}".lower()


def in_order(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """By index; cards whose index is not known at the end, by bus id."""
    return tuple(sorted(gpus, key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.pci_bus_id or "")))


def memory_state(gpu: Gpu, idle_memory_mib: int) -> str:
    """``idle`` at or below the limit, ``busy`` above it, ``unknown`` when the memory could not be read or not be
    believed.
    """
    if gpu.error is not None or gpu.memory_used_mib is None:
        return "unknown"
    return "idle" if gpu.memory_used_mib <= idle_memory_mib else "busy"


def select_gpus(gpus: Sequence[Gpu], wanted: Sequence[str]) -> tuple[Gpu, ...]:
    """The cards meant by ``wanted``: indices, UUIDs or PCI bus ids in any spelling; each card once, in the machine's
    order.

    Raises InputError for what is not there, what means several cards, a MIG device, and an empty list: an empty list is
    a choice that went wrong somewhere, and must not turn into 'all cards'.
    """
    if not wanted:
        raise InputError("gpus is an empty list. Name at least one card, or leave the option out to mean all of them.")
    chosen: list[Gpu] = []
    missing: list[str] = []
    for text in (one.strip() for one in wanted):
        found = _matches(gpus, text)
        if len(found) > 1:
            raise InputError(
                f"{text} means {len(found)} cards: {_listed(gpu.label for gpu in found)}. Name it with its PCI domain."
            )
        if not found:
            missing.append(text)
        chosen.extend(found)
    if missing:
        noun, verb = ("GPU", "is") if len(missing) == 1 else ("GPUs", "are")
        raise InputError(
            f"{noun} {', '.join(missing)} {verb} not among the {_what_is_there(gpus, missing[0])}.",
            reason="no_such_gpu",
            missing=missing,
        )
    return in_order([gpu for gpu in gpus if gpu in chosen])


def _matches(gpus: Sequence[Gpu], text: str) -> list[Gpu]:
    if text.upper().startswith("MIG-"):
        raise InputError(
            f"{text} is a MIG device, a part of a card. Name the card: its index, its UUID (GPU-...) or its PCI bus id."
        )
    if _INDEX.fullmatch(text):
        return [gpu for gpu in gpus if gpu.index == int(text)]
    if text.upper().startswith("GPU-"):
        return [gpu for gpu in gpus if gpu.uuid is not None and gpu.uuid.upper() == text.upper()]
    bus_id = normal_bus_id(text)
    if bus_id is None:
        raise InputError(
            f"{text!r} is not a card. Name its index (3), its UUID (GPU-...) or its PCI bus id (0000:0f:00.0)."
        )
    if text.count(":") == 1:
        return [gpu for gpu in gpus if gpu.pci_bus_id is not None and gpu.pci_bus_id.endswith(":" + text.lower())]
    return [gpu for gpu in gpus if gpu.pci_bus_id == bus_id]


def _what_is_there(gpus: Sequence[Gpu], asked: str) -> str:
    """``8 cards of this machine (indices 0-7)``, in the kind of name that was asked for."""
    count = f"{len(gpus)} card{'' if len(gpus) == 1 else 's'} of this machine"
    if _INDEX.fullmatch(asked):
        nameless = [gpu.label for gpu in gpus if gpu.index is None]
        beside = f"; index not known: {_listed(nameless)}" if nameless else ""
        return f"{count} (indices {ranges([gpu.index for gpu in gpus if gpu.index is not None])}{beside})"
    names = [gpu.uuid if asked.upper().startswith("GPU-") else gpu.pci_bus_id for gpu in gpus]
    return f"{count} ({_listed(name or 'unknown' for name in names)})"


def ranges(numbers: Sequence[int]) -> str:
    """``0-2, 4-7``; ``none`` for nothing."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans) or "none"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
