"""`python3 -m tests.lab scenarios|up|status|down`: a thin door over lab.Lab."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from types import FrameType
from typing import NoReturn

from tests.lab.errors import LabError
from tests.lab.lab import Lab
from tests.lab.scenarios import SCENARIOS


def main() -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.lab", description="A GPU host on a machine that has none.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("scenarios", help="names, one a line")
    for name, text in (("up", "build a scenario"), ("status", "what is so now, as JSON"), ("down", "end it")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--state", required=True, metavar="DIR", help="the lab's directory")
        if name == "up":
            command.add_argument("--scenario", required=True, metavar="NAME")
            command.add_argument("--container", action="store_true", help="LXC with real systemd (needs root)")
    options = parser.parse_args()
    if options.command == "scenarios":
        print("\n".join(SCENARIOS))
        return 0
    lab = Lab(options.state, getattr(options, "scenario", ""), getattr(options, "container", False))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        if options.command == "up":
            lab.up()
        elif options.command == "down":
            lab.down()
        else:
            print(json.dumps(lab.status(), indent=1))
    except LabError as error:
        sys.stderr.write("lab: %s\n" % error)
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("lab: interrupted\n")
        return 130
    return 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
