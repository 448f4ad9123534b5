# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way of a whole look: where, who listens, what is stale, what is removed, what is returned."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._errors import ContainerError, MachineError
from ansible_collections.gpuops.inference.plugins.module_utils._leftovers import LeftoversRequest, find_leftovers
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._shared_memory import (
    DEFAULT_NAMES,
    SharedMemory,
    compile_names,
)
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import BOOT_TIME, inside
from tests.unit.fake_shm import FakeShm
from tests.unit.recorded import ScriptedRunner, recorded

LISTENS = "0: 0100007F:7530 00000000:0000 0A 00000000:00000001 00:00000000 00000000 0 0 {inode} 1 0 100 0 0 10 0\n"
REQUEST = LeftoversRequest(
    vmid=129,
    ports=(),
    port_timeout=0,
    patterns=compile_names(DEFAULT_NAMES),
    min_age=30,
    clean_shm=False,
    pct_path="pct",
)
NOW = 2_000_000_000.0


class Node:
    """A node with container 129, whose init is 4100 and whose /dev/shm is a directory."""

    def __init__(self, shm: FakeShm) -> None:
        self.shm = shm
        self.proc = shm.proc
        self.status = "status_running"
        self.clock = FakeClock()

    def look(self, *, dry_run: bool = False, now: float = NOW, **options: Any) -> dict[str, Any]:
        runner = ScriptedRunner({"status": [recorded("pct", self.status)]})
        machine = Machine(runner, self.proc.procfs, self.clock, FakeKernel(self.proc), dry_run=dry_run)
        return find_leftovers(REQUEST._replace(**options), machine, lambda: now)

    def add(self, pid: int, inner: int, *, begun: float = 0, fds: tuple[Path, ...] = ()) -> None:
        """A process of the container that began at ``begun``, in seconds since the epoch."""
        ticks = max(1, int((begun - BOOT_TIME) * os.sysconf("SC_CLK_TCK")))
        self.proc.add(pid, "python3", "python3\0", inner=(inner,), cgroup=inside(129), start=ticks, fds=fds)
        self.shm.reach(pid)

    def listen(self, inode: int) -> None:
        self.proc.root.joinpath("4100", "net").mkdir(exist_ok=True)
        text = LISTENS.format(inode=inode) if inode else ""
        self.proc.root.joinpath("4100", "net", "tcp").write_text(text, encoding="ascii")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(FakeShm(tmp_path))


def reasons(result: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one["reason"] for one in result["segments"]}


def test_of_the_segments_of_the_dead_and_the_living_only_those_of_the_dead_are_removed(node: Node) -> None:
    """Case D08."""
    node.add(5000, 77, begun=NOW)
    held = node.shm.make("nccl-Ewjreo", 4096)
    node.add(5001, 78, begun=NOW, fds=(held,))
    dead = node.shm.make("sgl_shm_mm_312_5d41402a", 8192)
    living = node.shm.make("sgl_shm_mm_77_5d41402a", 4096)
    other = node.shm.make("other.db", 4096)
    seen = node.look()
    assert (seen["changed"], seen["stale"], seen["stale_mib"], seen["removed"]) == (False, [dead.name], 0.008, [])
    assert dead.exists()
    cleaned = node.look(clean_shm=True)
    assert (cleaned["changed"], cleaned["removed"], cleaned["removed_mib"]) == (True, [dead.name], 0.008)
    assert reasons(cleaned) == {dead.name: None, held.name: "in_use", living.name: "owner_alive"}
    assert not dead.exists()
    assert all(path.exists() for path in (held, living, other))
    again = node.look(clean_shm=True)
    assert (again["changed"], again["stale"], again["removed"]) == (False, [], [])


def test_check_mode_removes_nothing_and_says_what_it_would(node: Node) -> None:
    dead = node.shm.make("multi_tokenizer_args_312", 4096)
    result = node.look(clean_shm=True, dry_run=True)
    assert (result["changed"], result["removed"], dead.exists()) == (True, [dead.name], True)
    assert result["diff"] == {"before": f"/dev/shm/{dead.name}\n", "after": ""}
    assert result["segments"][0]["removed"] is True


def test_a_pid_counts_as_the_container_counts_it(node: Node) -> None:
    node.shm.make("multi_tokenizer_args_77", 1)
    node.shm.make("multi_tokenizer_args_5000", 1)
    node.add(5000, 77)
    assert reasons(node.look()) == {"multi_tokenizer_args_77": "owner_alive", "multi_tokenizer_args_5000": None}


def test_whoever_can_reach_the_memory_counts_wherever_he_is(node: Node) -> None:
    node.shm.make("multi_tokenizer_args_9", 1)
    # A container within the container, with the same memory and pids of its own.
    node.proc.add(6000, "python3", inner=(900, 9), cgroup="0::/elsewhere\n")
    node.shm.reach(6000)
    assert reasons(node.look()) == {"multi_tokenizer_args_9": "owner_alive"}
    node.shm.reach(6000, device="0:1")
    assert reasons(node.look()) == {"multi_tokenizer_args_9": None}
    (node.proc.root / "6000" / "mountinfo").unlink()
    assert reasons(node.look()) == {"multi_tokenizer_args_9": "owner_alive"}


def test_a_zombie_owns_nothing_and_a_dead_leader_of_living_threads_does(node: Node) -> None:
    node.shm.make("multi_tokenizer_args_77", 1)
    node.add(5000, 77)
    node.proc.become(5000, "Z")
    assert reasons(node.look()) == {"multi_tokenizer_args_77": None}
    node.proc.become(5000, "Z", threads=2)
    assert reasons(node.look()) == {"multi_tokenizer_args_77": "owner_alive"}


def test_a_segment_that_a_stranger_has_mapped_is_in_use(node: Node) -> None:
    segment = node.shm.make("psm_0a", 4096)
    status = segment.stat()
    node.proc.add(7000, "backup", cgroup="0::/system.slice/backup.service\n")
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    (node.proc.root / "7000" / "maps").write_text(f"7f00-7f10 rw-s 00000000 {device} {status.st_ino}   /dev/shm/x\n")
    [found] = node.look(min_age=0)["segments"]
    assert (found["reason"], [one["pid"] for one in found["in_use_by"]]) == ("in_use", [7000])
    assert found["in_use_by"][0]["unit"] == "backup.service"


def test_a_nameless_segment_may_be_its_who_began_before_it_and_has_another(node: Node) -> None:
    held = node.shm.make("psm_0a", 4096)
    free = node.shm.make("psm_0b", 4096)
    made = free.stat().st_ctime
    node.add(5000, 77, begun=made - 10, fds=(held,))
    assert reasons(node.look())[free.name] == "maker_may_live"
    node.proc.remove(5000)
    node.add(5000, 77, begun=made + 10, fds=(held,))
    assert reasons(node.look())[free.name] is None


def test_a_nameless_segment_may_be_on_its_way(node: Node) -> None:
    made = node.shm.make("psm_0a", 4096).stat().st_ctime
    assert reasons(node.look(now=made + 29)) == {"psm_0a": "too_young"}
    assert reasons(node.look(now=made + 31)) == {"psm_0a": None}
    assert node.look(now=made + 31)["segments"][0]["age_s"] == 31.0


def test_one_who_can_reach_it_and_cannot_be_looked_into_keeps_everything(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.shm.make("multi_tokenizer_args_312", 1)
    node.add(5000, 77)
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("/5000/fd"):
            raise PermissionError
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    result = node.look(clean_shm=True)
    assert (result["changed"], result["scan_complete"]) == (False, False)
    assert reasons(result) == {"multi_tokenizer_args_312": "unreadable"}
    # One who cannot reach it is asked in vain, and nothing depends on it.
    node.shm.reach(5000, device="0:1")
    result = node.look()
    assert (result["scan_complete"], result["stale"]) == (True, ["multi_tokenizer_args_312"])


def test_a_file_of_somebody_whom_the_container_does_not_know_is_left(node: Node) -> None:
    node.shm.make("multi_tokenizer_args_312", 1)
    node.shm.knows_uids(f"0 {os.getuid() + 1} 65536")
    assert reasons(node.look(clean_shm=True)) == {"multi_tokenizer_args_312": "foreign_owner"}


def test_without_a_container_a_view_that_is_not_the_first_one_keeps_everything(node: Node) -> None:
    node.shm.as_machine()
    node.shm.make("multi_tokenizer_args_312", 1)
    assert reasons(node.look(vmid=None)) == {"multi_tokenizer_args_312": None}
    (node.proc.root / "self" / "ns" / "pid").unlink()
    (node.proc.root / "self" / "ns" / "pid").symlink_to("pid:[4026532999]")
    result = node.look(vmid=None)
    assert reasons(result) == {"multi_tokenizer_args_312": "unreadable"}
    assert (result["vmid"], result["container_status"], result["scan_complete"]) == (None, None, False)


def test_a_link_in_its_place_is_reported_and_the_ports_are_looked_at_all_the_same(node: Node) -> None:
    node.listen(4711)
    node.shm.directory.rmdir()
    result = node.look(ports=(30000,), clean_shm=True)
    assert result["shm"]["reason"] == "shm_missing"
    assert "mount a tmpfs" in result["shm"]["message"]
    assert result["listeners"] == [{"port": 30000, "address": "127.0.0.1", "process": None}]
    assert (result["changed"], result["segments"]) == (False, [])


def test_who_listens_is_named_and_other_ports_are_nobody_s_business(node: Node) -> None:
    with socket.socket() as held:
        node.listen(os.fstat(held.fileno()).st_ino)
        # Two processes share it, as a server and its workers do; both would have to go.
        for pid, inner in ((7000, 90), (7001, 91)):
            node.proc.add(pid, "nc", "nc -l\0", inner=(inner,), cgroup=inside(129, "/system.slice/x.service"))
            (node.proc.root / str(pid) / "fd" / "3").symlink_to(f"/proc/{os.getpid()}/fd/{held.fileno()}")
        assert node.look(ports=(30001,))["listeners"] == []
        found = node.look(ports=(30000, 30001))["listeners"]
    assert [(one["port"], one["address"], one["process"]["pid"]) for one in found] == [
        (30000, "127.0.0.1", 7000),
        (30000, "127.0.0.1", 7001),
    ]
    assert (found[0]["process"]["vmid"], found[0]["process"]["unit"]) == (129, "x.service")


def test_a_port_is_waited_for_with_a_limit(node: Node) -> None:
    node.listen(4711)
    assert len(node.look(ports=(30000,), port_timeout=1)["listeners"]) == 1
    assert sum(node.clock.sleeps) == pytest.approx(1, abs=0.06)
    node.clock = FakeClock(at=lambda time: node.listen(0 if time >= 0.3 else 4711))
    assert node.look(ports=(30000,), port_timeout=5)["listeners"] == []
    assert sum(node.clock.sleeps) == pytest.approx(0.3, abs=0.06)


def test_a_container_that_does_not_run_has_nothing_left(node: Node) -> None:
    node.status = "status_stopped"
    result = node.look(ports=(30000,), clean_shm=True)
    assert (result["container_status"], result["listeners"], result["segments"], result["shm"]) == (
        "stopped",
        [],
        [],
        None,
    )
    assert result["changed"] is False


def test_an_init_that_is_not_to_be_seen_or_is_somebody_else_by_now_fails(node: Node) -> None:
    node.proc.remove(4100)
    with pytest.raises(ContainerError, match="cannot be seen"):
        node.look()
    node.proc.add(4100, "cron")
    with pytest.raises(ContainerError, match="on the node itself") as caught:
        node.look(clean_shm=True)
    assert caught.value.reason == "ct_not_visible"


@pytest.mark.parametrize("heir", [True, False])
def test_a_container_that_is_stopped_during_the_look_is_left_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch, heir: bool
) -> None:
    """The pid of its init may be another container's by then, and so may all that was read by it."""
    dead = node.shm.make("sgl_shm_mm_312_5d41402a", 8192)
    segments = SharedMemory.segments

    def stop(self: SharedMemory, patterns: Any) -> Any:
        found = segments(self, patterns)
        node.proc.remove(4100)
        if heir:
            node.proc.add(4100, "init", start=99_999, inner=(1,), cgroup=inside(130))
        return found

    monkeypatch.setattr(SharedMemory, "segments", stop)
    with pytest.raises(ContainerError, match="was stopped while it was looked into") as caught:
        node.look(clean_shm=True)
    assert (caught.value.reason, caught.value.fields["changed"]) == ("ct_not_running", False)
    assert dead.exists()


def test_a_table_of_sockets_that_cannot_be_read_fails(node: Node) -> None:
    with pytest.raises(ContainerError) as caught:
        node.look(ports=(30000,))
    assert caught.value.reason == "sockets_unreadable"


def test_want_of_memory_after_a_segment_was_removed_names_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = node.shm.make("multi_tokenizer_args_312", 4096)

    def short(_descriptor: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "fstatvfs", short)
    with pytest.raises(MachineError) as caught:
        node.look(clean_shm=True)
    assert not dead.exists()
    assert caught.value.result()["changed"] is True
    assert caught.value.result()["removed"] == [dead.name]
    with pytest.raises(MachineError) as caught:
        node.look(clean_shm=True)
    assert (caught.value.result()["changed"], caught.value.result()["removed"]) == (False, [])
