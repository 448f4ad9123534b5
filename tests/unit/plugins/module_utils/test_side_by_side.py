# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs in children: each is answered once, and neither a child that hangs nor one that dies takes us along."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _side_by_side
from ansible_collections.gpuops.inference.plugins.module_utils._errors import MachineError
from ansible_collections.gpuops.inference.plugins.module_utils._side_by_side import MOST_JOBS, side_by_side

# A machine under load may leave a child waiting for as long as some tenths of a second.
SOON = 0.7


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture(params=[1, 2, 5], autouse=True)
def processors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    count = int(request.param)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(count)))
    return count


def square(job: int) -> str:
    return str(job * job)


def for_ever(job: int) -> str:
    signal.pause()
    return square(job)


@pytest.mark.parametrize("jobs", [0, 1, 7, MOST_JOBS])
def test_each_job_is_answered_in_its_place(jobs: int) -> None:
    assert side_by_side(square, jobs) == [square(job) for job in range(jobs)]


def test_the_work_is_done_by_children() -> None:
    assert str(os.getpid()) not in side_by_side(lambda _job: str(os.getpid()), 20)


def test_an_answer_may_be_longer_than_a_pipe_holds() -> None:
    long = "4242 " * 100_000
    assert side_by_side(lambda _job: long, 3) == [long] * 3


def test_jobs_that_hang_are_given_up_and_the_others_done() -> None:
    def hang(job: int) -> str:
        return for_ever(job) if job in (2, 3) else square(job)

    assert side_by_side(hang, 9, stall=SOON) == ["0", "1", None, None, "16", "25", "36", "49", "64"]


def test_the_job_at_which_a_child_died_is_not_done_by_us_and_the_others_are_done() -> None:
    us = os.getpid()

    def die(job: int) -> str:
        assert os.getpid() != us
        if job in (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        return square(job)

    assert side_by_side(die, 5) == ["0", None, None, "9", "16"]


@pytest.mark.parametrize("error", [MemoryError, BlockingIOError])
def test_a_child_that_lacks_what_it_needs_has_died(error: type[Exception]) -> None:
    def fail(job: int) -> str:
        if job == 1:
            raise error
        return square(job)

    assert side_by_side(fail, 5) == ["0", None, "4", "9", "16"]


def test_where_no_child_lives_to_begin_anything_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_lifeline: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(_side_by_side, "_die_at_the_end_of", die)
    assert side_by_side(square, 3) == [None, None, None]


@pytest.mark.parametrize("closed", [{0}, {1, 2}, {0, 1, 2}])
def test_who_was_started_without_standard_input_or_output_can_ask_all_the_same(closed: set[int]) -> None:
    """Then the first pipes get these numbers."""
    kept = {handle: os.dup(handle) for handle in closed}
    for handle in closed:
        os.close(handle)
    try:
        answers = side_by_side(square, 7)
    finally:
        for handle, copy in kept.items():
            os.dup2(copy, handle)
            os.close(copy)
    assert answers == [square(job) for job in range(7)]


def test_where_the_end_of_a_child_is_ignored_all_is_done_all_the_same() -> None:
    """The kernel would forget each as soon as it ends, and its number could be a stranger's when it is killed."""

    def hang(job: int) -> str:
        return for_ever(job) if job == 1 else square(job)

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert side_by_side(hang, 3, stall=SOON) == ["0", None, "4"]
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_mistake_in_the_work_is_raised_in_the_parent() -> None:
    def fail(job: int) -> str:
        raise ValueError(f"job {job}")

    with pytest.raises(RuntimeError, match="ValueError: job 0"):
        side_by_side(fail, 1)


@pytest.mark.parametrize("allowed", [0, 1])
def test_without_the_handles_for_the_jobs_it_is_said_so(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    _limit(monkeypatch, "pipe", allowed, errno.EMFILE)
    with pytest.raises(MachineError, match="No pipe to a child can be had: Too many open files"):
        side_by_side(square, 3)


@pytest.mark.parametrize("allowed", [2, 3])
def test_without_the_handles_for_all_children_all_is_done_all_the_same(
    monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    _limit(monkeypatch, "pipe", allowed, errno.EMFILE)
    assert side_by_side(square, 9) == [square(job) for job in range(9)]


def _limit(monkeypatch: pytest.MonkeyPatch, name: str, allowed: int, error: int) -> None:
    """Let this call to the kernel succeed so many times, then fail."""
    call = getattr(os, name)
    made: list[bool] = []

    def limited() -> Any:
        if len(made) >= allowed:
            raise OSError(error, os.strerror(error))
        made.append(True)
        return call()

    monkeypatch.setattr(os, name, limited)


@pytest.mark.parametrize("allowed", [0, 1])
def test_where_no_more_children_may_be_started_all_is_done_all_the_same(
    monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    _limit(monkeypatch, "fork", allowed, errno.EAGAIN)
    assert side_by_side(square, 9) == [square(job) for job in range(9)]


def test_a_child_runs_nothing_of_what_its_parent_does_at_its_end(tmp_path: Path) -> None:
    parent = os.getpid()
    try:
        side_by_side(square, 5)
    finally:
        (tmp_path / str(os.getpid())).touch()
    assert [path.name for path in tmp_path.iterdir()] == [str(parent)]


def test_an_interrupt_ends_the_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, stall: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_side_by_side._Crew, "listen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(for_ever, 5)


def test_each_child_dies_with_its_parent(processors: int) -> None:
    """The parent is killed while its children hang: the pipe that each keeps is closed all the same."""
    jobs = min(2, processors)
    hear, say = os.pipe()

    def tell_and_hang(job: int) -> str:
        os.write(say, b"x")
        return for_ever(job)

    parent = os.fork()
    if parent == 0:
        try:
            side_by_side(tell_and_hang, jobs, stall=60)
        finally:
            os._exit(0)
    os.close(say)
    for _job in range(jobs):
        assert os.read(hear, 1) == b"x"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert select.select([hear], [], [], 10)[0], "a child lives on"
    assert os.read(hear, 1) == b""
    os.close(hear)
