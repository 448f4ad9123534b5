# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong, each with the fields that the failed result of a module shows."""

from __future__ import annotations

import contextlib
import errno
from typing import Any, Iterator

# Errors that say nothing of what was asked for, only that there is no memory, or no handle, to ask.
SHORTAGES = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class GpuopsError(Exception):
    """Something that the operator has to know, in one sentence that says what to do.

    ``reason`` is a stable code (``driver_not_loaded``, ``ct_not_running``, ...) for playbooks to test; ``fields`` are
    further
    values for the failed result, such as ``rc``, ``stdout`` or the processes that survived.
    """

    def __init__(self, message: str, *, reason: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.fields = fields

    def result(self) -> dict[str, Any]:
        """The keyword arguments for ``fail_json``."""
        return {"msg": self.message, "reason": self.reason, **self.fields}


class InputError(GpuopsError):
    """An option has a value that cannot be meant. Nothing was asked and nothing was signalled."""

    def __init__(self, message: str, *, reason: str = "bad_input", **fields: Any) -> None:
        super().__init__(message, reason=reason, **fields)


class CommandError(GpuopsError):
    """A command could not be run to its end: not there (``not_installed``), or too slow (``timeout``)."""


class DriverError(GpuopsError):
    """The GPU driver gave no usable answer."""


class ContainerError(GpuopsError):
    """A container could not be looked into."""


class MachineError(GpuopsError):
    """The machine is too short of something (``shortage``) for anyone to look. What was not seen is not gone."""


class SurvivorsError(GpuopsError):
    """Processes that should be gone are not. Carries the whole result of the module."""


@contextlib.contextmanager
def noting(**fields: Any) -> Iterator[None]:
    """What has happened by now is said of a GpuopsError that passes through. What it says itself already stays."""
    try:
        yield
    except GpuopsError as exc:
        exc.fields.update((name, value) for name, value in fields.items() if not exc.fields.get(name))
        raise


@contextlib.contextmanager
def refusing_shortage(what: str) -> Iterator[None]:
    """Raises MachineError where ``what`` (such as "/proc cannot be listed") is so for want of memory or handles."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in SHORTAGES:
            raise
        raise MachineError(
            f"{what}: {exc.strerror}. Free memory or raise the limit on open files, then try again.", reason="shortage"
        ) from exc
