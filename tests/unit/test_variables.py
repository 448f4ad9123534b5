# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wherever a variable of a role is named, there is one; wherever its default is said, it is that one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SPECIFICATIONS = {path.parts[-3]: path for path in (ROOT / "roles").glob("*/meta/argument_specs.yml")}
# What operators read or copy.
TEXTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "roles/*/README.md", "playbooks/*.yml", "inventories/**/*", "awx/**/*.yml")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.name != "CHANGELOG.md"
)
# Facts that a role leaves, and the play's own word for the hosts that it is for.
NO_OPTIONS = {
    "verified_restart_hosts",
    *(f"{role}_{fact}" for role in SPECIFICATIONS for fact in ("result", "results")),
}


def options() -> dict[str, dict[str, Any]]:
    """Option -> its entry, of all roles."""
    found: dict[str, dict[str, Any]] = {}
    for path in SPECIFICATIONS.values():
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            found |= entry["options"]
    return found


OPTIONS = options()
NAMED = re.compile(rf"\b(?:{'|'.join(SPECIFICATIONS)})_[a-z]\w*")


def questions() -> list[dict[str, Any]]:
    """Those of all surveys in awx/."""
    templates = yaml.safe_load((ROOT / "awx" / "data" / "job_templates.yml").read_text(encoding="utf-8"))
    return [one for template in templates["controller_templates"] for one in template["survey_spec"]["spec"]]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_variable_that_is_named_is_an_option_of_a_role(path: Path) -> None:
    named = set(NAMED.findall(path.read_text(encoding="utf-8")))
    assert named - NO_OPTIONS <= set(OPTIONS)


@pytest.mark.parametrize("role", SPECIFICATIONS)
def test_defaults_and_specification_of_every_role_agree(role: str) -> None:
    defaults: dict[str, Any] = yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text("utf-8"))
    mine = {name: option for name, option in OPTIONS.items() if name.startswith(f"{role}_")}
    assert set(defaults) <= set(OPTIONS)
    for name, option in mine.items():
        default = defaults.get(name)
        is_computed = isinstance(default, str) and "{{" in default
        assert option.get("default") == (None if is_computed else default), name
    readme = (ROOT / "roles" / role / "README.md").read_text(encoding="utf-8")
    assert [name for name in mine if f"`{name.removeprefix(role + '_')}`" not in readme and name not in readme] == []


def test_a_survey_s_default_is_the_role_s() -> None:
    # A playbook has variables of its own, which begin with its name.
    asked = [one for one in questions() if NAMED.match(one["variable"])]
    assert asked
    for question in asked:
        default = OPTIONS[question["variable"]].get("default")
        if default is not None and "default" in question:
            assert yaml.safe_load(str(question["default"])) == default, question["variable"]
