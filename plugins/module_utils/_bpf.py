# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has the kernel run a program over each entry of one of its own tables (a BPF iterator, Linux 5.8).

The kernel takes a program only after it has proven that it ends and does nothing but read. It is forgotten with the
handles on it, which end with us at the latest. Numbers are those of include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

# The system call. Elsewhere, and for programs of 32 bits, there is none that is known here.
_SYSTEM_CALLS = {"x86_64": 321, "aarch64": 280}

_PROG_LOAD, _LINK_CREATE, _ITER_CREATE = 5, 28, 33
_TRACING, _ITERATOR = 26, 28
# What a program must be under that hands anything out. This one is.
_LICENCE = b"GPL"
_NAME = b"gpuops"

# union bpf_attr: that of a program up to attach_btf_id, of a link up to its flags, of an iterator.
_PROGRAM = struct.Struct("=IIQQIIQII16sIIIIQIIQII")
_LINK = struct.Struct("=IIII")
_ITERATION = struct.Struct("=II")


def iterate(code: bytes, table: int) -> bytes:
    """All that the program says about the table, whose number is that of the type of ``bpf_iter_TABLE``.

    Raises OSError where the kernel has no such thing, or does not let us.
    """
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(_LICENCE)
    program = _bpf(
        _PROG_LOAD,
        _PROGRAM.pack(
            *(_TRACING, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(licence), 0, 0, 0, 0, 0),
            *(_NAME, 0, _ITERATOR, 0, 0, 0, 0, 0, 0, 0, table),
        ),
    )
    try:
        link = _bpf(_LINK_CREATE, _LINK.pack(program, 0, _ITERATOR, 0))
    finally:
        os.close(program)
    try:
        iterator = _bpf(_ITER_CREATE, _ITERATION.pack(link, 0))
    finally:
        os.close(link)
    try:
        return _read(iterator)
    finally:
        os.close(iterator)


def _read(iterator: int) -> bytes:
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(iterator, 65536)
        except BlockingIOError:
            # After a million entries without a word the kernel asks whether it shall go on.
            continue
        if not part:
            return b"".join(parts)
        parts.append(part)


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSTEM_CALLS.get(platform.machine())
    if number is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError("no bpf() is known for this machine")
    union = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.syscall(ctypes.c_long(number), ctypes.c_int(command), union, ctypes.c_uint(len(attributes)))
    if handle < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(handle)
