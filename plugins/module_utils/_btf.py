# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's own description of its types: where a member of a structure lies, and the number of a function.

The format is the BPF Type Format of Documentation/bpf/btf.rst, as /sys/kernel/btf/vmlinux has it (Linux 5.4).
"""

from __future__ import annotations

import struct
from typing import Any, Iterable, Optional

_MAGIC = 0xEB9F
_HEADER = struct.Struct("=HBBIIIII")

# A type is three words: its name, its kind and number of members, its size or what it refers to. What follows has, by
# kind, so many words, and so many for each member.
_FURTHER_WORDS = {1: 1, 3: 3, 14: 1, 17: 1}
_WORDS_A_MEMBER = {4: 3, 5: 3, 6: 2, 13: 2, 15: 3, 19: 3}
_KINDS = 20
_STRUCTURE, _FUNCTION = 4, 12


class UnknownTypesError(Exception):
    """The description is not as this code knows it, or lacks what was asked for."""


class KernelTypes:
    """The structures and functions of these names, out of a whole description of some 100,000 types."""

    def __init__(self, description: bytes, names: Iterable[str]) -> None:
        """Raises UnknownTypesError where the description cannot be read."""
        try:
            magic, _version, _flags, length, types, types_length, texts, texts_length = _HEADER.unpack_from(description)
            if magic != _MAGIC:
                raise UnknownTypesError("no description of types")
            self._texts = description[length + texts : length + texts + texts_length]
            self._words = memoryview(description)[length + types : length + types + types_length].cast("I")
            self._found = self._find({self._place_of(name): name for name in names})
        except (struct.error, ValueError, IndexError, TypeError) as exc:
            raise UnknownTypesError(str(exc)) from exc

    def function(self, name: str) -> int:
        """The number of a function's type."""
        return _only({number for number, _place in self._get(name, _FUNCTION)}, name)

    def offset(self, structure: str, member: str) -> int:
        """Where a member begins, in bytes from the beginning of its structure."""
        places = (place for _number, place in self._get(structure, _STRUCTURE))
        return _only({self._offset(place, member) for place in places}, f"{structure}.{member}")

    def _offset(self, at: int, member: str) -> Optional[int]:
        words = self._words
        # In bits. Where the structure has fields of bits, the upper byte is such a field's size.
        mask = 0xFFFFFF if words[at + 1] >> 31 else 0xFFFFFFFF
        members = words[at + 3 : at + 3 + 3 * (words[at + 1] & 0xFFFF)].tolist()
        for text, bits in zip(members[::3], members[2::3]):
            if self._texts.startswith(member.encode("ascii") + b"\0", text):
                return int(bits & mask) // 8
        return None

    def _get(self, name: str, kind: int) -> list[tuple[int, int]]:
        return self._found.get((name, kind), [])

    def _find(self, names: dict[int, str]) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """Number and place of the types that have one of the names, by name and kind. There can be several."""
        further = [_FURTHER_WORDS.get(kind, 0) for kind in range(_KINDS)]
        a_member = [_WORDS_A_MEMBER.get(kind, 0) for kind in range(_KINDS)]
        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        words, at, number, end = self._words, 0, 1, len(self._words)
        while at < end:
            kind = words[at + 1] >> 24 & 31
            if words[at] in names:
                found.setdefault((names[words[at]], kind), []).append((number, at))
            # How long one of another kind is nobody knows: IndexError.
            at += 3 + further[kind] + a_member[kind] * (words[at + 1] & 0xFFFF)
            number += 1
        return found

    def _place_of(self, text: str) -> int:
        return self._texts.index(b"\0" + text.encode("ascii") + b"\0") + 1


def _only(answers: set[Any], what: str) -> int:
    """The one that there is. Raises UnknownTypesError where there is none, or several that differ."""
    if len(answers) != 1 or answers == {None}:
        raise UnknownTypesError(f"{what}: {len(answers - {None})} answers")
    return int(answers.pop())
