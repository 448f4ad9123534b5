"""What ``awx/`` says, as plain values: the lists of its files, templates left as they are."""

from __future__ import annotations

from typing import Any

import yaml

from tests.tooling.environment import ROOT

AWX = ROOT / "awx"


class _Loader(yaml.SafeLoader):
    """YAML with Ansible's mark for texts that are not to be rendered."""


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_Loader.add_constructor("!unsafe", _text)


def load(name: str) -> dict[str, Any]:
    """The variables of one file below ``awx/``."""
    loaded: dict[str, Any] = yaml.load((AWX / name).read_text(encoding="utf-8"), Loader=_Loader)
    return loaded


def everything() -> dict[str, Any]:
    """All lists of ``awx/data``."""
    return {
        key: value for path in sorted((AWX / "data").glob("*.yml")) for key, value in load(f"data/{path.name}").items()
    }


def named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The one item of a list that is called so."""
    [found] = [item for item in items if item["name"] == name]
    return found
