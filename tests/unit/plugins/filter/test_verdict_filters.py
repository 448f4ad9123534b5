# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters of the role: what they are called, how Ansible hands them their arguments, and that they document it."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import pytest
import yaml

from ansible_collections.gpuops.inference.plugins.filter import reading_verdict, respawn_verdict, restart_verdict
from ansible_collections.gpuops.inference.plugins.module_utils._verdict import verdict

FILTERS = {"reading_verdict": reading_verdict, "respawn_verdict": respawn_verdict, "restart_verdict": restart_verdict}

BUSY = {
    "all_idle": False,
    "gpus": [
        {"index": 1, "pci_bus_id": None, "memory_used_mib": 76115, "state": "busy", "error": None, "processes": []},
    ],
}


def filter_of(name: str) -> Callable[..., Any]:
    filters: dict[str, Callable[..., Any]] = FILTERS[name].FilterModule().filters()
    assert list(filters) == [name]
    return filters[name]


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_is_documented_under_its_name_with_its_arguments(name: str) -> None:
    documentation = yaml.safe_load(FILTERS[name].DOCUMENTATION)
    arguments = list(inspect.signature(filter_of(name)).parameters)
    assert documentation["name"] == name
    assert list(documentation["options"])[1:] == arguments[1:]
    assert next(iter(documentation["options"])) == documentation["positional"] == "_input"


@pytest.mark.parametrize("name", FILTERS)
def test_the_examples_and_the_returned_value_are_well_formed(name: str) -> None:
    assert f"gpuops.inference.{name}" in yaml.safe_load(FILTERS[name].EXAMPLES)[0]["ansible.builtin.debug"]["msg"]
    returned = yaml.safe_load(FILTERS[name].RETURN)["_value"]
    assert returned["type"] == "dict"
    assert all(f"C({field})" in "".join(returned["description"]) for field in ("outcome", "needs", "reason"))


def test_restart_verdict_judges_what_it_is_given() -> None:
    judge = filter_of("restart_verdict")
    assert judge(BUSY) == verdict(reading=BUSY)
    assert judge(BUSY, kill={}, reclaim={}) == verdict(reading=BUSY)
    assert judge({"gpus": [{"state": "idle"}], "all_idle": True}) is None


@pytest.mark.parametrize("nothing", [None, {}, ""])
def test_restart_verdict_takes_nothing_for_not_free(nothing: Any) -> None:
    found = filter_of("restart_verdict")(nothing, failure={"msg": "hangs"})
    assert (found["outcome"], found["reason"].endswith("hangs")) == ("gpus_not_free", True)


def test_respawn_verdict_judges_the_result_of_the_kill() -> None:
    assert filter_of("respawn_verdict")({"respawned": []}) is None


@pytest.mark.parametrize("nothing", [None, {}, ""])
def test_reading_verdict_takes_nothing_for_unreadable(nothing: Any) -> None:
    found = filter_of("reading_verdict")(nothing, failure={"msg": "hangs"})
    assert (found["outcome"], found["reason"].endswith("hangs")) == ("refused", True)


def test_reading_verdict_has_nothing_against_busy_cards() -> None:
    assert filter_of("reading_verdict")(BUSY) is None
    assert filter_of("reading_verdict")(BUSY, failure=None) is None
