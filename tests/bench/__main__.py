"""What scripts/bench runs: `cost`, the modules against ping; `scan`, finding holders against fuser; by default both."""

from __future__ import annotations

import argparse

from tests.bench.cost import cost
from tests.bench.scan import scan
from tests.tooling import environment

BENCHES = {"cost": cost, "scan": scan}


def main() -> None:
    """Have what is needed, and run what was asked for."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("benches", nargs="*", choices=[[], *BENCHES], metavar="cost|scan")
    names = parser.parse_args().benches or list(BENCHES)
    environment.prepare("bench")
    for name in names:
        BENCHES[name]()


if __name__ == "__main__":
    main()
