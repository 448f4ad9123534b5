"""The role's defaults, its argument specification and the table in its README say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLE = Path(__file__).parents[2] / "roles" / "verified_restart"
PREFIX = "verified_restart_"


def load(name: str) -> Any:
    return yaml.safe_load((ROLE / name).read_text(encoding="utf-8"))


DEFAULTS: dict[str, Any] = load("defaults/main.yml")
OPTIONS: dict[str, Any] = load("meta/argument_specs.yml")["argument_specs"]["main"]["options"]


def rows() -> dict[str, tuple[str, str, str]]:
    """Variable -> type, default and description, of the README's table."""
    table = re.findall(
        r"(?m)^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", (ROLE / "README.md").read_text(encoding="utf-8")
    )
    return {name: (kind, default, text) for name, kind, default, text in table}


def is_computed(default: Any) -> bool:
    """Whether it is an expression. A specification cannot hold one: the description tells it."""
    return isinstance(default, str) and "{{" in default


def shown(default: Any) -> str:
    """A default as the table shows it."""
    if default in (None, "", [], {}):
        return ""
    if is_computed(default):
        return "computed"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_defaults_and_specification_name_the_same_variables() -> None:
    assert set(DEFAULTS) == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_default_specification_and_readme_agree(name: str) -> None:
    option = OPTIONS[name]
    default = DEFAULTS[name]
    assert option.get("default") == (None if is_computed(default) else default)
    assert rows()[name.removeprefix(PREFIX)] == (
        option["type"],
        shown(default),
        " ".join(option["description"]),
    )
