# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No unprotected process holds the card: the whole of nvidia_fuser_reclaim, on a machine made of files."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _reclaim
from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Scan, find_holders
from ansible_collections.gpuops.inference.plugins.module_utils._errors import (
    ContainerError,
    DriverError,
    GpuopsError,
    InputError,
)
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import ComputeProcess, DriverReading, Gpu
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_patterns
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from ansible_collections.gpuops.inference.plugins.module_utils._reclaim import ReclaimRequest, computing, reclaim
from ansible_collections.gpuops.inference.plugins.module_utils._selection import (
    DEFAULT_PROTECT,
)
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import FakeProc, inside
from tests.unit.recorded import ScriptedRunner, recorded

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def gpu(index: Optional[int], minor: Optional[int]) -> Gpu:
    uuid = None if index is None else f"GPU-{index}"
    return Gpu(index, uuid, f"0000:0{minor}:00.0", minor, "RTX", 97887, 76115, 21772, None)


class World:
    """Two cards: GPU 0 is /dev/nvidia3, GPU 1 is /dev/nvidia4. ``listed``: what the driver lists, pid and GPU index."""

    def __init__(self, proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc = proc
        self.cards = [proc.card(3), proc.card(4)]
        self.uvm = proc.uvm()
        self.gpus = [gpu(0, 3), gpu(1, 4)]
        self.listed: Optional[list[tuple[int, int]]] = []
        self.error: Optional[GpuopsError] = None
        self.asked: list[dict[str, Any]] = []
        self.status = "status_running"
        monkeypatch.setattr(_reclaim, "read_driver", self._read)

    def _read(self, **options: Any) -> DriverReading:
        self.asked.append(options)
        if self.error is not None:
            raise self.error
        listed = (
            None if self.listed is None else tuple(ComputeProcess(pid, f"GPU-{card}", 1) for pid, card in self.listed)
        )
        return DriverReading("nvidia_smi", "580", tuple(self.gpus), listed, 0, ("a warning",))

    def holder(
        self, pid: int, name: str = "pt_main_thread", *, cards: Sequence[int] = (1,), uvm: bool = True, **more: Any
    ) -> None:
        handles = [self.cards[card] for card in cards] + ([self.uvm] if uvm else [])
        self.proc.add(pid, name, more.pop("command", f"{name}\0"), fds=handles, **more)

    def run(
        self,
        *,
        kernel: Optional[FakeKernel] = None,
        at: Optional[Callable[[float], None]] = None,
        dry_run: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "gpus": ["1"],
            "devices": None,
            "device_directory": str(self.proc.devices),
            "vmid": None,
            "protect": compile_patterns(DEFAULT_PROTECT, "protect"),
            "spare_monitors": True,
            "term_timeout": 5.0,
            "kill_timeout": 10.0,
            "respawn_timeout": 1.0,
            "backend": "auto",
            "nvidia_smi_path": "nvidia-smi",
            "driver_timeout": 20.0,
            "pct_path": "pct",
        }
        runner = ScriptedRunner({"status": [recorded("pct", self.status)]})
        self.kernel = kernel or FakeKernel(self.proc)
        self.clock = FakeClock(at)
        machine = Machine(runner, self.proc.procfs, self.clock, self.kernel, dry_run)
        return reclaim(ReclaimRequest(**{**fields, **options}), machine)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    proc = FakeProc(tmp_path)
    proc.add(1, "systemd", "/sbin/init\0", parent=0)
    return World(proc, monkeypatch)


def pids(result: dict[str, Any]) -> dict[str, list[int]]:
    kinds = ("holders", "terminated", "killed", "survivors", "respawned")
    return {kind: [one["pid"] for one in result[kind]] for kind in kinds if result[kind]}


def spared(result: dict[str, Any]) -> dict[int, str]:
    return {one["pid"]: one["reason"] for one in result["spared"]}


def test_the_incident_s_survivor_is_found_by_its_device_and_ended(world: World) -> None:
    """Neither its name nor its parent gives it away."""
    world.proc.container(129, 4100)
    world.holder(24871, inner=(312,), cgroup=inside(129), namespace="pid:[129]")
    world.listed = [(24871, 1)]
    result = world.run(vmid=129)
    assert pids(result) == {"holders": [24871], "terminated": [24871]}
    assert (result["changed"], result["gpus"], result["devices"]) == (True, [1], [str(world.cards[1])])
    (holder,) = result["holders"]
    assert (holder["gpus"], holder["evidence"], holder["vmid"], holder["container_pid"]) == (
        [1],
        ["driver", "fd"],
        129,
        312,
    )
    assert (result["scan_complete"], result["scan_source"]) == (True, "proc")
    assert result["diff"] == {"before": "24871 (pt_main_thread, container 129)\n", "after": ""}
    assert result["warnings"] == ["a warning"]


def test_a_second_run_finds_nobody_and_changes_nothing(world: World) -> None:
    world.holder(24871)
    world.run()
    result = world.run()
    assert (result["changed"], pids(result), world.kernel.sent) == (False, {}, [])


def test_holders_of_other_cards_are_not_even_looked_at(world: World) -> None:
    world.holder(10, cards=[0])
    assert pids(world.run()) == {}


def test_all_cards_are_meant_when_none_is_named(world: World) -> None:
    world.holder(10, cards=[0])
    world.holder(11, cards=[1])
    result = world.run(gpus=None)
    assert (result["gpus"], pids(result)["terminated"]) == ([0, 1], [10, 11])


def test_no_card_is_meant_by_an_empty_list(world: World) -> None:
    world.holder(11)
    result = world.run(gpus=[])
    assert result["scan_source"] is None
    assert (result["changed"], result["holders"], result["devices"], world.asked) == (False, [], [], [])


def test_whoever_must_not_be_ended_is_spared_and_named(world: World) -> None:
    world.proc.container(129, 4100)
    world.proc.container(130, 5100)
    world.holder(11, inner=(312,), cgroup=inside(129), namespace="pid:[129]")
    world.holder(12, inner=(313,), cgroup=inside(130), namespace="pid:[130]")
    world.holder(13, "nvidia-persiste", uvm=False)
    world.holder(14, "nvtop", uvm=False, inner=(314,), cgroup=inside(129), namespace="pid:[129]")
    world.holder(15, inner=(315,), cgroup=inside(129), cards=[0, 1])
    world.holder(16, "nv-hostengine", inner=(316,), cgroup=inside(129), uvm=False)
    world.listed = [(11, 1), (12, 1), (15, 0), (999, 1), (998, 0)]
    result = world.run(vmid=129)
    assert world.kernel.sent == [(11, TERM)]
    assert spared(result) == {
        12: "other_container",
        13: "other_container",
        14: "monitor",
        15: "computes_elsewhere",
        16: "protected",
        999: "outside_namespace",
    }
    assert {one["pid"]: one["vmid"] for one in result["spared"]} == {
        12: 130,
        13: None,
        14: 129,
        15: 129,
        16: 129,
        999: None,
    }


def test_a_pid_that_only_the_driver_names_is_named_and_never_signalled(world: World) -> None:
    """B08: a number from the driver says nothing about a process of ours."""
    world.proc.add(999, "innocent")
    world.listed = [(999, 1)]
    result = world.run()
    (outside,) = result["spared"]
    assert (outside["pid"], outside["reason"], outside["evidence"], outside["gpus"]) == (
        999,
        "outside_namespace",
        ["driver"],
        [1],
    )
    assert outside["name"] is None
    assert (result["changed"], world.kernel.sent) == (False, [])


def test_a_holder_that_computes_on_another_card_is_spared(world: World) -> None:
    """B23: fuser -k would kill the job on GPU 0 to free GPU 1."""
    world.holder(45208, "python", cards=[0, 1])
    world.listed = [(45208, 0)]
    result = world.run()
    assert spared(result) == {45208: "computes_elsewhere"}
    assert result["holders"][0]["evidence"] == ["fd"]
    assert spared(world.run(gpus=["0"])) == {}


def test_a_watcher_is_ended_only_when_that_is_asked_for(world: World) -> None:
    world.holder(14, "nvtop", uvm=False)
    assert spared(world.run()) == {14: "monitor"}
    assert pids(world.run(spare_monitors=False))["terminated"] == [14]


def test_without_the_driver_s_list_the_handles_are_the_evidence(world: World) -> None:
    world.listed = None
    world.holder(11)
    world.holder(14, "nvtop", uvm=False)
    result = world.run()
    assert (pids(result)["terminated"], spared(result)) == ([11], {14: "monitor"})
    assert result["holders"][0]["evidence"] == ["fd"]


def test_a_stopped_container_has_no_holders(world: World) -> None:
    world.status = "status_stopped"
    world.holder(11)
    assert spared(world.run(vmid=129)) == {11: "other_container"}


def test_a_container_without_a_cgroup_mark_is_still_named(world: World) -> None:
    world.proc.container(129, 4100, cgroup="0::/\n")
    world.holder(11, parent=4100, inner=(312,), namespace="pid:[129]")
    result = world.run(vmid=129)
    assert [one["vmid"] for one in result["terminated"]] == [129]


@pytest.mark.parametrize("case", ["C02", "C11"])
def test_an_unknown_container_fails_before_any_signal(world: World, case: str) -> None:
    world.status = case
    world.holder(11)
    with pytest.raises(ContainerError):
        world.run(vmid=129)
    assert world.kernel.sent == []


def test_the_module_and_its_ancestors_are_spared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.holder(11, parent=10)
    world.holder(10)
    real = ProcFs.ancestors
    monkeypatch.setattr(ProcFs, "ancestors", lambda self, _ours: real(self, 11))
    assert spared(world.run()) == {10: "ourselves", 11: "ourselves"}


def test_a_dead_leader_with_living_threads_is_ended(world: World) -> None:
    """B27."""
    world.proc.add(11, state="Z", threads=2)
    world.proc.thread(11, 12, fds=[world.cards[1], world.uvm])
    result = world.run()
    assert result["terminated"][0]["evidence"] == ["thread_fd"]


def test_stubborn_stuck_and_forbidden_holders_are_told_apart(world: World) -> None:
    for pid in (11, 12, 13, 14):
        world.holder(pid)
    world.proc.become(13, "D", wchan="nvidia_close")
    kernel = FakeKernel(world.proc, stubborn=[12], stuck=[13], denied=[14])
    result = world.run(kernel=kernel)
    assert pids(result) == {"holders": [11, 12, 13, 14], "terminated": [11], "killed": [12], "survivors": [13, 14]}
    assert [(one["reason"], one["wchan"], one["gpus"]) for one in result["survivors"]] == [
        ("uninterruptible", "nvidia_close", [1]),
        ("permission", None, [1]),
    ]
    assert result["diff"]["after"] == "13 (pt_main_thread, state D)\n14 (pt_main_thread)\n"


def test_no_patience_goes_to_sigkill_at_once(world: World) -> None:
    world.holder(11)
    assert pids(world.run(term_timeout=0.0))["killed"] == [11]
    assert world.kernel.sent == [(11, KILL)]


def test_whoever_takes_the_card_again_is_named_with_its_unit(world: World) -> None:
    world.holder(11)

    def respawn(now: float) -> None:
        if now >= 0.3 and 20 not in world.proc.procfs.pids():
            world.holder(20, cgroup="0::/system.slice/sglang-kimi.service\n")

    result = world.run(at=respawn)
    assert pids(result) == {"holders": [11], "terminated": [11], "respawned": [20]}
    (newcomer,) = result["respawned"]
    assert (newcomer["unit"], newcomer["gpus"], newcomer["evidence"]) == ("sglang-kimi.service", [1], ["fd"])
    assert world.kernel.sent == [(11, TERM)]


def test_who_starts_it_again_is_named(world: World) -> None:
    world.proc.add(7, "supervisord", "supervisord\0-n\0", cgroup="0::/system.slice/supervisor.service\n")
    world.holder(11, parent=7, cgroup="0::/system.slice/supervisor.service\n")

    def respawn() -> None:
        if 20 not in world.proc.procfs.pids():
            world.holder(20, parent=7, cgroup="0::/system.slice/supervisor.service\n")

    (newcomer,) = world.run(kernel=FakeKernel(world.proc, after=respawn))["respawned"]
    by = newcomer["started_by"]
    assert (by["kind"], by["pid"], by["name"], by["unit"]) == ("process", 7, "supervisord", "supervisor.service")
    assert by["command"] == "supervisord -n"


def test_a_child_that_inherits_the_card_meanwhile_is_ended_too(world: World) -> None:
    world.holder(11)
    born: list[int] = []

    def fork() -> None:
        if not born:
            born.append(20)
            world.holder(20, parent=11)

    result = world.run(kernel=FakeKernel(world.proc, stubborn=[11, 20], after=fork))
    assert pids(result) == {"holders": [11], "killed": [11, 20]}
    assert (result["killed"][1]["gpus"], result["killed"][1]["evidence"]) == ([1], ["fd"])


def test_whoever_is_frozen_is_named_at_once_and_not_signalled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signals would take effect at the end of the backup, on a server that may be meant to run on."""
    monkeypatch.setattr(_reclaim, "frozen", lambda process: process.pid == 11)
    world.holder(11)
    world.holder(12)
    result = world.run()
    assert pids(result) == {"holders": [11, 12], "terminated": [12], "survivors": [11]}
    assert (result["survivors"][0]["reason"], world.kernel.sent) == ("frozen", [(12, TERM)])
    assert world.clock.time <= 1
    again = world.run()
    assert (again["changed"], pids(again), world.clock.time) == (False, {"holders": [11], "survivors": [11]}, 0)


def test_a_server_that_is_the_first_process_of_its_container_is_spared_and_the_way_out_is_named(world: World) -> None:
    """As Docker runs it on the machine itself."""
    world.holder(11, "python3", inner=(1,), namespace="pid:[11]", cgroup="0::/system.slice/docker-1f2e.scope\n")
    result = world.run()
    assert (spared(result), world.kernel.sent, result["changed"]) == ({11: "container_init"}, [], False)
    assert result["warnings"][-1] == (
        "11 (python3, unit docker-1f2e.scope) holds a card and was not signalled: it is the first process of its "
        "container, which would go down with it. Restart that container instead."
    )


def test_a_watcher_that_turns_to_computing_meanwhile_is_no_respawn(world: World) -> None:
    world.holder(11)
    world.holder(14, "nvtop", uvm=False)

    def turn() -> None:
        handle = world.proc.root / "14" / "fd" / "9"
        if not handle.is_symlink():
            handle.symlink_to(world.uvm)

    assert "respawned" not in pids(world.run(kernel=FakeKernel(world.proc, after=turn)))


def test_a_watcher_that_comes_meanwhile_is_no_respawn(world: World) -> None:
    world.holder(11)
    kernel = FakeKernel(world.proc, after=lambda: world.holder(20, "nvidia-smi", uvm=False))
    assert pids(world.run(kernel=kernel, respawn_timeout=0.0)) == {"holders": [11], "terminated": [11]}


def test_a_container_that_goes_down_meanwhile_is_no_failure(world: World) -> None:
    world.proc.container(129, 4100)
    world.holder(11, inner=(312,), cgroup=inside(129))
    kernel = FakeKernel(world.proc, after=lambda: world.proc.remove(4100))
    assert pids(world.run(vmid=129, kernel=kernel)) == {"holders": [11], "terminated": [11]}


def test_check_mode_says_what_it_would_do_and_signals_nobody(world: World) -> None:
    world.holder(11)
    world.holder(14, "nvtop", uvm=False)
    result = world.run(dry_run=True)
    assert (result["changed"], pids(result)) == (True, {"holders": [11, 14], "terminated": [11]})
    assert (world.kernel.sent, 11 in world.proc.procfs.pids()) == ([], True)
    assert result["diff"]["after"] == "14 (nvtop)\n"


def test_check_mode_with_nobody_to_end_would_change_nothing(world: World) -> None:
    world.holder(14, "nvtop", uvm=False)
    assert world.run(dry_run=True)["changed"] is False


def test_what_may_not_be_looked_into_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reclaim, "find_holders", lambda *_arguments: Scan((), 3, "kernel"))
    result = world.run()
    assert (result["scan_complete"], result["scan_source"]) == (False, "kernel")
    assert "3 processes could not be looked into" in result["warnings"][-1]
    assert ("run this as root" in result["warnings"][-1]) == (os.geteuid() != 0)


def test_who_is_spared_and_seen_only_later_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Scan] = []
    world.holder(11)
    world.holder(12, "nvtop", uvm=False)

    def look(*arguments: Any) -> Scan:
        scan = find_holders(*arguments)
        seen = scan.holders if looks else tuple(one for one in scan.holders if one.process.pid != 12)
        looks.append(scan._replace(holders=seen))
        return looks[-1]

    monkeypatch.setattr(_reclaim, "find_holders", look)
    result = world.run()
    assert (pids(result), spared(result)) == ({"holders": [11], "terminated": [11]}, {12: "monitor"})


@pytest.mark.parametrize("first", [0, 2])
def test_the_first_and_the_last_look_say_whether_all_could_be_looked_into(
    world: World, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Whoever was there, or takes a card again, may be one that nobody sees."""
    scans = iter([Scan((), first, "kernel"), *[Scan((), 2 - first, "proc")] * 100])
    world.holder(11)

    def look(*arguments: Any) -> Scan:
        scan = next(scans)
        return find_holders(*arguments)._replace(unreadable=scan.unreadable, source=scan.source)

    monkeypatch.setattr(_reclaim, "find_holders", look)
    result = world.run()
    assert (pids(result)["terminated"], result["scan_complete"], result["scan_source"]) == ([11], False, "proc")
    assert "2 processes could not be looked into" in result["warnings"][-1]


def test_a_card_whose_minor_is_not_known_fails_and_signals_nobody(world: World) -> None:
    world.gpus = [gpu(0, None), gpu(1, 4)]
    world.holder(11)
    with pytest.raises(DriverError, match="an index is not a minor") as caught:
        world.run(gpus=["0"])
    assert caught.value.reason == "minor_unknown"
    assert pids(world.run(gpus=["1"]))["terminated"] == [11]


def test_a_card_that_is_not_there_fails_and_signals_nobody(world: World) -> None:
    world.holder(11)
    with pytest.raises(InputError, match="9"):
        world.run(gpus=["9"])
    assert world.kernel.sent == []


def test_a_card_without_its_node_fails(world: World) -> None:
    world.cards[1].unlink()
    with pytest.raises(InputError) as caught:
        world.run()
    assert caught.value.reason == "no_device_nodes"


def test_named_nodes_are_joined_with_their_cards(world: World) -> None:
    world.holder(11)
    world.listed = [(11, 1)]
    result = world.run(gpus=None, devices=[f"{world.proc.devices}/nvidia[0-9]"])
    assert (result["gpus"], result["holders"][0]["evidence"]) == ([0, 1], ["driver", "fd"])


def test_named_nodes_need_no_other_card_to_have_one(world: World) -> None:
    world.cards[0].unlink()
    world.holder(11)
    result = world.run(gpus=None, devices=[str(world.cards[1])])
    assert (result["gpus"], pids(result)["terminated"]) == ([1], [11])


def test_named_nodes_work_without_the_driver_and_a_warning_says_so(world: World) -> None:
    world.error = DriverError("it hangs", reason="timeout")
    world.holder(11)
    result = world.run(gpus=None, devices=[str(world.cards[1])])
    assert (result["gpus"], pids(result)["terminated"]) == ([], [11])
    assert result["warnings"] == ["The driver was not asked which process computes on which card: it hangs"]


def test_without_the_driver_and_without_nodes_nothing_is_done(world: World) -> None:
    world.error = DriverError("it hangs", reason="timeout")
    world.holder(11)
    with pytest.raises(DriverError, match="it hangs"):
        world.run()
    assert world.kernel.sent == []


def test_the_driver_is_asked_about_the_same_machine(world: World) -> None:
    world.run()
    (asked,) = world.asked
    assert asked["proc_root"] == world.proc.procfs.root
    assert asked["device_directory"] == str(world.proc.devices)
    assert (asked["backend"], asked["nvidia_smi_path"], asked["timeout"]) == ("auto", "nvidia-smi", 20.0)


def test_the_driver_s_list_is_pids_and_indices() -> None:
    listed = tuple(ComputeProcess(pid, uuid, None) for pid, uuid in [(11, "GPU-0"), (11, "GPU-1"), (12, "GPU-x")])
    reading = DriverReading("nvml", None, (gpu(0, 3), gpu(1, 4), gpu(None, 5)), listed, 0, ())
    assert computing(reading) == {11: frozenset({0, 1}), 12: frozenset()}
    assert computing(DriverReading("nvml", None, (), None, 0, ())) is None


def test_no_secret_is_in_anything_that_is_returned(world: World) -> None:
    command = "x\0--api-key\0sk-made-up-0001\0HF_TOKEN=sk-made-up-0001\0"
    for pid in (11, 12, 13):
        world.holder(pid, command=command)
    world.holder(14, command=command, uvm=False)

    def respawn() -> None:
        if 20 not in world.proc.procfs.pids():
            world.holder(20, command=command)

    kernel = FakeKernel(world.proc, stubborn=[12], stuck=[13], after=respawn)
    result = world.run(kernel=kernel)
    assert set(pids(result)) == {"holders", "terminated", "killed", "survivors", "respawned"}
    assert "sk-made-up-0001" not in repr(result)
