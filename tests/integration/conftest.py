"""Labs for the tests: on real LXC where root and LXC are there, else in namespaces of an ordinary user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.lab import Lab

MakeLab = Callable[..., Lab]

# LAB_BACKEND=namespaces leaves LXC out, for instance because another lab has its container 129.
HAS_LXC = (
    os.geteuid() == 0
    and shutil.which("lxc-start") is not None
    and shutil.which("debootstrap") is not None
    and os.environ.get("LAB_BACKEND") != "namespaces"
)

# Only there is it certain that no process was overlooked, so only there a card without a holder is known as such.
SEES_ALL = os.geteuid() == 0 and os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"


# By what a test needs. Those that share the lab of their file are done one after another, so they are the longest.
LONGEST_FIRST = ("lab", "replicas", "make_lab")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run at once, those that share the lab of their file stay together, in one worker. And the long ones
    begin first, so that at the end no worker is left alone with one.
    """
    for item in items:
        if "lab" in _fixtures(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=_place)


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


def _place(item: pytest.Item) -> int:
    needs = _fixtures(item)
    if item.get_closest_marker("long"):
        return 0
    return next((place for place, name in enumerate(LONGEST_FIRST) if name in needs), len(LONGEST_FIRST))


@pytest.fixture
def make_lab() -> Iterator[MakeLab]:
    """Bring labs up; they go down with the test. ``container`` True asks for LXC, None takes it where it is there."""
    labs: list[tuple[Lab, Path]] = []

    def make(scenario: str, *, container: bool | None = None) -> Lab:
        if container and not HAS_LXC:
            pytest.skip("needs root, lxc and debootstrap")
        directory = Path(tempfile.mkdtemp(prefix="gpuops lab "))
        lab = Lab(directory, scenario, container=HAS_LXC if container is None else container)
        labs.append((lab, directory))
        lab.up()
        return lab

    yield make
    for lab, directory in labs:
        lab.down()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def standing_lab(scenario: str, *, container: bool = HAS_LXC) -> Iterator[Lab]:
    """A lab for all tests of a file, on LXC where it is there."""
    with tempfile.TemporaryDirectory(prefix="gpuops lab ") as directory, Lab(directory, scenario, container) as lab:
        yield lab
