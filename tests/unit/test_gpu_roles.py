# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two small roles: defaults, specification and README say the same, and what they take from a restart is there."""

from __future__ import annotations

import re
from typing import Any

import jinja2
import pytest
import yaml

from tests.tooling.environment import ROOT
from tests.unit.test_role import OPTIONS as RESTART
from tests.unit.test_role import shown

ROLES = ("inspect_gpus", "reclaim_gpus")


def read(role: str, name: str) -> str:
    return (ROOT / "roles" / role / name).read_text(encoding="utf-8")


def options(role: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read(role, "meta/argument_specs.yml"))["argument_specs"]["main"]["options"]
    return found


@pytest.mark.parametrize("role", ROLES)
def test_defaults_specification_and_readme_agree(role: str) -> None:
    defaults = yaml.safe_load(read(role, "defaults/main.yml"))
    assert set(defaults) == set(options(role))
    rows = dict(re.findall(r"(?m)^\| `(\w+)` (\| \w+ \| .*? \| .*) \|$", read(role, "README.md")))
    for name, option in options(role).items():
        computed = isinstance(defaults[name], str) and "{{" in defaults[name]
        assert option.get("default") == (None if computed else defaults[name])
        text = f"| {option['type']} | {shown(defaults[name])} | {' '.join(option['description'])}"
        assert rows[name.removeprefix(f"{role}_")] == text


@pytest.mark.parametrize("role", ROLES)
def test_what_is_taken_from_a_restart_is_one_of_its_variables_with_its_default(role: str) -> None:
    for name, default in yaml.safe_load(read(role, "defaults/main.yml")).items():
        for taken, otherwise in re.findall(r"(verified_restart_\w+) \| default\(([^)]*)\)", str(default)):
            assert taken.removeprefix("verified_restart_") == name.removeprefix(f"{role}_")
            assert options(role)[name]["type"] == RESTART[taken]["type"]
            if otherwise not in ("none", "inventory_hostname", "''", "reclaim_gpus__lease_name"):
                assert yaml.safe_load(otherwise) == RESTART[taken]["default"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        ("", ["2"]),
        (None, ["2"]),
        # These are choices: card 0, and one that the module refuses. Neither may become all cards.
        (0, 0),
        ([], []),
        (["0", "1"], ["0", "1"]),
        ("0,1", "0,1"),
    ],
)
def test_a_question_that_was_not_answered_leaves_the_server_s_cards(role: str, said: Any, chosen: Any) -> None:
    """A controller hands it on as an empty text, which beats every default."""
    text = yaml.safe_load(read(role, "vars/main.yml"))[f"{role}__chosen"]
    evaluate = jinja2.Environment().compile_expression(text.strip().removeprefix("{{").removesuffix("}}"))
    assert evaluate(**{f"{role}_gpus": said, "verified_restart_gpus": ["2"]}) == chosen
    (task,) = [one for one in _tasks(role) if "gpuops.inference.gpu_memory_facts" in one]
    asked = task["gpuops.inference.gpu_memory_facts"]["gpus"]
    assert asked == f"{{{{ omit if {role}__chosen in ['', none] else {role}__chosen }}}}"


def _tasks(role: str) -> list[dict[str, Any]]:
    files = sorted((ROOT / "roles" / role / "tasks").glob("*.yml"))
    return [task for file in files for task in yaml.safe_load(file.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("container", "node", "refused"), [(129, "kimi", True), (129, "pve1", False), (None, "kimi", False)]
)
def test_a_container_is_not_reclaimed_from_within(container: Any, node: str, refused: bool) -> None:
    text = yaml.safe_load(read("reclaim_gpus", "vars/main.yml"))["reclaim_gpus__refusal"]
    environment = jinja2.Environment()
    environment.filters["bool"] = bool
    evaluate = environment.compile_expression(text.strip().removeprefix("{{").removesuffix("}}"))
    known: dict[str, Any] = {
        "astray": "astray",
        "kept_out": "kept out",
        "lives": "",
        "unreadable": None,
        "lease": {"lease": {}},
    }
    said = evaluate(
        inventory_hostname="kimi",
        reclaim_gpus_node=node,
        reclaim_gpus_force=False,
        reclaim_gpus__container=container,
        **{f"reclaim_gpus__{name}": value for name, value in known.items()},
    )
    assert said == ("astray" if refused else None)
