"""The archive that Galaxy gets: what is in it, and that it works where it was installed.

``python -m tests.tooling.package contents|import|use``: steps of the gate `galaxy`, after the archive was built.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from tests.tooling import sanity, venvs
from tests.tooling.environment import BUILD, PYTHON, ROOT

DIRECTORY = BUILD / "galaxy"
# What `ansible-galaxy collection build` itself adds to a package, and what it takes out.
ADDED = frozenset({"MANIFEST.json", "FILES.json"})
TAKEN_OUT = frozenset({"galaxy.yml"})
# Who only runs the collection has no use for these.
NEVER = ("build/", "tests/", "scripts/", ".")

# Of Galaxy's importer: its sanity tests need a container engine, and with its ansible-lint it would do again what the
# gates `sanity` and `lint` do with newer versions. What is left: the manifest, names, tags, changelog, and the
# documentation of every plugin as Galaxy will show it.
IMPORTER_SETTINGS = """\
[galaxy-importer]
check_required_tags = true
check_changelog = true
run_ansible_doc = true
run_ansible_lint = false
run_ansible_test = false
run_flake8 = false
"""
# The importer ends well even where it has to complain.
COMPLAINT = re.compile(r"^(WARNING|ERROR|CRITICAL)\b")

PLAYBOOKS = "gpuops.inference."


def prepare() -> None:
    """An empty place for the archive."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    (DIRECTORY / "galaxy-importer.cfg").write_text(IMPORTER_SETTINGS, encoding="utf-8")


def archive() -> Path:
    """The one package in build/galaxy."""
    [found] = DIRECTORY.glob("gpuops-inference-*.tar.gz")
    return found


def contents() -> int:
    """Compare the archive with the repository: nothing foreign, nothing forgotten."""
    # Here, because scripts/test reads this file before anything is installed.
    import yaml

    with tarfile.open(archive()) as package:
        packed = {member.name for member in package.getmembers() if member.isfile()}
    settings: dict[str, Any] = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    # A file that was deleted and not committed yet is still in git's list.
    there = [name for name in sanity.repository_files(ROOT) if (ROOT / name).exists()]
    faults = differences(packed, there, settings["build_ignore"])
    size = archive().stat().st_size
    return _tell(faults, f"{archive().name}: {len(packed)} files, {size // 1024} KiB")


def differences(packed: Iterable[str], repository: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """What is in the archive and must not be, and what is missing there."""
    found = set(packed) - ADDED
    patterns = list(left_out)
    kept = {name for name in repository if not _is_left_out(name, patterns)} - TAKEN_OUT
    return [
        *(f"not for operators: {name}" for name in sorted(found) if name.startswith(NEVER)),
        *(f"not in the repository: {name}" for name in sorted(found - set(repository))),
        *(f"missing: {name}" for name in sorted(kept - found)),
    ]


def _is_left_out(name: str, patterns: list[str]) -> bool:
    """By galaxy.yml's build_ignore: a pattern fits the whole path, a directory above it, or the last name."""
    parents = [str(one) for one in Path(name).parents][:-1]
    return any(
        fnmatch.fnmatch(one, pattern) or fnmatch.fnmatch(os.path.basename(one), pattern)
        for one in (name, *parents)
        for pattern in patterns
    )


def run_importer() -> int:
    """Run Galaxy's importer on the archive. A complaint counts as a failure."""
    python = venvs.prepare("galaxy", "galaxy")
    completed = subprocess.run(
        [python, "-m", "galaxy_importer.main", archive()],
        cwd=DIRECTORY,
        env={**os.environ, "GALAXY_IMPORTER_CONFIG": str(DIRECTORY / "galaxy-importer.cfg")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    lines = completed.stdout.splitlines()
    faults = [line for line in lines if COMPLAINT.match(line)]
    if completed.returncode != 0:
        faults += [*lines[-20:], f"galaxy-importer ended with {completed.returncode}"]
    return _tell(
        faults, f"galaxy-importer: {sum(line.startswith('Loading ') for line in lines)} plugins, roles, playbooks"
    )


def use() -> int:
    """Install the archive into an empty place, and let Ansible find every playbook of it by its full name."""
    faults = []
    with (
        tempfile.TemporaryDirectory(prefix="gpuops galaxy ") as place,
        tempfile.TemporaryDirectory(prefix="gpuops empty ") as nowhere,
    ):
        variables = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": place}
        variables.pop("ANSIBLE_CONFIG", None)
        # What the collection depends on comes with the package `ansible` here; Galaxy is not asked.
        offline = ("--offline", "--no-deps")
        argvs = [["ansible-galaxy", "collection", "install", *offline, "--collections-path", place, str(archive())]]
        names = sorted(one.stem for one in (ROOT / "playbooks").glob("*.yml"))
        argvs += [["ansible-playbook", "--syntax-check", PLAYBOOKS + name] for name in names]
        argvs += [["ansible-galaxy", "collection", "verify", "--offline", "gpuops.inference"]]
        for argv in argvs:
            argv[0] = str(PYTHON.with_name(argv[0]))
            completed = subprocess.run(
                [PYTHON, *argv], cwd=nowhere, env=variables, capture_output=True, text=True, check=False
            )
            if completed.returncode != 0:
                faults += [" ".join(argv), completed.stdout, completed.stderr]
    return _tell(faults, f"installed, and found by name: {', '.join(names)}")


def _tell(faults: list[str], done: str) -> int:
    print("\n".join([*faults, done]))
    return 1 if faults else 0


STEPS = {"contents": contents, "import": run_importer, "use": use}


def main() -> NoReturn:
    """Run the step that is named."""
    sys.exit(STEPS[sys.argv[1]]())


if __name__ == "__main__":
    main()
