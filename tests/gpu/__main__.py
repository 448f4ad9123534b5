"""Probes a real NVIDIA card: `python3 -m tests.gpu --output DIR`, as root. See README.md beside this file."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Optional

from tests.gpu import steps
from tests.gpu.rig import NoCardError, Rig

SCHEMA = 1

# Everything together, in seconds. What is not begun by then is left out.
LIMIT_S = 340

# An idle card shows less, and a card with anything on it is somebody's.
_IDLE_MIB = 700


class TooSlowError(Exception):
    """A step took longer than it may."""


def main() -> int:
    """Probe, write DIR/result.json, and print one line a step. 0: every step did what it was to do."""
    options = _parse()
    rig = Rig(options.nvidia_smi, options.devices, options.output.resolve(), options.lab, options.repeats)
    rig.output.mkdir(parents=True, exist_ok=True)
    why_none = "it was not asked for" if options.dry_run else choose(rig, options.card)
    if why_none and not options.dry_run:
        print(f"There is no card to probe: {why_none}. Without one, give --dry-run.", file=sys.stderr)
        return 2
    # A lab's driver is a program started anew for each question, on a machine that may have other things to do.
    patience = 4 if rig.lab else 1
    end = time.monotonic() + LIMIT_S * patience
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "began": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kind": "dry_run" if options.dry_run else "lab" if rig.lab else "card",
        "card": dataclasses.asdict(rig.chosen) if rig.chosen else None,
        "steps": {},
    }
    for step in STEPS:
        outcome = run(step, rig, min(step.limit * patience, end - time.monotonic()))
        result["steps"][step.name] = outcome
        _write(rig, result)
        print(
            f"{step.name:9}{outcome['status']:9}{outcome['seconds']:6.1f} s  {outcome['why'] or ''}".rstrip(),
            flush=True,
        )
    print(f"{rig.output / 'result.json'}")
    failed = [name for name, one in result["steps"].items() if one["status"] not in ("done", "no_card")]
    return 1 if failed else 0


class Step(NamedTuple):
    """``limit``: seconds at most. ``take`` fills the record that it is given."""

    name: str
    limit: float
    needs_card: bool
    take: Callable[[Rig, dict[str, Any]], None]


STEPS = (
    Step("machine", 10, False, steps.machine),
    Step("exits", 20, False, steps.exits),
    Step("errors", 40, False, steps.errors),
    Step("join", 20, True, steps.join),
    Step("nodes", 50, True, steps.nodes),
    Step("modules", 90, True, steps.modules),
    Step("prints", 80, True, steps.prints),
    Step("release", 200, True, steps.release),
)


# Whatever a step meets on a machine that nobody has seen is written down.
FINDINGS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError),
    subprocess.SubprocessError,
)


def run(step: Step, rig: Rig, seconds: float) -> dict[str, Any]:
    """One step, within its time. What goes wrong is written down, and the next step has its turn."""
    if step.needs_card and rig.chosen is None:
        return {"status": "no_card", "why": None, "seconds": 0.0, "data": {}}
    began = time.monotonic()
    record: dict[str, Any] = {}
    status, why = "done", None
    try:
        with _time_limit(seconds):
            step.take(rig, record)
    except TooSlowError as exc:
        status, why = "timeout", str(exc)
    except steps.RefusedError as exc:
        status, why = "refused", str(exc)
    except FINDINGS as exc:
        status, why = "failed", f"{type(exc).__name__}: {exc}"
    broken = [name for name, held in record.get("checks", {}).items() if not held]
    if broken and status == "done":
        status, why = "failed", f"not so: {', '.join(broken)}"
    return {"status": status, "why": why, "seconds": round(time.monotonic() - began, 2), "data": record}


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(_number: int, _frame: object) -> None:
        raise TooSlowError(f"not done within {seconds:.0f} s")

    if seconds <= 0:
        raise TooSlowError("no time was left for it")
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def choose(rig: Rig, wanted: Optional[int]) -> Optional[str]:
    """Choose the card that was named, else the first that nobody uses. Returns why there is none."""
    try:
        cards = rig.cards()
    except NoCardError as exc:
        return str(exc)
    named = [card for card in cards if wanted is None or card.index == wanted]
    for card in named:
        rig.chosen = card
        if card.used_mib <= _IDLE_MIB and not rig.computing_pids():
            return None
    rig.chosen = None
    return "every card is in use" if named else f"there is no card {wanted}"


def _write(rig: Rig, result: dict[str, Any]) -> None:
    text = rig.scrub(json.dumps(result, indent=2))
    (rig.output / "result.json").write_text(text + "\n", encoding="utf-8")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="directory for result.json and fixtures")
    parser.add_argument("--card", type=int, help="index of the card; the first idle one when left out")
    parser.add_argument("--repeats", type=int, default=10, help="how often each time is taken")
    parser.add_argument("--dry-run", action="store_true", help="leave out all that needs a card")
    parser.add_argument("--nvidia-smi", default="nvidia-smi", help="name or path")
    parser.add_argument("--devices", default="/dev", help="directory of the device nodes")
    parser.add_argument("--lab", help="state directory of a lab (tests/lab) that stands in for driver and CUDA")
    options = parser.parse_args()
    if options.lab:
        options.nvidia_smi, options.devices = f"{options.lab}/bin/nvidia-smi", f"{options.lab}/dev"
    return options


if __name__ == "__main__":
    sys.exit(main())
