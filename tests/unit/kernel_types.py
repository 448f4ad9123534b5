"""Writes a kernel's description of its types (Documentation/bpf/btf.rst), as short as a test wants it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

TEXTS = b"\0".join(
    [
        *[b"", b"walk", b"bpf_iter_task_file", b"bpf_iter_task_vma"],
        *[b"file", b"f_inode", b"f_mode", b"inode", b"i_mode", b"i_ino", b"i_rdev"],
        *[b"task_struct", b"pid", b"tgid", b"vm_area_struct", b"vm_file"],
        *[b"bpf_iter_seq_task_vma_info", b"task", b"mm", b"vma", b""],
    ]
)

STRUCTURE, TYPEDEF, FUNCTION, FUNCTION_TYPE, INTEGER, ARRAY, ENUMERATION, ENUMERATION_64 = 4, 8, 12, 13, 1, 3, 6, 19


def name(text: str) -> int:
    """Its place among the texts."""
    return TEXTS.index(b"\0" + text.encode() + b"\0") + 1 if text else 0


def one(text: str, kind: int, size: int = 0, members: int = 0, further: Sequence[int] = (), flag: int = 0) -> bytes:
    """One type. ``further``: the words that follow its three."""
    return struct.pack(f"={3 + len(further)}I", name(text), flag << 31 | kind << 24 | members, size, *further)


def structure(text: str, offsets: dict[str, int], flag: int = 0) -> bytes:
    """A structure whose members begin at these bits."""
    further = [word for member, bits in offsets.items() for word in (name(member), 0, bits)]
    return one(text, STRUCTURE, 64, len(offsets), further, flag)


def described(*types: bytes, magic: int = 0xEB9F) -> bytes:
    """The description, as the kernel gives it."""
    body = b"".join(types)
    return struct.pack("=HBBIIIII", magic, 1, 0, 24, 0, len(body), len(body), len(TEXTS)) + body + TEXTS
