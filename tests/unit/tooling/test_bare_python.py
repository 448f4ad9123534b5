"""What a script starts needs nothing but Python itself: it is what installs the rest."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.tooling.environment import ROOT

TOOLS = sorted(
    {
        tool
        for script in (ROOT / "scripts").iterdir()
        if script.is_file() and script.name != "_setup"
        for tool in re.findall(r"(?m)^run_tool ([\w.]+)", script.read_text(encoding="utf-8"))
    }
)


def test_every_script_starts_a_tool() -> None:
    assert {"tests.demo", "tests.tooling.gates"} <= set(TOOLS)


@pytest.mark.parametrize("tool", TOOLS)
def test_it_is_imported_without_any_package(tool: str) -> None:
    """-S: without site-packages; -I would leave out the checkout as well."""
    code = "import importlib, sys; importlib.import_module(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-B", "-c", code, tool], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
