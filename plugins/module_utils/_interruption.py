# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finish what must not be left half done, when somebody wants to end us meanwhile."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Iterator

# A job that is cancelled, a terminal that closes, Ctrl-C.
_POLITE = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@contextlib.contextmanager
def interruption_deferred() -> Iterator[None]:
    """Signals that ask for our end are answered after the block, as they would have been without it.

    The block must have a limit of its own. Children are not protected. SIGKILL cannot wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: Any) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in _POLITE}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: set by somebody who is not Python, and cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for one in dict.fromkeys(came):
            signal.raise_signal(one)
