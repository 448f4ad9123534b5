"""Every supported ansible-core on a Python of its own: which, and how tests are run by it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from tests.tooling import interpreters, processes, venvs

# Begins an argv: the lab's containers are namespaces, which need neither root nor LXC, and disturb no other lab.
NAMESPACES = ("env", "LAB_BACKEND=namespaces")
# The incident from the zombie server to the proof: every rung, three plays.
PASS = ("tests/integration/test_incident.py", "-k", "namespaces")


@dataclass(frozen=True)
class Control:
    """A control machine: ansible-core ``core`` on Python ``python``. tests/requirements/core-``core``.txt pins it."""

    python: str
    core: str

    @property
    def name(self) -> str:
        return f"core-{self.core}"

    def interpreter(self) -> Optional[Path]:
        """A Python of that version, None where this machine has none."""
        return interpreters.find(self.python)

    def prepare(self, interpreter: Path) -> processes.Argv:
        """Install it in build/venvs. Returns the beginning of an argv: that Python, and our tests know which it is."""
        python = venvs.prepare(self.name, self.name, interpreter)
        return [*NAMESPACES, f"TEST_VENV={python.parent.parent}", python]


CONTROLS = (Control("3.11", "2.19"), Control("3.12", "2.20"), Control("3.13", "2.21"), Control("3.13", "2.22"))
