"""How a process of the lab becomes nobody's child, so that it outlives whoever started it."""

from __future__ import annotations

import os


def to_the_background() -> bool:
    """Fork away, into a session of its own and without the caller's streams. False in the caller's process."""
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    return True
