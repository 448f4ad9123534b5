# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters of the role for leftovers: what they are called and take, and that they document it."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import pytest
import yaml

from ansible_collections.gpuops.inference.plugins.filter import leftovers_summary, port_verdict

FILTERS = {"leftovers_summary": leftovers_summary, "port_verdict": port_verdict}

TAKEN = {
    "listeners": [
        {
            "port": 30000,
            "address": "::",
            "process": {"pid": 621, "container_pid": 66, "vmid": 129, "name": "nc", "state": "S", "unit": "x.service"},
        }
    ]
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
    assert f"gpuops.inference.{name}" in yaml.safe_load(FILTERS[name].EXAMPLES)[0]["ansible.builtin.debug"]["msg"]


@pytest.mark.parametrize(
    ("name", "keys"), [("port_verdict", {"outcome", "needs", "reason"}), ("leftovers_summary", {"listeners", "said"})]
)
def test_what_a_filter_returns_is_documented(name: str, keys: set[str]) -> None:
    value = filter_of(name)(TAKEN)
    documented = yaml.safe_load(FILTERS[name].RETURN)["_value"]
    assert keys <= set(value)
    assert all(f"C({key})" in "".join(documented["description"]) for key in value)


def test_nothing_is_nothing() -> None:
    assert [filter_of(name)({}) for name in FILTERS] == [None, None]


def test_a_unit_that_goes_is_handed_on() -> None:
    assert filter_of("port_verdict")(TAKEN, going="x.service") is None
