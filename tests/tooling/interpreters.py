"""Pythons of this machine, of every version that may run the modules: what pyenv, uv and Debian have installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

# What CONTRIBUTING promises for modules and module_utils.
TARGETS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
# So new that many machines lack it. It is named where it is missing, and no failure.
RARE = frozenset({"3.14"})


def found() -> dict[str, Path]:
    """Version -> an interpreter that runs, and says that it is of that version. Without those that are missing."""
    return {version: path for version in TARGETS if (path := find(version)) is not None}


def missing() -> list[str]:
    """Those of TARGETS that this machine lacks."""
    there = found()
    return [version for version in TARGETS if version not in there]


def find(version: str) -> Optional[Path]:
    """An interpreter of ``version`` ('3.9'), None where there is none."""
    return next((one for one in _candidates(version) if _says(one) == version), None)


def _candidates(version: str) -> Iterator[Path]:
    """Places where one may be. Not a shim of pyenv, which runs only where that version is chosen."""
    homes = [
        Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local" / "share" / "uv" / "python"),
    ]
    for home in homes:
        for place in sorted(home.glob(f"*{version}.*"), key=_patch, reverse=True):
            yield place / "bin" / f"python{version}"
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield Path(on_path)
    yield Path("/usr/bin") / f"python{version}"


def _patch(place: Path) -> list[int]:
    """Sorts 3.9.18 above 3.9.9."""
    return [int(number) for number in re.findall(r"\d+", place.name)]


def _says(interpreter: Path) -> str:
    """Its version as it says it itself, '' where it does not run."""
    code = "import sys, zipfile, json; print('%d.%d' % sys.version_info[:2])"
    try:
        completed = subprocess.run(
            [interpreter, "-I", "-c", code], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout.strip() if completed.returncode == 0 else ""
