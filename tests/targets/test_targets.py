"""Every module, run by each Python that a managed machine may have. Those that this machine lacks, the gate names."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.calls import calls, modules, wait_for_commands
from tests.integration.conftest import standing_lab
from tests.integration.play import ansible, run
from tests.lab.lab import Lab
from tests.tooling import interpreters

PYTHONS = interpreters.found()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """The incident, so that there is something to find. Only what a test brings itself is ended."""
    with standing_lab("incident") as incident:
        yield incident


def hosts(lab: Lab) -> dict[str, Any]:
    """The lab's node, once for each Python."""
    node = yaml.safe_load(lab.inventory.read_text(encoding="utf-8"))["nodes"]["hosts"]["node"]
    return {version: {**node, "ansible_python_interpreter": str(path)} for version, path in PYTHONS.items()}


def play(lab: Lab, tasks: list[dict[str, Any]], directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Results of all tasks, by host, played on all hosts at once."""
    (directory / "play.yml").write_text(
        json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]), encoding="utf-8"
    )
    (directory / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts(lab)}}), encoding="utf-8")
    argv = ansible("ansible-playbook", "-i", str(directory / "hosts.yml"), str(directory / "play.yml"))
    _rc, output = run(argv, ANSIBLE_STDOUT_CALLBACK="ansible.posix.json", ANSIBLE_DEPRECATION_WARNINGS="0")
    told = json.loads(output[output.index("{") : output.rindex("}") + 1])
    results: dict[str, list[dict[str, Any]]] = {version: [] for version in PYTHONS}
    for task in told["plays"][0]["tasks"]:
        for version, result in task["hosts"].items():
            results[version].append(result)
    return results


def test_every_module_runs_and_says_the_same_on_each_python(lab: Lab, tmp_path: Path) -> None:
    # One call of each: the backends differ in what they ask, not in Python.
    wanted = list({one.module: one for one in calls(lab)}.values())
    assert {one.module for one in wanted} == set(modules())
    tasks = [
        {f"gpuops.inference.{one.module}": one.arguments, "check_mode": True, "failed_when": False, "name": one.name}
        for one in wanted
    ]
    results = play(lab, tasks, tmp_path)
    for version, said in results.items():
        assert len(said) == len(wanted), version
        for call, result, expected in zip(wanted, said, next(iter(results.values()))):
            assert "exception" not in result, (version, call.name, result)
            # The same fields on each, those of a failure included.
            assert set(result) - {"warnings"} == set(expected) - {"warnings"}, (version, call.name, result)
            assert "MODULE FAILURE" not in str(result.get("msg")), (version, call.name, result)


def test_each_python_ends_a_process_of_the_container(lab: Lab, tmp_path: Path) -> None:
    pct = str(lab.bin / "pct")
    seconds = {version: f"47{version.partition('.')[2]:0>2}" for version in PYTHONS}
    victims = {
        version: subprocess.Popen(
            [pct, "exec", "129", "--", "/bin/sh", "-c", f"exec sleep {number}"], stdin=subprocess.DEVNULL
        )
        for version, number in seconds.items()
    }
    try:
        wait_for_commands(lab, {f"sleep {number}" for number in seconds.values()})
        kill = {"vmid": 129, "patterns": ["^sleep {{ number }}$"], "via": "host", "respawn_timeout": 0, "pct_path": pct}
        task = {
            "gpuops.inference.pct_kill_processes": kill,
            "vars": {"number": "{{ " + json.dumps(seconds) + "[inventory_hostname] }}"},
            "name": "End it",
        }
        for version, [result] in play(lab, [task], tmp_path).items():
            assert [one["command"] for one in result["terminated"]] == [f"sleep {seconds[version]}"], (version, result)
            assert victims[version].wait(timeout=20) != 0
    finally:
        for victim in victims.values():
            victim.kill()
            victim.wait()
