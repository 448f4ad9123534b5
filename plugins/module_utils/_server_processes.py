# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes are one inference server's: those that serve, those that compute, and computing ones left behind."""

from __future__ import annotations

import os
import re
from typing import Any, Iterable, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES, Engine
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import Pattern, compile_patterns, matches
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process, ProcFs, numbers
from ansible_collections.gpuops.inference.plugins.module_utils._results import process_result

PARENT, WORKER, ORPHAN = "parent", "worker", "orphan"

# Memory is compared in steps: that of an idle process goes up and down a little.
_STEP_MIB = 16

_PORT_OPTION = re.compile(r"(?<!\S)--port[= ]([0-9]{1,5})(?!\S)")


class ServerProcesses(NamedTuple):
    """``parents`` serve HTTP, ``workers`` compute for them. ``orphans`` are workers whose parent is gone.

    ``elsewhere`` serve on another port: other servers, or this one behind a proxy.
    """

    parents: tuple[Process, ...] = ()
    workers: tuple[Process, ...] = ()
    orphans: tuple[Process, ...] = ()
    elsewhere: tuple[Process, ...] = ()

    @property
    def all(self) -> tuple[Process, ...]:
        """Every one of the server's, who serves first."""
        return self.parents + self.workers + self.orphans

    def identity(self) -> str:
        """The same text as long as they are the same processes."""
        return " ".join(f"{one.pid}@{one.start_ticks}" for one in sorted(self.all, key=lambda one: one.pid))

    def results(self, procfs: ProcFs) -> list[dict[str, Any]]:
        """As the module returns them."""
        roles = ((PARENT, self.parents), (WORKER, self.workers), (ORPHAN, self.orphans))
        return [process_result(one, procfs, role=role) for role, members in roles for one in members]


def sort_processes(processes: Iterable[Process], engine: Engine, port: int) -> ServerProcesses:
    """Find the server's among ``processes``. Pure.

    A parent that was told another port is another server's, and so is all that is below it. A worker that has left the
    tree is an orphan unless a living parent began before it. Dead ones that nobody has reaped are left out.
    """
    living = [one for one in processes if not one.gone and not one.kernel_thread]
    serve, compute = (compile_patterns(patterns, "patterns") for patterns in (engine.parents, engine.workers))
    workers = [one for one in living if matches(one, compute)]
    servers = [one for one in living if one not in workers and matches(one, serve)]
    ours = [one for one in servers if _port_of(one) in (None, port)]
    elsewhere = [one for one in servers if one not in ours]
    above = {one.pid: one.parent_pid for one in living}
    workers = [one for one in workers if not _below(one.pid, {other.pid for other in elsewhere}, above)]
    known = {one.pid for one in ours}
    began = min((one.start_ticks for one in ours), default=None)
    kept = [one for one in workers if _below(one.pid, known, above) or (began is not None and one.start_ticks >= began)]
    orphans = [one for one in workers if one not in kept]
    return ServerProcesses(tuple(ours), tuple(kept), tuple(orphans), tuple(elsewhere))


def engines_of(processes: Sequence[Process]) -> list[Engine]:
    """The engines whose processes are among these."""
    return [
        engine
        for engine in ENGINES.values()
        if engine.patterns and any(_is_of(one, compile_patterns(engine.patterns, "patterns")) for one in processes)
    ]


def _is_of(process: Process, patterns: Sequence[Pattern]) -> bool:
    return not process.gone and matches(process, patterns)


def _port_of(process: Process) -> Optional[int]:
    found = _PORT_OPTION.search(process.command)
    return int(found[1]) if found else None


def _below(pid: int, ancestors: set[int], above: dict[int, int]) -> bool:
    """Whether any of ``ancestors`` is above ``pid``."""
    seen: set[int] = set()
    while pid in above and pid not in seen:
        seen.add(pid)
        pid = above[pid]
        if pid in ancestors:
            return True
    return False


def resident_steps(processes: Iterable[Process], procfs: ProcFs) -> Optional[int]:
    """The memory that they have in RAM, in steps of 16 MiB; None where it cannot be read (proc_pid_statm(5))."""
    pages = 0
    for one in processes:
        fields = list(numbers((procfs.read_text(one.pid, "statm") or "").split()))
        if len(fields) < 2:
            return None
        pages += fields[1]
    return pages * os.sysconf("SC_PAGE_SIZE") // (_STEP_MIB << 20)


def youngest_age(processes: Sequence[Process], ticks_now: int) -> float:
    """Seconds since the last of them began."""
    newest = max(one.start_ticks for one in processes)
    return max(0.0, (ticks_now - newest) / os.sysconf("SC_CLK_TCK"))
