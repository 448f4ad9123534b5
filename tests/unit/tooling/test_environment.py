"""What decides whether something is installed again, and what a tool's environment holds."""

from __future__ import annotations

import os
from pathlib import Path

from tests.tooling import environment


def test_a_changed_include_changes_what_includes_it(tmp_path: Path) -> None:
    (tmp_path / "runtime.txt").write_text("ansible==1\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("-r runtime.txt\npytest==1\n", encoding="utf-8")
    before = environment.fingerprints(tmp_path / "test.txt")
    assert set(before) == {"test", "runtime"}
    assert environment.fingerprints(tmp_path / "runtime.txt") == {"runtime": before["runtime"]}
    (tmp_path / "runtime.txt").write_text("ansible==2\n", encoding="utf-8")
    after = environment.fingerprints(tmp_path / "test.txt")
    assert after["test"] == before["test"]
    assert after["runtime"] != before["runtime"]


def test_a_users_settings_do_not_decide_what_is_tested() -> None:
    base = {
        "PATH": "/usr/bin",
        "HOME": "/home/someone",
        "PYTHONPATH": "/somewhere",
        "ANSIBLE_COLLECTIONS_PATH": "/home/someone/collections",
        "ANSIBLE_STRATEGY": "free",
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "de_DE",
    }
    made = environment.environment(base)
    assert made["HOME"] == "/home/someone"
    assert made["ANSIBLE_NOCOLOR"] == "1"
    assert made["ANSIBLE_COLLECTIONS_PATH"] == str(environment.COLLECTIONS)
    assert made["LC_ALL"] == "C.UTF-8"
    assert "/home/someone" not in made["ANSIBLE_REMOTE_TMP"]
    assert made["PATH"].split(os.pathsep) == [str(environment.VENV / "bin"), "/usr/bin"]
    assert not {"PYTHONPATH", "ANSIBLE_STRATEGY"} & set(made)
