"""Door of `scripts/soak`: one lab, broken and cured again and again. Nothing may be left over, no verdict wrong."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.demo import proof
from tests.integration.play import play
from tests.lab.errors import LabError
from tests.lab.lab import Lab
from tests.soak import traces, verdict
from tests.tooling import environment, processes
from tests.tooling.environment import ROOT

# What systemd in the container, and whatever just ended, may take until nothing moves any more.
SETTLE_S = 20.0
LOOK_EVERY_S = 1.0


class Round(NamedTuple):
    """One round: how long the playbook took, how long the cards took, and what was wrong, in sentences."""

    seconds: float
    to_free_s: float | None
    outcome: str
    wrong: list[str]


def main() -> int:
    """0: every verdict was right, and nothing was left over."""
    arguments = _parse()
    on_another_machine = os.geteuid() == 0 and not arguments.here
    processes.own_descendants()
    try:
        environment.prepare("runtime")
        if on_another_machine:
            machine = [sys.executable, "-m", "tests.tooling.machine", "-m", "tests.soak", "--here", *sys.argv[1:]]
            return processes.run(machine, cwd=ROOT, env=os.environ)
        return _soak(arguments)
    except (LabError, environment.SetUpError) as exc:
        print(f"scripts/soak: {exc}", file=sys.stderr)
        return 1
    except processes.Interrupted as exc:
        if not on_another_machine:  # whoever is there has said it
            print(f"scripts/soak: interrupted by {exc}; everything is taken down.", file=sys.stderr)
        return exc.exit_code
    finally:
        for one in processes.end_descendants():
            print(f"scripts/soak: this was still running, and was ended: {one}", file=sys.stderr)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=50, metavar="N", help="how often (default: 50)")
    parser.add_argument("--scenario", default="incident", choices=verdict.LADDERS, metavar="NAME", help="which one")
    parser.add_argument("--namespaces", action="store_true", help="no LXC, also where it is there")
    parser.add_argument("--here", action="store_true", help="as root: not on a machine of its own")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("N is how often the lab is broken: 1 or more")
    return arguments


def _soak(arguments: argparse.Namespace) -> int:
    lxc = os.geteuid() == 0 and not arguments.namespaces and shutil.which("lxc-start") is not None
    kind = "a real container" if lxc else "namespaces"
    print(f"{arguments.scenario}, {arguments.rounds} times, in {kind}", flush=True)
    rounds: list[Round] = []
    # A short path without spaces: Unix sockets and interpreters in it must be reachable by name.
    with tempfile.TemporaryDirectory(prefix="gpuops-soak-") as name:
        directory = Path(name)
        temporary = directory / "tmp"
        temporary.mkdir()
        # For us and for all that is started from here: what is forgotten there is found.
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        nothing = _without_a_lab(directory)
        try:
            with Lab(directory / "lab", arguments.scenario, lxc, say=lambda _text: None) as lab:
                left = _play_all(lab, arguments.rounds, directory, rounds)
            shutil.rmtree(lab.state)
            stays = _compare(nothing, lambda: _without_a_lab(directory))
        finally:
            _summarize(rounds)
    left += [f"the lab down against before it, {one}" for one in stays]
    for one in left:
        print(f"LEFT OVER: {one}")
    wrong = sum(1 for one in rounds if one.wrong)
    print(f"{len(rounds)} rounds, {wrong} wrong; {'something' if left else 'nothing'} was left over", flush=True)
    return 1 if wrong or left else 0


def _play_all(lab: Lab, count: int, directory: Path, rounds: list[Round]) -> list[str]:
    """Play them, and put each into ``rounds``. Returns what is left over; what came after that would only repeat it."""
    first: traces.Traces = {}
    for number in range(1, count + 1):
        if number > 1:
            lab.up_again()
        rounds.append(_round(lab))
        _tell(number, rounds[-1])
        if number == 1:
            first = _still(directory)
        else:
            changed = _compare(first, lambda: _look(directory))
            if changed:
                return [f"round {number} against the first, {what}" for what in changed]
    return []


def _tell(number: int, one: Round) -> None:
    to_free = "-" if one.to_free_s is None else f"{one.to_free_s:.1f} s"
    print(f"{number:4}  {one.seconds:6.1f} s  {one.outcome}  stop to free {to_free}", flush=True)
    for sentence in one.wrong:
        print(f"      WRONG: {sentence}", flush=True)


def _round(lab: Lab) -> Round:
    """Play the playbook once, and hold its result and the world against what they must be."""
    began = time.monotonic()
    # The dead server's shared memory is to go as well: else each round would leave twelve segments behind.
    played = play(lab, verified_restart_clean_shm=True)
    seconds = time.monotonic() - began
    wrong = verdict.doubts(lab.scenario, played.result) or proof.world_doubts(lab.status())
    if played.rc != 0:
        wrong.append(f"ansible-playbook ended with {played.rc}: {played.output[-2000:]}")
    if played.result is None:
        return Round(seconds, None, "no result", wrong)
    to_free = None if wrong else verdict.seconds_to_free(played.result)
    return Round(seconds, to_free, played.result["outcome"], wrong)


def _still(directory: Path) -> traces.Traces:
    """What stands as soon as two looks in a row agree."""
    before, deadline = _look(directory), time.monotonic() + SETTLE_S
    while True:
        time.sleep(LOOK_EVERY_S)
        now = _look(directory)
        if not traces.changed(before, now) or time.monotonic() > deadline:
            return now
        before = now


def _compare(before: traces.Traces, look: Callable[[], traces.Traces]) -> list[str]:
    """What differs, and goes on to do so."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        found = traces.changed(before, look())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(LOOK_EVERY_S)


def _look(directory: Path) -> traces.Traces:
    """Orphans are ours to reap: a zombie that stays after this has another parent, who forgot it."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return traces.look(directory)


def _without_a_lab(directory: Path) -> traces.Traces:
    """What stands without one, before and after ours. Notes about other servers may be there, and ours may stay."""
    return traces.without_notes(_look(directory))


def _summarize(rounds: list[Round]) -> None:
    for what, times in (
        ("playbook", [one.seconds for one in rounds]),
        ("stop to free", [one.to_free_s for one in rounds if one.to_free_s is not None]),
    ):
        if times:
            print(f"{what}: median {statistics.median(times):.1f} s, most {max(times):.1f} s")


if __name__ == "__main__":
    sys.exit(main())
