# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at a server that is starting: its unit, its log, its health, its processes, its cards."""

from __future__ import annotations

import os
import re
import stat
from typing import Any, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Runner
from ansible_collections.gpuops.inference.plugins.module_utils._driver import read_driver
from ansible_collections.gpuops.inference.plugins.module_utils._engines import Engine
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._http import Client, HttpError, Url
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import Pattern, matches
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from ansible_collections.gpuops.inference.plugins.module_utils._results import redact
from ansible_collections.gpuops.inference.plugins.module_utils._start_log import likely_cause, lines_of, read_log
from ansible_collections.gpuops.inference.plugins.module_utils._start_progress import EXITED, READY, STARTING

_NUMBERS = ("NRestarts", "MainPID", "ExecMainStatus")
_UNIT_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", *_NUMBERS)
_COMMAND_TIMEOUT = 20.0
# A server that wants another key has started; whether its key is right is not asked here.
_SERVES = (200, 401, 403)
_TAIL_LINES = 20
# Of a log that has grown by more than this since the start, only the end is read.
_LOG_BYTES = 256 * 1024
_LOG_LINES = 2000


class LookRequest(NamedTuple):
    """What is looked at. The health path of ``engine`` is asked with ``key``; times in seconds.

    ``log_since`` is the ``log_position`` of an earlier look: only what the log has gained since then counts.
    ``expect_process``: a process was there already, so that none means that it ended.
    """

    url: Url
    engine: Engine
    key: Optional[str]
    validate_certs: bool
    timeout: float
    unit: Optional[str]
    log_path: Optional[str]
    log_since: Optional[str]
    patterns: tuple[Pattern, ...]
    expect_process: bool
    nvidia_smi_path: str
    driver_timeout: float


class Log(NamedTuple):
    """What the log has gained. ``position``: where it ends now, for a later look; None where no log can be read."""

    lines: Sequence[str]
    position: Optional[str]
    source: Optional[str]


def look(request: LookRequest, runner: Runner, procfs: ProcFs) -> dict[str, Any]:
    """Look once. What cannot be read is None; only bad input is an error."""
    unit = _unit(request.unit, runner) if request.unit else {}
    log = _log(request, unit, runner)
    reading = read_log(log.lines, request.engine)
    pids = [process.pid for process in procfs.processes() if not process.gone and matches(process, request.patterns)]
    health, said = _health(request)
    ended = _ended(request, unit, pids)
    state = READY if health in _SERVES else EXITED if ended else STARTING
    cause = likely_cause(log.lines, result=unit.get("Result", ""), signal=_signal(unit)) if state == EXITED else None
    cards, card_error = _cards(request, runner)
    return {
        "state": state,
        "said": ended or said,
        "health_status": health,
        "unit_state": unit.get("ActiveState"),
        "unit_substate": unit.get("SubState"),
        "unit_result": unit.get("Result"),
        "main_pid": int(unit["MainPID"]) if unit.get("MainPID", "0") != "0" else None,
        "processes": len(pids),
        "shards_loaded": reading.shards_loaded,
        "shards_total": reading.shards_total,
        "memory_used_mib": cards,
        "cards_error": card_error,
        "log_source": log.source,
        "log_position": log.position,
        "log_last_line": redact(reading.last_line) if reading.last_line is not None else None,
        "log_tail": [redact(one) for one in log.lines[-_TAIL_LINES:]],
        "cause": cause.code if cause is not None else None,
        "advice": cause.advice if cause is not None else None,
    }


def _unit(name: str, runner: Runner) -> dict[str, str]:
    """What systemd says of the unit; empty where there is no systemd, or it does not know the unit."""
    properties = ",".join(_UNIT_PROPERTIES)
    try:
        answer = runner.run(["systemctl", "show", f"--property={properties}", "--", name], timeout=_COMMAND_TIMEOUT)
    except GpuopsError:
        return {}
    values = dict(re.findall(r"(?m)^([A-Za-z]+)=(.*)$", answer.stdout))
    for number in _NUMBERS:
        if not re.fullmatch(r"[0-9]{1,9}", values.get(number, "")):
            values.pop(number, None)
    return values if answer.rc == 0 and values.get("LoadState") == "loaded" else {}


def _ended(request: LookRequest, unit: dict[str, str], pids: Sequence[int]) -> Optional[str]:
    """In words, how the server ended; None while it has not, or nobody can tell."""
    if unit:
        result = f"Result={unit.get('Result', '?')}, status {unit.get('ExecMainStatus', '?')}"
        if unit.get("ActiveState") in ("failed", "inactive"):
            return f"the unit is {unit['ActiveState']}: {result}"
        restarts = int(unit.get("NRestarts", "0"))
        if restarts > 0 or unit.get("SubState") == "auto-restart":
            return f"systemd had to start it again {restarts or 'for the first'} time(s): {result}"
        return None
    return "none of its processes is left" if request.expect_process and not pids else None


def _signal(unit: dict[str, str]) -> Optional[int]:
    """The signal that ended the main process, where systemd says that one did."""
    if unit.get("Result") not in ("signal", "core-dump"):
        return None
    return int(unit.get("ExecMainStatus", "0")) or None


def _health(request: LookRequest) -> tuple[Optional[int], str]:
    client = Client(request.url, key=request.key, validate_certs=request.validate_certs)
    try:
        status = client.get(request.engine.health, timeout=request.timeout).status
    except HttpError as exc:
        return None, exc.message
    return status, f"{request.url}{request.engine.health} answers with status {status}."


def _cards(request: LookRequest, runner: Runner) -> tuple[Optional[list[Optional[int]]], Optional[str]]:
    """MiB on each card in the order of the indices. A driver that cannot be asked here does not stop the wait."""
    try:
        reading = read_driver(
            runner=runner,
            backend="auto",
            nvidia_smi_path=request.nvidia_smi_path,
            timeout=request.driver_timeout,
            processes=False,
            minors=False,
        )
    except GpuopsError as exc:
        return None, exc.message
    return [gpu.memory_used_mib for gpu in reading.gpus], None


def _log(request: LookRequest, unit: dict[str, str], runner: Runner) -> Log:
    """The operator's log file, else the one that the unit writes, else the unit's journal."""
    path = request.log_path
    if path is None and request.unit and unit:
        path = _output_file(request.unit, runner)
    if path is not None:
        return _file(path, request.log_since)
    return _journal(request.unit, request.log_since, runner) if request.unit and unit else Log((), None, None)


def _output_file(unit: str, runner: Runner) -> Optional[str]:
    """The file that the unit's standard output goes to, None for the journal. ``systemctl show`` keeps it to itself."""
    try:
        answer = runner.run(["systemctl", "cat", "--no-pager", "--", unit], timeout=_COMMAND_TIMEOUT)
    except GpuopsError:
        return None
    # A drop-in comes after what it changes.
    outputs: list[str] = re.findall(r"(?m)^StandardOutput=[ \t]*(.*?)[ \t]*$", answer.stdout)
    found = re.fullmatch(r"(?:file|append|truncate):(/(?:[^%]|%%)*)", outputs[-1]) if outputs else None
    # Any other percent sign is a specifier, which only systemd can read.
    return found[1].replace("%%", "%") if found else None


def _file(path: str, since: Optional[str]) -> Log:
    """``file:INODE:SIZE`` is the position. A file that was replaced or cut is read from its beginning."""
    try:
        # Not blocking, because it may be a pipe, which has nothing to seek in either.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Log((), None, path)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return Log((), None, path)
        found = re.fullmatch(r"file:([0-9]{1,20}):([0-9]{1,20})", since or "")
        begin = int(found[2]) if found and int(found[1]) == status.st_ino and int(found[2]) <= status.st_size else 0
        begin = max(begin, status.st_size - _LOG_BYTES)
        text = os.pread(handle, status.st_size - begin, begin).decode("utf-8", "replace")
    except OSError:
        return Log((), None, path)
    finally:
        os.close(handle)
    return Log(lines_of(text), f"file:{status.st_ino}:{status.st_size}", path)


def _journal(unit: str, since: Optional[str], runner: Runner) -> Log:
    """``journal:CURSOR`` is the position."""
    argv = ["journalctl", "--quiet", "--no-pager", "--output=cat", "--show-cursor", f"--unit={unit}"]
    source, cursor = f"journal of {unit}", (since or "").partition("journal:")[2]
    argv += [f"--after-cursor={cursor}"] if cursor else []
    try:
        answer = runner.run([*argv, f"--lines={_LOG_LINES}"], timeout=_COMMAND_TIMEOUT)
    except GpuopsError:
        return Log((), None, source)
    lines = lines_of(answer.stdout)
    ends = [line.partition("-- cursor: ")[2] for line in lines if line.startswith("-- cursor: ")]
    kept = [line for line in lines if not line.startswith("-- cursor: ")]
    position = f"journal:{ends[-1]}" if ends else since
    return Log(kept, position, source) if answer.rc == 0 else Log((), None, source)


def require_position(text: Optional[str]) -> None:
    """Raise InputError for what no look can have returned as its ``log_position``."""
    if text is not None and not re.fullmatch(r"file:[0-9]{1,20}:[0-9]{1,20}|journal:[!-~]{1,400}", text):
        raise InputError(f"log_since is {text!r}. Give the log_position that an earlier look returned.")
