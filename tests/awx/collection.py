"""Where the collection awx.awx is: in the package ``ansible`` up to version 13, else taken from one that has it."""

from __future__ import annotations

import subprocess
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from tests.tooling.environment import BUILD, PYTHON

# The package that tests/requirements/runtime.txt has for Python 3.11.
_SOURCE = "ansible==12.3.0"
_CONTENT = "ansible_collections/awx/awx/"
_LIMIT_S = 300


def collections_with_awx() -> Path:
    """A directory for the path of collections. Raises CalledProcessError where PyPI is not to be reached."""
    installed = Path(sysconfig.get_path("purelib", vars={"base": str(PYTHON.parents[1])}))
    return installed if (installed / _CONTENT).is_dir() else _fetched(BUILD / "awx-collections")


def _fetched(place: Path) -> Path:
    if not (place / _CONTENT / "MANIFEST.json").is_file():
        with tempfile.TemporaryDirectory() as directory:
            argv = [str(PYTHON), "-I", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            argv += ["--only-binary=:all:", "--dest", directory, _SOURCE]
            subprocess.run(argv, check=True, timeout=_LIMIT_S)
            [wheel] = Path(directory).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(place, [name for name in archive.namelist() if name.startswith(_CONTENT)])
    return place
