# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server's log says of its start, and since when it is silent: a file, or the journal of its unit."""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Runner
from ansible_collections.gpuops.inference.plugins.module_utils._engines import Engine
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, InputError

_TAIL_BYTES = 64 << 10
_JOURNAL_LINES = 200
_JOURNAL_TIMEOUT = 5.0

# journalctl --output=short-unix begins each line with it.
_STAMP = re.compile(r"^([0-9]{9,11}\.[0-9]{1,9}) ")

_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.@\\-]{0,254}")


class LogTail(NamedTuple):
    """The end of a log. ``written``: when its last line was, in seconds since the epoch. ``mark`` changes with it."""

    text: str
    written: float
    mark: str


def read_tail(path: str) -> Optional[LogTail]:
    """The end of a file; None where it cannot be read, or is none (a pipe would never end)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            stream.seek(max(0, status.st_size - _TAIL_BYTES))
            text = stream.read(_TAIL_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    return LogTail(text, status.st_mtime, f"{status.st_ino} {status.st_size} {status.st_mtime_ns}")


def read_journal(unit: str, runner: Runner) -> Optional[LogTail]:
    """The last lines that the unit wrote; None where there is no journal, none of the unit's, or no answer."""
    options = ("--lines", str(_JOURNAL_LINES), "--output=short-unix", "--no-pager", "--quiet")
    try:
        answer = runner.run(["journalctl", "--unit", unit, *options], timeout=_JOURNAL_TIMEOUT)
    except CommandError:
        return None
    lines = [line for line in answer.stdout.split("\n") if _STAMP.match(line)]
    if answer.rc != 0 or not lines:
        return None
    last = _STAMP.match(lines[-1])
    return LogTail(answer.stdout, float(last[1]) if last else 0.0, lines[-1])


def unit_state(unit: str, runner: Runner) -> Optional[str]:
    """``active (running)``, ``activating (auto-restart)``, ... as systemd says it; None where it does not."""
    argv = ["systemctl", "show", unit, "--property=LoadState,ActiveState,SubState"]
    try:
        answer = runner.run(argv, timeout=_JOURNAL_TIMEOUT)
    except CommandError:
        return None
    values = dict(line.split("=", 1) for line in answer.stdout.split("\n") if "=" in line)
    if answer.rc != 0 or values.get("LoadState") != "loaded":
        return None
    return f"{values.get('ActiveState')} ({values.get('SubState')})"


def require_unit(unit: Optional[str]) -> None:
    """Raise InputError for what cannot be the name of a unit."""
    if unit is not None and not _UNIT.fullmatch(unit):
        raise InputError(f"unit is {unit!r}. Give the name of a systemd unit, such as sglang-kimi.service.")


def loading_progress(tail: LogTail, engine: Engine) -> Optional[str]:
    """How far a start has come (``63/64``), as long as the log does not say that it is over."""
    if engine.progress_line is None:
        return None
    steps = list(re.finditer(engine.progress_line, tail.text))
    if not steps:
        return None
    ready = engine.ready_line is not None and re.search(engine.ready_line, tail.text[steps[-1].end() :])
    return None if ready else steps[-1][1]
