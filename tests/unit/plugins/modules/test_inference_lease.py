# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The door: options in, one JSON out. What it does behind it is tested in test_lease.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.modules import inference_lease

Door = Callable[..., dict[str, Any]]


@pytest.fixture
def door(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Door:
    def call(run: str, **options: Any) -> dict[str, Any]:
        arguments = {"name": "ct-129", "run": run, "job": run, "directory": str(tmp_path / "leases"), **options}
        with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
            inference_lease.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert ended.value.code == (1 if result.get("failed") else 0)
        assert set(result) - {"changed", "failed", "msg", "diff", "invocation"} <= set(
            yaml.safe_load(inference_lease.RETURN)
        )
        return result

    return call


def test_it_is_taken_refused_renewed_and_given_back(door: Door) -> None:
    taken = door("a", _ansible_diff=True)
    assert (taken["changed"], taken["lease"]["run"], taken["ended"]) == (True, "a", None)
    assert taken["diff"] == {"before": {}, "after": taken["lease"]}
    refused = door("b")
    assert (refused["failed"], refused["reason"], refused["holder"]["run"]) == (True, "leased", "a")
    assert door("a", state="renewed")["changed"] is False
    assert door("b", state="renewed")["reason"] == "lease_lost"
    assert door("b", state="released")["lease"]["run"] == "a"
    assert door("a", state="released")["changed"] is True
    assert door("b", break_job="a")["changed"] is True


def test_check_mode_looks_and_takes_nothing(door: Door) -> None:
    assert door("a", _ansible_check_mode=True)["changed"] is True
    assert door("b")["changed"] is True
    assert door("a", _ansible_check_mode=True)["reason"] == "leased"


@pytest.mark.parametrize("options", [{"seconds": 0}, {"seconds": -1}, {"name": "../etc"}, {"run": ""}])
def test_what_cannot_be_meant_is_refused(door: Door, options: dict[str, Any]) -> None:
    assert door(**{"run": "a", **options})["reason"] == "bad_input"
