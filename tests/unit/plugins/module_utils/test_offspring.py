# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is forked while others are ended is ended too; what somebody else starts again is named and left alone."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._errors import ContainerError
from ansible_collections.gpuops.inference.plugins.module_utils._offspring import (
    ROUNDS,
    Ended,
    Limits,
    end,
    is_init,
    is_offspring,
    starter_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process
from ansible_collections.gpuops.inference.plugins.module_utils._termination import DryRunSignaller, Termination
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import FakeProc, inside, make_process

TERM, KILL, STOP = signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP

INIT, SERVER, SUPERVISOR = 100, 110, 105
UNIT = inside(129, "/system.slice/sglang.service")
# Clock ticks since boot at which the tests begin: every process below 200 has started before.
BEGIN = 20_000


class Tree:
    """A container with its init 100 and a server 110. Whatever is called python3 is to be ended."""

    def __init__(self, root: Path) -> None:
        self.proc = FakeProc(root)
        self.proc.container(129, INIT)
        self.server()
        self.looks = 0
        self.clock = FakeClock(boot=BEGIN)

    def server(self, pid: int = SERVER, *, parent: int = INIT, job: int = SERVER, **more: Any) -> None:
        self.proc.add(pid, parent=parent, inner=(pid,), job=(job, job), **{"cgroup": UNIT, **more})

    def targets(self) -> Sequence[Process]:
        self.looks += 1
        return [one for one in self.proc.procfs.processes() if one.name == "python3"]

    def lineage(self, process: Process) -> Sequence[Process]:
        return self.proc.procfs.lineage(process)

    def end(self, kernel: FakeKernel, *, at: Optional[Callable[[float], None]] = None, **limits: float) -> Ended:
        self.clock = FakeClock(at, boot=BEGIN)
        known = {"term": 5.0, "kill": 10.0, "respawn": 1.0, **limits}
        return end(self.targets(), self, kernel, limits=Limits(**known), clock=self.clock, dry_run=False)

    def once(self, pid: int, **more: Any) -> Callable[..., None]:
        """Starts ``pid`` when it is called first."""
        started: list[int] = []

        def start(*_arguments: Any) -> None:
            if not started:
                started.append(pid)
                self.server(pid, **more)

        return start


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def pids(processes: Sequence[Process]) -> list[int]:
    return [process.pid for process in processes]


def test_a_quiet_end_is_looked_at_once_and_nobody_is_stopped(tree: Tree) -> None:
    kernel = FakeKernel(tree.proc)
    ended = tree.end(kernel, respawn=0.0)
    assert (pids(ended.termination.terminated), ended.respawned, kernel.sent) == ([SERVER], (), [(SERVER, TERM)])
    assert tree.looks == 2, "the first look and one after"


def test_a_deaf_process_without_children_is_killed_and_not_stopped(tree: Tree) -> None:
    kernel = FakeKernel(tree.proc, stubborn=[SERVER])
    assert pids(tree.end(kernel).termination.killed) == [SERVER]
    assert kernel.sent == [(SERVER, TERM), (SERVER, KILL)]


def test_a_child_that_a_deaf_parent_forks_meanwhile_is_killed_with_it(tree: Tree) -> None:
    """Both are stopped before either is killed: no killed one makes room for the next."""
    kernel = FakeKernel(tree.proc, stubborn=[SERVER], after=tree.once(300, parent=SERVER))
    ended = tree.end(kernel)
    assert (pids(ended.termination.killed), ended.respawned) == ([SERVER, 300], ())
    assert kernel.sent == [(SERVER, TERM), (SERVER, STOP), (300, STOP), (SERVER, KILL), (300, KILL)]


def test_stopping_goes_on_until_a_look_shows_nobody_new(tree: Tree) -> None:
    def fork() -> None:
        running = [one.pid for one in tree.targets() if one.state == "S"]
        if kernel.sent[-1][1] == STOP and len(tree.targets()) < 4:
            tree.server(300 + len(tree.targets()), parent=running[0] if running else SERVER)

    kernel = FakeKernel(tree.proc, stubborn=[SERVER], after=fork)
    tree.server(300, parent=SERVER)
    first = [tree.proc.process(SERVER)]
    limits = Limits(5, 10, 0)
    ended = end(first, tree, kernel, limits=limits, clock=FakeClock(boot=BEGIN), dry_run=False)
    numbers = [number for _pid, number in kernel.sent]
    assert numbers == [TERM, *[STOP] * 4, *[KILL] * 4], "everyone is stopped before anyone is killed"
    assert len(ended.termination.killed) == 4
    assert tree.targets() == []


def test_an_orphan_that_shows_only_afterwards_is_killed_by_its_process_group(tree: Tree) -> None:
    """Its parent ended at SIGTERM, and the container's init has taken it in."""
    kernel = FakeKernel(tree.proc, after=tree.once(300, job=SERVER))
    ended = tree.end(kernel)
    assert (pids(ended.termination.terminated), pids(ended.termination.killed)) == ([SERVER], [300])
    assert kernel.sent == [(SERVER, TERM), (300, STOP), (300, KILL)]


def test_a_storm_that_outruns_the_rounds_survives_and_is_said_to(tree: Tree) -> None:
    def fork() -> None:
        if kernel.sent[-1][1] == KILL:
            tree.server(300 + len(kernel.sent), job=SERVER)

    kernel = FakeKernel(tree.proc, stubborn=[SERVER], after=fork)
    ended = tree.end(kernel)
    assert len(ended.termination.killed) == 1 + ROUNDS
    assert [(one.process.pid, one.reason) for one in ended.termination.survivors] == [
        (pids(tree.targets())[0], "timeout")
    ]
    assert ended.respawned == ()


def test_all_rounds_together_take_no_longer_than_the_limit(tree: Tree) -> None:
    def fork(_now: float) -> None:
        tree.server(300 + len(tree.clock.sleeps), job=SERVER)

    kernel = FakeKernel(tree.proc, stubborn=range(1000), stuck=range(300, 1000))
    ended = tree.end(kernel, at=fork, kill=2.0)
    assert tree.clock.time <= 5.0 + 2.0 + 0.1
    assert {one.reason for one in ended.termination.survivors} == {"timeout"}


def test_whoever_a_supervisor_starts_again_is_named_and_left_alone(tree: Tree) -> None:
    tree.proc.add(SUPERVISOR, "supervisord", parent=INIT, inner=(7,), job=(SERVER, SERVER), cgroup=UNIT)
    kernel = FakeKernel(tree.proc, after=tree.once(300, parent=SUPERVISOR))
    ended = tree.end(kernel)
    assert (pids(ended.respawned), kernel.sent) == ([300], [(SERVER, TERM)])


def test_whoever_a_service_manager_starts_again_later_is_named_and_left_alone(tree: Tree) -> None:
    """Parent and cgroup are the same as an orphan's; only the time tells."""
    start = tree.once(300, job=300)
    kernel = FakeKernel(tree.proc, stubborn=[SERVER])
    ended = tree.end(kernel, at=lambda now: start() if now >= 5.3 else None)
    assert (pids(ended.termination.killed), pids(ended.respawned)) == ([SERVER], [300])


def test_offspring_is_killed_while_a_supervisor_is_named(tree: Tree) -> None:
    tree.proc.add(SUPERVISOR, "supervisord", parent=INIT, inner=(7,))
    starts = [tree.once(300, parent=SERVER), tree.once(301, parent=SUPERVISOR)]

    def start_both() -> None:
        for start in starts:
            start()

    kernel = FakeKernel(tree.proc, stubborn=[SERVER], after=start_both)
    ended = tree.end(kernel)
    assert (pids(ended.termination.killed), pids(ended.respawned)) == ([SERVER, 300], [301])


def test_a_plan_looks_no_further(tree: Tree) -> None:
    signaller = DryRunSignaller()
    targets = tree.targets()
    limits = Limits(0, 10, 1)
    ended = end(targets, tree, signaller, limits=limits, clock=tree.clock, dry_run=True)
    assert (pids(ended.termination.killed), signaller.noted) == ([SERVER], [(targets[0].identity, KILL)])
    assert (tree.looks, tree.clock.time) == (1, 0)


def test_nobody_to_end_is_nobody_to_look_for(tree: Tree) -> None:
    tree.proc.remove(SERVER)
    assert tree.end(FakeKernel(tree.proc)) == Ended(Termination())
    assert (tree.looks, tree.clock.time) == (1, 0)


@pytest.mark.parametrize("term", [0.0, 5.0], ids=["before the first signal", "after SIGTERM"])
def test_a_look_that_fails_says_whether_a_signal_had_been_sent(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, term: float
) -> None:
    def fail() -> Sequence[Process]:
        raise ContainerError("no answer", reason="ct_exec_timeout")

    targets = tree.targets()
    monkeypatch.setattr(tree, "targets", fail)
    kernel = FakeKernel(tree.proc, stubborn=[SERVER])
    with pytest.raises(ContainerError) as caught:
        end(targets, tree, kernel, limits=Limits(term, 1, 1), clock=tree.clock, dry_run=False)
    assert caught.value.result()["changed"] is (term > 0) is bool(kernel.sent)


@pytest.mark.parametrize(
    ("seconds", "appears_at", "found", "waited"),
    [
        (1.0, 0.5, [300], 0.5),
        (1.0, 99, [], 1.0),
        (0.0, 0.0, [300], 0.0),
        (0.0, 0.1, [], 0.0),
        (0.25, 0.25, [300], 0.25),
    ],
)
def test_whoever_starts_again_is_seen_within_the_time(
    tree: Tree, seconds: float, appears_at: float, found: list[int], waited: float
) -> None:
    start = tree.once(300, job=300)
    kernel = FakeKernel(tree.proc, after=start if appears_at == 0 else None)
    ended = tree.end(kernel, at=lambda now: start() if now >= appears_at else None, respawn=seconds)
    assert pids(ended.respawned) == found
    assert tree.clock.time == pytest.approx(waited)


def test_the_same_pid_with_a_younger_start_is_a_newcomer(tree: Tree) -> None:
    kernel = FakeKernel(tree.proc, after=tree.once(SERVER, start=99_999, job=7))
    assert pids(tree.end(kernel, respawn=0.0).respawned) == [SERVER]


# Whose child a newcomer is: one line each.

ONE_OF_US = make_process(10, cgroups=("/a",), group=10, session=9)
OF_INIT = make_process(1, "systemd", cgroups=("/init.scope",), group=1, session=1)
OTHER = make_process(7, "supervisord", cgroups=("/a",), group=10, session=9)
SHELL_INIT = make_process(50, "sh", namespace_pids=(50, 1), group=10, session=9)


@pytest.mark.parametrize(
    ("lineage", "fields", "expected"),
    [
        pytest.param([ONE_OF_US, OF_INIT], {}, True, id="a child of ours"),
        pytest.param([OTHER, ONE_OF_US, OF_INIT], {}, True, id="below ours, with another between"),
        pytest.param([make_process(10, start_ticks=5)], {}, False, id="below one that only has the pid of ours"),
        pytest.param([OTHER, OF_INIT], {"group": 10, "start_ticks": 1}, False, id="the child of somebody else"),
        pytest.param([OF_INIT], {"group": 10}, True, id="an orphan in our process group"),
        pytest.param([OF_INIT], {"session": 9}, True, id="an orphan in our session"),
        pytest.param([OF_INIT], {"start_ticks": 499, "cgroups": ("/a",)}, True, id="an orphan of our cgroup, older"),
        pytest.param([OF_INIT], {"start_ticks": 500, "cgroups": ("/a",)}, False, id="an orphan of our cgroup, younger"),
        pytest.param([OF_INIT], {"start_ticks": 499, "cgroups": ("/b",)}, False, id="an orphan elsewhere"),
        pytest.param([SHELL_INIT], {"group": 10, "session": 9}, False, id="the child of an init that shares our group"),
        pytest.param([], {"group": 10}, True, id="no parent to be seen, in our process group"),
        pytest.param([], {"group": 0, "session": 0}, False, id="no parent and no group to be seen"),
    ],
)
def test_whose_child_a_newcomer_is(lineage: list[Process], fields: dict[str, Any], expected: bool) -> None:
    newcomer = make_process(20, **{"start_ticks": 900, "cgroups": ("/a",), "group": 20, "session": 20, **fields})
    found = {one.identity: one for one in (ONE_OF_US, make_process(11, cgroups=("/a",), group=0, session=0))}
    assert is_offspring(newcomer, lineage, found, signalled_at=500) is expected


@pytest.mark.parametrize(
    ("pid", "namespace_pids", "expected"),
    [(1, (1,), True), (50, (50, 1), True), (50, (50, 7, 1), True), (50, (50,), False), (50, (50, 2), False)],
)
def test_the_first_process_of_a_machine_or_a_container_adopts_orphans(
    pid: int, namespace_pids: tuple[int, ...], expected: bool
) -> None:
    assert is_init(make_process(pid, namespace_pids=namespace_pids)) is expected


def described(process: Process) -> dict[str, Any]:
    keys = ("pid", "container_pid", "vmid", "name", "command", "state", "unit")
    return {**dict.fromkeys(keys), "pid": process.pid, "name": process.name, "unit": process.unit, "uid": 0}


@pytest.mark.parametrize(
    ("unit", "parent_unit", "kind", "named"),
    [
        ("/system.slice/a.service", "/init.scope", "unit", "a.service"),
        (
            "/user.slice/user@7.service/app.slice/a.service",
            "/user.slice/user@7.service/init.scope",
            "unit",
            "a.service",
        ),
        ("/system.slice/supervisor.service", "/system.slice/supervisor.service", "process", "supervisor.service"),
        ("/system.slice/docker-1f.scope", "/system.slice/containerd.service", "process", "containerd.service"),
        ("/", "/", "process", None),
    ],
    ids=["systemd", "systemd of a user", "supervisord", "Docker", "no unit"],
)
def test_who_starts_it_again_is_a_unit_or_its_parent(unit: str, parent_unit: str, kind: str, named: Any) -> None:
    newcomer, parent = make_process(20, cgroups=(unit,)), make_process(7, "parent", cgroups=(parent_unit,))
    found = starter_of(newcomer, [parent], described)
    assert (found["kind"], found["unit"], found["pid"], found["name"]) == (kind, named, 7, "parent")
    assert "uid" not in found
    assert starter_of(newcomer, [], described) is None
