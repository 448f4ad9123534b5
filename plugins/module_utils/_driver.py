# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the driver once, by either road, within one time limit, and gives every card its device minor."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from dataclasses import replace
from typing import Callable, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils import _nvidia_smi
from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed, Runner
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import (
    DriverReading,
    GpuError,
    in_order,
    normal_bus_id,
    unreadable_gpu,
)

_MINOR = re.compile(r"(?m)^Device Minor:[ \t]*([0-9]{1,6})[ \t]*$")
_EXCLUDED = re.compile(r"(?mi)^GPU Excluded:[ \t]*Yes[ \t]*$")


def read_driver(
    *,
    runner: Runner,
    backend: str,
    nvidia_smi_path: str,
    timeout: float,
    processes: bool = True,
    minors: bool = True,
    proc_root: str = "/proc",
    device_directory: str = "/dev",
    clock: Callable[[], float] = time.monotonic,
) -> DriverReading:
    """All cards of the machine, and who computes on them. ``backend``: ``auto``, ``nvml`` or ``nvidia_smi``.

    ``timeout`` (seconds) is for the whole reading: once it has run out nothing more is started, because a driver that
    hangs would only hang the next caller too. Without ``minors`` a minor that /proc does not tell stays unknown.
    Raises CommandError (``timeout``, ``not_installed``) and DriverError with reason, rc, stdout and stderr.
    """
    limit = _TimeLimit(runner, timeout, clock)

    def ask_nvidia_smi(arguments: Sequence[str]) -> Completed:
        argv = [nvidia_smi_path, *arguments]
        return limit.run(argv, " ".join(argv))

    def ask_nvml(argv: Sequence[str]) -> Completed:
        return limit.run(argv, "NVML (nvidia-ml-py)")

    reading, nvml_error = None, None
    if backend == "nvml" or (backend == "auto" and has_nvml_binding() and has_nvml_library()):
        # Only here: most machines have no nvidia-ml-py, and every import costs a module that has nothing to do.
        from ansible_collections.gpuops.inference.plugins.module_utils import _nvml

        try:
            reading = _nvml.read(ask_nvml, processes=processes)
        except GpuopsError as exc:
            if backend == "nvml" or exc.reason == "timeout":
                raise
            nvml_error = exc.message
    if reading is None:
        try:
            reading = _nvidia_smi.read(ask_nvidia_smi, processes=processes)
        except GpuopsError as exc:
            if nvml_error is not None:
                exc.fields["nvml_error"] = nvml_error
            raise
    reading = join_proc(reading, cards_in_proc(proc_root), device_directory)
    without = [gpu for gpu in reading.gpus if gpu.minor is None and gpu.error is None and gpu.pci_bus_id is not None]
    if not minors or not without or reading.backend != "nvidia_smi":
        return reading
    return _with_minors(reading, _nvidia_smi.read_minors(ask_nvidia_smi, without))


def has_nvml_binding() -> bool:
    """Whether pynvml is there for this interpreter at all. Costs a look into the search path, not a process."""
    try:
        return bool(sys.executable) and importlib.util.find_spec("pynvml") is not None
    except (ImportError, ValueError):
        return False


def has_nvml_library() -> bool:
    """Whether the driver's library can be loaded here. That alone does not talk to the driver, so it cannot hang."""
    import ctypes  # only here: most machines without nvidia-ml-py never need it

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


class _TimeLimit:
    """Runs commands within one time limit (seconds) for all of them together."""

    def __init__(self, runner: Runner, timeout: float, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._timeout = timeout
        self._clock = clock
        self._end = clock() + timeout

    def run(self, argv: Sequence[str], name: str) -> Completed:
        """Raises CommandError ``timeout``, also without starting anything when no time is left."""
        seconds = self._end - self._clock()
        if seconds <= 0:
            raise self._too_slow(name, "It was not started.")
        try:
            return self._runner.run(argv, timeout=seconds)
        except CommandError as exc:
            if exc.reason != "timeout":
                raise
            unkillable = bool(exc.fields.get("unkillable"))
            ending = "It is unkillable (D state), and was left behind." if unkillable else "It was killed."
            raise self._too_slow(name, ending, unkillable=unkillable) from exc

    def _too_slow(self, name: str, ending: str, *, unkillable: bool = False) -> CommandError:
        return CommandError(
            f"The driver gave no answer to {name} within {self._timeout:g} s. {ending} A driver that hangs leaves Xid "
            "messages in the kernel log and needs a reboot; if it is merely slow, raise timeout.",
            reason="timeout",
            unkillable=unkillable,
        )


class ProcCard(NamedTuple):
    """A card that the kernel module has. ``excluded``: the administrator keeps it from being used."""

    pci_bus_id: str
    minor: Optional[int]
    excluded: bool


def cards_in_proc(proc_root: str) -> tuple[ProcCard, ...]:
    """What the kernel module itself says (/proc/driver/nvidia/gpus/BUS-ID/information). Empty where there is none."""
    directory = os.path.join(proc_root, "driver", "nvidia", "gpus")
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ()
    cards = []
    for name in names:
        bus_id = normal_bus_id(name)
        if bus_id is not None:
            text = _text(os.path.join(directory, name, "information"))
            minor = _MINOR.search(text)
            cards.append(ProcCard(bus_id, int(minor[1]) if minor else None, bool(_EXCLUDED.search(text))))
    return tuple(cards)


def join_proc(reading: DriverReading, cards: Sequence[ProcCard], device_directory: str) -> DriverReading:
    """Add the minors, and the cards that the tools silently leave out, as unknown ones.

    A card whose start failed is not listed by NVML at all. In a container a card without a node is none of ours.
    """
    reading = _with_minors(reading, {card.pci_bus_id: card.minor for card in cards if card.minor is not None})
    known = {gpu.pci_bus_id for gpu in reading.gpus}
    if None in known:
        # A card without a bus id may be any of them.
        return reading
    error = GpuError("not_listed", "The kernel module has this card, but the driver does not list it.")
    silent = [
        replace(unreadable_gpu(error, pci_bus_id=card.pci_bus_id), minor=card.minor)
        for card in cards
        if card.pci_bus_id not in known
        and not card.excluded
        and card.minor is not None
        and os.path.exists(os.path.join(device_directory, f"nvidia{card.minor}"))
    ]
    return reading._replace(gpus=in_order([*reading.gpus, *silent]))


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as stream:
            return stream.read()
    except OSError:
        return ""


def _with_minors(reading: DriverReading, minors: dict[str, int]) -> DriverReading:
    """Joined by bus id, never by position: the minor is not the index."""
    gpus = (replace(gpu, minor=minors.get(gpu.pci_bus_id or "", gpu.minor)) for gpu in reading.gpus)
    return reading._replace(gpus=tuple(gpus))
