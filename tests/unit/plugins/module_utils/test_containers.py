# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose processes are a container's, and what pct says about it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _containers
from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed
from ansible_collections.gpuops.inference.plugins.module_utils._containers import (
    ContainerStatus,
    classify_pct_failure,
    container_frozen,
    container_pid_of,
    container_status,
    frozen,
    is_container_init,
    members,
    vmid_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._errors import ContainerError
from tests.unit.fake_proc import FakeProc, inside, make_process
from tests.unit.recorded import ScriptedRunner, completed, exit_codes, recorded

RUNNING = ContainerStatus(129, "running", 4100, None)


@pytest.mark.parametrize(
    ("cgroups", "vmid"),
    [
        # Proxmox with cgroup v2, v1 and both; a unit, pct exec, and a container within the container
        (("/lxc/129/ns/init.scope",), 129),
        (("/lxc/129/ns/system.slice/sglang-kimi.service",), 129),
        (("/lxc/129/ns/.lxc",), 129),
        (("/lxc/129/ns/.lxc-2",), 129),
        (("/lxc/129",), 129),
        (("/", "/lxc/129/ns/system.slice", "/lxc/129/ns"), 129),
        (("/lxc/129/ns/lxc.payload.7/ns",), 129),
        (("/lxc/129/ns/lxc/130/ns",), 129),
        # plain LXC
        (("/lxc.payload.129/system.slice/x.service",), 129),
        (("/lxc.payload.web/x.service",), None),
        # what is the node's own
        (("/lxc.monitor/129",), None),
        (("/lxc.monitor.129",), None),
        (("/system.slice/pve-container@129.service",), None),
        (("/lxc",), None),
        (("/lxc/129x/ns",), None),
        (("/lxc/\u0661\u0662\u0669/ns",), None),
        ((f"/lxc/{'9' * 5000}/ns",), None),
        (("/system.slice/x/lxc/129/ns",), None),
        (("/",), None),
        ((), None),
    ],
)
def test_the_container_is_in_the_cgroup(cgroups: tuple[str, ...], vmid: Optional[int]) -> None:
    assert vmid_of(make_process(cgroups=cgroups)) == vmid


@pytest.mark.parametrize(
    ("pids", "container_pid", "init"),
    [((4242,), None, False), ((4242, 312), 312, False), ((4100, 1), 1, True), ((4300, 77, 1), 77, False)],
)
def test_the_pid_inside_is_one_namespace_below(pids: tuple[int, ...], container_pid: Optional[int], init: bool) -> None:
    process = make_process(pids[0], namespace_pids=pids)
    assert container_pid_of(process) == container_pid
    assert is_container_init(process) is init


def ask(script: ScriptedRunner) -> ContainerStatus:
    return container_status(129, runner=script, pct_path="pct")


def test_a_running_container_tells_its_init() -> None:
    runner = ScriptedRunner({"status": [recorded("pct", "status_running")]})
    assert ask(runner) == RUNNING
    assert runner.calls == [["pct", "status", "129", "--verbose"]]


def test_a_stopped_container_is_no_error_and_has_no_init() -> None:
    runner = ScriptedRunner({"status": [recorded("pct", "status_stopped")]})
    assert ask(runner) == ContainerStatus(129, "stopped", None, None)


@pytest.mark.parametrize(
    ("pid", "init"),
    [("4100", 4100), ("1", None), ("0", None), ("-1", None), ("x", None), ("\u00b2", None), ("9" * 5000, None)],
)
def test_only_a_possible_pid_is_the_init_s(pid: str, init: Optional[int]) -> None:
    runner = ScriptedRunner({"status": [completed(f"pid: {pid}\r\nstatus: running\r\nlock: backup\n")]})
    assert ask(runner) == ContainerStatus(129, "running", init, "backup")


FAILURES = [
    ("C01", "ct_not_running", "is not running"),
    ("C02", "ct_not_on_node", "There is no container 129 on this node. Check the VMID."),
    ("C11", "pve_cluster_unavailable", "pve-cluster"),
]


@pytest.mark.parametrize(("case", "reason", "words"), FAILURES)
def test_what_pct_s_errors_mean(case: str, reason: str, words: str) -> None:
    for rc in exit_codes("pct", case):
        answer = recorded("pct", case, rc=rc)
        with pytest.raises(ContainerError, match=words) as caught:
            ask(ScriptedRunner({"status": [answer]}))
        assert caught.value.reason == reason
        fields = caught.value.fields
        assert (fields["vmid"], fields["rc"], fields["stderr"]) == (129, rc, answer.stderr)


@pytest.mark.parametrize(
    "answer",
    [completed("", rc=0), completed("nonsense\n", rc=0), completed("", rc=2), completed("x\n", rc=-9)],
)
def test_an_answer_without_a_status_is_a_failure(answer: Completed) -> None:
    with pytest.raises(ContainerError, match="pct could not tell about container 129") as caught:
        ask(ScriptedRunner({"status": [answer]}))
    assert caught.value.reason == "pct_failed"


def test_a_status_with_an_error_is_a_failure() -> None:
    with pytest.raises(ContainerError):
        ask(ScriptedRunner({"status": [completed("status: running\n", rc=255)]}))


@pytest.mark.parametrize(
    ("entry", "node"),
    [
        ({"node": "pve2", "type": "lxc", "version": 3}, "pve2"),
        ({"node": "pve2"}, "pve2"),
        ({"node": "pve1", "type": "qemu"}, None),
        ({}, None),
        ("garbage", None),
        (None, None),
    ],
)
def test_the_cluster_s_list_names_the_node_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: object, node: Optional[str]
) -> None:
    path = tmp_path / "vmlist"
    path.write_text(json.dumps({"version": 4, "ids": {"105": entry}}))
    monkeypatch.setattr(_containers, "_node_of", functools.partial(_containers._node_of, path=str(path)))
    error = classify_pct_failure(105, recorded("pct", "C02"))
    assert error.fields["node"] == node
    assert ("It is on node pve2: point the task" in error.message) is (node == "pve2")
    assert ("Check the VMID" in error.message) is (node is None)


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"ids": []}'])
def test_a_broken_list_of_the_cluster_names_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "vmlist").write_text(text)
    assert _containers._node_of(105, str(tmp_path / "vmlist")) is None
    assert _containers._node_of(105, str(tmp_path / "none")) is None


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    proc = FakeProc(tmp_path)
    proc.add(1, "systemd", parent=0)
    return proc


def seen(proc: FakeProc, status: ContainerStatus = RUNNING) -> list[int]:
    return sorted(process.pid for process in members(status, proc.procfs))


def test_everyone_in_the_container_s_cgroup_belongs_to_it(proc: FakeProc) -> None:
    proc.container(129, 4100)
    proc.add(4242, parent=4100, inner=(312,), cgroup=inside(129), namespace="pid:[129]")
    proc.add(4300, parent=4242, inner=(320, 1), cgroup=inside(129, "/docker/x"), namespace="pid:[777]")
    proc.add(900, "lxc-start", "[lxc monitor] /var/lib/lxc 129\0", cgroup="0::/lxc.monitor/129\n")
    proc.add(901, "sshd")
    assert seen(proc) == [4100, 4242, 4300]


def test_a_neighbour_does_not_belong_to_it(proc: FakeProc) -> None:
    proc.container(129, 4100)
    proc.container(130, 5100)
    proc.add(5242, parent=5100, inner=(312,), cgroup=inside(130), namespace="pid:[130]")
    assert seen(proc) == [4100]


def test_a_neighbour_below_its_init_or_in_its_namespace_stays_a_neighbour(proc: FakeProc) -> None:
    proc.container(129, 4100)
    proc.add(4242, parent=4100, inner=(312,), cgroup=inside(130), namespace="pid:[129]")
    assert seen(proc) == [4100]


def test_without_a_cgroup_the_namespace_tells(proc: FakeProc) -> None:
    proc.container(129, 4100, cgroup="0::/user.slice\n")
    # It came in from outside: its parent is not the init.
    proc.add(4242, parent=1, inner=(312,), cgroup="0::/user.slice\n", namespace="pid:[129]")
    proc.add(4243, parent=1, cgroup="0::/user.slice\n")
    assert seen(proc) == [4100, 4242]


def test_without_a_cgroup_descent_from_the_init_tells(proc: FakeProc) -> None:
    proc.container(129, 4100, cgroup="0::/\n")
    proc.add(4242, parent=4100, inner=(312, 1), namespace="pid:[777]")
    proc.add(4243, parent=4242, inner=(313, 2), namespace="pid:[777]")
    (proc.root / "4243" / "ns" / "pid").unlink()
    assert seen(proc) == [4100, 4242, 4243]


def test_an_init_in_our_own_namespace_does_not_make_the_machine_a_container(proc: FakeProc) -> None:
    proc.add(4100, inner=(1,))
    proc.add(4242)
    assert seen(proc) == [4100]


def test_whoever_got_the_pid_of_an_init_that_is_gone_is_not_an_init(proc: FakeProc) -> None:
    proc.add(4100, "bash")
    proc.add(4242, parent=4100)
    proc.add(4243, inner=(9,), cgroup=inside(129))
    assert seen(proc) == [4243]


def test_without_an_init_the_cgroup_tells(proc: FakeProc) -> None:
    proc.container(129, 4100)
    assert seen(proc, ContainerStatus(129, "running", None, None)) == [4100]


def test_a_running_container_without_any_process_means_that_we_look_from_the_wrong_place(proc: FakeProc) -> None:
    proc.container(130, 5100)
    with pytest.raises(ContainerError, match="Run the task on the node itself, as root") as caught:
        seen(proc)
    assert caught.value.reason == "ct_not_visible"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("lxc/129/ns/a.service/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("lxc/129/ns/a.service/cgroup.events", "populated 1\nfrozen 0\n", False),
        ("unified/lxc/129/ns/a.service/cgroup.events", "frozen 1\n", True),
        ("freezer/lxc/129/ns/a.service/freezer.state", "FROZEN\n", True),
        ("freezer/lxc/129/ns/a.service/freezer.state", "FREEZING\n", True),
        ("freezer/lxc/129/ns/a.service/freezer.state", "THAWED\n", False),
        ("elsewhere/cgroup.events", "frozen 1\n", False),
        ("lxc/129/ns/a.service/cgroup.freeze", "1\n", True),
        ("lxc/129/ns/a.service/cgroup.freeze", "0\n", False),
        ("lxc/129/cgroup.freeze", "1\n", True),
        ("unified/lxc/129/cgroup.freeze", "1\n", True),
        ("lxc/130/cgroup.freeze", "1\n", False),
    ],
)
def test_a_frozen_cgroup_is_seen_in_either_hierarchy(tmp_path: Path, name: str, text: str, expected: bool) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    process = make_process(cgroups=("/", "/lxc/129/ns/a.service"))
    assert frozen(process, str(tmp_path)) is expected


@pytest.mark.parametrize("known", [True, False], ids=["its init is seen", "its init is hidden"])
def test_a_frozen_container_is_seen_without_entering_it(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    asked: list[str] = []

    def frozen_cgroup(path: str, _root: str = "") -> bool:
        asked.append(path)
        return path == "/lxc/129/ns"

    monkeypatch.setattr(_containers, "_frozen_cgroup", frozen_cgroup)
    proc.container(129, 4100, cgroup="0::/lxc/129/ns\n")
    status = ContainerStatus(129, "running", 4100 if known else None, None)
    assert container_frozen(status, proc.procfs)
    assert asked == (["/lxc/129/ns"] if known else ["/lxc/129", "/lxc/129/ns"])


def test_whoever_has_the_pid_of_an_init_that_is_gone_says_nothing_about_the_container(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(4100, "bash", cgroup="0::/user.slice\n")
    monkeypatch.setattr(_containers, "_frozen_cgroup", lambda path, _root="": path == "/user.slice")
    assert not container_frozen(ContainerStatus(129, "running", 4100, None), proc.procfs)
