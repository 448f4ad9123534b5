"""What a server keeps in the /dev/shm of its container, and leaves there when it is killed (names: field facts)."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets

DIRECTORY = "/dev/shm"
_KIB = 1024

_mapped: list[mmap.mmap] = []
"""What this process has mapped, until it ends; its children inherit it."""


def make(name: str, size: int, *, keep: bool = True) -> str:
    """Make a segment of so many bytes, all of them in memory, and return its name.

    `keep`: it stays mapped, without a handle, as NCCL has it; otherwise this process only knows its name.
    """
    handle = os.open(os.path.join(DIRECTORY, name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb+") as stream:
        os.ftruncate(handle, size)
        os.pwrite(handle, b"\1" * size, 0)
        if keep:
            _mapped.append(mmap.mmap(stream.fileno(), size))
    return name


def make_of_server() -> list[str]:
    """Those of the parent. What it maps before it forks, its ranks have mapped as well."""
    return [
        make("multi_tokenizer_args_%d" % os.getpid(), 4 * _KIB, keep=False),
        make("psm_" + secrets.token_hex(4), 256 * _KIB),
        make("nccl-" + secrets.token_hex(3), 1024 * _KIB),
        make("sem.mp-" + secrets.token_hex(4), 4 * _KIB),
    ]


def make_of_rank(rank: int) -> None:
    """Those of one rank; each has its process id in its name, in CUDA's in hexadecimal."""
    make("sgl_shm_mm_%d_%s" % (os.getpid(), secrets.token_hex(4)), 128 * _KIB)
    if rank == 0:
        make("cuda.shm.0.%x.1" % os.getpid(), 4 * _KIB)


def remove(names: list[str], children: list[int]) -> None:
    """What a server does that ends in peace: nothing of it, nor of its ranks, stays."""
    marks = {mark for pid in children for mark in ("%d" % pid, "%x" % pid)}
    for name in os.listdir(DIRECTORY):
        if name in names or marks & set(name.replace(".", "_").split("_")):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(DIRECTORY, name))
