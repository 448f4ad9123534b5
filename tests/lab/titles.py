"""A process gives itself another title, as setproctitle does it, with the standard library alone."""

from __future__ import annotations

import ctypes
import os

from tests.lab import procfs

_PR_SET_NAME = 15


def set_title(title: str, name: str | None = None) -> None:
    """Make /proc/self/cmdline exactly `title` and comm its first 15 characters (or those of `name`).

    The arguments in memory are overwritten. That their last byte is not NUL tells the kernel to show the text up to
    the first NUL and nothing of the rest. Raises ValueError when the arguments this process was started with have too
    little room.
    """
    stat = procfs.read_stat(os.getpid())
    text = os.fsencode(title)
    if stat is None or stat.arg_end - stat.arg_start < len(text) + 2:
        raise ValueError("no room for the title %r" % title)
    room = stat.arg_end - stat.arg_start
    ctypes.memmove(stat.arg_start, text.ljust(room - 1, b"\0") + b".", room)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, os.fsencode(name or title)[:15], 0, 0, 0)
