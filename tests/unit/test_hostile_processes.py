# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever processes there are and whatever /proc says of them: no error but ours, and nobody is signalled who must not
be.

Each test builds a machine of files, runs a whole module core on it, and judges by the parts that it gave out, never by
what the code under test read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._container_kill import kill_processes
from ansible_collections.gpuops.inference.plugins.module_utils._containers import frozen, vmid_of
from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import (
    card_device,
    compute_node,
    find_holders,
)
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_patterns, matches
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import (
    ProcFs,
    parse_cgroups,
    parse_command,
    parse_stat,
    parse_status,
    unit_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._results import process_result, redact_glued
from ansible_collections.gpuops.inference.plugins.module_utils._selection import (
    DEFAULT_PROTECT,
)
from tests.unit.doubles import FakeKernel
from tests.unit.fake_proc import HOST, FakeProc, inside, make_process, stat_line
from tests.unit.garbage import ANY_TEXT, CELLS, hostile, mutated
from tests.unit.plugins.module_utils.test_container_kill import Pct, machine, request
from tests.unit.plugins.module_utils.test_reclaim import World
from tests.unit.plugins.module_utils.test_selection import PROTECTED
from tests.unit.test_hostile_text import answered

STATS = [
    stat_line(4242, name, state, 1, 0x400000, 3, 815).decode()
    for name, state in (("python3", "S"), ("a) S 1 (b", "D"), ("sglang::schedul", "Z"))
]
STATUSES = ["Name:\tpython3\nState:\tS (sleeping)\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t4242\t312\n"]
CGROUPS = [
    inside(129, "/system.slice/sglang-kimi.service"),
    "12:devices:/lxc/129/ns\n1:name=systemd:/lxc.payload.129/init.scope\n0::/\n",
]
COMMANDS = ["python3\0-m\0sglang.launch_server\0--api-key\0secret\0", "sglang::scheduler_TP1\0\0\0"]
MAPS = ["7f00-7f10 rw-s 00000000 00:06 77    /dev/nvidia3\n7ffe-7fff rw-p 00000000 00:00 0    [stack]\n"]

# A machine of files costs some ten milliseconds.
FEWER = settings(max_examples=settings().max_examples // 2)


@given(
    name=ANY_TEXT,
    pid=st.integers(0, 2**22),
    parent=st.integers(0, 2**22),
    flags=st.integers(0, 2**32 - 1),
    start=st.integers(0, 2**64 - 1),
)
def test_no_name_shifts_the_fields_behind_it(name: str, pid: int, parent: int, flags: int, start: int) -> None:
    bytes_of_name = name.encode("utf-8", "replace")
    stat = parse_stat(stat_line(pid, bytes_of_name, "S", parent, flags, 5, start).decode())
    assert stat is not None
    assert (stat.pid, stat.state, stat.parent_pid, stat.flags, stat.threads) == (pid, "S", parent, flags, 5)
    assert (stat.name, stat.start_ticks) == (bytes_of_name.decode(), start)


@given(hostile(STATS), hostile(STATUSES), hostile(CGROUPS), hostile(COMMANDS))
def test_no_text_makes_a_reader_of_proc_fail(stat: str, status: str, cgroup: str, command: str) -> None:
    parse_stat(stat)
    parse_status(status)
    redact_glued(parse_command(command))
    cgroups = parse_cgroups(cgroup)
    assert all(path in cgroup for path in cgroups)
    assert len(set(cgroups)) == len(cgroups)
    assert (unit_of(cgroups) or "") in cgroup
    vmid = vmid_of(make_process(cgroups=cgroups))
    assert vmid is None or str(vmid) in cgroup
    frozen(make_process(cgroups=cgroups), "/nowhere")


@FEWER
@given(
    names=st.lists(st.sampled_from(["4242", "1", "0", "²", "١٢", "-1", "self", "9" * 200]), min_size=1, unique=True),
    stat=hostile(STATS),
    status=hostile(STATUSES),
    cgroup=hostile(CGROUPS),
    command=hostile(COMMANDS),
    maps=hostile(MAPS),
    boot=mutated(["cpu  1 2 3\nbtime 1700000000\nprocesses 7\n"]),
)
def test_any_tree_is_read_to_its_end(
    names: Sequence[str], stat: str, status: str, cgroup: str, command: str, maps: str, boot: str
) -> None:
    with machine_of_files() as proc:
        node = proc.card(3)
        (proc.root / "stat").write_bytes(as_bytes(boot))
        for name in names:
            directory = proc.root / name
            (directory / "fd").mkdir(parents=True, exist_ok=True)
            (directory / "fd" / "0").symlink_to(node)
            for task in ("4242", name):
                (directory / "task" / task).mkdir(parents=True, exist_ok=True)
                (directory / "task" / task / "stat").write_bytes(as_bytes(stat))
            files = {"stat": stat, "status": status, "cgroup": cgroup, "cmdline": command, "maps": maps}
            for file_name, text in files.items():
                (directory / file_name).write_bytes(as_bytes(text))
        procfs = proc.procfs
        for process in procfs.processes():
            process_result(process, procfs)
            procfs.look_again(process)
            procfs.uninterruptible_task(process.pid)
            assert 0 not in procfs.ancestors(process.pid)
        find_holders([card_device(str(proc.devices), 3, 0)], compute_node(str(proc.devices)), procfs)


# Whole modules on a machine full of actors. Each has a part, and the part alone says whether it may be signalled.

SERVER, NESTED_INIT = "server", "nested_init"
MEANT = (SERVER, NESTED_INIT)
ELSEWHERE = ("neighbour", "on_the_node")
PARTS = (
    *(SERVER, SERVER, NESTED_INIT),
    *("kernel_thread", "container_init", "ours", "protected", "neighbour", "monitor", "dead", "on_the_node"),
)


def ours() -> tuple[int, ...]:
    """Our own process, its parent and the parent of that. Above them is init.

    Not a constant: ansible-test imports this file in one process, and runs each test in another.
    """
    return (os.getpid(), 33, 22)


class Actor(NamedTuple):
    """A process with a part to play, and what it calls itself."""

    pid: int
    part: str
    name: bytes
    command: bytes

    def enter(self, proc: FakeProc, handles: Sequence[Path]) -> None:
        """Put it on the machine."""
        outside = self.part in ("kernel_thread", "ours", "on_the_node")
        vmid = 130 if self.part == "neighbour" else 129
        inner = {"container_init": (1,), NESTED_INIT: (77, 1)}.get(self.part, (self.pid,))
        proc.add(
            self.pid,
            self.name,
            self.command,
            state="Z" if self.part == "dead" else "S",
            inner=() if outside else inner,
            cgroup="0::/\n" if outside else inside(vmid),
            namespace=HOST if outside else f"pid:[{vmid}]",
            flags=0x00200000 if self.part == "kernel_thread" else 0,
            fds=handles,
        )


NAMES = st.one_of(
    ANY_TEXT, st.sampled_from(CELLS), st.sampled_from(["sglang::schedul", "1) S 0 (x", "a\nb", "systemd"])
)


@st.composite
def actors(draw: st.DrawFn) -> list[Actor]:
    pids = st.one_of(st.integers(2, 60), st.sampled_from(ours()))
    cast = []
    for pid in draw(st.lists(pids, min_size=1, max_size=7, unique=True)):
        # Our own process and its parents are 33, 22 and whatever this test runs as.
        part = "ours" if pid in ours() else draw(st.sampled_from([one for one in PARTS if one != "ours"]))
        name, command = draw(NAMES), draw(st.one_of(NAMES, hostile(COMMANDS)))
        if part == "protected":
            name, command = draw(st.sampled_from(PROTECTED))
        cast.append(Actor(pid, part, as_bytes(name)[:15], as_bytes(command)))
    return cast


def as_bytes(text: str) -> bytes:
    """As the kernel would hold it: a lone surrogate stands for a byte that is no text."""
    return text.encode("utf-8", "surrogatepass")


@contextmanager
def machine_of_files() -> Iterator[FakeProc]:
    """In memory where that can be: hundreds of files are made and removed for each example."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        yield FakeProc(Path(directory))


def add_those_who_are_always_there(proc: FakeProc, cast: Sequence[Actor]) -> None:
    """The two containers' inits, and the way from this process up to init."""
    proc.container(129, 4100)
    proc.container(130, 5100)
    taken = {one.pid for one in cast}
    for pid in {*ours()} - taken:
        proc.add(pid, "bash")
    for child, parent in zip(ours(), (*ours()[1:], 1)):
        path = proc.root / str(child) / "stat"
        head, _bracket, tail = path.read_bytes().rpartition(b")")
        state, _parent, rest = tail.split(None, 2)
        path.write_bytes(b"%s) %s %d %s" % (head, state, parent, rest))


def is_protected(actor: Actor) -> bool:
    """By a name that was made up and happens to be a protected one."""
    name, command = (one.decode("utf-8", "replace") for one in (actor.name, actor.command))
    process = make_process(actor.pid, name, parse_command(command))
    return matches(process, compile_patterns(DEFAULT_PROTECT, "protect"))


# The driver's list may name anyone, also those who are not there and numbers that mean groups of processes.
LISTED = st.one_of(
    st.none(), st.lists(st.tuples(st.sampled_from([0, 1, 2, 22, 33, 4100, 999, 4294967295]), st.integers(0, 1)))
)


@FEWER
@given(actors(), LISTED, st.booleans(), st.sampled_from([None, 129]))
def test_reclaim_signals_those_who_compute_where_it_is_meant_and_no_one_else(
    cast: list[Actor], listed: Optional[list[tuple[int, int]]], spare_monitors: bool, vmid: Optional[int]
) -> None:
    with machine_of_files() as proc, pytest.MonkeyPatch.context() as monkeypatch:
        proc.add(1, "systemd", "/sbin/init\0", parent=0, fds=[])
        world = World(proc, monkeypatch)
        world.listed = listed
        for actor in cast:
            actor.enter(proc, [*world.cards, *([] if actor.part == "monitor" else [world.uvm])])
        add_those_who_are_always_there(proc, cast)
        result = answered(lambda: world.run(vmid=vmid, gpus=None, spare_monitors=spare_monitors, respawn_timeout=0.0))
        sent = {pid for pid, _number in world.kernel.sent}
    listed_pids = {pid for pid, _card in listed or ()}
    computing = {one.pid for one in cast if one.part == "monitor" and (not spare_monitors or one.pid in listed_pids)}
    meant = MEANT if vmid is not None else (*MEANT, *ELSEWHERE)
    assert result is not None
    assert sent <= {one.pid for one in cast if one.part in meant} | computing
    assert sent >= {one.pid for one in cast if one.part in meant and not is_protected(one)}
    assert result["changed"] == bool(sent)


@FEWER
@given(actors())
def test_kill_signals_members_of_the_container_and_no_one_else(cast: list[Actor]) -> None:
    with machine_of_files() as proc:
        proc.add(1, "systemd", "/sbin/init\0", parent=0)
        for actor in cast:
            actor.enter(proc, [])
        add_those_who_are_always_there(proc, cast)
        kernel = FakeKernel(proc)
        everyone = request(respawn_timeout=0.0)._replace(patterns=compile_patterns(["(?s).*"], "patterns"))
        answered(lambda: kill_processes(everyone, machine(proc, pct=Pct(proc), kernel=kernel)))
        sent = {pid for pid, _number in kernel.sent}
    members = {one.pid for one in cast if one.part in (*MEANT, "protected", "monitor")}
    # There is nothing to protect from in a container that is meant, but its init.
    assert sent == members


def test_the_reader_of_an_empty_machine_finds_nobody(tmp_path: Path) -> None:
    assert list(ProcFs(str(tmp_path)).processes()) == []
