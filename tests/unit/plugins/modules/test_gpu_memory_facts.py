# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The door: options in, one JSON out. What it says is tested in test_memory_facts.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed, SystemRunner
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.inference.plugins.modules import gpu_memory_facts
from tests.unit.recorded import ScriptedRunner, completed, recorded


def run_module(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, runner: ScriptedRunner, **options: Any
) -> dict[str, Any]:
    def run(self: SystemRunner, argv: list[str], *, timeout: float) -> Completed:
        return runner.run(argv, timeout=timeout)

    monkeypatch.setattr(SystemRunner, "run", run)
    with patch_module_args({"backend": "nvidia_smi", **options}), pytest.raises(SystemExit):
        gpu_memory_facts.main()
    # Nothing but the one JSON: json.loads takes no second value.
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture
def incident() -> ScriptedRunner:
    return ScriptedRunner(
        {
            "--query-gpu": [recorded("nvidia_smi", "incident")],
            "--query-compute-apps": [recorded("nvidia_smi", "incident_processes")],
            "-q": [recorded("nvidia_smi", "incident_details")],
        }
    )


@pytest.mark.parametrize("check_mode", [False, True])
def test_it_returns_facts_and_changes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, incident: ScriptedRunner, check_mode: bool
) -> None:
    result = run_module(capsys, monkeypatch, incident, _ansible_check_mode=check_mode)
    assert result["changed"] is False
    assert result["ansible_facts"]["gpu_memory"]["busy"] == [1]
    assert result["ansible_facts"]["gpu_memory"]["gpus"][0]["minor"] == 2


def test_numbers_name_cards(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, incident: ScriptedRunner
) -> None:
    facts = run_module(capsys, monkeypatch, incident, gpus=[1, "0000:d6:00.0"])["ansible_facts"]["gpu_memory"]
    assert [card["index"] for card in facts["gpus"]] == [1, 7]


def test_every_returned_field_is_documented_and_the_other_way_round(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, incident: ScriptedRunner
) -> None:
    facts = run_module(capsys, monkeypatch, incident)["ansible_facts"]["gpu_memory"]
    documented = yaml.safe_load(gpu_memory_facts.RETURN)["ansible_facts"]["contains"]["gpu_memory"]["contains"]
    card = documented["gpus"]["contains"]
    assert set(facts) == set(documented)
    assert set(facts["gpus"][1]) == set(card)
    assert set(facts["gpus"][1]["processes"][0]) == set(card["processes"]["contains"])


def test_a_failure_has_reason_status_and_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ScriptedRunner({"--query-gpu": [recorded("nvidia_smi", "A14")]})
    result = run_module(capsys, monkeypatch, runner)
    assert result["failed"] is True
    assert (result["reason"], result["rc"]) == ("driver_not_loaded", 9)
    assert "ansible_facts" not in result


def test_missing_cards_fail_but_what_was_read_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, incident: ScriptedRunner
) -> None:
    result = run_module(capsys, monkeypatch, incident, expected_gpus=9)
    documented = yaml.safe_load(gpu_memory_facts.RETURN)
    assert (result["reason"], result["missing_indices"]) == ("gpus_missing", [8])
    assert result["gpu_memory"]["busy"] == [1]
    assert set(result) - {"msg", "failed", "changed", "exception", "invocation", "expected_gpus"} <= set(documented)


def test_a_hang_fails_in_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ScriptedRunner({"--query-gpu": [CommandError("x", reason="timeout", cmd=[], unkillable=True)]})
    result = run_module(capsys, monkeypatch, runner, timeout=2)
    assert (result["reason"], result["unkillable"]) == ("timeout", True)
    assert "within 2 s" in result["msg"]


def test_warnings_of_the_driver_are_the_modules(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, incident: ScriptedRunner
) -> None:
    text = recorded("nvidia_smi", "A18").stdout.splitlines(keepends=True)[0]
    incident.script["--query-gpu"] = [completed(text + recorded("nvidia_smi", "incident").stdout, rc=14)]
    result = run_module(capsys, monkeypatch, incident)
    assert "infoROM is corrupted" in json.dumps(result["warnings"])
