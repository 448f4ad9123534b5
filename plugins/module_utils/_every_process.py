# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks something about many processes, on all processors, some of which may never let the kernel answer."""

from __future__ import annotations

import json
from typing import Any, Callable, Collection, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._errors import MachineError
from ansible_collections.gpuops.inference.plugins.module_utils._side_by_side import MOST_JOBS, side_by_side

# Fewer of them than this are not worth handing out.
_LEAST_A_JOB = 12

# One process is asked in a millisecond. After so many seconds without any answer those that are left hang.
ONE_SECONDS = 2.0

Look = Callable[[int], Any]


class Asked(NamedTuple):
    """What was answered of whom, where that was anything; who cannot be looked into; who never answered."""

    answers: dict[int, Any]
    refused: set[int]
    silent: set[int]

    @property
    def unreadable(self) -> set[int]:
        """Of whom nothing is known."""
        return self.refused | self.silent


def ask_all(pids: Collection[int], look: Look) -> Asked:
    """Ask ``look`` about many processes, some in one go. Whom that makes hang is found by asking those one by one.

    ``look`` has no effects, returns what JSON can carry, and raises OSError or MachineError where it cannot look.
    """
    size = max(_LEAST_A_JOB, -(-len(pids) // MOST_JOBS))
    asked = _ask(_parts(pids, size), look, None)
    again = ask_each(asked.silent, look)
    return Asked({**asked.answers, **again.answers}, asked.refused | again.refused, again.silent)


def ask_each(pids: Collection[int], look: Look) -> Asked:
    """Ask ``look`` about each of some processes by itself, so that one who never answers costs no other."""
    asked = Asked({}, set(), set())
    for some in _parts(pids, MOST_JOBS):
        more = _ask(_parts(some, 1), look, ONE_SECONDS)
        asked = Asked({**asked.answers, **more.answers}, asked.refused | more.refused, asked.silent | more.silent)
    return asked


def _parts(pids: Collection[int], size: int) -> list[Sequence[int]]:
    """The processes, rising, in parts of at most ``size``."""
    rising = sorted(pids)
    return [rising[start : start + size] for start in range(0, len(rising), size)]


def _ask(parts: Sequence[Sequence[int]], look: Look, stall: Optional[float]) -> Asked:
    def work(job: int) -> str:
        answers, refused = [], []
        for pid in parts[job]:
            try:
                answer = look(pid)
            except (OSError, MachineError):
                refused.append(pid)
                continue
            if answer:
                answers.append((pid, answer))
        return json.dumps((answers, refused))

    asked = Asked({}, set(), set())
    for part, said in zip(parts, side_by_side(work, len(parts), stall=stall)):
        if said is None:
            asked.silent.update(part)
        else:
            answers, refused = json.loads(said)
            asked.answers.update(answers)
            asked.refused.update(refused)
    return asked
