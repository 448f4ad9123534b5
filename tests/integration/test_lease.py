"""Many processes want one lease at the same moment: exactly one gets it, whether it is free or has expired."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tooling.environment import COLLECTIONS

TAKERS = 12
ROUNDS = 10

# Each waits for the starting shot of each round, so that all want the lease at the same time. The directory of a round
# is missing, or has a lease that expired long ago.
TAKER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.gpuops.inference.plugins.module_utils._lease import LeaseError, Request, take
from ansible_collections.gpuops.inference.plugins.module_utils._termination import SystemClock
me = sys.argv[2]
print('ready', flush=True)
for line in sys.stdin:
    try:
        take(Request(line.strip(), 'ct-129', me, me, me, 600), SystemClock())
        print('got', flush=True)
    except LeaseError as error:
        print(error.reason, flush=True)
"""
EXPIRED = {"owner": "dead", "job": "1", "run": "dead", "since": 1.0, "expires": 2.0}


@pytest.mark.parametrize("expired", [False, True])
def test_of_many_that_want_it_at_once_one_gets_it(tmp_path: Path, expired: bool) -> None:
    argv = [sys.executable, "-c", TAKER, str(COLLECTIONS)]
    takers = [
        subprocess.Popen([*argv, f"taker-{number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(TAKERS)
    ]
    try:
        for taker in takers:
            assert taker.stdout is not None
            assert taker.stdout.readline() == "ready\n"
        for number in range(ROUNDS):
            directory = tmp_path / str(number)
            if expired:
                directory.mkdir(mode=0o755)
                (directory / "ct-129.json").write_text(json.dumps(EXPIRED), encoding="utf-8")
            for taker in takers:
                assert taker.stdin is not None
                os.write(taker.stdin.fileno(), f"{directory}\n".encode())
            answers = [taker.stdout for taker in takers]
            said = {f"taker-{which}": one.readline().strip() for which, one in enumerate(answers) if one is not None}
            winners = [name for name, word in said.items() if word == "got"]
            assert sorted(said.values()) == ["got"] + ["leased"] * (TAKERS - 1)
            assert json.loads((directory / "ct-129.json").read_text(encoding="utf-8"))["run"] == winners[0]
    finally:
        for taker in takers:
            taker.kill()
            taker.communicate()
