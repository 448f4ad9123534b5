# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The core of nvidia_gpu_reset: cards that hold memory of nobody are reset, and looked at again.

A reset takes a card away from whoever has it open, so it is sent only where everyone was looked at and nobody has.
Persistence mode keeps a card open too. It is switched off for the reset, which also makes a persistence daemon let go
of that card, and put back whatever comes of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import (
    DRIVER,
    Device,
    card_device,
    find_holders,
)
from ansible_collections.gpuops.inference.plugins.module_utils._driver import read_driver
from ansible_collections.gpuops.inference.plugins.module_utils._errors import (
    CommandError,
    DriverError,
    GpuopsError,
    InputError,
    SurvivorsError,
)
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import (
    DriverReading,
    Gpu,
    memory_state,
    select_gpus,
)
from ansible_collections.gpuops.inference.plugins.module_utils._interruption import interruption_deferred
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._reset_report import reset_result
from ansible_collections.gpuops.inference.plugins.module_utils._reset_tool import ResetTool, names, parse_reset, said
from ansible_collections.gpuops.inference.plugins.module_utils._results import describe, process_result

# The kernel cuts names at 15 characters.
_PERSISTENCE_DAEMON = "nvidia-persiste"

# Seconds between two looks at something that takes its time.
_INTERVAL = 0.25


class ResetRequest(NamedTuple):
    """What the operator asked for. Memory in MiB, times in seconds. No ``gpus`` means no card.

    ``driver_timeout`` is for each question to the driver, ``reset_timeout`` for the reset itself, ``settle_timeout``
    for what a persistence daemon needs to let go before it, and the cards until they are idle after it.
    """

    gpus: Sequence[str]
    idle_memory_mib: int
    device_directory: str
    backend: str
    nvidia_smi_path: str
    driver_timeout: float
    reset_timeout: float
    settle_timeout: float


class Look(NamedTuple):
    """The driver's answer, and the cards of it that are meant."""

    reading: DriverReading
    gpus: tuple[Gpu, ...]


def reset(request: ResetRequest, machine: Machine) -> dict[str, Any]:
    """Reset those of the cards that are not idle, and look again. Returns the module's result.

    Raises, with nothing reset: InputError, CommandError and DriverError; SurvivorsError ``held`` when somebody has a
    card open. Raises with the whole result: DriverError when the tool refuses or a card that was reset is not idle.
    """
    if request.idle_memory_mib < 0:
        raise InputError(f"idle_memory_mib is {request.idle_memory_mib}. Give 0 or more MiB.")
    if not request.gpus:
        return reset_result((), idle_memory_mib=request.idle_memory_mib)
    look = _look(request, machine)
    wanted = [gpu for gpu in look.gpus if not _is_idle(gpu, request)]
    if not wanted:
        return reset_result(look.gpus, after=look.gpus, idle_memory_mib=request.idle_memory_mib)
    return _Attempt(request, machine, look, wanted).run()


class _Attempt:
    """One reset of the cards ``wanted``, of those that were looked at."""

    def __init__(self, request: ResetRequest, machine: Machine, look: Look, wanted: Sequence[Gpu]) -> None:
        self._request = request
        self._machine = machine
        self._look = look
        self._wanted = wanted
        self._devices = [_device(gpu, request) for gpu in wanted]
        self._tool = ResetTool(machine.runner, request.nvidia_smi_path, request.driver_timeout, request.reset_timeout)
        self._persistent = self._tool.persistent(wanted)

    def run(self) -> dict[str, Any]:
        """See reset()."""
        _refuse_held(self._wanted, [one for one in self._holders() if not (self._persistent and _is_daemon(one))])
        if self._machine.dry_run:
            return self._report(self._wanted)
        # Whoever cancels the job in between must not leave persistence mode off.
        with interruption_deferred():
            sent, trouble, warnings = self._send()
        after = None
        # After a tool that gave no answer, the driver gives none either.
        if sent and not isinstance(trouble, CommandError):
            after = self._settled(sent)
            trouble = trouble or self._still_busy(sent, after)
        result = self._report(sent, after, warnings)
        if trouble is not None:
            trouble.message = " ".join([trouble.message, *result.pop("warnings")])
            trouble.fields = {**result, **trouble.fields}
            raise trouble
        return result

    def _send(self) -> tuple[Sequence[Gpu], Optional[GpuopsError], list[str]]:
        """Persistence mode off, a last look, the reset, persistence mode back.

        Returns the cards to which it was sent and not refused, what went wrong, and warnings.
        """
        sent: Sequence[Gpu] = ()
        trouble: Optional[GpuopsError] = None
        warnings: list[str] = []
        try:
            if self._persistent:
                self._let_go()
            # A reset that gives no answer may be under way all the same.
            sent = self._wanted
            completed = self._tool.reset(self._wanted)
            answer = parse_reset(completed)
            refused = [gpu for gpu in self._wanted if gpu.pci_bus_id not in answer.done]
            if answer.reason is not None and refused:
                sent = [gpu for gpu in self._wanted if gpu not in refused]
                trouble = DriverError(
                    f"{_were(refused)} not reset. nvidia-smi said: {answer.said}",
                    reason=answer.reason,
                    cmd=list(completed.argv),
                    rc=completed.rc,
                    stdout=completed.stdout,
                    stderr=completed.stderr,
                )
        except GpuopsError as exc:
            trouble = exc
        finally:
            warnings.extend(self._persist_again())
        return sent, trouble, warnings

    def _let_go(self) -> None:
        """Switch persistence mode off. Raises SurvivorsError when somebody still has a card open: its daemon."""
        completed = self._tool.persist(self._persistent, on=False)
        if completed.rc != 0:
            raise DriverError(
                f"{_were(self._wanted)} not reset: persistence mode keeps a card open, and could not be switched off. "
                f"nvidia-smi said: {said(completed)}",
                reason="persistence_mode",
            )
        end = self._machine.clock.now() + self._request.settle_timeout
        holders = self._holders()
        while any(map(_is_daemon, holders)) and self._machine.clock.now() < end:
            self._machine.clock.sleep(_INTERVAL)
            holders = self._holders()
        _refuse_held(self._wanted, holders)

    def _persist_again(self) -> list[str]:
        """Put persistence mode back and see that it is. Returns a warning where it is not."""
        if not self._persistent:
            return []
        try:
            answer = said(self._tool.persist(self._persistent, on=True))
            on = self._tool.persistent(self._persistent)
        except GpuopsError as exc:
            answer, on = exc.message, []
        off = names([gpu for gpu in self._persistent if gpu not in on])
        if not off:
            return []
        return [
            f"Persistence mode of GPU {off} was on before, and could not be switched on again: {answer} "
            f"Do it by hand: nvidia-smi -pm 1 -i {off}"
        ]

    def _holders(self) -> list[dict[str, Any]]:
        """Whoever has one of the cards open, or is listed on it. Raises DriverError where one may be overlooked.

        A process that is being torn down has no handle any more, but the driver still lists it.
        """
        procfs, reading = self._machine.procfs, self._look.reading
        scan = find_holders(self._devices, None, procfs)
        doubts = (
            (not procfs.in_host_pid_namespace(), "this is not the machine's own pid namespace"),
            (scan.unreadable > 0, scan.doubt),
            (reading.compute_processes is None, "the driver does not list who computes on the cards"),
            (reading.invalid_pids > 0, f"the driver lists {reading.invalid_pids} that it gives no possible pid for"),
        )
        doubt = next((words for there, words in doubts if there), None)
        if doubt is not None:
            raise DriverError(
                f"{_were(self._wanted)} not reset, because one who has it open may have been overlooked: {doubt}.",
                reason="holders_unknown",
            )
        found = [
            process_result(one.process, procfs, gpus=sorted(one.gpus), evidence=one.evidence_list)
            for one in scan.holders
        ]
        pids = {one["pid"] for one in found}
        indices = {gpu.uuid: gpu.index for gpu in self._wanted if gpu.uuid is not None}
        for listed in reading.compute_processes or ():
            process = procfs.process(listed.pid) if listed.gpu_uuid in indices else None
            if process is not None and not process.gone and process.pid not in pids:
                gpus = [indices[listed.gpu_uuid]]
                found.append(process_result(process, procfs, gpus=gpus, evidence=[DRIVER]))
        return found

    def _settled(self, sent: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """The cards, as soon as those that were reset are idle, or when the time is over."""
        end = self._machine.clock.now() + self._request.settle_timeout
        while True:
            try:
                after = _look(self._request, self._machine).gpus
            except GpuopsError as exc:
                exc.message = f"{_were(sent)} reset, but then the cards could not be read. {exc.message}"
                exc.fields.update(self._report(sent))
                raise
            if not self._busy(sent, after) or self._machine.clock.now() >= end:
                return after
            self._machine.clock.sleep(_INTERVAL)

    def _busy(self, sent: Sequence[Gpu], after: Sequence[Gpu]) -> list[Gpu]:
        places = [_place(gpu) for gpu in sent]
        return [gpu for gpu in after if _place(gpu) in places and not _is_idle(gpu, self._request)]

    def _still_busy(self, sent: Sequence[Gpu], after: Sequence[Gpu]) -> Optional[GpuopsError]:
        busy = self._busy(sent, after)
        if not busy:
            return None
        used = ", ".join("unreadable" if one.memory_used_mib is None else f"{one.memory_used_mib} MiB" for one in busy)
        return DriverError(
            f"nvidia-smi says that {_were(busy)} reset, but what it holds now is {used}. Reboot the machine.",
            reason="still_busy",
        )

    def _report(
        self, sent: Sequence[Gpu], after: Optional[Sequence[Gpu]] = None, warnings: Sequence[str] = ()
    ) -> dict[str, Any]:
        return reset_result(
            self._look.gpus, sent, after, self._persistent, warnings, idle_memory_mib=self._request.idle_memory_mib
        )


def _look(request: ResetRequest, machine: Machine) -> Look:
    reading = read_driver(
        runner=machine.runner,
        backend=request.backend,
        nvidia_smi_path=request.nvidia_smi_path,
        timeout=request.driver_timeout,
        proc_root=machine.procfs.root,
        device_directory=request.device_directory,
    )
    return Look(reading, select_gpus(reading.gpus, request.gpus))


def _device(gpu: Gpu, request: ResetRequest) -> Device:
    if gpu.minor is None:
        raise DriverError(
            f"Which device node belongs to GPU {gpu.label} is not known (/proc/driver/nvidia and nvidia-smi -q were "
            "asked), so it cannot be seen who has it open. Nothing was reset.",
            reason="minor_unknown",
        )
    return card_device(request.device_directory, gpu.minor, gpu.index, gpu.label)


def _is_idle(gpu: Gpu, request: ResetRequest) -> bool:
    return memory_state(gpu, request.idle_memory_mib) == "idle"


def _is_daemon(holder: dict[str, Any]) -> bool:
    return bool(holder["name"].startswith(_PERSISTENCE_DAEMON))


def _refuse_held(wanted: Sequence[Gpu], holders: list[dict[str, Any]]) -> None:
    """Raise SurvivorsError, which names them, when somebody has a card open."""
    if not holders:
        return
    has, them = ("has", "it") if len(holders) == 1 else ("have", "them")
    hint = ""
    if any(map(_is_daemon, holders)):
        hint = " A persistence daemon lets go where persistence mode is off; one that does not has to be stopped."
    raise SurvivorsError(
        f"{_were(wanted)} not reset: a reset takes a card away from whoever has it open, and "
        f"{', '.join(map(describe, holders))} {has}. End {them} first.{hint}",
        reason="held",
        holders=holders,
    )


def _place(gpu: Gpu) -> Any:
    """What stays the same of a card, whatever a reset does."""
    return gpu.pci_bus_id or gpu.uuid or gpu.index


def _were(gpus: Sequence[Gpu]) -> str:
    """``GPU 1 (0000:0f:00.0) was`` or ``GPU 1,3 were``."""
    return f"GPU {gpus[0].label} was" if len(gpus) == 1 else f"GPU {names(gpus)} were"
