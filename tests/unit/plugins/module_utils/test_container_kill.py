# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No process that matches is left in the container: the whole of pct_kill_processes, on a machine made of files."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _container_kill, _containers
from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed
from ansible_collections.gpuops.inference.plugins.module_utils._container_kill import KillRequest, kill_processes
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, ContainerError
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_killers, compile_patterns
from ansible_collections.gpuops.inference.plugins.module_utils._pct_exec import LIST_SCRIPT
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import BOOT_TIME, FakeProc, inside, stat_line
from tests.unit.recorded import Answer, completed, recorded

TERM, KILL = signal.SIGTERM, signal.SIGKILL
UNIT = "/system.slice/sglang-kimi.service"
SCHEDULER = "sglang::scheduler_TP1\0"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """A node with container 129 (init 4100, a scheduler 4242), its neighbour 130 and the node's own processes."""
    proc = FakeProc(tmp_path)
    proc.add(1, "systemd", "/sbin/init\0", parent=0)
    proc.add(900, "lxc-start", "[lxc monitor] /var/lib/lxc 129 sglang\0", cgroup="0::/lxc.monitor/129\n")
    proc.add(901, "bash", "tail -f sglang.log\0")
    proc.container(129, 4100)
    proc.add(4242, "sglang::schedul", SCHEDULER, parent=4100, inner=(312,), cgroup=inside(129, UNIT))
    proc.container(130, 5100)
    proc.add(5242, "sglang::schedul", SCHEDULER, parent=5100, inner=(312,), cgroup=inside(130, UNIT))
    return proc


@dataclass
class Pct:
    """Answers `pct status` as recorded; `pct exec` shows and signals the processes of ``shown`` as the shell would."""

    proc: FakeProc
    status: Answer = field(default_factory=lambda: recorded("pct", "status_running"))
    exec_answer: Optional[Answer] = None
    glued: bool = False
    after: Optional[Callable[[], None]] = None
    calls: list[list[str]] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        self.calls.append(list(argv))
        answer = self.status if argv[1] == "status" else self.exec_answer
        if answer is None:
            answer = completed(self._list(argv[8]) if argv[6] == LIST_SCRIPT else self._signal(argv[8:]))
        if isinstance(answer, Exception):
            raise answer
        if self.after is not None and argv[1] == "exec" and argv[6] != LIST_SCRIPT:
            self.after()
        return answer

    def _shown(self) -> list[tuple[int, int]]:
        """(pid inside, pid outside), and 50 for the listing shell itself."""
        found = [one for one in self.proc.procfs.processes() if any("/129/" in path for path in one.cgroups)]
        return [(one.namespace_pids[1], one.pid) for one in found]

    def _list(self, word: str) -> str:
        lines = [f"{word} begin 50 {'glued' if self.glued else 'raw'} {word}-m"]
        shell = (50, "sh", "S", 0, f"sh\0-c\0{LIST_SCRIPT}\0sh\0{word}", 1)
        rows = [shell]
        for pid, outside in self._shown():
            one = self.proc.process(outside)
            raw = (self.proc.root / str(outside) / "cmdline").read_bytes().decode()
            command = raw.replace("\0", "") if self.glued else raw
            rows.append((pid, one.name, one.state, 0 if pid == 1 else 1, command, one.start_ticks))
        for pid, name, state, parent, command, start in rows:
            stat = stat_line(pid, name, state, parent, 0, 1, start).decode().strip()
            lines += [f"{word}-m stat", stat, f"{word}-m status", "Uid:\t1000\t1000", f"{word}-m cgroup", f"0::{UNIT}"]
            lines += [f"{word}-m command", command]
        return "\n".join([*lines, f"{word}-m done", f"{word} done", ""])

    def _signal(self, arguments: Sequence[str]) -> str:
        word, name, *pairs = arguments
        outside = dict(self._shown())
        lines = [f"{word} begin"]
        for pid, start in zip(pairs[::2], pairs[1::2]):
            found = outside.get(int(pid))
            same = found is not None and self.proc.process(found).start_ticks == int(start)
            lines.append(f"{word} {'sent' if same else 'gone'} {pid}")
            if same and found is not None and name in ("TERM", "KILL"):
                self.proc.remove(found)
        return "\n".join([*lines, f"{word} done", ""])


def request(*patterns: str, **more: Any) -> KillRequest:
    fields: dict[str, Any] = {
        "vmid": 129,
        "patterns": compile_killers(patterns or ["^sglang::"], "patterns"),
        "exclude": compile_patterns(more.pop("exclude", ()), "exclude"),
        "term_timeout": 5.0,
        "kill_timeout": 10.0,
        "respawn_timeout": 0.4,
        "via": "host",
        "pct_path": "pct",
        "pct_timeout": 30.0,
    }
    return KillRequest(**{**fields, **more})


def machine(
    proc: FakeProc,
    *,
    pct: Optional[Pct] = None,
    kernel: Optional[FakeKernel] = None,
    at: Optional[Callable[[float], None]] = None,
    dry_run: bool = False,
) -> Machine:
    return Machine(pct or Pct(proc), proc.procfs, FakeClock(at), kernel or FakeKernel(proc), dry_run)


def outcome(result: dict[str, Any], key: str = "pid") -> dict[str, list[Any]]:
    kinds = ("matched", "spared", "terminated", "killed", "survivors", "respawned")
    return {kind: [one[key] for one in result[kind]] for kind in kinds if result[kind]}


def test_what_matches_in_the_container_is_ended_and_nobody_else(proc: FakeProc) -> None:
    """C13: the neighbour runs the same server, and the node's own processes match as well."""
    kernel = FakeKernel(proc)
    result = kill_processes(request("sglang"), machine(proc, kernel=kernel))
    assert kernel.sent == [(4242, TERM)]
    assert outcome(result) == {"matched": [4242], "terminated": [4242]}
    assert (result["changed"], result["vmid"], result["container_status"], result["via"]) == (
        True,
        129,
        "running",
        "host",
    )
    assert proc.procfs.pids() == [1, 900, 901, 4100, 5100, 5242]


def test_a_process_is_returned_as_the_contract_says(proc: FakeProc) -> None:
    (found,) = kill_processes(request(), machine(proc))["matched"]
    assert found == {
        "pid": 4242,
        "container_pid": 312,
        "vmid": 129,
        "name": "sglang::schedul",
        "command": "sglang::scheduler_TP1",
        "state": "S",
        "uid": 0,
        "start_time": BOOT_TIME + 100 * 4242 / os.sysconf("SC_CLK_TCK"),
        "unit": "sglang-kimi.service",
        "parent": {"pid": 4100, "name": "systemd"},
    }


def test_a_second_run_finds_nothing_and_changes_nothing(proc: FakeProc) -> None:
    kill_processes(request(), machine(proc))
    kernel = FakeKernel(proc)
    result = kill_processes(request(), machine(proc, kernel=kernel))
    assert (result["changed"], outcome(result), kernel.sent) == (False, {}, [])
    assert result["diff"] == {"before": "", "after": ""}


def test_a_stopped_container_has_nothing_to_kill(proc: FakeProc) -> None:
    pct = Pct(proc, recorded("pct", "status_stopped"))
    kernel = FakeKernel(proc)
    result = kill_processes(request(), machine(proc, pct=pct, kernel=kernel))
    assert (result["changed"], result["container_status"], result["via"]) == (False, "stopped", None)
    assert (outcome(result), kernel.sent, len(pct.calls)) == ({}, [], 1)


@pytest.mark.parametrize("via", ["auto", "host", "pct"])
@pytest.mark.parametrize(
    ("case", "reason"), [("C02", "ct_not_on_node"), ("C11", "pve_cluster_unavailable"), ("C01", "ct_not_running")]
)
def test_a_container_that_pct_does_not_know_fails_before_any_signal(
    proc: FakeProc, via: str, case: str, reason: str
) -> None:
    kernel = FakeKernel(proc)
    with pytest.raises(ContainerError) as caught:
        kill_processes(request(via=via), machine(proc, pct=Pct(proc, recorded("pct", case)), kernel=kernel))
    assert (caught.value.reason, kernel.sent) == (reason, [])


def test_a_stubborn_one_is_killed_and_a_stuck_one_is_named(proc: FakeProc) -> None:
    proc.add(4243, "sglang::schedul", parent=4100, inner=(313,), cgroup=inside(129, UNIT))
    proc.add(4244, "sglang::schedul", parent=4100, inner=(314,), cgroup=inside(129, UNIT))
    proc.become(4244, "D", wchan="nvidia_close")
    kernel = FakeKernel(proc, stubborn=[4243], stuck=[4244])
    result = kill_processes(request(), machine(proc, kernel=kernel))
    assert outcome(result) == {
        "matched": [4242, 4243, 4244],
        "terminated": [4242],
        "killed": [4243],
        "survivors": [4244],
    }
    (survivor,) = result["survivors"]
    assert (survivor["reason"], survivor["wchan"], survivor["state"]) == ("uninterruptible", "nvidia_close", "D")
    assert result["diff"]["after"].startswith("4244 (sglang::schedul, state D, asleep in nvidia_close, container 129")


def test_whoever_is_started_again_is_named_with_its_unit_and_left_alone(proc: FakeProc) -> None:
    """B21."""

    def respawn(now: float) -> None:
        if now >= 0.3 and 4300 not in proc.procfs.pids():
            proc.add(4300, "sglang::schedul", SCHEDULER, parent=4100, inner=(400,), cgroup=inside(129, UNIT))

    kernel = FakeKernel(proc)
    result = kill_processes(request(), machine(proc, kernel=kernel, at=respawn))
    assert outcome(result) == {"matched": [4242], "terminated": [4242], "respawned": [4300]}
    (newcomer,) = result["respawned"]
    assert (newcomer["reason"], newcomer["unit"]) == ("respawned", "sglang-kimi.service")
    assert newcomer["parent"] == {"pid": 4100, "name": "systemd"}
    assert newcomer["started_by"] == {
        "kind": "unit",
        "unit": "sglang-kimi.service",
        "pid": 4100,
        "container_pid": 1,
        "vmid": 129,
        "name": "systemd",
        "command": "/sbin/init",
        "state": "S",
    }
    assert kernel.sent == [(4242, TERM)]


@pytest.mark.parametrize("via", ["host", "pct"])
def test_offspring_is_killed_too_and_is_no_respawn(proc: FakeProc, via: str) -> None:
    """Through pct its parent is dead and it stands in no group of ours, so that the time must tell."""
    proc.remove(4242)
    proc.add(4242, "sglang::schedul", SCHEDULER, parent=4100, inner=(312,), cgroup=inside(129, UNIT), job=(4242, 4242))

    def fork(*_arguments: Any) -> None:
        if 4300 not in born:
            born.append(4300)
            proc.add(4300, "sglang::schedul", SCHEDULER, parent=4242, inner=(400,), cgroup=inside(129, UNIT))

    born: list[int] = []
    kernel = FakeKernel(proc, stubborn=[4242], after=fork)
    made = machine(proc, pct=Pct(proc, after=fork), kernel=kernel)
    made.clock.boot = 1_000_000  # type: ignore[attr-defined]
    result = kill_processes(request(via=via), made)
    ended = {one["container_pid"] for one in [*result["terminated"], *result["killed"]]}
    assert (ended, result["respawned"], result["survivors"]) == ({312, 400}, [], [])
    assert result["killed"][-1]["container_pid"] == 400


def test_whoever_a_shell_on_the_node_starts_again_is_named_with_that_shell(proc: FakeProc) -> None:
    """`while true; do pct exec 129 ...; done`: the shell is in no container."""
    born: list[int] = []

    def respawn() -> None:
        if not born:
            born.append(4300)
            proc.add(4300, "sglang::schedul", SCHEDULER, parent=901, inner=(400,), cgroup=inside(129, "/.lxc"))

    result = kill_processes(request(), machine(proc, kernel=FakeKernel(proc, after=respawn)))
    (newcomer,) = result["respawned"]
    by = newcomer["started_by"]
    assert (by["kind"], by["pid"], by["name"], by["vmid"]) == ("process", 901, "bash", None)


def test_the_same_pid_with_a_younger_start_is_a_respawn(proc: FakeProc) -> None:
    def reuse() -> None:
        if 4242 not in proc.procfs.pids():
            proc.add(4242, "sglang::schedul", parent=4100, inner=(312,), start=999_999, cgroup=inside(129))

    kernel = FakeKernel(proc, after=reuse)
    result = kill_processes(request(), machine(proc, kernel=kernel))
    assert outcome(result) == {"matched": [4242], "terminated": [4242], "respawned": [4242]}


def test_nobody_is_watched_for_when_nothing_was_ended(proc: FakeProc) -> None:
    made = machine(proc)
    kill_processes(request("no such thing"), made)
    assert made.clock.now() == 0


def test_a_container_that_goes_down_meanwhile_is_no_failure(proc: FakeProc) -> None:
    def stop(_now: float) -> None:
        proc.remove(4100)

    kernel = FakeKernel(proc, stubborn=[4242])
    result = kill_processes(request(), machine(proc, kernel=kernel, at=stop))
    assert outcome(result) == {"matched": [4242], "killed": [4242]}


@pytest.mark.parametrize("via", ["host", "pct"])
@pytest.mark.parametrize(("term_timeout", "kind"), [(5.0, "terminated"), (0.0, "killed")])
def test_check_mode_says_what_it_would_do_and_signals_nobody(
    proc: FakeProc, via: str, term_timeout: float, kind: str
) -> None:
    kernel, pct = FakeKernel(proc), Pct(proc)
    made = machine(proc, pct=pct, kernel=kernel, dry_run=True)
    result = kill_processes(request(via=via, term_timeout=term_timeout), made)
    assert result["changed"] is True
    assert outcome(result, "container_pid") == {"matched": [312], kind: [312]}
    assert (kernel.sent, made.clock.now()) == ([], 0)
    assert [call[6] for call in pct.calls if call[1] == "exec"] == ([LIST_SCRIPT] if via == "pct" else [])
    assert 4242 in proc.procfs.pids()
    assert result["diff"]["after"] == ""


def test_check_mode_of_nothing_would_change_nothing(proc: FakeProc) -> None:
    assert kill_processes(request("nobody"), machine(proc, dry_run=True))["changed"] is False


def test_the_excluded_and_the_init_are_spared_and_named(proc: FakeProc) -> None:
    proc.add(4243, "sglang::schedul", "sglang --port 8001\0", parent=4100, inner=(313,), cgroup=inside(129))
    result = kill_processes(request("sglang", "systemd", exclude=["--port 8001"]), machine(proc))
    assert {one["pid"]: one["reason"] for one in result["spared"]} == {4100: "container_init", 4243: "excluded"}
    assert outcome(result)["terminated"] == [4242]


@pytest.mark.parametrize("via", ["host", "pct"])
def test_where_only_the_init_matches_the_container_must_be_restarted(proc: FakeProc, via: str) -> None:
    """C18: an application container, whose first process is the server."""
    kernel = FakeKernel(proc)
    with pytest.raises(ContainerError, match=r"pct reboot 129") as caught:
        kill_processes(request("^/sbin/init", via=via), machine(proc, kernel=kernel))
    assert (caught.value.reason, kernel.sent) == ("is_container_init", [])


def test_the_module_itself_and_its_ancestors_are_never_signalled(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(4300, "python3", "python3 AnsiballZ sglang\0", parent=4301, inner=(400,), cgroup=inside(129))
    proc.add(4301, "sh", "sh -c sglang\0", parent=4100, inner=(401,), cgroup=inside(129))
    monkeypatch.setattr(os, "getpid", lambda: 4300)
    result = kill_processes(request("sglang"), machine(proc))
    assert outcome(result)["terminated"] == [4242]
    assert {one["pid"]: one["reason"] for one in result["spared"]} == {4300: "ourselves", 4301: "ourselves"}


@pytest.mark.parametrize("frozen_pid", [4100, 4242])
def test_a_frozen_container_gets_no_signal(proc: FakeProc, monkeypatch: pytest.MonkeyPatch, frozen_pid: int) -> None:
    """C20."""
    monkeypatch.setattr(_container_kill, "frozen", lambda process: process.pid == frozen_pid)
    monkeypatch.setattr(_containers, "frozen", lambda process: process.pid == frozen_pid)
    kernel = FakeKernel(proc)
    with pytest.raises(ContainerError, match="is frozen") as caught:
        kill_processes(request(), machine(proc, kernel=kernel))
    assert (caught.value.reason, kernel.sent) == ("ct_frozen", [])


def test_a_frozen_container_is_not_entered(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pct exec` would hang in it until its time limit."""
    monkeypatch.setattr(_containers, "frozen", lambda process: process.pid == 4100)
    pct = Pct(proc)
    with pytest.raises(ContainerError, match="is frozen") as caught:
        kill_processes(request(via="pct"), machine(proc, pct=pct))
    assert caught.value.reason == "ct_frozen"
    assert [call[1] for call in pct.calls] == ["status"]


def test_a_paused_container_within_the_container_is_none_of_our_business(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(4300, "redis", parent=4100, inner=(400, 1), cgroup=inside(129, "/docker/x"))
    monkeypatch.setattr(_container_kill, "frozen", lambda process: process.pid == 4300)
    assert outcome(kill_processes(request(), machine(proc)))["terminated"] == [4242]


# Through pct, for accounts that may run nothing else.


def test_through_pct_the_same_is_ended_and_the_listing_shell_is_not(proc: FakeProc) -> None:
    """C14: the shell's own command line holds every word of the script, and what it is to look for."""
    kernel = FakeKernel(proc)
    result = kill_processes(request("sglang", "Uid", "gpuops-", via="pct"), machine(proc, kernel=kernel))
    assert kernel.sent == []
    assert outcome(result, "container_pid") == {"matched": [312], "spared": [50], "terminated": [312]}
    assert result["spared"][0]["reason"] == "ourselves"
    assert (result["via"], result["changed"]) == ("pct", True)
    assert 5242 in proc.procfs.pids()


def test_through_pct_the_node_s_pid_is_unknown_and_the_rest_is_not(proc: FakeProc) -> None:
    (found,) = kill_processes(request(via="pct"), machine(proc))["matched"]
    assert found == {
        "pid": None,
        "container_pid": 312,
        "vmid": 129,
        "name": "sglang::schedul",
        "command": "sglang::scheduler_TP1",
        "state": "S",
        "uid": 1000,
        "start_time": BOOT_TIME + 100 * 4242 / os.sysconf("SC_CLK_TCK"),
        "unit": "sglang-kimi.service",
        "parent": {"pid": 1, "name": "systemd"},
    }


@pytest.mark.parametrize(("euid", "uid", "via"), [(0, 1000, "host"), (1000, 1000, "host"), (1000, 0, "pct")])
def test_auto_goes_through_the_host_where_it_may_signal_there(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch, euid: int, uid: int, via: str
) -> None:
    proc.remove(4242)
    proc.add(4242, "sglang::schedul", SCHEDULER, parent=4100, uid=uid, inner=(312,), cgroup=inside(129, UNIT))
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    assert kill_processes(request(via="auto"), machine(proc))["via"] == via


def test_auto_goes_through_pct_where_the_host_shows_nothing(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc is mounted with hidepid."""

    def hidden(*_arguments: Any) -> None:
        raise ContainerError("not visible", reason="ct_not_visible")

    monkeypatch.setattr(_container_kill, "members", hidden)
    assert kill_processes(request(via="auto"), machine(proc))["via"] == "pct"
    with pytest.raises(ContainerError, match="not visible"):
        kill_processes(request(via="host"), machine(proc))


@pytest.mark.parametrize(
    ("case", "reason"), [("C04", "exec_not_found"), ("C06", "attach_failed"), ("C16", "exec_not_found")]
)
def test_through_pct_a_failure_is_not_taken_for_nobody(proc: FakeProc, case: str, reason: str) -> None:
    with pytest.raises(ContainerError) as caught:
        kill_processes(request(via="pct"), machine(proc, pct=Pct(proc, exec_answer=recorded("pct", case))))
    assert caught.value.reason == reason


def test_a_hung_pct_is_no_answer(proc: FakeProc) -> None:
    pct = Pct(proc, exec_answer=CommandError("no answer", reason="timeout"))
    with pytest.raises(ContainerError) as caught:
        kill_processes(request(via="pct"), machine(proc, pct=pct))
    assert caught.value.reason == "ct_exec_timeout"
    with pytest.raises(CommandError, match="no answer"):
        kill_processes(request(), machine(proc, pct=Pct(proc, CommandError("no answer", reason="timeout"))))


SECRETS = [
    "sglang::x\0--api-key\0sk-made-up-0001\0--port\0",
    "sglang::x\0--api-key=sk-made-up-0001\0",
    "sglang::x\0HF_TOKEN=sk-made-up-0001\0",
    "sglang::x\0--hf-token\0sk-made-up-0001\0",
    "sglang::x\0--ssl-keyfile-password\0sk-made-up-0001\0",
    "sglang::x\0-H\0Authorization: Bearer sk-made-up-0001\0",
]


@pytest.mark.parametrize("via", ["host", "pct", "glued"])
@pytest.mark.parametrize("command", SECRETS)
def test_no_secret_is_in_anything_that_is_returned(proc: FakeProc, command: str, via: str) -> None:
    fields: dict[str, Any] = {"parent": 4100, "cgroup": inside(129, UNIT)}
    proc.add(4243, "excluded", command, inner=(313,), **fields)
    proc.add(4244, "stubborn", command, inner=(314,), **fields)
    proc.add(4245, "stuck", command, inner=(315,), **fields)
    kernel = FakeKernel(proc, stubborn=[4244], stuck=[4245])
    limits = {"term_timeout": 0.1, "kill_timeout": 0.1, "respawn_timeout": 0.0}
    wanted = request(exclude=["^excluded"], via="host" if via == "host" else "pct", **limits)
    result = kill_processes(wanted, machine(proc, pct=Pct(proc, glued=via == "glued"), kernel=kernel))
    assert "sk-made-up-0001" not in repr(result)
    assert "********" in result["matched"][1]["command"]


def test_two_that_name_each_other_as_parent_are_followed_once(proc: FakeProc) -> None:
    """Whoever is root in the container decides what its /proc says."""
    view = _container_kill.PctView(request(via="pct"), machine(proc))
    one, other = proc.add(10, parent=20), proc.add(20, parent=10)
    view._listed = {10: one, 20: other}
    assert [process.pid for process in view.lineage(one)] == [20]
    itself = proc.add(30, parent=30)
    view._listed = {30: itself}
    assert view.lineage(itself) == []
