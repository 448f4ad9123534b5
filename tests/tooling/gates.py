"""The gates: `scripts/test`. Every gate runs, even when one before it failed, and a table tells how each ended."""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from tests.tooling import environment, interpreters, matrix, package, processes, real_engine, reference, sanity, venvs
from tests.tooling.environment import BUILD, PYTHON, ROOT

# The scenario that needs the machine's own pid namespace: no process of the machine may be unseen.
_ALONE = "nvidia_gpu_reset"

# What pytest ends with when it collected nothing.
NO_TESTS_COLLECTED = 5

# Of the integration tests, those that call the code of plugins/ themselves. The others have Ansible start it.
_IN_PROCESS = [f"tests/integration/test_{name}.py" for name in ("http", "health_look", "canary", "start_wait")]

# Of the integration tests, those that would not fit the half hour of CI: whole plays of what others try in part.
_LONG = [f"tests/integration/test_{name}.py" for name in ("container_plays", "detect")]


@dataclass(frozen=True)
class Check:
    """One command of a gate. ``report``: where it writes JUnit's XML, if it counts tests. ``cannot``: why it cannot run
    on this machine, and so is skipped.
    """

    name: str
    argv: processes.Argv
    cwd: Path = ROOT
    report: Optional[Path] = None
    home: Optional[Path] = None
    skips_count_as_failed: bool = False
    cannot: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a check, or a whole gate, ended. The numbers are tests where there are tests, else checks."""

    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    why: str
    cpu_seconds: float = 0

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
    return [Check("ansible-test sanity", [PYTHON, "-m", "tests.tooling.sanity"])]


def units(options: Options) -> list[Check]:
    """Unit tests: no process, no clock, no privilege."""
    return [_pytest("units", "tests/unit", options, more=["--numprocesses=auto"])]


def lab(options: Options) -> list[Check]:
    """Modules, role and playbook against a host made of real processes; with LXC where it runs as root."""
    tests, none_skipped = "tests/integration", options.no_skips
    short = [f"--ignore={path}" for path in _LONG]
    if os.geteuid() != 0:
        return [_pytest("lab", tests, options, none_skipped, [*short, *_workers([PYTHON])])]
    # Labs of root have a container 129 each, so each worker gets a machine of its own; some tests need the real one.
    in_machines = _workers([PYTHON, "-m", "tests.tooling.machine"])
    return [
        _pytest("lab", tests, options, none_skipped, ["-m", "not alone", *short, *in_machines]),
        _pytest("lab-alone", tests, options, none_skipped, ["-m", "alone", *short]),
    ]


def long_lab(options: Options) -> list[Check]:
    """The rest of the lab: plays of every way to detect, of a restart by pct, and pytest-ansible's fixtures."""
    first, *others = _LONG
    interpreter: processes.Argv = [PYTHON, "-m", "tests.tooling.machine"] if os.geteuid() == 0 else [PYTHON]
    more = [*others, "-m", "not alone", *_workers(interpreter)]
    return [_pytest("lab-long", first, options, options.no_skips, more), _with_plugin(options)]


def _with_plugin(options: Options) -> Check:
    """The one file that needs pytest-ansible, which for itself would make links in collections/."""
    plugin = ["-p", "pytest-ansible", "--ansible-unit-inject-only"]
    in_machine: processes.Argv = [PYTHON, "-m", "tests.tooling.machine"] if os.geteuid() == 0 else [PYTHON]
    path = "tests/integration/with_pytest_ansible.py"
    return _pytest("lab-pytest-ansible", path, options, options.no_skips, plugin, in_machine)


def molecule(options: Options) -> list[Check]:
    """Scenarios: each module's examples, and the role on bare metal, in LXC, where it refuses and where it need not."""
    if os.geteuid() != 0:
        return [_scenarios("molecule", ["--all"], options)]
    # As with the labs of the other tests: container 129 in a machine of its own, and one scenario in the real one.
    return [
        _scenarios("molecule", ["--all", "--exclude", _ALONE], options, [PYTHON, "-m", "tests.tooling.machine"]),
        _scenarios("molecule-alone", ["--scenario-name", _ALONE], options),
    ]


def docs(_options: Options) -> list[Check]:
    """The reference as a site in build/docs, without one bad word; whatever a guide names is there."""
    reference.prepare()
    python = venvs.prepare("docs", "docs")
    antsibull: processes.Argv = [python, "-m", "antsibull_docs.cli.antsibull_docs"]
    return [
        Check("antsibull-docs lint", [*antsibull, *reference.lint_arguments()]),
        Check("antsibull-docs pages", [*antsibull, *reference.pages_arguments()]),
        Check("sphinx", [python, "-m", "sphinx", *reference.site_arguments()]),
        Check("links", [PYTHON, "-m", "tests.tooling.links"]),
    ]


def galaxy(_options: Options) -> list[Check]:
    """The archive: built, as Galaxy would take it, holding what it should, and found by name where it is installed."""
    package.prepare()
    builder: processes.Argv = [PYTHON, environment.VENV / "bin" / "ansible-galaxy", "collection", "build"]
    step: processes.Argv = [PYTHON, "-m", "tests.tooling.package"]
    return [
        Check("build", [*builder, "--output-path", package.DIRECTORY, ROOT]),
        Check("contents", [*step, "contents"]),
        Check("galaxy-importer", [*step, "import"]),
        Check("installed", [*step, "use"]),
    ]


def targets(options: Options) -> list[Check]:
    """Every module, executed by each Python that a managed machine may have, of those that are found here."""
    return [
        _pytest("targets", "tests/targets", options, options.no_skips, interpreter=[*matrix.NAMESPACES, PYTHON]),
        *(
            _no_python(version, options.no_skips and version not in interpreters.RARE)
            for version in interpreters.missing()
        ),
    ]


def every_core(options: Options) -> list[Check]:
    """Unit tests and the incident on every supported ansible-core; modules on every Python. Installs 2 GB, once."""
    checks = []
    for control in matrix.CONTROLS:
        interpreter = control.interpreter()
        if interpreter is None:
            checks.append(_no_python(f"{control.python} for {control.name}", options.no_skips))
            continue
        python = control.prepare(interpreter)
        for name, words in (("units", ("tests/unit", "-n2")), ("lab", matrix.PASS)):
            checks.append(_pytest(f"{control.name}-{name}", words[0], options, more=words[1:], interpreter=python))
    return [*checks, *targets(options)]


def _no_python(what: str, is_failure: bool) -> Check:
    reason = f"no Python {what}: pyenv, uv and PATH have none"
    return Check(f"Python {what}", [], cannot=reason, skips_count_as_failed=is_failure)


def official_units(_options: Options) -> list[Check]:
    """The unit tests as the Ansible community runs them: ansible-test, a process for each test."""
    place = sanity.prepare("units")
    version = ".".join(map(str, sys.version_info[:2]))
    # In an environment of its own: one of the plugins in build/venv, pytest-ansible, spoils the collection path.
    own = ("--venv", "--requirements", "--python", version)
    argv: processes.Argv = [PYTHON, environment.VENV / "bin" / "ansible-test", "units", *own]
    return [Check("ansible-test units", argv, cwd=place.copy, home=place.home)]


def with_real_engine(options: Options) -> list[Check]:
    """Modules and playbook against vLLM on the CPU with a tiny model; installs 3.5 GB, once."""
    try:
        real_engine.prepare()
    except real_engine.Unavailable as exc:
        return [Check("real-engine", [], cannot=str(exc), skips_count_as_failed=options.no_skips)]
    # In a machine of its own no other server's processes are among those that a module sees.
    interpreter: processes.Argv = [PYTHON, "-m", "tests.tooling.machine"] if os.geteuid() == 0 else [PYTHON]
    # What was measured is shown of tests that pass, too.
    more = ["-m", "real_engine", "-v", "-rP", "--durations=0"]
    return [_pytest("real-engine", "tests/real_engine", options, options.no_skips, more, interpreter)]


def coverage(options: Options) -> list[Check]:
    """Which lines and branches of module_utils no test reaches, of those that call them; at most 5 % may be."""
    environment.prepare("measure")
    return [_pytest("coverage", "tests/unit", options, more=[*_IN_PROCESS, "--cov", "--cov-report=term-missing"])]


def mutation(_options: Options) -> list[Check]:
    """Small faults put into the modules that decide who is signalled: which does no unit test notice?"""
    environment.prepare("measure")
    return [Check("mutation", [PYTHON, "-m", "tests.tooling.mutation"])]


GATES = {
    "lint": lint,
    "sanity": sanity_tests,
    "docs": docs,
    "galaxy": galaxy,
    "units": units,
    "targets": targets,
    "lab": lab,
    "molecule": molecule,
}
# Only where they are asked for by name.
ON_DEMAND = {
    "matrix": every_core,
    "official": official_units,
    "real-engine": with_real_engine,
    "lab-long": long_lab,
    "coverage": coverage,
    "mutation": mutation,
}
TEST_GATES = ("units", "lab", "lab-long", "real-engine")


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
    skipped = sum(one.skipped for one in outcomes)
    nothing_ran = not (passed or failed or skipped)
    if nothing_ran:
        print("No test ran.")
    print(f"{passed} passed, {failed + nothing_ran} failed, {skipped} skipped")
    return 1 if failed or nothing_ran else 0


def table(outcomes: Sequence[Outcome]) -> str:
    """One line a gate, for a person, and which took longest. `cpu`: seconds of one processor; the rest was waiting."""
    width = max(len(one.name) for one in outcomes)
    lines = [f"{'gate':<{width}}  result   seconds     cpu  why"]
    lines += [
        f"{one.name:<{width}}  {one.word:<7}  {one.seconds:>7.1f}  {one.cpu_seconds:>6.0f}  {one.why}".rstrip()
        for one in outcomes
    ]
    slowest = max(outcomes, key=lambda one: one.seconds)
    total = sum(one.seconds for one in outcomes)
    return "\n".join(["", *lines, f"slowest: {slowest.name}, {slowest.seconds:.0f} of {total:.0f} s", ""])


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
    known = {**GATES, **ON_DEMAND}
    described = "\n".join(f"  {name:<11} {function.__doc__}" for name, function in known.items())
    parser = argparse.ArgumentParser(
        prog="scripts/test",
        description="Runs the gates and tells how each ended. Installs what it needs in build/venv, once.",
        epilog=f"gates:\n{described}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "gates",
        nargs="*",
        metavar="GATE",
        help=f"{', '.join(known)}; when none is named, all of them but {', '.join(ON_DEMAND)}",
    )
    parser.add_argument("-k", dest="keyword", metavar="WORD", help=f"only tests with WORD ({', '.join(TEST_GATES)})")
    parser.add_argument("--no-skips", action="store_true", help="what was skipped counts as failed, but in units")
    parser.add_argument("--real-engine", action="store_true", help="the gate real-engine, too, or alone")
    parser.add_argument("--matrix", action="store_true", help="the gate matrix, too, or alone")
    arguments = parser.parse_args()
    if arguments.matrix and "matrix" not in arguments.gates:
        arguments.gates.append("matrix")
    if arguments.real_engine and "real-engine" not in arguments.gates:
        arguments.gates.append("real-engine")
    unknown = [name for name in arguments.gates if name not in known]
    if unknown:
        parser.error(f"no such gate: {', '.join(unknown)}. There are: {', '.join(known)}")
    if arguments.keyword is not None and set(arguments.gates) - set(TEST_GATES):
        parser.error(f"-k selects tests, so it goes with {' and '.join(TEST_GATES)} only")
    return arguments


def _run_gate(name: str, options: Options) -> Outcome:
    started, cpu_before = time.monotonic(), _cpu_seconds()
    try:
        checks = {**GATES, **ON_DEMAND}[name](options)
    except environment.SetUpError as exc:
        print(f"\n== {name}\n{exc}", flush=True)
        return Outcome(name, 0, 1, 0, time.monotonic() - started, "its set-up failed")
    outcomes = [_run_check(check, options) for check in checks]
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
        cpu_seconds=_cpu_seconds() - cpu_before,
    )


def _cpu_seconds() -> float:
    """What all processes below us that have ended took of the processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run_check(check: Check, options: Options) -> Outcome:
    print(f"\n== {check.name}", flush=True)
    if check.cannot:
        print(check.cannot)
        failed = int(check.skips_count_as_failed)
        return Outcome(check.name, passed=0, failed=failed, skipped=1 - failed, seconds=0, why=check.cannot)
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
    name: str,
    path: str,
    options: Options,
    skips_count_as_failed: bool = False,
    more: Sequence[str] = (),
    interpreter: processes.Argv = (PYTHON,),
) -> Check:
    report = BUILD / "reports" / f"{name}.xml"
    argv: list[Union[str, Path]] = [*interpreter, "-m", "pytest", path, f"--junit-xml={report}", *more]
    if options.keyword is not None:
        argv += ["-k", options.keyword]
    return Check(name, argv, report=report, skips_count_as_failed=skips_count_as_failed)


def _scenarios(name: str, words: Sequence[str], options: Options, interpreter: processes.Argv = (PYTHON,)) -> Check:
    report = BUILD / "reports" / f"{name}.xml"
    several = ["--workers", str(_at_once())] if "--all" in words else []
    argv: processes.Argv = [
        *(*interpreter, "-m", "tests.tooling.scenarios", report),
        *("test", *words, *several, "--continue-on-failure"),
    ]
    return Check(name, argv, report=report, skips_count_as_failed=options.no_skips)


def _at_once() -> int:
    """More than there are cores, because a play often waits."""
    return 2 * len(os.sched_getaffinity(0)) + 1


def _workers(interpreter: processes.Argv) -> list[str]:
    """Options that let pytest run tests at once."""
    return ["--dist=loadgroup", f"--tx={_at_once()}*popen//python={shlex.join(map(str, interpreter))}"]


if __name__ == "__main__":
    sys.exit(main())
