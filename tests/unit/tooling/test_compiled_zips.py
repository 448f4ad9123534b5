"""What was compiled out of a zip is taken again for the very same source, and for no other."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
import zipimport
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest

from tests.tooling.environment import AT_START, COMPILE_ANEW

SOURCE = "def where():\n    return 1\n"

Compile = Callable[[str, str], CodeType]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Paths that were really compiled, while what is compiled is kept in ``tmp_path``."""
    really: list[str] = []

    def compile_source(path: str, source: bytes) -> CodeType:
        really.append(path)
        return compile(source, path, "exec", dont_inherit=True)

    monkeypatch.setattr(zipimport, "_compile_source", compile_source)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.delenv(COMPILE_ANEW, raising=False)
    load()
    return really


def load() -> None:
    spec = importlib.util.spec_from_file_location("compiled_zips_of_the_test", AT_START)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.fixture
def code_of(tmp_path: Path) -> Compile:
    """The code of module ``a.b`` in a zip of a given name, as an import would get it."""

    def get(name: str, source: str) -> CodeType:
        archive = tmp_path / f"{name}.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("a/__init__.py", "")
            file.writestr("a/b.py", source)
        importer = zipimport.zipimporter(f"{archive}/a")
        importer.invalidate_caches()
        code = importer.get_code("b")
        assert isinstance(code, CodeType)
        return code

    return get


def inner(code: CodeType) -> CodeType:
    return next(one for one in code.co_consts if isinstance(one, CodeType))


def test_the_same_source_is_compiled_once_and_named_where_it_is_now(compiled: list[str], code_of: Compile) -> None:
    first, second = code_of("one", SOURCE), code_of("two", SOURCE)
    assert len(compiled) == 1
    assert first == second
    for name, code in (("one", first), ("two", second)):
        assert f"{name}.zip/a/b.py" in code.co_filename
        assert inner(code).co_filename == code.co_filename


def test_another_source_of_the_same_name_is_compiled(compiled: list[str], code_of: Compile) -> None:
    code_of("one", SOURCE)
    assert 2 in inner(code_of("one", SOURCE.replace("1", "2"))).co_consts
    assert len(compiled) == 2


@pytest.mark.parametrize("keep", [0, 4, 8, 20], ids="{} bytes are left".format)
def test_a_damaged_file_is_not_believed(compiled: list[str], code_of: Compile, tmp_path: Path, keep: int) -> None:
    code_of("one", SOURCE)
    (file,) = (tmp_path / "compiled-zips").iterdir()
    file.write_bytes(file.read_bytes()[:keep])
    assert 1 in inner(code_of("one", SOURCE)).co_consts
    assert len(compiled) == 2


def test_where_nothing_may_be_written_it_is_compiled_each_time(
    compiled: list[str], code_of: Compile, tmp_path: Path
) -> None:
    (tmp_path / "compiled-zips").write_text("a file is in the way", encoding="utf-8")
    code_of("one", SOURCE)
    code_of("one", SOURCE)
    assert len(compiled) == 2


def test_whoever_measures_may_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    before = vars(zipimport)["_compile_source"]
    monkeypatch.setenv(COMPILE_ANEW, "1")
    load()
    assert vars(zipimport)["_compile_source"] is before
