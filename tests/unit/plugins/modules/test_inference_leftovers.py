# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The door: options in, one JSON out. What it does behind it is tested in test_leftovers.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.modules import inference_leftovers
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import inside
from tests.unit.fake_shm import FakeShm
from tests.unit.recorded import ScriptedRunner, recorded


class Door:
    """Runs the module on a node whose container 129 has one stale segment, and one that is in use."""

    def __init__(self, shm: FakeShm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.stale = shm.make("sgl_shm_mm_312_5d41402a", 4096)
        held = shm.make("nccl-Ewjreo", 4096)
        command = "python3\0--api-key\0sk-made-up-0001\0"
        shm.proc.add(5000, "python3", command, inner=(77,), cgroup=inside(129), fds=[held])
        self.status = "status_running"
        self._shm = shm
        self._capsys = capsys
        monkeypatch.setattr(inference_leftovers, "this_machine", self._machine)

    def _machine(self, *, check_mode: bool) -> Machine:
        runner = ScriptedRunner({"status": [recorded("pct", self.status)]})
        procfs = self._shm.procfs
        return Machine(runner, procfs, FakeClock(), FakeKernel(self._shm.proc), dry_run=check_mode)

    def __call__(self, **options: Any) -> dict[str, Any]:
        with patch_module_args({"vmid": 129, **options}), pytest.raises(SystemExit) as ended:
            inference_leftovers.main()
        # Nothing but the one JSON: json.loads takes no second value.
        result: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        assert ended.value.code == (1 if result.get("failed") else 0)
        return result


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Door:
    return Door(FakeShm(tmp_path), monkeypatch, capsys)


def test_what_it_found_is_what_it_returns_and_nothing_is_removed_unasked(door: Door) -> None:
    result = door()
    assert (result["changed"], result["stale"], result["removed"]) == (False, [door.stale.name], [])
    assert door.stale.exists()
    documented = yaml.safe_load(inference_leftovers.RETURN)
    assert set(result) - {"changed", "invocation", "warnings"} == set(documented) - {"reason", "node", "cmd"}
    assert set(result["shm"]) == set(documented["shm"]["contains"])
    for found in result["segments"]:
        assert set(found) == set(documented["segments"]["contains"])


def test_every_field_of_a_process_is_documented_and_the_other_way_round(door: Door) -> None:
    (holder,) = door()["segments"][0]["in_use_by"]
    documented = yaml.safe_load(inference_leftovers.RETURN)["listeners"]["contains"]
    assert set(holder) == set(documented["process"]["contains"])
    assert "sk-made-up-0001" not in json.dumps(holder)


def test_what_is_stale_is_removed_when_it_is_asked_for(door: Door) -> None:
    result = door(clean_shm=True, _ansible_diff=True)
    assert (result["changed"], result["removed"]) == (True, [door.stale.name])
    assert result["diff"]["before"].count("\n") == 2
    assert result["diff"]["after"] == "/dev/shm/nccl-Ewjreo\n"
    assert not door.stale.exists()
    again = door(clean_shm=True)
    assert (again["changed"], again["stale"]) == (False, [])


def test_check_mode_removes_nothing_and_says_what_it_would(door: Door) -> None:
    result = door(clean_shm=True, _ansible_check_mode=True)
    assert (result["changed"], result["removed"], door.stale.exists()) == (True, [door.stale.name], True)
    assert "diff" not in result


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vmid": 12}, "vmid is 12"),
        ({"ports": [0]}, "ports holds 0"),
        ({"ports": [30000, 70000]}, "ports holds 70000"),
        ({"ports": ["http"]}, "ports"),
        ({"port_timeout": -1}, "port_timeout is -1"),
        ({"port_timeout": "inf"}, "port_timeout is inf"),
        ({"shm_min_age": "nan"}, "shm_min_age is nan"),
        ({"shm_patterns": [".*"]}, "matches every name"),
        ({"shm_patterns": [""]}, "is empty"),
        ({"shm_patterns": ["("]}, "invalid regular expression"),
        ({"clean_shm": "perhaps"}, "clean_shm"),
    ],
)
def test_a_wrong_option_gives_one_clear_error_and_nothing_is_removed(
    door: Door, options: dict[str, Any], words: str
) -> None:
    result = door(**{"clean_shm": True, **options})
    assert result["failed"] is True
    assert words in result["msg"]
    assert "Traceback" not in json.dumps(result)
    assert door.stale.exists()


@pytest.mark.parametrize("case", ["C02", "C11"])
def test_a_container_that_cannot_be_looked_into_fails_with_its_reason(door: Door, case: str) -> None:
    door.status = case
    result = door(clean_shm=True)
    assert (result["failed"], result["rc"], door.stale.exists()) == (True, 255, True)
    assert result["reason"] in ("ct_not_on_node", "pve_cluster_unavailable")


def test_no_pattern_at_all_is_no_segment(door: Door) -> None:
    assert door(shm_patterns=[], clean_shm=True)["segments"] == []
    assert door.stale.exists()
