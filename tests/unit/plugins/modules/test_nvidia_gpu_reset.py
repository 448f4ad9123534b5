# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The door: options in, one JSON out. What it does behind it is tested in test_gpu_reset.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.module_utils import _gpu_reset
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import DriverReading, Gpu
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.modules import nvidia_gpu_reset
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import FakeProc
from tests.unit.recorded import ScriptedRunner, completed, recorded


class Door:
    """Runs the module on a machine with one card, GPU 1 at /dev/nvidia3, whose memory is leaked."""

    def __init__(self, proc: FakeProc, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.proc = proc
        self.node = proc.card(3)
        self.runner = ScriptedRunner(
            {
                "persistence_mode": [completed("1, Disabled\n")],
                "--gpu-reset": [completed("GPU 00000000:0F:00.0 was successfully reset.\nAll done.\n")],
            }
        )
        self._capsys = capsys
        monkeypatch.setattr(nvidia_gpu_reset, "this_machine", self._machine)
        monkeypatch.setattr(_gpu_reset, "read_driver", self._read)

    def _machine(self, *, check_mode: bool) -> Machine:
        return Machine(self.runner, self.proc.procfs, FakeClock(), FakeKernel(self.proc), dry_run=check_mode)

    @property
    def was_reset(self) -> bool:
        return any("--gpu-reset" in call for call in self.runner.calls)

    def _read(self, **_options: Any) -> DriverReading:
        used = 39 if self.was_reset else 76115
        card = Gpu(1, "GPU-1", "0000:0f:00.0", 3, "RTX", 97887, used, 97887 - used, None)
        return DriverReading("nvidia_smi", "580", (card,), (), 0, ())

    def __call__(self, **options: Any) -> dict[str, Any]:
        arguments = {"device_directory": str(self.proc.devices), "gpus": [1], **options}
        with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
            nvidia_gpu_reset.main()
        result: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        assert ended.value.code == (1 if result.get("failed") else 0)
        return result


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Door:
    return Door(FakeProc(tmp_path), monkeypatch, capsys)


def test_what_it_did_is_what_it_returns(door: Door) -> None:
    result = door()
    assert (result["changed"], result["reset"], result["after"][0]["memory_used_mib"]) == (True, [1], 39)
    documented = yaml.safe_load(nvidia_gpu_reset.RETURN)
    assert set(result) - {"changed", "invocation", "warnings"} == set(documented) - {
        "reason",
        "cmd",
        "missing",
        "holders",
    }
    assert set(result["before"][0]) == set(documented["before"]["contains"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": [9]}, "GPU 9 is not among"),
        ({"gpus": ["first"]}, "'first' is not a card"),
        ({"device_directory": "/nowhere"}, "GPU 1 (0000:0f:00.0) should be /nowhere/nvidia3"),
        ({"backend": "cuda"}, "value of backend must be one of"),
        ({"timeout": 0}, "timeout is 0"),
        ({"reset_timeout": 0}, "reset_timeout is 0"),
        ({"settle_timeout": -1}, "settle_timeout is -1"),
        ({"idle_memory_mib": -1}, "idle_memory_mib is -1"),
    ],
)
def test_a_wrong_option_gives_one_clear_error_and_nothing_is_reset(
    door: Door, options: dict[str, Any], words: str
) -> None:
    result = door(**options)
    assert result["failed"] is True
    assert words in result["msg"]
    assert door.was_reset is False


def test_whoever_has_the_card_is_named_without_his_secrets(door: Door) -> None:
    door.proc.add(900, "python3", "x\0--hf-token\0sk-made-up-0001\0", fds=[door.node])
    result = door()
    assert (result["failed"], result["reason"], door.was_reset) == (True, "held", False)
    assert result["holders"][0]["pid"] == 900
    assert "sk-made-up-0001" not in json.dumps(result)


def test_a_refusal_fails_with_the_tool_s_words_and_the_command(door: Door) -> None:
    door.runner.script["--gpu-reset"] = [recorded("nvidia_smi_reset", "B11")]
    result = door()
    assert (result["failed"], result["reason"], result["rc"]) == (True, "reset_in_use", 255)
    assert "Fabric Manager" in result["msg"]
    assert "In use by another client" in result["stdout"]


def test_check_mode_resets_nothing(door: Door) -> None:
    result = door(_ansible_check_mode=True)
    assert (result["changed"], result["reset"], door.was_reset) == (True, [1], False)


def test_the_difference_is_shown_only_when_asked_for(door: Door) -> None:
    assert "diff" not in door(_ansible_check_mode=True)
    before = "GPU 1: busy, 76115 MiB\n"
    assert door(_ansible_check_mode=True, _ansible_diff=True)["diff"] == {
        "before": before,
        "after": "GPU 1: reset, 76115 MiB\n",
    }
    assert door(_ansible_diff=True)["diff"] == {"before": before, "after": "GPU 1: idle, 39 MiB\n"}
