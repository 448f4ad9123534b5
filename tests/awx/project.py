"""A project as AWX's sync leaves it: awx/playbooks/project_update.yml, RunProjectUpdate in awx/main/tasks/jobs.py."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.tooling.environment import PYTHON, ROOT

_LIMIT_S = 120


@dataclass(frozen=True)
class Project:
    """``files``: the checkout. ``collections``: what ``collections/requirements.yml`` brought. ``said``: its output."""

    files: Path
    collections: Path
    said: str


def tracked_files(root: Path) -> list[str]:
    """What a clone of the working tree would hold, new files included."""
    argv = ["git", "-c", f"safe.directory={root}", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(argv, cwd=root, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (root / name).is_file()]


def sync(directory: Path, root: Path = ROOT) -> Project:
    """Lay the project out below ``directory``, and install what it requires as AWX does: by ansible-galaxy, from the
    top of the checkout, into a place that is empty.

    What galaxy.yml depends on is taken from the ``ansible`` package of the test environment where there is no network:
    ansible-galaxy finds it there by itself.
    """
    files, stage = directory / "project", directory / "stage"
    collections = stage / "requirements_collections"
    for name in tracked_files(root):
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, files / name)
    argv = [str(PYTHON), str(PYTHON.with_name("ansible-galaxy")), "collection", "install"]
    argv += ["-r", "collections/requirements.yml", "--collections-path", str(collections)]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory / "home"),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_FORCE_COLOR": "false",
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_LOCAL_TEMP": str(stage / "tmp"),
    }
    done = subprocess.run(
        argv,
        cwd=files,
        env=environment,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
    )
    assert done.returncode == 0, done.stdout
    return Project(files, collections, done.stdout)
