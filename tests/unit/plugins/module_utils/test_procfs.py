# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes as /proc shows them, hostile names and dead leaders among them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _procfs
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import (
    Identity,
    ProcFs,
    first_number,
    numbers,
    parse_cgroups,
    parse_command,
    parse_stat,
    parse_status,
    unit_of,
)
from tests.unit.doubles import WAITS, child
from tests.unit.fake_proc import BOOT_TIME, HOST, FakeProc, stat_line

NAMES = [
    "python3",
    "tmux: server",
    "a) S 1 1 1",
    "((",
    "))",
    ") R 1\n2 (init",
    "\n",
    "",
    "(sd-pam)",
    "kworker/0:1H",
    "x\x0b\x1c\u2028y",
]


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_name_in_stat_may_hold_anything(name: str) -> None:
    stat = parse_stat(stat_line(4242, name, "D", 17, 0x200040, 3, 98765).decode())
    assert stat is not None
    assert (stat.pid, stat.name, stat.state, stat.parent_pid) == (4242, name, "D", 17)
    assert (stat.flags, stat.threads, stat.start_ticks) == (0x200040, 3, 98765)


@pytest.mark.parametrize(
    "text", ["", "4242", "4242 (sh", "4242 (sh) S 1", "x (sh) S " + "1 " * 30, "(sh) S " + "1 " * 30]
)
def test_a_stat_that_broke_off_is_no_process(text: str) -> None:
    assert parse_stat(text) is None


@pytest.mark.parametrize("start", ["9" * 20, "9" * 400, "9" * 5000, "-1"])
def test_a_start_time_that_cannot_be_is_no_process(start: str) -> None:
    """400 digits were a number, but none that a time could be made of."""
    line = stat_line(4242, "x", "S", 1, 0, 1, 0).decode().split()
    assert parse_stat(" ".join([*line[:21], start, *line[22:]])) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1000\t1001", 1000),
        ("", None),
        ("x", None),
        ("-1", None),
        ("\u00b2", None),
        ("\u0661", None),
        ("9" * 5000, None),
    ],
)
def test_a_number_is_what_the_kernel_prints_as_one(text: str, number: Optional[int]) -> None:
    """`isdigit` lets a superscript through, at which `int` fails; `int` takes Arabic digits, and fails at 5,000."""
    assert first_number(text) == number
    assert list(numbers([*text.split(), "7"])) == [*([1000, 1001] if number else []), 7]


def test_names_in_a_proc_that_are_no_numbers_are_nobody(proc: FakeProc) -> None:
    proc.add(4242)
    for name in ("\u00b2", "\u0661\u0662", "9" * 200, "-1"):
        (proc.root / name).mkdir()
        (proc.root / "4242" / "task" / name).mkdir()
    assert proc.procfs.pids() == [4242]
    assert proc.procfs.uninterruptible_task(4242) is None


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_a_file_that_is_not_there(proc: FakeProc, name: str) -> None:
    assert proc.procfs.read_text(name) is None


def test_status_is_keys_and_values() -> None:
    assert parse_status("Name:\ta: b\nUid:\t1\t2\t3\t4\n\nNSpid:\t9\t1\n") == {
        "Name": "a: b",
        "Uid": "1\t2\t3\t4",
        "NSpid": "9\t1",
    }


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("python3\0-m\0sglang.launch_server\0", "python3 -m sglang.launch_server"),
        ("sglang::scheduler_TP1\0\0\0\0", "sglang::scheduler_TP1"),
        ("sglang::scheduler_TP1", "sglang::scheduler_TP1"),
        ("sh\0-c\0\0x", "sh -c  x"),
        ("", ""),
        ("\0\0", ""),
    ],
)
def test_a_command_line_ends_its_arguments_in_nul_or_not_at_all(text: str, command: str) -> None:
    assert parse_command(text) == command


V1 = "9:name=systemd:/lxc/129/ns/system.slice/a.service\n8:pids:/lxc/129/ns\n7:memory:/lxc/129/ns\n0::/\n"


def test_cgroups_of_the_unified_hierarchy_come_first_then_those_of_systemd() -> None:
    assert parse_cgroups(V1) == ("/", "/lxc/129/ns/system.slice/a.service", "/lxc/129/ns")


@pytest.mark.parametrize("text", ["", "garbage\n", "0:\n"])
def test_no_cgroup_is_no_cgroup(text: str) -> None:
    assert parse_cgroups(text) == ()


def test_a_cgroup_path_may_hold_colons_and_blanks() -> None:
    assert parse_cgroups("0::/lxc/129/ns/a b:c\n") == ("/lxc/129/ns/a b:c",)


@pytest.mark.parametrize("separator", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_cgroup_named_to_look_like_two_lines_is_one(separator: str) -> None:
    text = f"1:name=systemd:/lxc/129/ns/x{separator}0::/lxc/130/ns\n"
    assert parse_cgroups(text) == (f"/lxc/129/ns/x{separator}0::/lxc/130/ns",)


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/sglang-kimi.service", "sglang-kimi.service"),
        ("/lxc/129/ns/system.slice/sglang-kimi.service", "sglang-kimi.service"),
        ("/lxc/129/ns/system.slice/sglang-kimi.service/worker", "sglang-kimi.service"),
        ("/user.slice/user-0.slice/session-3.scope", "session-3.scope"),
        ("/user.slice/user-0.slice/user@0.service/app.slice/vllm.service", "vllm.service"),
        ("/lxc/129/ns/system.slice/docker-0123.scope", "docker-0123.scope"),
        ("/lxc/129/ns/.lxc", None),
        ("/lxc/129/ns", None),
        ("/system.slice", None),
        ("/.service", None),
        ("/", None),
    ],
)
def test_the_unit_is_the_innermost_one(path: str, unit: Optional[str]) -> None:
    assert unit_of((path,)) == unit


def test_the_unit_is_found_in_whichever_hierarchy_names_one() -> None:
    assert unit_of(parse_cgroups(V1)) == "a.service"


def test_a_process_is_read_whole(proc: FakeProc) -> None:
    process = proc.add(
        4242,
        "pt_main_thread",
        "python3\0train.py\0",
        parent=4100,
        uid=1000,
        start=777,
        threads=9,
        inner=(312, 5),
        cgroup="0::/lxc/129/ns/system.slice/x.service\n",
    )
    assert process.identity == Identity(4242, 777)
    assert (process.name, process.command, process.state) == ("pt_main_thread", "python3 train.py", "S")
    assert (process.parent_pid, process.uid, process.threads) == (4100, 1000, 9)
    assert process.namespace_pids == (4242, 312, 5)
    assert process.unit == "x.service"
    assert not process.kernel_thread


def test_a_kernel_thread_is_known_by_its_flag(proc: FakeProc) -> None:
    assert proc.add(2, "kthreadd", flags=0x208040).kernel_thread
    assert not proc.add(3, "kthreadd", flags=0x404040).kernel_thread


def test_where_the_kernel_names_no_namespaces_the_pid_is_the_only_one(proc: FakeProc) -> None:
    proc.add(4242)
    (proc.root / "4242" / "status").write_text("Name:\tx\n")
    assert proc.process(4242).namespace_pids == (4242,)
    assert proc.process(4242).uid is None


def test_a_process_that_is_gone_is_none(proc: FakeProc) -> None:
    assert proc.procfs.process(4242) is None
    assert proc.procfs.stat(4242) is None
    assert proc.procfs.pid_namespace(4242) is None
    assert proc.procfs.wchan(4242) is None
    assert proc.procfs.uninterruptible_task(4242) is None


def test_a_pid_that_is_given_away_while_it_is_read_is_none(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(4242, start=1)

    def give_away(self: ProcFs, identity: Identity, state: str) -> str:
        (proc.root / str(identity.pid) / "stat").write_bytes(stat_line(identity.pid, "sshd", "S", 1, 0, 1, 2))
        return "the old one's"

    monkeypatch.setattr(ProcFs, "_command", give_away)
    assert proc.procfs.process(4242) is None


def test_a_command_line_that_the_kernel_never_tells_is_not_waited_for(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory may be locked by a thread that sleeps in the driver: then whoever reads it sleeps, too."""
    monkeypatch.setattr(_procfs, "COMMAND_SECONDS", 0.05)
    proc.add(4241, "python3", "python3\0serve")
    proc.add(4242, "sglang::sched")
    line = proc.root / "4242" / "cmdline"
    line.unlink()
    os.mkfifo(line)
    seen = {process.pid: (process.name, process.command) for process in proc.procfs.processes()}
    assert seen == {4241: ("python3", "python3 serve"), 4242: ("sglang::sched", "")}
    # Whoever never answered is not asked again, but its successor is.
    os.close(os.open(line, os.O_RDWR))
    line.unlink()
    line.write_bytes(b"other")
    again = proc.procfs.process(4242)
    assert again is not None
    assert (again.command, again.command_known) == ("", False)
    (proc.root / "4242" / "stat").write_bytes(stat_line(4242, "other", "S", 1, 0, 1, 2))
    successor = proc.procfs.process(4242)
    assert successor is not None
    assert (successor.command, successor.command_known) == ("other", True)


def test_only_processes_are_listed_and_those_that_vanish_are_left_out(proc: FakeProc) -> None:
    proc.add(30)
    proc.add(4)
    (proc.root / "99").mkdir()
    (proc.root / "acpi").mkdir()
    assert proc.procfs.pids() == [4, 30, 99]
    assert [process.pid for process in proc.procfs.processes()] == [4, 30]


@pytest.mark.parametrize(
    ("state", "threads", "gone"),
    [
        ("S", 1, False),
        ("R", 4, False),
        ("D", 1, False),
        ("T", 1, False),
        ("Z", 1, True),
        ("Z", 0, True),
        ("Z", 2, False),
        ("X", 1, True),
        ("x", 3, True),
    ],
)
def test_dead_is_a_zombie_without_living_threads(proc: FakeProc, state: str, threads: int, gone: bool) -> None:
    process = proc.add(4242, state=state, threads=threads)
    assert process.gone is gone
    assert (proc.procfs.look_again(process) is None) is gone


def test_looking_again_shows_the_state_of_now(proc: FakeProc) -> None:
    process = proc.add(4242)
    proc.become(4242, "D", threads=7)
    now = proc.procfs.look_again(process)
    assert now is not None
    assert (now.state, now.threads, now.identity) == ("D", 7, process.identity)


def test_another_process_with_the_same_pid_is_not_the_same(proc: FakeProc) -> None:
    process = proc.add(4242, start=1)
    proc.remove(4242)
    proc.add(4242, start=2)
    assert proc.procfs.look_again(process) is None


def test_ancestors_end_at_the_first_process(proc: FakeProc) -> None:
    proc.add(1, parent=0)
    proc.add(50, parent=1)
    proc.add(60, parent=50)
    assert proc.procfs.ancestors(60) == [60, 50, 1]
    assert proc.procfs.ancestors(61) == [61]


def test_a_circle_of_parents_ends(proc: FakeProc) -> None:
    proc.add(50, parent=60)
    proc.add(60, parent=50)
    assert proc.procfs.ancestors(60) == [60, 50]


@pytest.mark.parametrize(("text", "function"), [("0", None), ("", None), ("rpc_wait_bit\n", "rpc_wait_bit")])
def test_where_a_process_sleeps_is_a_function_or_unknown(proc: FakeProc, text: str, function: Optional[str]) -> None:
    proc.add(4242)
    proc.thread(4242, 4242, wchan=text)
    assert proc.procfs.wchan(4242) == function


def test_a_single_thread_in_uninterruptible_sleep_is_found(proc: FakeProc) -> None:
    proc.add(4242, threads=3)
    proc.thread(4242, 4243)
    assert proc.procfs.uninterruptible_task(4242) is None
    proc.thread(4242, 4244, state="D", wchan="nfs_wait")
    assert proc.procfs.uninterruptible_task(4242) == 4244
    assert proc.procfs.wchan(4242, 4244) == "nfs_wait"
    proc.become(4242, "D")
    assert proc.procfs.uninterruptible_task(4242) == 4242, "the leader goes first"


def test_the_command_line_of_a_dead_leader_is_read_from_a_living_thread(proc: FakeProc) -> None:
    proc.add(4242, state="Z", threads=2)
    proc.thread(4242, 4243, command="python3\0-m\0sglang\0")
    assert proc.process(4242).command == "python3 -m sglang"


def test_boot_time_and_namespaces(proc: FakeProc) -> None:
    proc.add(4242, namespace="pid:[129]")
    assert proc.procfs.boot_time() == BOOT_TIME
    assert proc.procfs.pid_namespace(4242) == "pid:[129]"
    assert proc.procfs.pid_namespace_of_reader() == HOST


def test_an_empty_proc_is_unknown_not_wrong(tmp_path: Path) -> None:
    procfs = ProcFs(str(tmp_path))
    assert procfs.boot_time() is None
    assert procfs.pid_namespace_of_reader() is None
    assert procfs.pids() == []


# From here on the kernel itself is the subject.


def test_this_very_process_is_as_the_kernel_says() -> None:
    process = ProcFs().process(os.getpid())
    assert process is not None
    assert process.parent_pid == os.getppid()
    assert process.uid == os.geteuid()
    assert process.namespace_pids[0] == os.getpid()
    assert not process.gone


RENAMES = """
import sys
with open('/proc/self/comm', 'wb') as stream:
    stream.write(sys.argv[1].encode())
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["a) S 1 (b", ") R 1\n2 (c", "tab\tbell\a"])
def test_a_real_process_may_call_itself_anything(name: str) -> None:
    with child(RENAMES, name) as hostile:
        process = ProcFs().process(hostile.pid)
    assert process is not None
    assert process.name == name
    assert process.parent_pid == os.getpid()


LEAVES_A_ZOMBIE = """
import os, sys
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(flush=True)
print(pid, flush=True)
sys.stdin.read()
"""


def test_a_real_zombie_is_gone() -> None:
    with child(LEAVES_A_ZOMBIE) as parent:
        assert parent.stdout is not None
        zombie = ProcFs().process(int(parent.stdout.readline()))
        assert zombie is not None
        assert (zombie.state, zombie.gone) == ("Z", True)
        assert ProcFs().look_again(zombie) is None


def test_a_real_process_that_was_reaped_is_none() -> None:
    with child(WAITS) as process:
        seen = ProcFs().process(process.pid)
    process.wait()
    assert seen is not None
    assert ProcFs().look_again(seen) is None


def test_every_process_of_this_machine_can_be_read() -> None:
    listed = {process.pid: process for process in ProcFs().processes()}
    assert listed[os.getpid()].name
    assert all(process.start_ticks >= 0 for process in listed.values())


@pytest.mark.parametrize(
    "option", ["", "hidepid=1", "hidepid=2", "hidepid=invisible", "hidepid=ptraceable", "hidepid=4"]
)
@pytest.mark.parametrize("init", [True, False])
def test_where_proc_hides_the_processes_of_others_not_every_process_is_to_be_seen(
    proc: FakeProc, option: str, init: bool
) -> None:
    """To root, and to the group that the mount names, they are listed all the same."""
    line = f"22 26 0:21 / /proc rw,nosuid shared:12 - proc proc rw,{option}\n"
    (proc.root / "self" / "mountinfo").write_text(f"25 1 8:1 / / rw - ext4 /dev/sda1 rw\n{line}")
    if init:
        proc.add(1)
    hidden = not init and option not in ("", "hidepid=1")
    assert proc.procfs.hides_processes() is hidden
    assert proc.procfs.in_host_pid_namespace() is not hidden
