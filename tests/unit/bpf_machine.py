"""The machine that runs programs inside the kernel, as RFC 9669 describes it, with a memory of a few pages.

What lies at address 0 reads as 0, as it does for programs that follow the kernel's own pointers.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

STACK_SIZE = 512
SEQ_WRITE = 127
_SIZES = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}
_MASK = (1 << 64) - 1


class Instruction(NamedTuple):
    """One of 8 bytes."""

    operation: int
    target: int
    source: int
    offset: int
    number: int


def decode(code: bytes) -> list[Instruction]:
    """The instructions. The registers share a byte, the target in its lower half."""
    return [
        Instruction(operation, registers & 15, registers >> 4, offset, number)
        for operation, registers, offset, number in struct.iter_unpack("<BBhi", code)
    ]


class Machine:
    """Memory begins at ``BASE``; the stack lies behind it."""

    BASE = 0x10000

    def __init__(self, memory: bytes) -> None:
        self.memory = bytearray(memory) + bytearray(STACK_SIZE)
        self.said = b""

    def run(self, code: bytes, context: int) -> int:
        """Run it as the kernel does for one entry; what it returns."""
        program = decode(code)
        registers = [0] * 11
        registers[1], registers[10] = context, self.BASE + len(self.memory)
        place = 0
        while True:
            one = program[place]
            place += 1
            kind = one.operation & 7
            if one.operation == 0x95:
                return registers[0]
            if one.operation == 0x85:
                assert one.number == SEQ_WRITE
                self.said += self._bytes(registers[2], registers[3])
                registers[0:6] = [0] * 6
            elif one.operation == 0x18:
                registers[one.target] = (one.number & 0xFFFFFFFF) | (program[place].number & 0xFFFFFFFF) << 32
                place += 1
            elif kind == 1:
                size = _SIZES[one.operation & 0x18]
                raw = self._bytes(registers[one.source] + one.offset, size)
                registers[one.target] = int.from_bytes(raw, "little")
            elif kind == 3:
                size = _SIZES[one.operation & 0x18]
                start = registers[one.target] + one.offset - self.BASE
                assert len(self.memory) - STACK_SIZE <= start <= len(self.memory) - size, "only the stack is written to"
                assert start % size == 0
                self.memory[start : start + size] = (registers[one.source] & _MASK).to_bytes(8, "little")[:size]
            elif kind == 7:
                value = registers[one.source] if one.operation & 8 else one.number
                result = {0x00: registers[one.target] + value, 0xB0: value}[one.operation & 0xF0]
                registers[one.target] = result & _MASK
            else:
                place += one.offset if self._jumps(one, registers) else 0

    def _jumps(self, one: Instruction, registers: list[int]) -> bool:
        assert one.offset >= 0, "the kernel takes no way back"
        if one.operation == 0x05:
            return True
        mask = 0xFFFFFFFF if one.operation & 7 == 6 else _MASK
        other = registers[one.source] if one.operation & 8 else one.number
        assert one.operation & 0xF0 == 0x10
        return registers[one.target] & mask == other & mask

    def _bytes(self, address: int, size: int) -> bytes:
        if address < 4096:
            return bytes(size)
        start = address - self.BASE
        assert 0 <= start <= len(self.memory) - size, hex(address)
        return bytes(self.memory[start : start + size])
