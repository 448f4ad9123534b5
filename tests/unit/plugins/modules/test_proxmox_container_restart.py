# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The door: options in, one JSON out. What it does behind it is tested in test_container_restart.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.modules import proxmox_container_restart
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import FakeProc
from tests.unit.recorded import ScriptedRunner, completed

Door = Callable[..., dict[str, Any]]


@pytest.fixture
def runner() -> ScriptedRunner:
    """The pct of a node without high availability: the container is there, goes, and comes back with another init."""
    running, stopped = "status: running\npid: %d\n", "status: stopped\n"
    looks = [completed(running % 4200), completed(stopped), completed(stopped), completed(running % 5000)]
    ha = completed("quorum OK\n")
    return ScriptedRunner({"--verbose": [*looks], "status": [ha], "": [completed()]})


@pytest.fixture
def door(
    tmp_path: Path, runner: ScriptedRunner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Door:
    proc = FakeProc(tmp_path)
    for pid in (4200, 5000):
        proc.add(pid, "systemd", "/sbin/init")

    def machine(*, check_mode: bool) -> Machine:
        return Machine(runner, proc.procfs, FakeClock(), FakeKernel(proc), dry_run=check_mode)

    monkeypatch.setattr(proxmox_container_restart, "this_machine", machine)

    def call(**options: Any) -> dict[str, Any]:
        with patch_module_args({"vmid": 129, **options}), pytest.raises(SystemExit) as ended:
            proxmox_container_restart.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert ended.value.code == (1 if result.get("failed") else 0)
        documented = set(yaml.safe_load(proxmox_container_restart.RETURN))
        assert set(result) - {"changed", "failed", "msg", "diff", "invocation", "warnings"} <= documented
        return result

    return call


def test_it_is_done_by_pct_and_told_step_by_step(door: Door, runner: ScriptedRunner) -> None:
    result = door(_ansible_diff=True)
    assert (result["changed"], result["before"]["init_pid"], result["after"]["init_pid"]) == (True, 4200, 5000)
    assert result["diff"]["before"]["init_pid"] == 4200
    orders = [call[1:] for call in runner.calls if "status" not in call]
    assert orders == [["shutdown", "129", "--timeout", "90"], ["start", "129"]]


def test_check_mode_orders_nothing(door: Door, runner: ScriptedRunner) -> None:
    assert door(_ansible_check_mode=True)["changed"] is True
    assert all("status" in call for call in runner.calls)


@pytest.mark.parametrize(
    "options",
    [{"shutdown_timeout": 59}, {"shutdown_timeout": 100_000}, {"start_timeout": 0}, {"vmid": 99}, {"api_host": "pve1"}],
)
def test_what_cannot_be_meant_is_refused(door: Door, runner: ScriptedRunner, options: dict[str, Any]) -> None:
    result = door(**options)
    assert result["failed"] is True
    # A host without a token is refused by Ansible itself.
    assert result.get("reason", "bad_input") == "bad_input"
    assert runner.calls == []
