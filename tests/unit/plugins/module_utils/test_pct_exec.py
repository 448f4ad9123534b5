# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scripts that run inside a container, in every shell that is here; and what it means when they do not run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Sequence

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, ContainerError
from ansible_collections.gpuops.inference.plugins.module_utils._pct_exec import (
    LIST_SCRIPT,
    SIGNAL_SCRIPT,
    Listing,
    PctContainer,
    may_signal,
    parse_answers,
    parse_listing,
)
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process, ProcFs
from tests.unit.doubles import WAITS, child
from tests.unit.fake_proc import FakeProc, make_process, stat_line
from tests.unit.recorded import ScriptedRunner, completed, exit_codes, recorded

WORD = "gpuops-0123456789abcdef01234567"
MARK = f"{WORD}-5d5b4bd4"


def shells() -> dict[str, list[str]]:
    """Every shell of this machine, and busybox without any other program in its PATH."""
    found = {name: [path] for name in ("dash", "bash") if (path := shutil.which(name)) is not None}
    busybox = shutil.which("busybox")
    if busybox is not None:
        found["busybox"] = [busybox, "sh"]
    return found or {"sh": ["/bin/sh"]}


SHELLS = shells()


@dataclass
class Inside:
    """Runs what `pct exec 129 --` would run inside, here: with ``shell`` for /bin/sh and ``root`` for /proc."""

    shell: Sequence[str]
    root: Optional[Path] = None
    path: str = "/usr/bin:/bin"
    calls: list[list[str]] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        self.calls.append(list(argv))
        assert argv[:7] == ["pct", "exec", "129", "--", "/bin/sh", "-c", argv[6]]
        return self.script(argv[6], *argv[7:])

    def script(self, script: str, *arguments: str) -> Completed:
        if self.root is not None:
            script = re.sub(r"/proc/(?!sys/)", f"{self.root}/", script)
        done = subprocess.run(
            [*self.shell, "-c", script, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": self.path},
            timeout=30,
            check=False,
        )
        return Completed(
            ("pct",), done.returncode, *(one.decode("utf-8", "replace") for one in (done.stdout, done.stderr))
        )


def container(runner: object) -> PctContainer:
    return PctContainer(129, runner=runner, pct_path="pct", timeout=30)  # type: ignore[arg-type]


@pytest.fixture(params=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> list[str]:
    return SHELLS[request.param]


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def by_pid(listing: Listing) -> dict[int, Process]:
    return {process.pid: process for process in listing.processes}


HOSTILE_COMMANDS = [
    b"sglang::scheduler_TP1\0\0\0",
    b"sh\0-c\0echo 'a\"b`id`$(id)$x\\n\\c %s %d\0",
    b"a\nb\n\nc\0",
    b"\xff\xfe caf\xe9\0",
    f"x\n{WORD} stat\n666 (forged) S 1\n{WORD} done\n".encode(),
    b"x\ngpuops- done\n",
    b"-n\0-e\0",
    b"\n",
    b"",
]
HOSTILE_NAMES = ["python3", "a) S 1 (b", "x\ny", ") R 1 1\n2 (z", "-n", "%s\\n", "*", " "]


def test_the_listing_sees_what_the_reader_of_proc_sees(shell: list[str], proc: FakeProc) -> None:
    pid = 100
    for command in HOSTILE_COMMANDS:
        proc.add(pid, "python3", command, parent=7, uid=1000, cgroup="0::/system.slice/x.service\n")
        pid += 1
    for name in HOSTILE_NAMES:
        proc.add(pid, name, "x\0")
        pid += 1
    runner = Inside(shell, proc.root)
    listing = parse_listing(runner.script(LIST_SCRIPT, "sh", WORD).stdout, WORD)
    assert not listing.glued
    assert by_pid(listing) == {process.pid: process for process in proc.procfs.processes()}


def test_a_dead_leader_is_listed_with_the_command_of_its_living_threads(shell: list[str], proc: FakeProc) -> None:
    proc.add(20, "sglang::schedul", state="Z", threads=2)
    proc.thread(20, 21, command="sglang::scheduler_TP1\0--tp\0")
    proc.thread(20, 22, command="sglang::scheduler_TP1\0--tp\0")
    proc.add(30, "gone", state="Z")
    listed = {one.pid: one for one in container(Inside(shell, proc.root)).list_processes().processes}
    assert (listed[20].command.replace(" ", ""), listed[20].gone) == ("sglang::scheduler_TP1--tp", False)
    assert (listed[30].command, listed[30].gone) == ("", True)


def test_a_title_that_copies_the_call_s_own_word_forges_no_process(shell: list[str], proc: FakeProc) -> None:
    """Everyone inside can read it in the command line of the listing shell."""
    stat = stat_line(1234, "sglang", "S", 1, 0, 1, 1).decode()
    parts = ["", "stat\n" + stat.strip(), "status", "cgroup", "command\nsglang", "done", "- done"]
    forged = f"\n{WORD} ".join(parts) + f"\n{WORD}- done"
    proc.add(100, "x", forged.encode())
    proc.add(101, "y", "last\0")
    listing = parse_listing(Inside(shell, proc.root).script(LIST_SCRIPT, "sh", WORD).stdout, WORD)
    assert sorted(by_pid(listing)) == [100, 101]
    assert by_pid(listing)[101].command == "last"


def test_a_process_that_goes_away_during_the_listing_is_left_out(shell: list[str], proc: FakeProc) -> None:
    proc.add(100)
    proc.add(101)
    proc.add(102)
    for name in ("status", "cgroup", "cmdline"):
        (proc.root / "101" / name).unlink()
    (proc.root / "102" / "stat").write_text("")
    answer = Inside(shell, proc.root).script(LIST_SCRIPT, "sh", WORD)
    assert sorted(by_pid(parse_listing(answer.stdout, WORD))) == [100, 101]
    assert (answer.rc, answer.stderr) == (0, "")


def test_the_listing_needs_no_other_program(shell: list[str], proc: FakeProc, tmp_path: Path) -> None:
    """C16: where there is no `cat` either, arguments run together, and the listing says so."""
    proc.add(100, "sglang", "python3\0-m\0sglang\0")
    # The script looks in the usual places by itself.
    script = LIST_SCRIPT.replace("PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH", f"PATH={tmp_path}/nowhere")
    listing = parse_listing(Inside(shell, proc.root, path="").script(script, "sh", WORD).stdout, WORD)
    commands = [process.command for process in listing.processes]
    assert commands == (["python3-msglang"] if listing.glued else ["python3 -m sglang"])
    assert listing.glued or "busybox" in shell[0]


def test_the_shell_finds_cat_although_its_path_is_empty(shell: list[str], proc: FakeProc) -> None:
    proc.add(100, "sglang", "python3\0-m\0sglang\0")
    listing = parse_listing(Inside(shell, proc.root, path="").script(LIST_SCRIPT, "sh", WORD).stdout, WORD)
    assert [process.command for process in listing.processes] == ["python3 -m sglang"]


def test_without_a_source_of_chance_the_listing_still_works(shell: list[str], proc: FakeProc) -> None:
    proc.add(100)
    script = LIST_SCRIPT.replace("/proc/sys/kernel/random/uuid", "/nowhere/uuid")
    answer = Inside(shell, proc.root).script(script, "sh", WORD)
    assert [process.pid for process in parse_listing(answer.stdout, WORD).processes] == [100]
    assert answer.stderr == ""


def test_the_machine_s_own_processes_are_listed_but_for_the_listing_itself() -> None:
    with child(WAITS, "--api-key", "a\nb") as process:
        listing = container(Inside(["/bin/sh"])).list_processes()
        expected = ProcFs().process(process.pid)
    found = by_pid(listing)
    assert expected is not None
    # Its place in the namespaces is the container's business, and its state passes.
    seen = found[process.pid]._replace(namespace_pids=expected.namespace_pids, state=expected.state)
    assert seen == expected
    assert os.getpid() in found
    assert not [one for one in found.values() if one.parent_pid == listing.shell_pid]


def test_a_carriage_return_from_a_terminal_does_no_harm(proc: FakeProc) -> None:
    proc.add(100, "sglang", "sglang::scheduler\0")

    class Terminal(Inside):
        def script(self, script: str, *arguments: str) -> Completed:
            answer = super().script(script, *arguments)
            return answer._replace(stdout="Last login: Mon\r\n" + answer.stdout.replace("\n", "\r\n"))

    listing = container(Terminal(next(iter(SHELLS.values())), proc.root)).list_processes()
    assert [process.command for process in listing.processes] == ["sglang::scheduler"]


def signal_through(shell: list[str], *pairs: str, name: str = "TERM") -> list[tuple[int, str]]:
    answer = Inside(shell).script(SIGNAL_SCRIPT, "sh", WORD, name, *pairs)
    assert (answer.rc, answer.stderr) == (0, "")
    assert answer.stdout.startswith(f"{WORD} begin\n")
    assert answer.stdout.endswith(f"{WORD} done\n")
    return parse_answers(answer.stdout, WORD)


def start_of(pid: int) -> str:
    stat = ProcFs().stat(pid)
    assert stat is not None
    return str(stat.start_ticks)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_real_child_is_signalled_and_another_with_the_wrong_start_time_is_not(shell: list[str], number: int) -> None:
    with child(WAITS) as meant, child(WAITS) as other:
        target, innocent = (ProcFs().process(one.pid) for one in (meant, other))
        assert target is not None
        assert innocent is not None
        heir = innocent._replace(start_ticks=innocent.start_ticks - 1)
        absent = make_process(2**22 + 1)
        answers = container(Inside(shell)).send([target, heir, absent], number)
        assert answers == {target.identity: "sent", heir.identity: "gone", absent.identity: "gone"}
        assert meant.wait(30) == -number
        assert other.poll() is None


RENAMES = """
import sys
with open('/proc/self/comm', 'wb') as stream:
    stream.write(sys.argv[1].encode())
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["a) S 1 (b", ") R 1\n2 (c", "x\n", "a b ) c"])
def test_whatever_a_real_child_calls_itself_its_start_time_is_read(shell: list[str], name: str) -> None:
    with child(RENAMES, name) as process:
        start = start_of(process.pid)
        assert signal_through(shell, str(process.pid), "1") == [(process.pid, "gone")]
        assert signal_through(shell, str(process.pid), start) == [(process.pid, "sent")]
        assert process.wait(30) == -signal.SIGTERM


def test_who_may_not_be_signalled_is_denied(shell: list[str], proc: FakeProc) -> None:
    # No kernel gives out this number, so the kill fails, and yet the tree has the process.
    proc.add(2**22 + 7, start=5)
    answer = Inside(shell, proc.root).script(SIGNAL_SCRIPT, "sh", WORD, "TERM", str(2**22 + 7), "5")
    assert parse_answers(answer.stdout, WORD) == [(2**22 + 7, "denied")]


def test_nobody_to_signal_is_an_answer_too(shell: list[str]) -> None:
    assert signal_through(shell) == []


def test_the_living_are_those_whom_the_listing_still_shows(shell: list[str], proc: FakeProc) -> None:
    there, heir, dead, gone = (proc.add(pid) for pid in (100, 101, 102, 103))
    proc.remove(101)
    proc.add(101, start=1)
    proc.become(102, "Z")
    proc.become(100, "D")
    proc.remove(103)
    living = container(Inside(shell, proc.root)).living([there, heir, dead, gone])
    assert [(one.pid, one.state) for one in living] == [(100, "D")]


# What is given to pct, and what its failures mean.


def test_nothing_that_a_user_gave_is_part_of_a_script() -> None:
    runner = Inside(["/bin/sh"])
    container(runner).send([make_process(2**22 + 1, "a b; touch /tmp/x", "$(id)")], signal.SIGKILL)
    (call,) = runner.calls
    assert call[:6] == ["pct", "exec", "129", "--", "/bin/sh", "-c"]
    assert call[6] == SIGNAL_SCRIPT
    assert call[7] == "sh"
    assert re.fullmatch(r"gpuops-[0-9a-f]{24}", call[8])
    assert call[9:] == ["KILL", str(2**22 + 1), str(100 * (2**22 + 1))]


def test_every_call_has_a_word_of_its_own(proc: FakeProc) -> None:
    proc.add(7)
    runner = Inside(["/bin/sh"], proc.root)
    for _turn in range(2):
        container(runner).list_processes()
    assert runner.calls[0][8] != runner.calls[1][8]


def test_nobody_to_look_for_costs_no_call() -> None:
    runner = ScriptedRunner({})
    assert container(runner).living([]) == []
    assert runner.calls == []


@pytest.mark.parametrize(
    ("case", "reason", "words"),
    [
        ("C01", "ct_not_running", "is not running"),
        ("C02", "ct_not_on_node", "no container 129 on this node"),
        ("C04", "exec_not_found", "no usable /bin/sh"),
        ("C06", "attach_failed", "Nothing is known about the processes of container 129"),
        ("C08", "attach_failed", "pct exec broke off"),
        ("C11", "pve_cluster_unavailable", "cluster file system does not answer"),
        ("C14", "attach_failed", "pct exec broke off"),
        ("C16", "exec_not_found", "no usable /bin/sh"),
    ],
)
def test_a_script_that_did_not_come_to_its_end_is_a_failure_whatever_the_exit_code(
    case: str, reason: str, words: str
) -> None:
    for rc in exit_codes("pct", case):
        answer = recorded("pct", case, rc=rc)
        with pytest.raises(ContainerError, match=words) as caught:
            container(ScriptedRunner({"exec": [answer]})).list_processes()
        assert caught.value.reason == reason
        assert (caught.value.fields["rc"], caught.value.fields["stderr"]) == (rc, answer.stderr)


@pytest.mark.parametrize("rc", [0, 1, 127, 255])
def test_no_word_at_the_end_is_a_failure_even_with_success(rc: int) -> None:
    with pytest.raises(ContainerError):
        container(ScriptedRunner({"exec": [completed("", rc=rc)]})).list_processes()


def test_a_shell_that_may_not_be_run_is_denied() -> None:
    with pytest.raises(ContainerError) as caught:
        container(ScriptedRunner({"exec": [completed("", rc=126)]})).list_processes()
    assert caught.value.reason == "exec_denied"


def test_a_listing_that_broke_off_gives_away_no_command_line(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(100, "sglang", "sglang\0--api-key\0sk-made-up-0001\0not running\0")

    class Broken(Inside):
        def script(self, script: str, *arguments: str) -> Completed:
            answer = super().script(script, *arguments)
            return answer._replace(stdout="Welcome\n" + answer.stdout.rpartition("\ngpuops-")[0], rc=137)

    with pytest.raises(ContainerError) as caught:
        container(Broken(["/bin/sh"], proc.root)).list_processes()
    assert "sk-made-up-0001" not in str(caught.value.result())
    assert caught.value.reason == "attach_failed", "what a process says of itself is no message of pct"
    assert caught.value.fields["stdout"] == "Welcome\n"


def test_a_real_child_is_stopped_and_continued(shell: list[str]) -> None:
    """A storm is stopped before it is killed; each architecture has its own numbers for these."""
    with child(WAITS) as process:
        seen = ProcFs().process(process.pid)
        assert seen is not None
        for number, state in ((signal.SIGSTOP, "T"), (signal.SIGCONT, "S")):
            assert container(Inside(shell)).send([seen], number) == {seen.identity: "sent"}
            assert wait_for_state(process.pid, state) == state


def wait_for_state(pid: int, wanted: str) -> str:
    stat = ProcFs().stat(pid)
    for _look in range(1000):
        if stat is None or stat.state == wanted:
            break
        stat = ProcFs().stat(pid)
    return stat.state if stat is not None else "gone"


def test_a_hung_pct_is_named_as_such_and_gives_a_way_out() -> None:
    error = CommandError("pct gave no answer", reason="timeout")
    with pytest.raises(ContainerError, match=r"gave no answer within 30 s\. The container may be frozen") as caught:
        container(ScriptedRunner({"exec": [error]})).list_processes()
    assert caught.value.reason == "ct_exec_timeout"


def test_a_missing_pct_is_no_fault_of_the_container() -> None:
    error = CommandError("pct was not found", reason="not_installed")
    with pytest.raises(CommandError, match="pct was not found"):
        container(ScriptedRunner({"exec": [error]})).list_processes()


def block(pid: int = 100, command: str = "x") -> str:
    stat = stat_line(pid, "x", "S", 1, 0, 1, 5).decode()
    return f"{MARK} stat\n{stat}{MARK} status\nUid:\t0\n{MARK} cgroup\n0::/\n{MARK} command\n{command}\n"


BEGIN = f"{WORD} begin 7 raw {MARK}\n"


@pytest.mark.parametrize(
    "output",
    [
        "",
        f"{WORD} done\n",
        f"{MARK} done\n{WORD} done\n",
        BEGIN + block() + f"{WORD} done\n",
        f"{WORD} begin x raw {MARK}\n{MARK} done\n",
        f"{WORD} begin 7 raw\n{MARK} done\n",
        f"{WORD} begin {'9' * 5000} raw {MARK}\n{MARK} done\n",
        f"another {BEGIN}{MARK} done\n",
    ],
)
def test_a_listing_without_its_beginning_or_end_is_no_listing(output: str) -> None:
    with pytest.raises(ContainerError) as caught:
        parse_listing(output, WORD)
    assert caught.value.reason == "attach_failed"


def test_what_precedes_and_follows_the_listing_is_passed_over() -> None:
    output = f"Last login\n{block(99)}{BEGIN}{block(100)}{MARK} done\n{block(101)}"
    assert [process.pid for process in parse_listing(output, WORD).processes] == [100]


def test_the_children_of_the_listing_shell_are_left_out_and_the_shell_is_not() -> None:
    stat = stat_line(8, "cat", "R", 7, 0, 1, 5).decode()
    of_cat = f"{MARK} stat\n{stat}{MARK} status\n{MARK} cgroup\n{MARK} command\ncat\n"
    listing = parse_listing(f"{BEGIN}{block(7)}{of_cat}{MARK} done\n", WORD)
    assert (listing.shell_pid, [process.pid for process in listing.processes]) == (7, [7])


@pytest.mark.parametrize("uid", ["\u00b2", "9" * 5000, "-1", "x", ""])
def test_an_owner_that_is_no_number_is_unknown(uid: str) -> None:
    owner = f"{MARK} stat\n{stat_line(8, 'x', 'S', 1, 0, 1, 5).decode()}{MARK} status\nUid:\t{uid}\n"
    listing = parse_listing(f"{BEGIN}{owner}{MARK} cgroup\n{MARK} command\n\n{MARK} done\n", WORD)
    assert [(one.pid, one.uid) for one in listing.processes] == [(8, None)]


def test_a_listing_of_nobody_is_no_listing(shell: list[str], tmp_path: Path) -> None:
    """A container without a /proc, or without the /dev/null that hides the gaps in it."""
    with pytest.raises(ContainerError, match="sees no process at all") as caught:
        container(Inside(shell, tmp_path)).list_processes()
    assert caught.value.reason == "attach_failed"


@pytest.mark.parametrize("stat", ["", "garbage\n", "0 (x) S " + "1 " * 30 + "\n"])
def test_a_block_without_a_process_is_none(stat: str) -> None:
    broken = f"{MARK} stat\n{stat}{MARK} status\n{MARK} cgroup\n{MARK} command\n\n"
    assert [one.pid for one in parse_listing(f"{BEGIN}{broken}{block()}{MARK} done\n", WORD).processes] == [100]


def test_only_answers_of_this_call_count() -> None:
    output = f"{WORD} sent 10\nother sent 11\n{WORD} gone 12\n{WORD} denied 13\n{WORD} sent 014\n{WORD} sent -1\n"
    output += f"{WORD} sent {'9' * 5000}\n"
    assert parse_answers(output, WORD) == [(10, "sent"), (12, "gone"), (13, "denied")]


@pytest.mark.parametrize(
    ("euid", "owners", "may"),
    [
        (0, [0, 1000], True),
        (1000, [1000, 1000], True),
        (1000, [1000, 0], False),
        (1000, [None], False),
        (1000, [], True),
    ],
)
def test_root_may_signal_all_and_others_their_own(
    monkeypatch: pytest.MonkeyPatch, euid: int, owners: list[Optional[int]], may: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    assert may_signal([make_process(uid=owner) for owner in owners]) is may


def test_one_who_stays_is_explained_by_its_state() -> None:
    why = container(ScriptedRunner({})).explain(make_process(state="D"))
    assert (why.reason, why.wchan) == ("uninterruptible", None)
