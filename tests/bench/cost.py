"""Prints what each module costs when it has nothing to do, as a multiple of ansible.builtin.ping in the same loop.

The stand-ins for nvidia-smi and pct that the lab brings start a Python of their own for every call, and the figures
include that. What one such call costs is printed last.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.integration.play import ansible, run
from tests.lab.cards import CARDS
from tests.lab.lab import Lab

CALLS = 10
ROUNDS = 5
HERE = Path(__file__).parent


def cost() -> None:
    """Bring up a lab with idle cards, measure, print."""
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as directory, Lab(directory, "dead") as lab:
        output = Path(directory) / "seconds.json"
        variables = {
            "bench_bin": str(lab.bin),
            "bench_devices": str(lab.state / "dev"),
            "bench_output": str(output),
            "bench_calls": CALLS,
            "bench_rounds": ROUNDS,
        }
        argv = ansible(
            "ansible-playbook", "-i", str(lab.inventory), "-e", json.dumps(variables), str(HERE / "cost.playbook")
        )
        rc, said = run([*_on_a_node(Path(directory)), *argv])
        if rc:
            raise SystemExit(said)
        rounds: list[dict[str, float]] = json.loads(output.read_text(encoding="utf-8"))
        tool = statistics.median(_seconds([str(lab.bin / "nvidia-smi"), "-L"]) for _call in range(ROUNDS))
    print(f"{'module':22}{'s a call':>10}{'times ping':>12}   medians of {ROUNDS} rounds of {CALLS} calls")
    for name in rounds[0]:
        seconds = statistics.median(one[name] for one in rounds) / CALLS
        ratio = statistics.median(one[name] / one["ping"] for one in rounds)
        print(f"{name:22}{seconds:10.3f}{ratio:12.2f}")
    print(f"one call of the lab's stand-in for nvidia-smi: {tool:.3f} s")


def _on_a_node(directory: Path) -> list[str]:
    """An argv before which a command sees /proc/driver/nvidia, as on a machine with the driver. Only root can have it.

    It lists the lab's cards, in a mount namespace of the command's own. Without it the modules ask nvidia-smi -q.
    """
    if os.geteuid() != 0:
        return []
    driver = directory / "driver"
    for card in CARDS:
        information = driver / "nvidia" / "gpus" / card.pci_bus_id[4:] / "information"
        information.parent.mkdir(parents=True)
        text = f"Bus Location: \t {card.pci_bus_id[4:]}\nDevice Minor: \t {card.minor}\n"
        information.write_text(text, encoding="utf-8")
    script = 'mount --bind "$0" /proc/driver && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script, str(driver)]


def _seconds(argv: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start
