"""The gates: `scripts/test`. Every gate runs, even when one before it failed, and a table tells how each ended."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from tests.tooling import environment, processes, sanity
from tests.tooling.environment import BUILD, PYTHON, ROOT

# What pytest ends with when it collected nothing.
NO_TESTS_COLLECTED = 5


@dataclass(frozen=True)
class Check:
    """One command of a gate. ``report``: where it writes JUnit's XML, if it counts tests."""

    name: str
    argv: processes.Argv
    cwd: Path = ROOT
    report: Optional[Path] = None
    home: Optional[Path] = None
    skips_count_as_failed: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a check, or a whole gate, ended. The numbers are tests where there are tests, else checks."""

    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    why: str

    @property
    def word(self) -> str:
        if self.failed:
            return "fail"
        return "pass" if self.passed else "skipped"


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    keyword: Optional[str]
    no_skips: bool
    environment: Mapping[str, str]


def lint(_options: Options) -> list[Check]:
    """Formatting, faults and types of Python; YAML; Ansible; shell; the changelog."""

    def tool(module: str, *arguments: str) -> processes.Argv:
        # Never bin/TOOL: the first line of a script cannot hold a path with spaces.
        return [PYTHON, "-m", module, *arguments]

    scripts = [ROOT / ".ci" / "run", *sorted(one for one in (ROOT / "scripts").iterdir() if one.is_file())]
    return [
        Check("ruff format", tool("ruff", "format", "--check", "--diff", ".")),
        Check("ruff check", tool("ruff", "check", ".")),
        # As packages, so that a file has one name whether a test imports it or the command line names it.
        Check("mypy", tool("mypy", "-p", "ansible_collections.gpuops.inference.plugins", "-p", "tests")),
        Check("yamllint", tool("yamllint", "--strict", ".")),
        Check("ansible-lint", tool("ansiblelint", "--strict")),
        Check("shellcheck", [environment.VENV / "bin" / "shellcheck", "--external-sources", *scripts]),
        Check("changelog", tool("antsibull_changelog", "lint")),
    ]


def sanity_tests(_options: Options) -> list[Check]:
    """ansible-test sanity, without a single ignore entry."""
    sanity.prepare()
    version = ".".join(map(str, sys.version_info[:2]))
    argv: processes.Argv = [PYTHON, environment.VENV / "bin" / "ansible-test", "sanity", "--local", "--python", version]
    return [Check("ansible-test sanity", argv, cwd=sanity.COPY, home=sanity.HOME)]


def units(options: Options) -> list[Check]:
    """Unit tests: no process, no clock, no privilege."""
    return [_pytest("units", "tests/unit", options)]


def lab(options: Options) -> list[Check]:
    """Modules, role and playbook against a host made of real processes; with LXC where it runs as root."""
    tests, none_skipped = "tests/integration", options.no_skips
    if os.geteuid() != 0:
        return [_pytest("lab", tests, options, none_skipped, _workers([PYTHON]))]
    # Labs of root have a container 129 each, so each worker gets a machine of its own; some tests need the real one.
    in_machines = _workers([PYTHON, "-m", "tests.tooling.machine"])
    return [
        _pytest("lab", tests, options, none_skipped, ["-m", "not alone", *in_machines]),
        _pytest("lab-alone", tests, options, none_skipped, ["-m", "alone"]),
    ]


GATES = {"lint": lint, "sanity": sanity_tests, "units": units, "lab": lab}
TEST_GATES = ("units", "lab")


def main() -> int:
    """Door of scripts/test. 0: every gate passed."""
    arguments = _parse()
    names = arguments.gates or [name for name in GATES if arguments.keyword is None or name in TEST_GATES]
    processes.own_descendants()
    try:
        environment.prepare("test")
        options = Options(arguments.keyword, arguments.no_skips, environment.environment(os.environ))
        outcomes = [_run_gate(name, options) for name in names]
    except environment.SetUpError as exc:
        print(exc, file=sys.stderr)
        return 1
    except processes.Interrupted as exc:
        processes.end_descendants()
        print(f"Interrupted by {exc}.", file=sys.stderr)
        return exc.exit_code
    print(table(outcomes), flush=True)
    failed = sum(one.failed for one in outcomes)
    passed = sum(one.passed for one in outcomes)
    nothing_ran = not passed and not failed
    if nothing_ran:
        print("No test ran.")
    print(f"{passed} passed, {failed + nothing_ran} failed, {sum(one.skipped for one in outcomes)} skipped")
    return 1 if failed or nothing_ran else 0


def table(outcomes: Sequence[Outcome]) -> str:
    """One line a gate, for a person."""
    width = max(len(one.name) for one in outcomes)
    lines = [f"{'gate':<{width}}  result   seconds  why"]
    lines += [f"{one.name:<{width}}  {one.word:<7}  {one.seconds:>7.1f}  {one.why}".rstrip() for one in outcomes]
    return "\n".join(["", *lines, ""])


@dataclass(frozen=True)
class Report:
    """What pytest wrote down: numbers of tests, and the test that took longest, with its seconds."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    slowest: str = ""


def read_report(path: Path) -> Report:
    """Read JUnit's XML as pytest writes it. An empty report when there is none."""
    try:
        root = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return Report()
    total, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in root.iter("testsuite"))
        for name in ("tests", "failures", "errors", "skipped")
    )
    slowest = max(root.iter("testcase"), key=_seconds, default=None)
    return Report(
        # A test that passed and whose tear-down failed is counted as one test and one error.
        passed=max(0, total - failures - errors - skipped),
        failed=failures + errors,
        skipped=skipped,
        slowest="" if slowest is None else f"{slowest.get('name', '')} {_seconds(slowest):.0f} s",
    )


def _seconds(case: ET.Element) -> float:
    return float(case.get("time", "0"))


def _parse() -> argparse.Namespace:
    described = "\n".join(f"  {name:<7} {function.__doc__}" for name, function in GATES.items())
    parser = argparse.ArgumentParser(
        prog="scripts/test",
        description="Runs the gates and tells how each ended. Installs what it needs in build/venv, once.",
        epilog=f"gates:\n{described}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("gates", nargs="*", metavar="GATE", help=f"{', '.join(GATES)}; all of them when none is named")
    parser.add_argument("-k", dest="keyword", metavar="WORD", help="only tests whose name holds WORD (units and lab)")
    parser.add_argument("--no-skips", action="store_true", help="a lab test that was skipped counts as failed")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.gates if name not in GATES]
    if unknown:
        parser.error(f"no such gate: {', '.join(unknown)}. There are: {', '.join(GATES)}")
    if arguments.keyword is not None and set(arguments.gates) - set(TEST_GATES):
        parser.error(f"-k selects tests, so it goes with {' and '.join(TEST_GATES)} only")
    return arguments


def _run_gate(name: str, options: Options) -> Outcome:
    started = time.monotonic()
    outcomes = [_run_check(check, options) for check in GATES[name](options)]
    left = processes.end_descendants()
    reasons = [one.why for one in outcomes if one.why]
    if left:
        reasons.append(f"left running, now ended: {', '.join(left)}")
        print(f"\n{reasons[-1]}")
    return Outcome(
        name,
        passed=sum(one.passed for one in outcomes),
        failed=sum(one.failed for one in outcomes) + bool(left),
        skipped=sum(one.skipped for one in outcomes),
        seconds=time.monotonic() - started,
        why="; ".join(reasons),
    )


def _run_check(check: Check, options: Options) -> Outcome:
    print(f"\n== {check.name}", flush=True)
    started = time.monotonic()
    variables = dict(options.environment)
    if check.home is not None:
        variables["HOME"] = str(check.home)
    if check.report is not None:
        check.report.parent.mkdir(parents=True, exist_ok=True)
        check.report.unlink(missing_ok=True)
    rc = processes.run(check.argv, cwd=check.cwd, env=variables)
    seconds = time.monotonic() - started
    if check.report is not None:
        return judge_tests(check, rc, seconds, options)
    why = "" if rc == 0 else f"{check.name} ended with {rc}"
    return Outcome(check.name, passed=int(rc == 0), failed=int(rc != 0), skipped=0, seconds=seconds, why=why)


def judge_tests(check: Check, rc: int, seconds: float, options: Options) -> Outcome:
    """The exit status of pytest decides; its report only says how many, and which test took longest."""
    report = read_report(check.report) if check.report is not None else Report()
    why = f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped"
    if rc == NO_TESTS_COLLECTED and options.keyword is not None:
        return Outcome(check.name, 0, 0, 0, seconds, f"no test matches {options.keyword}")
    if rc == NO_TESTS_COLLECTED:
        why = "no test was found"
    elif rc != 0 and not report.failed:
        why = f"pytest ended with {rc}"
    if report.slowest:
        why += f"; slowest: {report.slowest}"
    if check.skips_count_as_failed and report.skipped:
        why += "; none may be skipped"
        return Outcome(check.name, report.passed, report.failed + report.skipped, 0, seconds, why)
    return Outcome(check.name, report.passed, report.failed or int(rc != 0), report.skipped, seconds, why)


def _pytest(
    name: str, path: str, options: Options, skips_count_as_failed: bool = False, more: Sequence[str] = ()
) -> Check:
    report = BUILD / "reports" / f"{name}.xml"
    argv: list[Union[str, Path]] = [PYTHON, "-m", "pytest", path, f"--junit-xml={report}", *more]
    if options.keyword is not None:
        argv += ["-k", options.keyword]
    return Check(name, argv, report=report, skips_count_as_failed=skips_count_as_failed)


def _workers(interpreter: processes.Argv) -> list[str]:
    """Options that let pytest run tests at once: one more than there are cores, because a play often waits."""
    count = len(os.sched_getaffinity(0)) + 1
    return ["--dist=loadgroup", f"--tx={count}*popen//python={shlex.join(map(str, interpreter))}"]


if __name__ == "__main__":
    sys.exit(main())
