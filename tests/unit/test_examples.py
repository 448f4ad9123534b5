"""What a module's documentation shows as examples is a file in examples/, and molecule runs that file."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.tooling.environment import ROOT

MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
SCENARIOS = ROOT / "extensions" / "molecule"


def test_no_file_is_left_over() -> None:
    assert sorted(path.stem for path in (ROOT / "examples").iterdir()) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_the_file_is_what_the_documentation_shows(module: str) -> None:
    shown = importlib.import_module(f"ansible_collections.gpuops.inference.plugins.modules.{module}").EXAMPLES
    assert read(ROOT / "examples" / f"{module}.yml") == f"---{shown}", f"copy EXAMPLES of {module} into the file"


@pytest.mark.parametrize("module", MODULES)
def test_molecule_converges_the_file_and_looks_at_what_came_of_it(module: str) -> None:
    assert f"/examples/{module}.yml" in read(SCENARIOS / module / "converge.yml")
    assert "../shared/tasks/look.yml" in read(SCENARIOS / module / "verify.yml")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
