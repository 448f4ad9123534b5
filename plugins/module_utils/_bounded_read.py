# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a file that may never answer, and gives up after a while.

A command line below /proc is memory of the process. A thread of it that sleeps in a driver may have that locked, and
whoever reads it then sleeps until the thread goes on (get_task_cmdline in fs/proc/base.c): the well-known `ps` that
hangs beside a hung driver. The read is done in a thread of ours, which can be left behind: it ends when we do.
"""

from __future__ import annotations

import threading
from typing import Optional, Union

from ansible_collections.gpuops.inference.plugins.module_utils._errors import MachineError, refusing_shortage


class StalledError(Exception):
    """The kernel did not answer in time."""


def read_within(path: str, seconds: float) -> Optional[bytes]:
    """All that is in a file, None where it cannot be read. Raises StalledError after so many seconds, MachineError."""
    answers: list[Union[bytes, MachineError, None]] = []

    def read() -> None:
        try:
            answers.append(read_file(path))
        except MachineError as exc:
            answers.append(exc)

    # A daemon: the end of the module does not wait for it.
    reader = threading.Thread(target=read, daemon=True)
    try:
        reader.start()
    except RuntimeError:
        # The limit on processes.
        return read_file(path)
    reader.join(seconds)
    if not answers:
        raise StalledError(path)
    if isinstance(answers[0], MachineError):
        raise answers[0]
    return answers[0]


def read_file(path: str) -> Optional[bytes]:
    """All that is in a file, None where it cannot be read. Raises MachineError. Waits as long as the kernel does."""
    try:
        with refusing_shortage(f"{path} cannot be read"), open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return None
    except ValueError:
        # The name of a file, taken from what a file says, cannot be one.
        return None
