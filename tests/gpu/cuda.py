"""As much of CUDA's driver interface as it takes to hold memory: libcuda.so.1 through ctypes.

The names are those of cuda.h that have stayed the same since CUDA 4. The context is the device's primary one, because
cuCtxCreate has changed its arguments twice.
"""

from __future__ import annotations

import ctypes

_MIB = 1024 * 1024
_COPY_BYTES = 64 * _MIB


class CudaError(RuntimeError):
    """The library is not there, or one of its functions failed: which, and what it said."""


class Cuda:
    """CUDA in this process. Raises CudaError where there is no driver or no card."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as exc:
            raise CudaError(str(exc)) from exc
        self._call("cuInit", ctypes.c_uint(0))

    def bus_ids(self) -> list[str]:
        """The cards that this process can see, by CUDA ordinal, as 0000:0f:00.0."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        found = []
        for ordinal in range(count.value):
            text = ctypes.create_string_buffer(32)
            self._call("cuDeviceGetPCIBusId", text, ctypes.c_int(32), self._device(ordinal))
            found.append(text.value.decode().lower())
        return found

    def make_context(self, ordinal: int) -> None:
        """A context on the card, current in this thread, as any framework makes it."""
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(ordinal))
        self._call("cuCtxSetCurrent", context)

    def allocate(self, mib: int) -> list[ctypes.c_uint64]:
        """Take memory and write to it. Returns two addresses in it, far enough apart for a copy, and keeps it."""
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(mib * _MIB)
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), size)
        self._call("cuCtxSynchronize")
        return [address, ctypes.c_uint64(address.value + mib * _MIB - _COPY_BYTES)]

    def copy_for_ever(self, source: ctypes.c_uint64, target: ctypes.c_uint64) -> None:
        """Keep the card busy until this process is ended."""
        while True:
            for _copy in range(100):
                self._call("cuMemcpyDtoD_v2", target, source, ctypes.c_size_t(_COPY_BYTES))
            self._call("cuCtxSynchronize")

    def _device(self, ordinal: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        return device

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
            said = (text.value or b"an error without a text").decode()
            raise CudaError(f"{name}: {said} ({code})")
