# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a hung server and the kernel can still tell before the server is ended: where each process sleeps, and Xid."""

from __future__ import annotations

import collections
import os
import re
from typing import Any, Iterable, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Runner
from ansible_collections.gpuops.inference.plugins.module_utils._containers import container_status, members
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import Pattern, matches
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process, ProcFs, parse_stat
from ansible_collections.gpuops.inference.plugins.module_utils._results import process_result, redact

KMSG = "/dev/kmsg"
# A record of the kernel's log is at most this long (LOG_LINE_MAX and PREFIX of kernel/printk, with room).
_RECORD_BYTES = 8192
_LONGEST_STACK = 20_000

# What the driver, and the kernel about a process that hangs in it, write. `NVRM: Xid (PCI:0000:21:00): 79, ...`
_TELLING = re.compile(r"NVRM|nvidia|Xid|blocked for more than|hung_task|Out of memory|oom-kill|pcieport.*error", re.I)


class EvidenceRequest(NamedTuple):
    """Whose evidence is kept. ``vmid`` None: the processes of this machine that match ``patterns``.

    Of a container every process counts, since whoever hides behind another name is who is looked for. ``stacks`` is how
    many processes are asked for their Python stack, ``stack_timeout`` (seconds) how long each may take.
    """

    vmid: Optional[int]
    patterns: tuple[Pattern, ...]
    pct_path: str
    py_spy_path: str
    stacks: int
    stack_timeout: float
    kernel_lines: int


def gather(request: EvidenceRequest, runner: Runner, procfs: ProcFs, kmsg: str = KMSG) -> dict[str, Any]:
    """Look at everything once. What cannot be read is named in ``warnings``, and hides nothing else.

    Raises ContainerError where the container is not on this machine.
    """
    warnings: list[str] = []
    found = _processes(request, runner, procfs)
    lines = kernel_lines(kmsg)
    if lines is None:
        warnings.append(f"The kernel's log ({kmsg}) may not be read here. Run as root.")
    stacks, why = _stacks(request, [one for one in found if matches(one, request.patterns)], runner)
    warnings.extend(why)
    return {
        "processes": [_described(process, procfs) for process in found],
        "kernel_messages": telling(lines or (), request.kernel_lines),
        "stacks": stacks,
        "warnings": warnings,
    }


def _processes(request: EvidenceRequest, runner: Runner, procfs: ProcFs) -> list[Process]:
    if request.vmid is None:
        return [process for process in procfs.processes() if matches(process, request.patterns)]
    status = container_status(request.vmid, runner=runner, pct_path=request.pct_path)
    return members(status, procfs) if status.status == "running" else []


def _described(process: Process, procfs: ProcFs) -> dict[str, Any]:
    """A process, where it sleeps, and how many of its threads are in which state."""
    states, stuck = threads(process.pid, procfs)
    return {
        **process_result(process, procfs),
        "wchan": procfs.wchan(process.pid),
        "threads": states,
        # Only root may read it, and only a thread in state D sleeps in one place for good.
        "kernel_stack": (procfs.read_text(process.pid, "task", stuck, "stack") or None) if stuck is not None else None,
    }


def threads(pid: int, procfs: ProcFs) -> tuple[dict[str, int], Optional[int]]:
    """How many threads are in which state, and one that is in state D."""
    try:
        tasks = [int(name) for name in os.listdir(procfs.path(pid, "task"))]
    except OSError:
        return {}, None
    stats = [(task, parse_stat(procfs.read_text(pid, "task", task, "stat") or "")) for task in tasks]
    states = collections.Counter(stat.state for _task, stat in stats if stat is not None)
    stuck = next((task for task, stat in stats if stat is not None and stat.state == "D"), None)
    return dict(sorted(states.items())), stuck


def kernel_lines(path: str) -> Optional[list[str]]:
    """The kernel's log as far as it reaches back, each ``SECONDS-SINCE-BOOT MESSAGE``; None if it may not be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    lines: list[str] = []
    try:
        while True:
            try:
                record = os.read(handle, _RECORD_BYTES)
            except BlockingIOError:
                return lines
            except BrokenPipeError:
                # The next record was overwritten while it was waited for: the one after it is read next.
                continue
            except OSError:
                return lines
            if not record:
                return lines
            lines.extend(parse_record(record.decode("utf-8", "replace")))
    finally:
        os.close(handle)


def parse_record(record: str) -> list[str]:
    """A record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg): ``prio,sequence,microseconds,flags;message``."""
    head, found, message = record.partition(";")
    fields = head.split(",")
    if not found or len(fields) < 3 or not re.fullmatch(r"[0-9]{1,18}", fields[2]):
        return []
    # What follows the first line are the device's keys and values.
    return [f"{int(fields[2]) / 1e6:.3f} {message.partition(chr(10))[0]}"]


def telling(lines: Iterable[str], limit: int) -> list[str]:
    """The last ``limit`` lines about the driver, hung tasks and want of memory, without secrets."""
    found = [redact(line) for line in lines if _TELLING.search(line)]
    return found[len(found) - limit :] if len(found) > limit else found


def _stacks(
    request: EvidenceRequest, processes: Sequence[Process], runner: Runner
) -> tuple[list[dict[str, Any]], list[str]]:
    """Python stacks by py-spy, where it is installed. It does not stop the process that it looks at."""
    stacks: list[dict[str, Any]] = []
    for process in processes[: request.stacks]:
        argv = [request.py_spy_path, "dump", "--nonblocking", "--pid", str(process.pid)]
        try:
            answer = runner.run(argv, timeout=request.stack_timeout)
        except GpuopsError as exc:
            if exc.reason == "not_installed":
                return [], ["py-spy is not installed, so no Python stacks were kept."]
            stacks.append({"pid": process.pid, "stack": None, "error": exc.message})
            continue
        text = redact((answer.stdout or answer.stderr).strip())[:_LONGEST_STACK]
        stacks.append(
            {"pid": process.pid, "stack": text, "error": None}
            if answer.rc == 0
            else {"pid": process.pid, "stack": None, "error": text}
        )
    return stacks, []
