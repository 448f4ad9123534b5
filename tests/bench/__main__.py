"""What scripts/bench runs: `cost`, the modules against ping; `scan`, finding holders against fuser; by default both.

`hosts`, the playbook on many simulated hosts against as many pings, runs when it is asked for; how many may follow:
`hosts 8 16`.
"""

from __future__ import annotations

import argparse
import os

from tests.bench.cost import cost
from tests.bench.hosts import COUNTS, hosts
from tests.bench.scan import scan
from tests.tooling import environment

BENCHES = {"cost": cost, "scan": scan}


def main() -> None:
    """Have what is needed, and run what was asked for."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="cost|scan|hosts [N ...]")
    words = parser.parse_args().words or list(BENCHES)
    counts = tuple(int(word) for word in words if word.isdigit())
    names = [word for word in words if not word.isdigit()]
    if set(names) - {*BENCHES, "hosts"} or (counts and "hosts" not in names):
        parser.error("give any of cost, scan, hosts; numbers only with hosts")
    environment.prepare("bench")
    os.environ[environment.COMPILE_ANEW] = "1"
    for name in names:
        if name == "hosts":
            hosts(counts or COUNTS)
        else:
            BENCHES[name]()


if __name__ == "__main__":
    main()
