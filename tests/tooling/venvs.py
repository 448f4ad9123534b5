"""Virtual environments beside build/venv: for tools whose pins would fight with it, and for other Pythons.

Each lies in build/venvs/NAME and is kept as long as its interpreter and its requirements stay the same.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from tests.tooling import environment
from tests.tooling.environment import BUILD, REQUIREMENTS

DIRECTORY = BUILD / "venvs"


def prepare(name: str, requirements: str, interpreter: Path = Path(sys.executable)) -> Path:
    """The Python of build/venvs/``name``, in which tests/requirements/``requirements``.txt is installed.

    Raises SetUpError with the end of the log.
    """
    place = DIRECTORY / name
    python = place / "bin" / "python"
    file = REQUIREMENTS / f"{requirements}.txt"
    # Written when all is installed, so what was interrupted is made afresh.
    mark = place / "made-from"
    wanted = recipe(file, interpreter, place)
    BUILD.mkdir(exist_ok=True)
    with environment.set_up_lock() as lock:
        if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
            return python
        environment.say(f"Making {place} for tests/requirements/{requirements}.txt, once.")
        shutil.rmtree(place, ignore_errors=True)
        environment.logged([str(interpreter), "-I", "-m", "venv", str(place)], lock)
        environment.logged([str(python), *environment.PIP_INSTALL, "-r", str(file)], lock)
        mark.write_text(wanted, encoding="utf-8")
    return python


def recipe(file: Path, interpreter: Path, place: Path) -> str:
    """What a virtual environment is made from, as one short text: who interprets, what is installed, and where."""
    parts = [str(interpreter.resolve()), str(place), *sorted(environment.fingerprints(file).values())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
