# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes programs for the machine inside the kernel, as far as one that only reads and compares needs it.

The encoding is that of RFC 9669 (BPF Instruction Set Architecture), for machines whose lowest byte comes first.
"""

from __future__ import annotations

import struct

# What a call returns; its arguments; three that calls leave alone; the top of the stack, of which 512 bytes are ours.
R0, R1, R2, R3, R6, R7, R8, STACK = 0, 1, 2, 3, 6, 7, 8, 10

_LOAD = {2: 0x69, 4: 0x61, 8: 0x79}
_STORE = {4: 0x63, 8: 0x7B}
_COPY, _COPY_NUMBER, _ADD_NUMBER, _LONG_NUMBER = 0xBF, 0xB7, 0x07, 0x18
_JUMP, _JUMP_IF_NUMBER_32, _JUMP_IF_NUMBER, _JUMP_IF_SAME = 0x05, 0x16, 0x15, 0x1D
_CALL, _EXIT = 0x85, 0x95

# The helper of the kernel that hands bytes to whoever reads; include/uapi/linux/bpf.h.
_SEQ_WRITE = 127


class Program:
    """Instructions in the making. All jumps go forward, to labels."""

    def __init__(self) -> None:
        self._code: list[bytes] = []
        self._jumps: list[tuple[int, str]] = []
        self._labels: dict[str, int] = {}

    def copy(self, target: int, source: int) -> None:
        """Copy a register."""
        self._add(_COPY, target, source)

    def set(self, target: int, number: int) -> None:
        """Set a register to a number of up to 64 bits."""
        self._add(_LONG_NUMBER, target, number=number & 0xFFFFFFFF)
        self._add(0, number=number >> 32)

    def load(self, target: int, source: int, offset: int, size: int = 8) -> None:
        """Read ``size`` bytes, ``offset`` bytes behind where the register ``source`` points to."""
        self._add(_LOAD[size], target, source, offset)

    def store(self, offset: int, source: int, size: int = 8) -> None:
        """Write a register to the stack; ``offset`` is negative."""
        self._add(_STORE[size], STACK, source, offset)

    def jump(self, label: str) -> None:
        """Go on at a label."""
        self._jump(_JUMP, label)

    def jump_if_null(self, register: int, label: str) -> None:
        """Go on at a label where a pointer points nowhere."""
        self._jump(_JUMP_IF_NUMBER, label, register)

    def jump_if(self, register: int, number: int, label: str) -> None:
        """Go on at a label where the lower 4 bytes of a register are this number."""
        self._jump(_JUMP_IF_NUMBER_32, label, register, number=number)

    def jump_if_same(self, register: int, other: int, label: str) -> None:
        """Go on at a label where two registers are equal."""
        self._jump(_JUMP_IF_SAME, label, register, other)

    def write_out(self, sequence: int, offset: int) -> None:
        """Hand the stack, from ``offset`` to its top, to whoever reads ``sequence``, a register."""
        self.copy(R1, sequence)
        self.copy(R2, STACK)
        self._add(_ADD_NUMBER, R2, number=offset & 0xFFFFFFFF)
        self._add(_COPY_NUMBER, R3, number=-offset)
        self._add(_CALL, number=_SEQ_WRITE)

    def label(self, name: str) -> None:
        """Name the instruction that follows."""
        self._labels[name] = len(self._code)

    def end(self) -> None:
        """Be done with this call, and be called for the next thing."""
        self._add(_COPY_NUMBER, R0)
        self._add(_EXIT)

    def code(self) -> bytes:
        """The instructions, 8 bytes each."""
        code = list(self._code)
        for place, label in self._jumps:
            way = struct.pack("<h", self._labels[label] - place - 1)
            code[place] = code[place][:2] + way + code[place][4:]
        return b"".join(code)

    def _jump(self, operation: int, label: str, register: int = 0, other: int = 0, number: int = 0) -> None:
        self._jumps.append((len(self._code), label))
        self._add(operation, register, other, number=number)

    def _add(self, operation: int, target: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> None:
        self._code.append(struct.pack("<BBhI", operation, target | source << 4, offset, number))
