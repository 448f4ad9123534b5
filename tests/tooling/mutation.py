"""Breaks the modules that decide who is signalled, one small fault at a time, and says which faults no test notices.

`scripts/test mutation` breaks all of them; ``python -m tests.tooling.mutation selection`` one. cosmic-ray makes the
faults (``and`` for ``or``, ``<`` for ``<=``, 2 for 1, a loop that never turns), in a copy of the repository. A fault
may also make a test signal whomever it likes: so everything runs in a pid namespace in which there is nobody else.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.testing import run_tests
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem

from tests.tooling import sanity
from tests.tooling.environment import BUILD, ROOT

MODULES = ("patterns", "selection", "termination", "nvidia_smi", "device_handles")

# Below this share of faults that are noticed, the tests have become weaker. Some faults change nothing that matters.
LEAST_PERCENT = 90

# Relative to the repository.
UTILS = Path("plugins", "module_utils")
TESTS = Path("tests", "unit", "plugins", "module_utils")

# A fault may make a test wait for ever. So many times what the tests take without one, and seconds on top.
PATIENCE, LEAST_PATIENCE_SECONDS = 4, 10

ALONE = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass(frozen=True)
class Score:
    """How many faults were made in one module, and how many of them a test noticed."""

    module: str
    faults: int
    noticed: int

    @property
    def percent(self) -> int:
        return self.noticed * 100 // self.faults

    def __str__(self) -> str:
        return f"_{self.module}: {self.noticed} of {self.faults} faults were noticed, {self.percent} %"


def main() -> int:
    """0: enough faults were noticed in each module."""
    if os.getpid() != 1:
        os.execvp(ALONE[0], [*ALONE, sys.executable, "-m", "tests.tooling.mutation", *sys.argv[1:]])
    with tempfile.TemporaryDirectory(prefix="mutation-", dir=BUILD) as collections:
        copy = Path(collections, "ansible_collections", "gpuops", "inference")
        sanity.copy_repository(ROOT, copy)
        os.chdir(copy)
        # The copy is the collection, and not the checkout, to which build/collections leads.
        os.environ["PYTHONPATH"] = collections
        scores = [_score(module) for module in sys.argv[1:] or MODULES]
    print("", *scores, sep="\n")
    return min(score.percent for score in scores) < LEAST_PERCENT


def _score(module: str) -> Score:
    files = sorted(map(str, (*TESTS.glob(f"test_{module}.py"), *TESTS.glob(f"test_{module}_*.py"))))
    command = shlex.join([sys.executable, "-m", "pytest", "-q", "-x", *files])
    started = time.monotonic()
    outcome, output = run_tests(command, timeout=600)
    if outcome != TestOutcome.SURVIVED:
        raise SystemExit(f"The tests fail without any fault, so they would notice each:\n{output}")
    patience = PATIENCE * (time.monotonic() - started) + LEAST_PATIENCE_SECONDS
    items = _faults(UTILS / f"_{module}.py")
    print(f"\n_{module}: {len(items)} faults", flush=True)
    made, noticed = 0, 0
    for item in items:
        result = mutate_and_test(item.mutations, command, patience)
        # cosmic-ray fails at some places (`except re.error`), and would call that noticed.
        made += result.worker_outcome == WorkerOutcome.NORMAL
        noticed += result.test_outcome == TestOutcome.KILLED
        if result.test_outcome == TestOutcome.SURVIVED:
            # Without the name of the file, thrice.
            print(*(result.diff or "").splitlines()[3:], sep="\n", flush=True)
    return Score(module, made, noticed)


def _faults(path: Path) -> list[WorkItem]:
    with use_db(":memory:", WorkDB.Mode.create) as database:
        init([path], database, {})
        return sorted(database.work_items, key=lambda item: item.mutations[0].start_pos)


if __name__ == "__main__":
    sys.exit(main())
