# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The door: options in, one JSON out. What it does behind it is tested in test_container_kill.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.modules import pct_kill_processes
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import FakeProc, inside
from tests.unit.recorded import ScriptedRunner, recorded


class Door:
    """Runs the module on a node with one scheduler in container 129."""

    def __init__(self, proc: FakeProc, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        proc.container(129, 4100)
        command = "sglang::scheduler_TP1\0--api-key\0sk-made-up-0001\0"
        proc.add(4242, "sglang::schedul", command, parent=4100, inner=(312,), cgroup=inside(129))
        self.kernel = FakeKernel(proc)
        self.status = "status_running"
        self._proc = proc
        self._capsys = capsys
        monkeypatch.setattr(pct_kill_processes, "this_machine", self._machine)

    def _machine(self, *, check_mode: bool) -> Machine:
        runner = ScriptedRunner({"status": [recorded("pct", self.status)]})
        return Machine(runner, self._proc.procfs, FakeClock(), self.kernel, dry_run=check_mode)

    def __call__(self, **options: Any) -> dict[str, Any]:
        arguments = {"vmid": 129, "patterns": ["^sglang::"], "via": "host", **options}
        given = {key: value for key, value in arguments.items() if value is not None}
        with patch_module_args(given), pytest.raises(SystemExit) as ended:
            pct_kill_processes.main()
        # Nothing but the one JSON: json.loads takes no second value.
        result: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        assert ended.value.code == (1 if result.get("failed") else 0)
        return result


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Door:
    return Door(FakeProc(tmp_path), monkeypatch, capsys)


def test_what_it_did_is_what_it_returns(door: Door) -> None:
    result = door()
    assert (result["changed"], result["vmid"], result["via"]) == (True, 129, "host")
    assert [one["pid"] for one in result["terminated"]] == [4242]
    documented = set(yaml.safe_load(pct_kill_processes.RETURN))
    assert set(result) - {"changed", "invocation", "warnings"} == documented - {"reason", "node", "cmd"}


def test_every_field_of_a_process_is_documented_and_the_other_way_round(door: Door) -> None:
    (found,) = door()["matched"]
    assert set(found) == set(yaml.safe_load(pct_kill_processes.RETURN)["matched"]["contains"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vmid": None}, "missing required arguments: vmid"),
        ({"patterns": None}, "missing required arguments: patterns"),
        ({"via": "ssh"}, "value of via must be one of"),
        ({"vmid": "kimi"}, "vmid"),
        ({"term_timeout": "soon"}, "term_timeout"),
        ({"vmid": 12}, "vmid is 12"),
        ({"vmid": -129}, "vmid is -129"),
        ({"patterns": []}, "patterns is empty"),
        ({"patterns": ["ok", ""]}, "patterns holds an empty pattern"),
        ({"patterns": [" "]}, "patterns holds an empty pattern"),
        ({"patterns": [".*"]}, "matches every process"),
        ({"patterns": ["("]}, "patterns holds an invalid regular expression, '('"),
        ({"exclude": [""]}, "exclude holds an empty pattern"),
        ({"exclude": ["[a"]}, "exclude holds an invalid regular expression"),
        ({"term_timeout": -1}, "term_timeout is -1"),
        ({"kill_timeout": "inf"}, "kill_timeout is inf"),
        ({"respawn_timeout": "nan"}, "respawn_timeout is nan"),
        ({"pct_timeout": 1e12}, "pct_timeout is 1e+12"),
    ],
)
def test_a_wrong_option_gives_one_clear_error_and_nobody_is_signalled(
    door: Door, options: dict[str, Any], words: str
) -> None:
    result = door(**options)
    assert result["failed"] is True
    assert words in result["msg"]
    assert "Traceback" not in json.dumps(result)
    assert door.kernel.sent == []


@pytest.mark.parametrize("case", ["C02", "C11"])
def test_a_container_that_cannot_be_looked_into_fails_with_its_reason(door: Door, case: str) -> None:
    door.status = case
    result = door()
    assert (result["failed"], result["rc"], door.kernel.sent) == (True, 255, [])
    assert result["reason"] in ("ct_not_on_node", "pve_cluster_unavailable")


def test_a_stopped_container_is_fine(door: Door) -> None:
    door.status = "status_stopped"
    result = door()
    assert (result["changed"], result["container_status"], result.get("failed")) == (False, "stopped", None)


def test_a_survivor_fails_the_module_and_the_result_is_there(door: Door) -> None:
    door.kernel = replace(door.kernel, stuck=[4242])
    result = door()
    assert (result["failed"], result["changed"], result["reason"]) == (True, True, "survivors")
    assert result["msg"].startswith("1 process is left in container 129. 4242 (sglang::schedul, container 129)")
    assert result["survivors"][0]["reason"] == "timeout"


def test_a_survivor_is_only_reported_where_that_is_asked_for(door: Door) -> None:
    door.kernel = replace(door.kernel, stuck=[4242])
    result = door(fail_on_survivors=False)
    assert (result.get("failed"), result["changed"]) == (None, True)
    assert [one["pid"] for one in result["survivors"]] == [4242]


def test_check_mode_changes_nothing_and_says_what_it_would(door: Door) -> None:
    result = door(_ansible_check_mode=True)
    assert (result["changed"], door.kernel.sent) == (True, [])
    assert [one["pid"] for one in result["terminated"]] == [4242]


def test_the_difference_is_shown_only_when_asked_for(door: Door) -> None:
    assert "diff" not in door(_ansible_check_mode=True)
    diff = door(_ansible_check_mode=True, _ansible_diff=True)["diff"]
    assert diff == {"before": "4242 (sglang::schedul, container 129)\n", "after": ""}
    assert door(_ansible_diff=True)["diff"] == diff


@pytest.mark.parametrize("stuck", [[], [4242]])
def test_no_secret_comes_out(door: Door, stuck: list[int]) -> None:
    door.kernel = replace(door.kernel, stuck=stuck)
    result = door(_ansible_diff=True, _ansible_verbosity=4)
    assert "sk-made-up-0001" not in json.dumps(result)
    assert "********" in result["matched"][0]["command"]
