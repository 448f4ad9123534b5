"""As much of NVML as it takes to watch: libnvidia-ml.so.1 through ctypes, shapes and names as in nvml.h."""

from __future__ import annotations

import ctypes
from typing import Any

_MIB = 1024 * 1024
_MOST_PROCESSES = 256


class NvmlError(RuntimeError):
    """The library is not there, or one of its functions failed: which, and its code."""


class _Pci(ctypes.Structure):
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "device_id", "subsystem_id")),
        ("bus_id", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    """nvmlMemory_t; ``used`` counts the driver's reserve."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t since version 2 of the call."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """NVML in this process, as a monitor has it. Raises NvmlError."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as exc:
            raise NvmlError(str(exc)) from exc
        self._call("nvmlInit_v2")

    def cards(self) -> list[dict[str, Any]]:
        """Every card: ``index``, ``minor``, ``pci_bus_id``, ``used_mib`` and the ``pids`` that compute on it."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self.card(index) for index in range(count.value)]

    def card(self, index: int) -> dict[str, Any]:
        """One card. See cards."""
        handle, pci, minor = self._handle(index), _Pci(), ctypes.c_uint()
        self._call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        self._call("nvmlDeviceGetMinorNumber", handle, ctypes.byref(minor))
        return {
            "index": index,
            "minor": minor.value,
            "pci_bus_id": pci.bus_id.decode().lower(),
            "used_mib": self.used_mib(index),
            "pids": self._pids(handle),
        }

    def used_mib(self, index: int) -> float:
        """Memory in use, the driver's reserve included."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle(index), ctypes.byref(memory))
        return float(memory.used) / _MIB

    def _pids(self, handle: ctypes.c_void_p) -> list[int]:
        count = ctypes.c_uint(_MOST_PROCESSES)
        found = (_Process * _MOST_PROCESSES)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), found)
        return sorted(one.pid for one in found[: count.value])

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def _call(self, name: str, *arguments: object) -> None:
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError as exc:
            raise NvmlError(f"this driver has no {name}") from exc
        if code:
            raise NvmlError(f"{name} failed with {code}")
