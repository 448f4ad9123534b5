"""Door of `scripts/demo`: the command line, and the order of things."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

from tests.demo import proof, summary
from tests.lab.scenarios import SCENARIOS
from tests.tooling import environment, processes
from tests.tooling.environment import BUILD, PYTHON, ROOT

DEMO = BUILD / "demo"
PLAYBOOK = Path("playbooks") / "restart_inference.yml"

# The role's defaults are for a server that loads for minutes; the lab's takes seconds.
IMPATIENCE = {
    # The least that still tells hung from slow: SGLang itself answers after 20 s.
    "verified_restart_health_timeout": 21,
    "verified_restart_hung_after": 1,
    "verified_restart_start_delay": 1,
    "verified_restart_start_retries": 120,
    # Long enough for the lab's slowest driver, short enough to watch.
    "verified_restart_verify_retries": 8,
}


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Stage:
    """A lab that stands in ``state``, and the playbook that is played on it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._variables = environment.environment(os.environ)

    def up(self, scenario: str, container: bool) -> None:
        """Raises DemoError when the lab does not come up; it has cleaned up behind itself then."""
        options = ["--container"] if container else []
        if self._lab("up", "--scenario", scenario, *options) != 0:
            raise DemoError("The lab did not come up.")

    def status(self) -> dict[str, Any]:
        """What the lab says about itself, read afresh."""
        path = self.state / "status.json"
        with path.open("wb") as output:
            if self._lab("status", stdout=output) != 0:
                raise DemoError("The lab cannot tell its state.")
        status: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return status

    def play(self, check: bool) -> tuple[int, Optional[dict[str, Any]]]:
        """The exit status of ansible-playbook, and the result that the role wrote; None when it wrote none."""
        reports = self.state / "report"
        shutil.rmtree(reports, ignore_errors=True)
        extra = json.dumps({**IMPATIENCE, "verified_restart_report_dir": str(reports)})
        options = ["--extra-vars", extra, *(["--check"] if check else [])]
        inventory = self.state / "inventory.yml"
        argv: processes.Argv = [PYTHON, "-m", "ansible", "playbook", "-i", inventory, PLAYBOOK, *options]
        rc = processes.run(argv, cwd=ROOT, env=self._variables)
        written = sorted(reports.glob("*.json"))
        return rc, json.loads(written[0].read_text(encoding="utf-8")) if written else None

    def down(self) -> None:
        """Take the lab down and keep nothing but its logs, in build/demo/log."""
        self._lab("down")
        if (self.state / "log").is_dir():
            shutil.copytree(self.state / "log", DEMO / "log", dirs_exist_ok=True)
        shutil.rmtree(self.state, ignore_errors=True)

    def _lab(self, command: str, *arguments: str, stdout: processes.Output = None) -> int:
        argv: processes.Argv = [sys.executable, "-m", "tests.lab", command, "--state", self.state, *arguments]
        return processes.run(argv, cwd=ROOT, env=os.environ, stdout=stdout)


def main() -> int:
    """0: the server runs on all cards and answers, by the role's word and by the lab's own."""
    arguments = _parse()
    if arguments.list:
        print("\n".join(SCENARIOS))
        return 0
    processes.own_descendants()
    # A short path without spaces: Unix sockets and interpreters in it must be reachable by name.
    state = Path(tempfile.mkdtemp(prefix="gpuops-demo-"))
    try:
        _forget_the_last_one()
        environment.prepare("runtime")
        return _perform(Stage(state), arguments)
    except (DemoError, environment.SetUpError) as exc:
        print(f"scripts/demo: {exc}", file=sys.stderr)
        return 1
    except processes.Interrupted as exc:
        print(f"\nscripts/demo: interrupted by {exc}; everything is taken down.", file=sys.stderr)
        return exc.exit_code
    finally:
        if not (arguments.keep and (state / "inventory.yml").exists()):
            shutil.rmtree(state, ignore_errors=True)
            for one in processes.end_descendants():
                print(f"scripts/demo: this was still running, and was ended: {one}", file=sys.stderr)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Builds a GPU host out of real processes, breaks it as a scenario says, and restarts its server.",
        epilog="Writes the role's result to build/demo/result.json. The exit status is 0 only if the server is well.",
    )
    parser.add_argument("--scenario", default="incident", metavar="NAME", help="which one (default: incident)")
    parser.add_argument("--list", action="store_true", help="name the scenarios, one a line")
    parser.add_argument("--container", action="store_true", help="in a real LXC container with systemd (needs root)")
    parser.add_argument("--check", action="store_true", help="check mode: only say what would be done")
    parser.add_argument("--again", action="store_true", help="play a second time: nothing may be changed")
    parser.add_argument("--keep", action="store_true", help="leave the lab up, and say how to take it down")
    arguments = parser.parse_args()
    scenario = SCENARIOS.get(arguments.scenario)
    if scenario is None:
        parser.error(f"there is no scenario {arguments.scenario!r}. There are: {', '.join(SCENARIOS)}")
    if os.geteuid() != 0 and (arguments.container or scenario.needs_root):
        what = "--container" if arguments.container else f"the scenario {scenario.name}"
        parser.error(f"{what} needs root")
    if arguments.container and shutil.which("lxc-start") is None:
        parser.error("--container needs LXC: install the packages lxc and debootstrap")
    return arguments


def _forget_the_last_one() -> None:
    """A result of an earlier run would look like one of this run."""
    DEMO.mkdir(parents=True, exist_ok=True)
    for old in DEMO.glob("result*.json"):
        old.unlink(missing_ok=True)
    shutil.rmtree(DEMO / "log", ignore_errors=True)


def _perform(stage: Stage, arguments: argparse.Namespace) -> int:
    _title(f"The lab: {arguments.scenario}, {SCENARIOS[arguments.scenario].summary}")
    try:
        stage.up(arguments.scenario, arguments.container)
        before = stage.status()
        _title(f"ansible-playbook {PLAYBOOK}{' --check' if arguments.check else ''}")
        if arguments.check:
            found = _rehearse(stage, before)
        else:
            found = _act(stage, before, "result.json")
            if arguments.again and not found:
                _title(f"ansible-playbook {PLAYBOOK}, a second time")
                found = _act_again(stage)
    except BaseException:
        stage.down()
        raise
    if arguments.keep:
        _say_how_to_go_on(stage.state)
    else:
        stage.down()
    for one in found:
        print(f"NOT WELL: {one}")
    return 1 if found else 0


def _rehearse(stage: Stage, before: proof.Status) -> list[str]:
    """Check mode: the plan is Ansible's own output; the lab says whether really nothing was touched."""
    rc, _result = stage.play(check=True)
    found = proof.changes(before, stage.status())
    if rc != 0:
        found.append(f"ansible-playbook ended with {rc}.")
    if not found:
        print("The lab agrees: every process is the same as before, and every card holds what it held.")
    return found


def _act(stage: Stage, before: proof.Status, name: str) -> list[str]:
    rc, result = stage.play(check=False)
    after = stage.status()
    found = proof.doubts(result, before, after)
    if result is not None:
        (DEMO / name).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        _title("What happened")
        print(summary.summarize(result, after["cards"]))
        print(f"\nThe whole result: {DEMO / name}")
    if rc != 0 and not found:
        found.append(f"ansible-playbook ended with {rc}.")
    if not found:
        print("The lab agrees: the server answers, and its processes hold all cards.")
    return found


def _act_again(stage: Stage) -> list[str]:
    before = stage.status()
    found = _act(stage, before, "result-again.json")
    return [*found, *proof.changes(before, stage.status())]


def _say_how_to_go_on(state: Path) -> None:
    inventory = shlex.quote(str(state / "inventory.yml"))
    _title("The lab is still up")
    print(f"  cd {shlex.quote(str(ROOT))}")
    print(f"  python3 -m tests.lab status --state {state}")
    print(f"  build/venv/bin/python -m ansible playbook -i {inventory} {PLAYBOOK}")
    print(f"  python3 -m tests.lab down --state {state}     # when you have seen enough")


def _title(text: str) -> None:
    print(f"\n== {text}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
