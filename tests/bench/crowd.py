"""A crowd of processes, each with so many handles, in which a holder has to be found.

`python crowd.py PROCESSES HANDLES` makes them, says so, and waits for the end of its input. Nothing else keeps them:
each reads a pipe that only the first of them can write to, and ends when that has ended, however it came to that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Standard input, output and error, and the pipe.
_FIXED = 4


@contextlib.contextmanager
def crowd(processes: int, handles: int) -> Iterator[None]:
    """So many processes with so many handles each. All are gone afterwards."""
    # -S and -I: little is imported, so little is mapped, as in a small program.
    argv = [sys.executable, "-S", "-I", str(Path(__file__)), str(processes), str(handles)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as first:
        assert first.stdout is not None
        try:
            if not first.stdout.readline():
                raise SystemExit(
                    f"{processes} processes could not be started. Raise the limit on processes (ulimit -u)."
                )
            yield
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            # Each holds the pipe, so it ends when the last of them does.
            first.stdout.read()


def _main() -> None:
    processes, handles = map(int, sys.argv[1:])
    wait, keep = os.pipe()
    hear, say = os.pipe()
    for _one in range(processes):
        if os.fork() == 0:
            for first_s in (keep, hear):
                os.close(first_s)
            kept = _open(handles - _FIXED)
            os.write(say, b".")
            os.close(say)
            os.read(wait, 1)
            os._exit(len(kept) > 0)
    missing = processes
    while missing:
        missing -= len(os.read(hear, missing))
    os.write(1, b"ready\n")
    sys.stdin.buffer.read()
    os._exit(0)


def _open(handles: int) -> list[int]:
    """So many handles of its own: a file, and pipes, sockets and a program's usual rest, as a server has them."""
    kept: list[int] = []
    while len(kept) < handles:
        kept.append(os.open(__file__, os.O_RDONLY))
        kept.append(os.open(os.devnull, os.O_RDWR))
        kept.extend(os.pipe())
        kept.extend(one.detach() for one in socket.socketpair())
    for extra in kept[handles:]:
        os.close(extra)
    return kept[:handles]


if __name__ == "__main__":
    _main()
