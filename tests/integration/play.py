"""Runs the playbook against a lab and reads what came of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.lab.lab import Lab
from tests.tooling.environment import PYTHON, ROOT, environment

# Far above what any scenario takes: a hung health check alone is 21 s, the start of a real engine may be minutes.
LIMIT_S = 900


@dataclass(frozen=True)
class Played:
    """One run of ansible-playbook. ``result`` is the role's JSON file, None when it wrote none."""

    rc: int
    output: str
    result: dict[str, Any] | None

    @property
    def changed(self) -> int:
        """How many tasks changed something on the server's host, by the play's recap."""
        found = re.search(r"(?m)^kimi\s+:.*changed=(\d+)", self.output)
        assert found, self.output
        return int(found[1])

    @property
    def rungs(self) -> list[str]:
        """Names of the rungs that were climbed, in order."""
        assert self.result is not None, self.output
        return [rung["name"] for rung in self.result["rungs"]]

    def cards_after(self, rung: str, occurrence: int = 0) -> list[int]:
        """MiB on each card at the end of a rung."""
        assert self.result is not None, self.output
        found = [one for one in self.result["rungs"] if one["name"] == rung][occurrence]
        return [card["memory_used_mib"] for card in found["gpus_after"]]


def play(lab: Lab, *arguments: str, **variables: Any) -> Played:
    """Run playbooks/restart_inference.yml on the lab, with extra variables."""
    rc, output, results = _run_playbook(lab, lab.inventory, ["kimi"], arguments, variables)
    return Played(rc, output, results.get("kimi"))


def play_side_by_side(
    lab: Lab, hosts: Mapping[str, Mapping[str, Any]], *arguments: str, **variables: Any
) -> tuple[str, dict[str, dict[str, Any]]]:
    """The same for many hosts at once: each is the lab's, with variables of its own. Output, and results by host."""
    inventory = yaml.safe_load(lab.inventory.read_text(encoding="utf-8"))
    kimi = inventory["inference"]["hosts"]["kimi"]
    inventory["inference"]["hosts"] = {name: {**kimi, **own} for name, own in hosts.items()}
    path = lab.state / "side-by-side.yml"
    path.write_text(json.dumps(inventory), encoding="utf-8")
    arguments = ("--forks", str(len(hosts)), *arguments)
    at_once = {"restart_inference_serial": "100%", "restart_inference_max_fail_percentage": 100}
    _rc, output, results = _run_playbook(lab, path, list(hosts), arguments, {**at_once, **variables})
    return output, results


def _run_playbook(
    lab: Lab, inventory: Path, hosts: Sequence[str], arguments: Sequence[str], variables: Mapping[str, Any]
) -> tuple[int, str, dict[str, dict[str, Any]]]:
    """Exit status, output, and the results that were written, by host."""
    report = lab.state / "report"
    extra = {
        "verified_restart_report_dir": str(report),
        "verified_restart_health_timeout": 21,
        "verified_restart_hung_after": 1,
        "verified_restart_start_delay": 1,
        "verified_restart_start_retries": 120,
        **variables,
    }
    files = {host: report / f"{host}.json" for host in hosts}
    for file in files.values():
        file.unlink(missing_ok=True)
    argv = ansible("ansible-playbook", "-i", str(inventory), "-e", json.dumps(extra), *arguments)
    argv.append(str(ROOT / "playbooks" / "restart_inference.yml"))
    rc, output = run(argv)
    written = {host: json.loads(file.read_text(encoding="utf-8")) for host, file in files.items() if file.exists()}
    return rc, output, written


def module(lab: Lab, host: str, name: str, arguments: dict[str, Any], *options: str) -> dict[str, Any]:
    """Run one module of this collection on a host of the lab. Returns its result, and under ``failed`` whether so."""
    return module_on(lab.inventory, host, name, arguments, *options)[0]


def module_on(
    inventory: Path, host: str, name: str, arguments: dict[str, Any], *options: str
) -> tuple[dict[str, Any], str]:
    """The same on a host of any inventory. Returns the result, and all that stood on the terminal."""
    argv = ansible("ansible", host, "-i", str(inventory), "-m", f"gpuops.inference.{name}", *options)
    argv += ["-a", json.dumps(arguments)]
    _rc, output = run(argv, ANSIBLE_LOAD_CALLBACK_PLUGINS="1", ANSIBLE_STDOUT_CALLBACK="ansible.builtin.oneline")
    found = re.search(rf"(?m)^{host} \| (SUCCESS|CHANGED|FAILED!?)[^{{]*(\{{.*\}})$", output)
    assert found, output
    result: dict[str, Any] = json.loads(found[2])
    return {**result, "failed": found[1].startswith("FAILED")}, output


def ansible(tool: str, *arguments: str) -> list[str]:
    """An argv for one of ansible-core's tools, from the environment of the tests."""
    return [str(PYTHON), str(PYTHON.with_name(tool)), *arguments]


def run(argv: list[str], **settings: str) -> tuple[int, str]:
    """Exit status, and both streams as one text."""
    completed = subprocess.run(
        argv,
        cwd=ROOT,
        env={**environment(os.environ), **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )
    return completed.returncode, completed.stdout.decode("utf-8", "replace")


def alive(pid: int) -> bool:
    """Whether a process is there and no mere zombie, from /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
