# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps a child that has ended until we have asked what became of it."""

from __future__ import annotations

import contextlib
import signal
from typing import Iterator


@contextlib.contextmanager
def children_wait_for_us() -> Iterator[None]:
    """For the block, the signal of a child's end is not ignored.

    Whoever started us may have ignored it, and that is inherited. Then the kernel forgets a child as soon as it ends:
    its exit status is lost (Python says 0, success), and its number may be a stranger's when we signal it.
    """
    if signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:
        yield
        return
    # A ValueError in any thread but the main one: better none than an answer that is not true.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
