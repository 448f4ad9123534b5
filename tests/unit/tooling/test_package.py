"""What may be in the archive, which words of a guide are paths, and which Pythons are found."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.tooling import interpreters, links, package, reference, venvs

REPOSITORY = ["README.md", "galaxy.yml", "plugins/modules/a.py", "scripts/test", "tests/unit/test_a.py", "a.tar.gz"]
LEFT_OUT = ["scripts", "tests", "*.tar.gz", "__pycache__"]
PACKED = {"MANIFEST.json", "FILES.json", "README.md", "plugins/modules/a.py"}


@pytest.mark.parametrize(
    ("more", "less", "said"),
    [
        (set(), set(), []),
        ({"notes.txt"}, set(), ["not in the repository: notes.txt"]),
        ({"tests/unit/test_a.py"}, set(), ["not for operators: tests/unit/test_a.py"]),
        ({"build/x"}, set(), ["not for operators: build/x", "not in the repository: build/x"]),
        (set(), {"plugins/modules/a.py"}, ["missing: plugins/modules/a.py"]),
    ],
)
def test_the_archive_holds_what_it_should(more: set[str], less: set[str], said: list[str]) -> None:
    assert package.differences((PACKED | more) - less, REPOSITORY, LEFT_OUT) == said


def test_a_guide_names_only_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "there.md").write_text("# What it is\n\n```\n# No heading\n```\n", encoding="utf-8")
    text = """
[a](docs/there.md) [b](docs/gone.md) [c](docs/there.md#what-it-is) [d](docs/there.md#no-heading) [e](https://a.example/b)
`docs/there.md` `docs/lost.md` `docs/NAME.md` `docs/TOOL/x` `elsewhere/x` `build/docs/x`
```
[f](in/a/fence)
```
"""
    broken = links.broken_targets(tmp_path, "README.md", text, frozenset({"docs", "build"}))
    assert list(broken) == ["docs/gone.md", "docs/there.md#no-heading", "docs/lost.md", "docs/NAME.md"]


def test_the_inventory_has_a_line_for_each_label() -> None:
    head, lines = reference.inventory({"a_label": "x/y.html"}).split(b"using zlib.\n")
    assert head.startswith(b"# Sphinx inventory version 2\n")
    assert zlib.decompress(lines) == b"a_label std:label -1 x/y.html#a-label a_label\n"


def test_a_python_is_what_it_says_not_what_its_name_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, says in (("3.9.2", "3.9"), ("3.9.10", "3.9"), ("3.10.1", "3.11")):
        binary = tmp_path / "versions" / version / "bin" / f"python{version.rpartition('.')[0]}"
        binary.parent.mkdir(parents=True)
        binary.write_text(f"#!/bin/sh\necho {says}\n", encoding="utf-8")
        binary.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreters.find("3.9") == tmp_path / "versions" / "3.9.10" / "bin" / "python3.9"
    assert interpreters.find("3.10") in (None, Path("/usr/bin/python3.10"))


def test_an_environment_is_made_anew_for_another_python_or_other_requirements(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a==1\n", encoding="utf-8")
    made = {venvs.recipe(file, Path("/usr/bin/a"), tmp_path), venvs.recipe(file, Path("/usr/bin/b"), tmp_path)}
    file.write_text("a==2\n", encoding="utf-8")
    assert len(made | {venvs.recipe(file, Path("/usr/bin/a"), tmp_path)}) == 3
