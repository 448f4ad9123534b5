"""The copy and the pip settings that ansible-test gets."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

from tests.tooling import sanity


def settings(listing: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    parser.read_string(sanity.pip_settings(listing))
    return dict(parser["global"])


def test_variables_win_over_files_as_they_do_for_pip() -> None:
    listing = (
        ":env:.index-url='https://mirror.example.com/simple'\nglobal.index-url='https://other.example.com/simple'\n"
    )
    assert settings(listing)["index-url"] == "https://mirror.example.com/simple"


def test_lists_and_equals_signs_survive() -> None:
    listing = "global.find-links='/one\\n/two'\nglobal.index-url='https://example.com/?a=b'\n"
    assert settings(listing)["find-links"].split() == ["/one", "/two"]
    assert settings(listing)["index-url"] == "https://example.com/?a=b"


def test_settings_of_other_commands_are_left_out() -> None:
    assert settings("list.format='json'\n") == {"quiet": "1"}


def test_the_copy_holds_what_belongs_to_the_repository(tmp_path: Path) -> None:
    source, target = tmp_path / "a checkout", tmp_path / "copy"
    for name in ("galaxy.yml", "plugins/modules/one.py", "build/venv/big", "plugins/__pycache__/one.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    (target / "left over").mkdir(parents=True)
    sanity.copy_repository(source, target)
    copied = sorted(str(one.relative_to(target)) for one in target.rglob("*") if one.is_file())
    assert copied == ["galaxy.yml", "plugins/modules/one.py"]
    assert not (target / "left over").exists()


def test_a_copy_below_an_ignored_directory_is_a_repository_of_its_own(tmp_path: Path) -> None:
    """ansible-test asked the repository around it otherwise, found nothing, and called that success."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("/build/\n", encoding="utf-8")
    copy = tmp_path / "build" / "copy"
    copy.mkdir(parents=True)
    (copy / "galaxy.yml").touch()
    sanity.make_repository(copy)
    assert sanity.repository_files(copy) == ["galaxy.yml"]
