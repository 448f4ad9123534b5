"""Makes build/venv and the link that lets the checkout be found as the collection gpuops.inference.

Both are made once and kept: a second call with the same Python and the same requirement files does nothing, and needs
no network. Two calls at once wait for each other. One that was interrupted leaves a mark, and the next starts afresh.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.tooling import processes

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
# The gate `matrix` names another one, with another ansible-core.
VENV = Path(os.environ.get("TEST_VENV") or BUILD / "venv")
PYTHON = VENV / "bin" / "python"
COLLECTIONS = BUILD / "collections"
REQUIREMENTS = ROOT / "tests" / "requirements"

# Both lie in the venv, so they go when it goes.
STATE_FILE = VENV / "set-up.json"
UNFINISHED_FILE = VENV / "set-up.unfinished"

# What each Python of the venv imports at its start.
AT_START = ROOT / "tests" / "tooling" / "compiled_zips.py"
# With this variable it does nothing, for whoever measures what a module costs on a machine without such help.
COMPILE_ANEW = "GPUOPS_TESTS_COMPILE_ANEW"

# Of ansible's 15,000 files, a few hundred are ever imported, and compiled then.
PIP_INSTALL = [
    *("-I", "-m", "pip", "install", "--no-input", "--progress-bar", "off"),
    *("--no-compile", "--disable-pip-version-check"),
]

# A user's own settings for Ansible would decide what is tested. Only what concerns the terminal passes.
PASSING_SETTINGS = ("ANSIBLE_FORCE_COLOR", "ANSIBLE_NOCOLOR", "ANSIBLE_VERBOSITY")


class SetUpError(Exception):
    """The environment could not be made. The message says what to do."""


def prepare(requirements: str) -> None:
    """Have what ``tests/requirements/<requirements>.txt`` names installed in build/venv, and the link in place."""
    BUILD.mkdir(exist_ok=True)
    with set_up_lock() as lock:
        _link_collection()
        at_start = {AT_START.stem: hashlib.sha256(AT_START.read_bytes()).hexdigest()}
        wanted = fingerprints(REQUIREMENTS / f"{requirements}.txt") | at_start
        state = _read_state()
        if {**state, **wanted} == state:
            return
        if "python" not in state:
            _make_venv(lock)
        _install(requirements, lock)
        _import_at_start()
        state = {**state, **wanted, "python": _interpreter()}
        STATE_FILE.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        UNFINISHED_FILE.unlink()


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """The variables that a tool from build/venv runs with, made from ``base`` without what would change its results."""
    kept = {
        name: value
        for name, value in base.items()
        if not name.startswith(("ANSIBLE_", "PYTHON")) or name in PASSING_SETTINGS
    }
    return {
        **kept,
        "PATH": os.pathsep.join([str(VENV / "bin"), base.get("PATH", os.defpath)]),
        "VIRTUAL_ENV": str(VENV),
        "PYTHONNOUSERSITE": "1",
        # Ansible refuses to start where the encoding is not UTF-8.
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        # A module reaches a Python of the lab by its standard input, and not by a file: a tenth less work.
        "ANSIBLE_PIPELINING": "1",
        # Nothing is written to the user's home, which an account such as nobody lacks.
        "ANSIBLE_HOME": str(BUILD / "ansible"),
        "ANSIBLE_REMOTE_TMP": str(BUILD / "ansible" / "tmp"),
        # Not the user's own collections: an installed gpuops.inference would hide the checkout.
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
    }


def fingerprints(path: Path) -> dict[str, str]:
    """What decides what is installed: a hash of the file, and of each that it includes by ``-r``, by their names."""
    text = path.read_text(encoding="utf-8")
    found = {path.stem: hashlib.sha256(text.encode()).hexdigest()}
    for line in text.splitlines():
        if line.startswith("-r "):
            found |= fingerprints(path.parent / line[3:].strip())
    return found


def _interpreter() -> str:
    """What the venv is bound to: an interpreter, and the place where it lies, which pip writes into its scripts."""
    return f"{sys.version} {os.path.realpath(sys.executable)} {VENV}"


def _read_state() -> dict[str, str]:
    """What the last set-up noted. Empty when there was none that ended well, or when it was for another interpreter."""
    if UNFINISHED_FILE.exists() or not os.access(PYTHON, os.X_OK):
        return {}
    try:
        state: dict[str, str] = json.loads(STATE_FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if state.get("python") == _interpreter() else {}


def _make_venv(lock: int) -> None:
    say(f"Making a virtual environment in {VENV} (Python {'.'.join(map(str, sys.version_info[:3]))}).")
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir()
    UNFINISHED_FILE.touch()
    logged([sys.executable, "-I", "-m", "venv", str(VENV)], lock)


def _install(requirements: str, lock: int) -> None:
    say(f"Installing tests/requirements/{requirements}.txt from PyPI. This takes a minute or two, once.")
    UNFINISHED_FILE.touch()
    logged([str(PYTHON), *PIP_INSTALL, "-r", str(REQUIREMENTS / f"{requirements}.txt")], lock)


def _import_at_start() -> None:
    """Let each Python of the venv import a module at its start, by a file that `site` reads (see its documentation)."""
    for packages in VENV.glob("lib/python*/site-packages"):
        shutil.copyfile(AT_START, packages / AT_START.name)
        (packages / f"{AT_START.stem}.pth").write_text(f"import {AT_START.stem}\n", encoding="utf-8")


def logged(argv: list[str], lock: int) -> None:
    """Run one step with its output in build/set-up.log. Raises SetUpError with the end of it."""
    log = BUILD / "set-up.log"
    with log.open("wb") as output:
        # The child inherits the lock: should we be killed, nobody else starts before it has ended too.
        rc = processes.run(argv, cwd=ROOT, env=os.environ, stdout=output, stderr=output, pass_fds=[lock])
    if rc != 0:
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        command = " ".join(argv)
        raise SetUpError(f"{end}\nThe set-up failed: `{command}` ended with {rc}. All of its output is in {log}.")


def _link_collection() -> None:
    """build/collections/ansible_collections/gpuops/inference -> the checkout; relative, so that this may move."""
    link = COLLECTIONS / "ansible_collections" / "gpuops" / "inference"
    target = os.path.relpath(ROOT, link.parent)
    if link.is_symlink() and os.readlink(link) == target:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir() and not link.is_symlink():
        # ansible-galaxy put a copy there. It would hide every later change of the checkout.
        shutil.rmtree(link)
    fresh = link.with_name(f"{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


@contextmanager
def set_up_lock() -> Iterator[int]:
    """One set-up at a time. Yields the descriptor that holds the lock."""
    path = BUILD / "set-up.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up is at work on build/venv; waiting for it.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
