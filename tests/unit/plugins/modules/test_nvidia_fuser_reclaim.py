# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The door: options in, one JSON out. What it does behind it is tested in test_reclaim.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.module_utils import _reclaim
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import ComputeProcess, DriverReading, Gpu
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.modules import nvidia_fuser_reclaim
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import FakeProc
from tests.unit.recorded import ScriptedRunner, recorded


class Door:
    """Runs the module on a machine with one card, GPU 1 at /dev/nvidia3, held by 4242 and by DCGM's daemon."""

    def __init__(self, proc: FakeProc, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        card = proc.card(3)
        proc.add(4242, "pt_main_thread", "x\0--hf-token\0sk-made-up-0001\0", fds=[card, proc.uvm()])
        proc.add(900, "nv-hostengine", "/usr/bin/nv-hostengine\0", fds=[card])
        self.kernel = FakeKernel(proc)
        self.hangs = False
        self._proc = proc
        self._capsys = capsys
        monkeypatch.setattr(nvidia_fuser_reclaim, "this_machine", self._machine)
        monkeypatch.setattr(_reclaim, "read_driver", self._read)

    def _machine(self, *, check_mode: bool) -> Machine:
        runner = ScriptedRunner({"status": [recorded("pct", "C02")]})
        return Machine(runner, self._proc.procfs, FakeClock(), self.kernel, dry_run=check_mode)

    def _read(self, **_options: Any) -> DriverReading:
        if self.hangs:
            raise CommandError("The driver gave no answer.", reason="timeout", unkillable=True)
        card = Gpu(1, "GPU-1", "0000:0f:00.0", 3, "RTX", 97887, 76115, 21772, None)
        return DriverReading("nvidia_smi", "580", (card,), (ComputeProcess(4242, "GPU-1", 76064),), 0, ("careful",))

    def __call__(self, **options: Any) -> dict[str, Any]:
        arguments = {"device_directory": str(self._proc.devices), **options}
        with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
            nvidia_fuser_reclaim.main()
        # Nothing but the one JSON: json.loads takes no second value.
        result: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        assert ended.value.code == (1 if result.get("failed") else 0)
        return result


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Door:
    return Door(FakeProc(tmp_path), monkeypatch, capsys)


def test_what_it_did_is_what_it_returns(door: Door) -> None:
    result = door()
    assert (result["changed"], result["gpus"], result["scan_complete"]) == (True, [1], True)
    assert [one["pid"] for one in result["terminated"]] == [4242]
    assert {one["pid"]: one["reason"] for one in result["spared"]} == {900: "protected"}
    documented = set(yaml.safe_load(nvidia_fuser_reclaim.RETURN))
    assert set(result) - {"changed", "invocation", "warnings"} == documented - {"reason", "cmd", "missing"}


def test_every_field_of_a_holder_is_documented_and_the_other_way_round(door: Door) -> None:
    documented = set(yaml.safe_load(nvidia_fuser_reclaim.RETURN)["holders"]["contains"])
    result = door()
    assert all(set(holder) == documented for holder in result["holders"])
    assert all(set(holder) == documented | {"reason"} for holder in result["spared"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": [1], "devices": ["/dev/nvidia3"]}, "parameters are mutually exclusive: gpus|devices"),
        ({"backend": "cuda"}, "value of backend must be one of"),
        ({"gpus": [9]}, "9"),
        ({"gpus": ["first"]}, "'first' is not a card"),
        ({"devices": ["/dev/no-such-node"]}, "names no file"),
        ({"device_directory": "/nowhere"}, "GPU 1 (0000:0f:00.0) should be /nowhere/nvidia3"),
        ({"vmid": 5}, "vmid is 5"),
        ({"vmid": 105}, "There is no container 105 on this node"),
        ({"protect": [""]}, "protect holds an empty pattern"),
        ({"protect": ["("]}, "protect holds an invalid regular expression"),
        ({"term_timeout": -1}, "term_timeout is -1"),
        ({"kill_timeout": "inf"}, "kill_timeout is inf"),
        ({"respawn_timeout": -0.5}, "respawn_timeout is -0.5"),
        ({"timeout": 1e12}, "timeout is 1e+12"),
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


def test_a_driver_that_hangs_fails_with_its_reason(door: Door) -> None:
    door.hangs = True
    result = door()
    assert (result["failed"], result["reason"], result["unkillable"], door.kernel.sent) == (True, "timeout", True, [])


def test_with_named_nodes_a_driver_that_hangs_is_a_warning(door: Door) -> None:
    door.hangs = True
    result = door(devices=[f"{door._proc.devices}/nvidia3"])
    assert [one["pid"] for one in result["terminated"]] == [4242]
    assert "The driver gave no answer." in json.dumps(result["warnings"])


def test_warnings_are_ansible_s_own(door: Door) -> None:
    assert "careful" in json.dumps(door()["warnings"])


def test_no_card_is_meant_by_an_empty_list(door: Door) -> None:
    result = door(gpus=[])
    assert (result["changed"], result["holders"], result.get("failed")) == (False, [], None)


def test_own_protection_replaces_the_default(door: Door) -> None:
    result = door(protect=["^pt_main"], spare_monitors=False)
    assert {one["pid"]: one["reason"] for one in result["spared"]} == {4242: "protected"}
    assert [one["pid"] for one in result["terminated"]] == [900]


def test_protection_can_be_taken_away_entirely(door: Door) -> None:
    assert [one["pid"] for one in door(protect=[], spare_monitors=False)["terminated"]] == [900, 4242]


def test_a_survivor_fails_the_module_and_the_result_is_there(door: Door) -> None:
    door.kernel = replace(door.kernel, stuck=[4242])
    result = door()
    assert (result["failed"], result["changed"], result["reason"]) == (True, True, "survivors")
    assert result["msg"].startswith("1 process is left on the cards. 4242 (pt_main_thread)")
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
    assert diff == {"before": "900 (nv-hostengine)\n4242 (pt_main_thread)\n", "after": "900 (nv-hostengine)\n"}
    assert door(_ansible_diff=True)["diff"] == diff


@pytest.mark.parametrize("stuck", [[], [4242]])
def test_no_secret_comes_out(door: Door, stuck: list[int]) -> None:
    door.kernel = replace(door.kernel, stuck=stuck)
    result = door(_ansible_diff=True, _ansible_verbosity=4)
    assert "sk-made-up-0001" not in json.dumps(result)
    assert "********" in json.dumps(result["holders"])
