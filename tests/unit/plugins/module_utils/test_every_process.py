# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many are asked, and none is lost: neither by whom refuses nor by whom never answers."""

from __future__ import annotations

import os
import signal

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _every_process, _side_by_side
from ansible_collections.gpuops.inference.plugins.module_utils._every_process import Asked, ask_all, ask_each


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_side_by_side, "STALL_SECONDS", 0.7)
    monkeypatch.setattr(_every_process, "ONE_SECONDS", 0.5)


def look(pid: int) -> object:
    """Some answer, some have nothing to say, some refuse, some hang."""
    if pid % 1000 == 500:
        raise PermissionError
    if pid % 1000 == 700:
        signal.pause()
    return [pid, "one"] if pid % 100 == 0 else None


@pytest.mark.parametrize("count", [0, 1, 11, 12, 13, 255, 256, 257, 3000])
def test_all_are_asked_however_many_there_are(count: int) -> None:
    assert ask_all(range(count), lambda pid: pid + 1) == Asked({pid: pid + 1 for pid in range(count)}, set(), set())
    assert ask_each(range(count), lambda pid: pid + 1) == Asked({pid: pid + 1 for pid in range(count)}, set(), set())


def test_one_who_never_answers_hides_no_other() -> None:
    asked = ask_all([*range(450, 1050), 3500], look)
    expected = (600, 800, 900, 1000)
    assert asked.answers == {pid: [pid, "one"] for pid in expected}
    assert (asked.refused, asked.silent) == ({500, 3500}, {700})
    assert asked.unreadable == {500, 700, 3500}


def test_each_is_asked_by_itself() -> None:
    assert ask_each([699, 700, 701, 800], look) == Asked({800: [800, "one"]}, set(), {700})


def test_among_very_many_only_the_one_is_lost() -> None:
    """However many were to be asked in one go with it."""
    parent = os.getpid()
    asked = ask_all(range(10_000), lambda pid: signal.pause() if pid == 40 and os.getpid() != parent else pid)
    assert asked.silent == {40}
    assert len(asked.answers) == 10_000 - 2
