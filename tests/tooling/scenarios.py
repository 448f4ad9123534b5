"""Molecule's scenarios, timed and counted: ``python -m tests.tooling.scenarios REPORT WORDS`` runs ``molecule WORDS``.

What molecule says passes through. REPORT becomes JUnit's XML with a case for each scenario: how long it took, whether a
step of it failed, and whether it skipped itself, which it notes in build/molecule/NAME/log/skipped.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tooling.environment import BUILD

LABS = BUILD / "molecule"

# The scenario that only prepares for the others and cleans up behind them.
FRAME = "default"

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"(\S+) ➜ \S+: Execut(?:ing|ed: (\w+))")


@dataclass
class Case:
    """One scenario: seconds on some clock when its first and its last step were told of."""

    began: float
    ended: float
    failed: bool = False


def main() -> int:
    """Run molecule, write the report. Returns molecule's exit status."""
    report, *words = sys.argv[1:]
    for old in LABS.glob("*/log/skipped"):
        old.unlink()
    argv = [sys.executable, "-m", "molecule", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        assert child.stdout is not None
        cases = read(_timed(line.decode("utf-8", "replace") for line in child.stdout))
    write(Path(report), cases)
    return child.returncode


def read(lines: Iterable[tuple[float, str]]) -> dict[str, Case]:
    """The scenarios by name, out of the lines that molecule wrote, each with the second when it came."""
    cases: dict[str, Case] = {}
    for second, line in lines:
        found = _STEP.search(_COLOUR.sub("", line))
        if found is None or found[1] == FRAME:
            continue
        case = cases.setdefault(found[1], Case(second, second))
        case.ended = max(case.ended, second)
        case.failed |= found[2] == "Failed"
    return cases


def write(path: Path, cases: dict[str, Case]) -> None:
    """Write JUnit's XML as pytest does, for whoever reads that already."""
    suite = ET.Element("testsuite", name="molecule", errors="0", tests=str(len(cases)))
    for name, case in sorted(cases.items()):
        element = ET.SubElement(suite, "testcase", name=name, time=f"{case.ended - case.began:.1f}")
        skipped = LABS / name / "log" / "skipped"
        if case.failed:
            ET.SubElement(element, "failure", message="a step failed")
        elif skipped.exists():
            ET.SubElement(element, "skipped", message=skipped.read_text(encoding="utf-8").strip())
    suite.set("failures", str(len(suite.findall("*/failure"))))
    suite.set("skipped", str(len(suite.findall("*/skipped"))))
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _timed(lines: Iterable[str]) -> Iterator[tuple[float, str]]:
    """Each line with the second when it came, passed through."""
    for line in lines:
        sys.stdout.write(line)
        sys.stdout.flush()
        yield time.monotonic(), line


if __name__ == "__main__":
    sys.exit(main())
