"""What `ansible-test sanity` needs on a machine without a container engine.

It must be started inside a directory .../ansible_collections/NAMESPACE/NAME, takes every file there for content, and
fetches pip's bootstrap script from a host of its own. So it gets a copy of what belongs to the repository, and a home
with a bootstrap script in its cache that installs the same pip from the package index that pip is configured for.

    python -m tests.tooling.sanity      # every test: pylint beside all others, since it takes as long as they
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.tooling import environment
from tests.tooling.environment import BUILD, PYTHON, ROOT, SetUpError


class Place(NamedTuple):
    """Where one ansible-test is started, and its home. Two at once need two."""

    copy: Path
    home: Path


HALVES = (("pylint", ["--test", "pylint"]), ("others", ["--skip-test", "pylint"]))

# Where there is no git to ask: what .gitignore names.
IGNORED_DIRECTORIES = frozenset(
    {"build", "__pycache__", ".git", ".ansible", ".cache", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)

BOOTSTRAP = """\
# Stands in for get-pip.py, which ansible-test would download: pip's version comes from the package index instead.
import runpy, subprocess, sys
subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
wanted = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.argv = ["pip", "install", "--quiet", *wanted]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""

PIP_VERSIONS = """\
from types import SimpleNamespace
from ansible_test._internal.constants import CONTROLLER_PYTHON_VERSIONS
from ansible_test._internal.python_requirements import get_venv_packages
print(*{get_venv_packages(SimpleNamespace(version=one))["pip"] for one in CONTROLLER_PYTHON_VERSIONS})
"""


def main() -> int:
    """Run both halves at once, and print what they said one after the other. 0: both passed."""
    version = ".".join(map(str, sys.version_info[:2]))
    tool: list[str | Path] = [PYTHON, environment.VENV / "bin" / "ansible-test"]
    running = []
    for name, selection in HALVES:
        place = prepare(name)
        said = BUILD / "reports" / f"sanity-{name}.txt"
        said.parent.mkdir(parents=True, exist_ok=True)
        with said.open("wb") as output:
            child = subprocess.Popen(
                [*tool, "sanity", "--local", "--python", version, *selection],
                cwd=place.copy,
                env={**os.environ, "HOME": str(place.home)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        running.append((child, said))
    worst = 0
    for child, said in running:
        worst = max(worst, abs(child.wait()))
        print(said.read_text(encoding="utf-8", errors="replace"), flush=True)
    return worst


def prepare(name: str) -> Place:
    """Make the copy of this name afresh, and its home."""
    place = Place(BUILD / "sanity" / name / "ansible_collections" / "gpuops" / "inference", BUILD / "sanity" / name)
    copy_repository(ROOT, place.copy)
    make_repository(place.copy)
    cache = place.home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    for version in _output([PYTHON, "-c", PIP_VERSIONS]).split():
        (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(BOOTSTRAP, encoding="utf-8")
    # ansible-test clears the environment, and with it every PIP_ variable. A file in the home survives.
    settings = place.home / ".config" / "pip" / "pip.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(pip_settings(_output([PYTHON, "-m", "pip", "config", "list"])), encoding="utf-8")
    return place


def copy_repository(source: Path, target: Path) -> None:
    """Copy what git tracks or would track."""
    shutil.rmtree(target, ignore_errors=True)
    for name in repository_files(source):
        path = source / name
        # A file that was deleted and not committed yet is still in git's list.
        if path.is_symlink() or path.exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target / name, follow_symlinks=False)


def make_repository(directory: Path) -> None:
    """Make the copy a git repository of its own.

    Otherwise ansible-test asks the one around it, which ignores build/, and finds nothing: 'All targets skipped'
    counts as success there.
    """
    if shutil.which("git") is None:
        return
    _output(["git", "-c", "init.defaultBranch=main", "init", "--quiet", directory])
    if not repository_files(directory):
        raise SetUpError(f"git sees no file in {directory}, so ansible-test would test nothing.")


def repository_files(root: Path) -> list[str]:
    """Paths below ``root`` that belong to the repository: tracked, or new and not ignored."""
    if (root / ".git").exists():
        listing = _output(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        return listing.split("\0")[:-1]
    found = []
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name not in IGNORED_DIRECTORIES]
        found += [os.path.relpath(os.path.join(directory, name), root) for name in files]
    return sorted(found)


def pip_settings(listing: str) -> str:
    """Turn what `pip config list` prints (``section.key='value'``, ``:env:.key='value'``) into a pip.conf."""
    settings: dict[str, str] = {}
    for line in listing.splitlines():
        name, _equals, value = line.partition("=")
        section, _dot, key = name.rpartition(".")
        if section in ("global", "install", ":env:"):
            # Variables come first in the listing, and win.
            # A list has one value a line, and continues with an indent.
            settings.setdefault(key, str(ast.literal_eval(value)).replace("\n", "\n    "))
    settings.setdefault("quiet", "1")
    return "\n".join(["[global]", *(f"{key} = {value}" for key, value in settings.items()), ""])


def _output(argv: list[str | Path]) -> str:
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


if __name__ == "__main__":
    sys.exit(main())
