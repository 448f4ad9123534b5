"""How the time of a restart grows with the number of hosts, against as many tasks that do nothing.

The hosts are simulated (tests/integration/replicas.py): local connections, stand-ins for nvidia-smi and the server. So
what is measured is what the playbook costs the control machine. The floor is a playbook of so many pings as the role
ran tasks on a host, with the same number of hosts and forks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.integration.play import ansible
from tests.integration.replicas import PLAYBOOK, Replicas
from tests.tooling.environment import ROOT, environment

FORKS = 16
COUNTS = (8, 16, 32, 64)


def hosts(counts: tuple[int, ...] = COUNTS) -> None:
    """Measure, print."""
    print(f"{'hosts':>5}{'tasks a host':>14}{'s':>9}{'s a host':>10}{'floor s':>9}{'times floor':>13}{'growth':>8}")
    before: tuple[int, float] | None = None
    for count in counts:
        tasks, seconds, floor = _measure(count)
        # 1.0: twice the hosts take twice the time.
        growth = "" if before is None else f"{seconds / before[1] / (count / before[0]):.2f}"
        print(
            f"{count:5}{tasks:14}{seconds:9.1f}{seconds / count:10.2f}{floor:9.1f}{seconds / floor:13.2f}{growth:>8}",
            flush=True,
        )
        before = count, seconds


def _measure(count: int) -> tuple[int, float, float]:
    """Tasks that a host ran, seconds for all hosts, seconds for as many pings."""
    directory = Path(tempfile.mkdtemp(prefix="gpuops-bench-"))
    try:
        replicas = Replicas(directory, count, up=False)
        extra = {
            "restart_inference_serial": "100%",
            # Of a server that no pattern finds, a closed port alone does not prove that it is dead.
            "verified_restart_force": True,
            "verified_restart_start_retries": 600,
        }
        with replicas.living():
            output, seconds = _timed(replicas, str(PLAYBOOK), extra)
        healthy = [name for name, result in replicas.results().items() if result["outcome"] == "healthy"]
        if len(healthy) != count:
            raise SystemExit(f"Only {len(healthy)} of {count} came back:\n{output}")
        found = re.findall(r"(?m)^replica\d+ +: ok=(\d+)", output)
        tasks = max(map(int, found))
        pings = directory / "pings.yml"
        ping = {"name": "Ping", "ansible.builtin.ping": {}}
        play = {"name": "Ping", "hosts": "inference", "gather_facts": False, "tasks": [ping] * tasks}
        pings.write_text(json.dumps([play]), encoding="utf-8")
        _output, floor = _timed(replicas, str(pings), {})
        return tasks, seconds, floor
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _timed(replicas: Replicas, playbook: str, extra: dict[str, object]) -> tuple[str, float]:
    start = time.monotonic()
    arguments = ["--forks", str(FORKS), "-i", str(replicas.inventory), "-e", json.dumps(extra), playbook]
    done = subprocess.run(
        ansible("ansible-playbook", *arguments),
        cwd=ROOT,
        env=environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout)
    return done.stdout, time.monotonic() - start
