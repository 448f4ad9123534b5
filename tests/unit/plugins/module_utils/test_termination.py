# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TERM, wait, KILL, wait, look: on a clock that nobody waits for, and the signals themselves on children of our own."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _termination
from ansible_collections.gpuops.inference.plugins.module_utils._errors import ContainerError, MachineError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Identity, Process, ProcFs
from ansible_collections.gpuops.inference.plugins.module_utils._termination import (
    DENIED,
    GONE,
    SENT,
    DryRunSignaller,
    HostSignaller,
    Survivor,
    SystemClock,
    Termination,
    reason_of,
    terminate,
)
from tests.unit.doubles import DEAD_LEADER, WAITS, FakeClock, FakeKernel, child
from tests.unit.fake_proc import FakeProc, make_process

TERM, KILL, CONT = signal.SIGTERM, signal.SIGKILL, signal.SIGCONT


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    proc = FakeProc(tmp_path)
    for pid in (10, 11, 12):
        proc.add(pid)
    return proc


def end(
    proc: FakeProc, kernel: FakeKernel, *pids: int, clock: Optional[FakeClock] = None, **limits: float
) -> Termination:
    targets = [proc.process(pid) for pid in pids]
    limits = {"term_timeout": 5, "kill_timeout": 10, **limits}
    return terminate(
        targets,
        kernel,
        term_timeout=limits["term_timeout"],
        kill_timeout=limits["kill_timeout"],
        clock=clock or FakeClock(),
    )


def pids(processes: tuple[Process, ...]) -> list[int]:
    return [process.pid for process in processes]


def survivors(result: Termination) -> dict[int, tuple[str, Optional[str]]]:
    return {one.process.pid: (one.reason, one.wchan) for one in result.survivors}


def test_whoever_ends_at_sigterm_gets_no_other_signal(proc: FakeProc) -> None:
    kernel, clock = FakeKernel(proc), FakeClock()
    result = end(proc, kernel, 10, 11, clock=clock)
    assert kernel.sent == [(10, TERM), (11, TERM)]
    assert (pids(result.terminated), pids(result.killed), result.survivors) == ([10, 11], [], ())
    assert result.signalled
    assert clock.sleeps == []


def test_whoever_stays_gets_sigkill_after_the_limit(proc: FakeProc) -> None:
    kernel, clock = FakeKernel(proc, stubborn=[11]), FakeClock()
    result = end(proc, kernel, 10, 11, clock=clock)
    assert kernel.sent == [(10, TERM), (11, TERM), (11, KILL)]
    assert (pids(result.terminated), pids(result.killed)) == ([10], [11])
    assert clock.time == pytest.approx(5)


def test_no_patience_goes_to_sigkill_at_once(proc: FakeProc) -> None:
    kernel, clock = FakeKernel(proc), FakeClock()
    result = end(proc, kernel, 10, clock=clock, term_timeout=0)
    assert kernel.sent == [(10, KILL)]
    assert (pids(result.terminated), pids(result.killed)) == ([], [10])
    assert clock.time == 0


def test_without_any_patience_sigkill_is_sent_all_the_same(proc: FakeProc) -> None:
    kernel = FakeKernel(proc)
    assert pids(end(proc, kernel, 10, term_timeout=-1, kill_timeout=0).killed) == [10]
    assert kernel.sent == [(10, KILL)]


def test_a_clock_that_never_meets_the_deadline_passes_it(proc: FakeProc) -> None:
    """A real one goes on between two looks at it, and wakes us late."""

    class Late(FakeClock):
        def now(self) -> float:
            self.time += 0.03
            return self.time

        def sleep(self, seconds: float) -> None:
            assert seconds >= 0, "time.sleep refuses less"
            self.time += seconds

    clock = Late()
    end(proc, FakeKernel(proc, stuck=[10]), 10, clock=clock, term_timeout=0.5, kill_timeout=0.5)
    assert 1 <= clock.time < 1.5


def test_the_wait_ends_as_soon_as_all_are_gone(proc: FakeProc) -> None:
    clock = FakeClock(lambda now: proc.remove(10) if now >= 0.2 else None)
    result = end(proc, FakeKernel(proc, stuck=[10]), 10, clock=clock)
    assert pids(result.terminated) == [10]
    assert clock.time == pytest.approx(0.2)
    assert set(clock.sleeps) == {0.05}, "twenty looks a second"


def test_all_waits_together_take_no_longer_than_both_limits(proc: FakeProc) -> None:
    clock = FakeClock()
    end(proc, FakeKernel(proc, stuck=[10, 11]), 10, 11, clock=clock, term_timeout=0.12, kill_timeout=0.33)
    assert clock.time == pytest.approx(0.45)


def test_nobody_to_end_is_nothing_done(proc: FakeProc) -> None:
    kernel = FakeKernel(proc)
    assert end(proc, kernel) == Termination()
    assert kernel.sent == []


def test_whoever_ended_before_the_signal_was_not_ended_by_us(proc: FakeProc) -> None:
    result = end(proc, FakeKernel(proc, lost=[10]), 10)
    assert result == Termination(signalled=False)


def test_whoever_ended_between_the_signals_ended_at_sigterm(proc: FakeProc) -> None:
    kernel = FakeKernel(proc, stubborn=[10, 11])
    clock = FakeClock(lambda now: proc.remove(11) if now >= 4.99 else None)
    result = end(proc, kernel, 10, 11, clock=clock)
    assert (pids(result.terminated), pids(result.killed)) == ([11], [10])


def test_whoever_ends_after_the_last_look_at_it_is_told_all_the_same(proc: FakeProc) -> None:
    """That look is followed by one at the whole machine, for whoever came meanwhile."""
    kernel = FakeKernel(proc, stubborn=[10, 11])

    def reinforce(waiting: Sequence[Process]) -> Sequence[Process]:
        proc.remove(11)
        return waiting

    targets = [proc.process(pid) for pid in (10, 11, 12)]
    result = terminate(targets, kernel, term_timeout=5, kill_timeout=5, clock=FakeClock(), reinforce=reinforce)
    assert (pids(result.terminated), pids(result.killed), result.survivors) == ([12, 11], [10], ())


def test_whoever_ends_after_the_last_look_of_all_was_killed(proc: FakeProc) -> None:
    kernel = FakeKernel(proc, stuck=[10])
    looks = []

    def living(processes: Sequence[Process]) -> list[Process]:
        looks.append(len(processes))
        # The time is over at the third look, and the fourth is the last.
        if len(looks) == 4:
            proc.remove(10)
        return real(processes)

    real = kernel.living
    kernel.living = living  # type: ignore[method-assign]
    result = end(proc, kernel, 10, term_timeout=0, kill_timeout=2 * kernel.interval)
    assert (pids(result.terminated), pids(result.killed), result.survivors) == ([], [10], ())


def test_an_heir_of_the_pid_is_never_signalled(proc: FakeProc) -> None:
    target = proc.process(10)
    proc.remove(10)
    proc.add(10, "sshd", start=99)
    kernel = FakeKernel(proc)
    assert terminate([target], kernel, term_timeout=5, kill_timeout=5, clock=FakeClock()) == Termination()
    assert kernel.sent == []


def test_an_heir_between_the_signals_is_not_killed(proc: FakeProc) -> None:
    kernel = FakeKernel(proc, stuck=[10])

    def inherit(_now: float) -> None:
        proc.remove(10)
        proc.add(10, "sshd", start=99)

    result = end(proc, kernel, 10, clock=FakeClock(inherit))
    assert kernel.sent == [(10, TERM)]
    assert (pids(result.terminated), result.survivors) == ([10], ())


def test_whoever_may_not_be_signalled_survives_for_that_reason(proc: FakeProc) -> None:
    clock = FakeClock()
    result = end(proc, FakeKernel(proc, denied=[10]), 10, 11, clock=clock)
    assert survivors(result) == {10: ("permission", None)}
    assert pids(result.terminated) == [11]
    assert clock.time == 0, "nobody waits for one who got no signal"


def test_only_refusals_are_no_change(proc: FakeProc) -> None:
    assert not end(proc, FakeKernel(proc, denied=[10]), 10).signalled


def test_uninterruptible_sleep_is_named_with_its_place_in_the_kernel(proc: FakeProc) -> None:
    proc.become(10, "D", wchan="rpc_wait_bit_killable")
    result = end(proc, FakeKernel(proc, stuck=[10]), 10)
    assert survivors(result) == {10: ("uninterruptible", "rpc_wait_bit_killable")}
    assert result.survivors[0].process.state == "D"


def test_one_thread_in_uninterruptible_sleep_is_enough(proc: FakeProc) -> None:
    proc.add(20, threads=3)
    proc.thread(20, 21, wchan="futex_wait")
    proc.thread(20, 22, state="D", wchan="nvidia_close")
    result = end(proc, FakeKernel(proc, stuck=[20]), 20)
    assert survivors(result) == {20: ("uninterruptible", "nvidia_close")}
    assert result.survivors[0].process.state == "D"


def test_a_dead_leader_whose_threads_live_on_is_a_survivor(proc: FakeProc) -> None:
    proc.add(20, state="Z", threads=2)
    proc.thread(20, 21, state="S")
    result = end(proc, FakeKernel(proc, stuck=[20]), 20)
    assert survivors(result) == {20: ("zombie", None)}


def test_a_stopped_one_is_continued_so_that_it_can_act_on_sigterm(proc: FakeProc) -> None:
    proc.become(11, "T")
    kernel, clock = FakeKernel(proc), FakeClock()
    result = end(proc, kernel, 10, 11, clock=clock)
    assert kernel.sent == [(10, TERM), (11, TERM), (11, CONT)]
    assert (pids(result.terminated), clock.time) == ([10, 11], 0)


def test_a_stopped_one_that_ignores_sigterm_is_killed(proc: FakeProc) -> None:
    proc.become(11, "T")
    kernel = FakeKernel(proc, stubborn=[11])
    assert pids(end(proc, kernel, 11).killed) == [11]
    assert kernel.sent == [(11, TERM), (11, CONT), (11, KILL)]


def test_without_patience_a_stopped_one_is_killed_as_it_is(proc: FakeProc) -> None:
    proc.become(11, "T")
    kernel = FakeKernel(proc)
    assert pids(end(proc, kernel, 11, term_timeout=0).killed) == [11]
    assert kernel.sent == [(11, KILL)]


def test_nobody_is_continued_after_sigkill(proc: FakeProc) -> None:
    proc.become(11, "T")
    kernel = FakeKernel(proc, stuck=[11])
    assert survivors(end(proc, kernel, 11, term_timeout=0)) == {11: ("timeout", None)}
    assert kernel.sent == [(11, KILL)]


def test_one_that_a_debugger_holds_is_not_continued(proc: FakeProc) -> None:
    proc.become(11, "t")
    kernel = FakeKernel(proc, stubborn=[11])
    assert pids(end(proc, kernel, 11).killed) == [11]
    assert kernel.sent == [(11, TERM), (11, KILL)]


def test_a_frozen_one_is_no_case_for_a_reboot(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cgroup v1 froze it while it was waited for, it shows state D."""
    proc.become(10, "D", wchan="__refrigerator")
    monkeypatch.setattr(_termination, "frozen", lambda process: process.pid == 10)
    assert survivors(end(proc, FakeKernel(proc, stuck=[10]), 10)) == {10: ("frozen", None)}


def test_whom_else_to_kill_is_asked_only_when_somebody_is_to_be_killed(proc: FakeProc) -> None:
    asked: list[list[int]] = []

    def reinforce(doomed: Sequence[Process]) -> Sequence[Process]:
        asked.append(pids(tuple(doomed)))
        return [*doomed, proc.process(12)]

    kernel = FakeKernel(proc, stubborn=[11])
    targets = [proc.process(10), proc.process(11)]
    limits: dict[str, Any] = {"term_timeout": 1, "kill_timeout": 1, "clock": FakeClock()}
    assert pids(terminate(targets, kernel, reinforce=reinforce, **limits).killed) == [11, 12]
    assert asked == [[11]]
    proc.add(10)
    terminate([proc.process(10)], kernel, reinforce=reinforce, **limits)
    assert asked == [[11]]


def test_a_zombie_that_nobody_reaps_is_gone_and_not_waited_for(proc: FakeProc) -> None:
    """B09."""
    kernel = FakeKernel(proc, stuck=[10], after=lambda: proc.become(10, "Z"))
    clock = FakeClock()
    result = end(proc, kernel, 10, clock=clock)
    assert pids(result.terminated) == [10]
    assert clock.time == 0


def test_whoever_just_does_not_end_ran_out_of_time(proc: FakeProc) -> None:
    proc.become(10, "R", wchan="0")
    assert survivors(end(proc, FakeKernel(proc, stuck=[10]), 10)) == {10: ("timeout", None)}


def test_whoever_ends_at_the_very_last_look_is_no_survivor(proc: FakeProc) -> None:
    kernel = FakeKernel(proc, stuck=[10])

    def leave(now: float) -> None:
        if now >= 14.99:
            proc.remove(10)

    result = end(proc, kernel, 10, clock=FakeClock(leave))
    assert (pids(result.killed), result.survivors) == ([10], ())


@pytest.mark.parametrize(
    ("state", "reason"), [("D", "uninterruptible"), ("Z", "zombie"), ("S", "timeout"), ("T", "timeout")]
)
def test_a_state_gives_a_reason(state: str, reason: str) -> None:
    assert reason_of(make_process(state=state)) == reason


@pytest.mark.parametrize(("term_timeout", "terminated", "killed"), [(5.0, [10, 11], []), (0.0, [], [10, 11])])
def test_a_dry_run_signals_nobody_and_says_what_it_would_do(
    proc: FakeProc, term_timeout: float, terminated: list[int], killed: list[int]
) -> None:
    signaller, clock = DryRunSignaller(), FakeClock()
    targets = [proc.process(10), proc.process(11)]
    result = terminate(targets, signaller, term_timeout=term_timeout, kill_timeout=10, clock=clock)
    assert (pids(result.terminated), pids(result.killed), result.survivors) == (terminated, killed, ())
    assert result.signalled
    assert clock.time == 0
    assert [identity.pid for identity, _number in signaller.noted] == [10, 11]


def test_a_dry_run_of_nothing_would_change_nothing() -> None:
    result = terminate([], DryRunSignaller(), term_timeout=5, kill_timeout=5, clock=FakeClock())
    assert not result.signalled


# From here on the kernel itself is the subject: children of this test, and nobody else.


def seen(pid: int) -> Process:
    process = ProcFs().process(pid)
    assert process is not None
    return process


def send(process: Process, number: int) -> str:
    return HostSignaller(ProcFs()).send([process], number)[process.identity]


@pytest.fixture(params=["pidfd", "old kernel", "old Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With pidfds, and where the kernel or this Python has none."""

    def unknown_call(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if request.param == "old kernel":
        monkeypatch.setattr(os, "pidfd_open", unknown_call, raising=False)
    elif request.param == "old Python":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif not hasattr(os, "pidfd_open"):
        pytest.skip("this Python has no pidfds")
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_a_real_child_is_ended() -> None:
    with child(WAITS) as process:
        target = seen(process.pid)
        assert send(target, TERM) == SENT
        assert process.wait(30) == -TERM
    assert send(target, KILL) == GONE


@pytest.mark.usefixtures("way")
def test_a_pid_with_another_start_time_is_not_signalled() -> None:
    with child(WAITS) as process:
        target = seen(process.pid)
        forerunner = target._replace(start_ticks=target.start_ticks - 1)
        assert send(forerunner, KILL) == GONE
        (living,) = HostSignaller(ProcFs()).living([forerunner, target])
        assert living.identity == target.identity
        assert process.poll() is None


def test_a_pid_that_changes_hands_after_the_look_is_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle was opened on whoever had the pid then: it does not follow the number."""
    with child(WAITS) as forerunner, child(WAITS) as heir:
        handle = os.pidfd_open(forerunner.pid)
        monkeypatch.setattr(_termination, "_open_pidfd", lambda _pid: handle)
        forerunner.kill()
        forerunner.wait()
        assert send(seen(heir.pid), KILL) == GONE
        assert heir.poll() is None


@pytest.mark.usefixtures("way")
def test_a_process_that_may_not_be_signalled_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any) -> None:
        raise PermissionError

    with child(WAITS) as process:
        monkeypatch.setattr(os, "kill", refuse)
        monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
        answer = send(seen(process.pid), TERM)
        monkeypatch.undo()
    assert answer == DENIED


def test_without_a_handle_on_a_process_it_is_not_signalled_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the signal the number may be given to another."""

    def full(_pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with child(WAITS) as process:
        target = seen(process.pid)
        monkeypatch.setattr(os, "pidfd_open", full, raising=False)
        with pytest.raises(MachineError, match=f"No handle can be had on process {process.pid}: Too many open files"):
            send(target, KILL)
        assert process.poll() is None


def test_no_handle_is_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    with child(WAITS) as process:
        target = seen(process.pid)
        send(target._replace(start_ticks=1), TERM)
        send(target, TERM)
        process.wait(30)
        send(target, TERM)
    assert os.listdir("/proc/self/fd") == before


ZOMBIE = """
import os, sys
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(flush=True)
print(pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("way")
def test_a_real_zombie_is_gone_without_a_signal() -> None:
    """B09: kill -0 and kill -9 both succeed on it."""
    with child(ZOMBIE) as parent:
        assert parent.stdout is not None
        zombie = seen(int(parent.stdout.readline()))
        assert send(zombie, KILL) == GONE
        assert HostSignaller(ProcFs()).living([zombie]) == []


@pytest.mark.usefixtures("way")
def test_a_real_dead_leader_with_a_living_thread_is_killed() -> None:
    """B27."""
    signaller = HostSignaller(ProcFs())
    with child(DEAD_LEADER) as process:
        target = seen(process.pid)
        assert (target.state, target.gone) == ("Z", False)
        assert [one.pid for one in signaller.living([target])] == [process.pid]
        assert signaller.explain(target).reason == "zombie"
        assert send(target, KILL) == SENT
        assert process.wait(30) == -KILL
    assert signaller.living([target]) == []


# posix_spawn waits in vfork until its child has started the program, and the child waits for the FIFO first. Who
# reports that is another process: the waiting one does nothing meanwhile.
UNINTERRUPTIBLE = """
import os, sys, time
me = os.getpid()
if os.fork() == 0:
    signal.alarm(60)
    while open('/proc/%d/stat' % me).read().rpartition(')')[2].split()[0] != 'D':
        time.sleep(0.001)
    os.write(1, b'\\n')
    os._exit(0)
os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, sys.argv[1], os.O_RDONLY, 0)])
"""


def test_a_real_uninterruptible_sleep_is_explained(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with child(UNINTERRUPTIBLE, str(fifo)) as process:
        try:
            why = HostSignaller(ProcFs()).explain(seen(process.pid))
        finally:
            os.close(os.open(fifo, os.O_WRONLY))
    assert (why.reason, why.process.state) == ("uninterruptible", "D")
    assert why.wchan is None or why.wchan.isidentifier()


def test_the_machine_s_clock_goes_forward() -> None:
    clock = SystemClock()
    before = clock.now()
    clock.sleep(0)
    assert clock.now() >= before


def test_the_machine_s_ticks_are_those_in_which_processes_start() -> None:
    with child(WAITS) as process:
        age = SystemClock().ticks() - seen(process.pid).start_ticks
    assert 0 <= age < 60 * os.sysconf("SC_CLK_TCK"), "no child of a test lives for a minute"


def test_an_error_after_a_signal_was_sent_says_that_something_was_changed() -> None:
    class Breaks(DryRunSignaller):
        def living(self, processes: Sequence[Process]) -> list[Process]:
            raise ContainerError("gone", reason="attach_failed")

    with pytest.raises(ContainerError) as caught:
        terminate([make_process(7)], Breaks(), term_timeout=1, kill_timeout=1, clock=FakeClock())
    assert caught.value.result()["changed"] is True


def test_an_error_at_the_first_signal_says_that_nothing_was_changed() -> None:
    class Breaks(DryRunSignaller):
        def send(self, processes: Sequence[Process], number: int) -> dict[Identity, str]:
            raise ContainerError("gone", reason="attach_failed")

    with pytest.raises(ContainerError) as caught:
        terminate([make_process(7)], Breaks(), term_timeout=1, kill_timeout=1, clock=FakeClock())
    assert caught.value.result()["changed"] is False


def short() -> MachineError:
    return MachineError("no memory", reason="shortage")


@pytest.mark.parametrize("signalled", [0, 1])
def test_want_of_memory_between_two_signals_says_whether_the_first_was_sent(
    monkeypatch: pytest.MonkeyPatch, signalled: int
) -> None:
    with child(WAITS) as first, child(WAITS) as second:
        targets = [seen(first.pid), seen(second.pid)]
        procfs = ProcFs()
        real = procfs.look_again

        def look_again(process: Process) -> Optional[Process]:
            if process == targets[signalled]:
                raise short()
            return real(process)

        monkeypatch.setattr(procfs, "look_again", look_again)
        with pytest.raises(MachineError) as caught:
            HostSignaller(procfs).send(targets, TERM)
        assert caught.value.result()["changed"] is (signalled == 1)
        assert second.poll() is None


def test_want_of_memory_where_a_survivor_is_explained_says_that_something_was_changed() -> None:
    class Breaks(DryRunSignaller):
        def living(self, processes: Sequence[Process]) -> list[Process]:
            return list(processes)

        def explain(self, process: Process) -> Survivor:
            raise short()

    with pytest.raises(MachineError) as caught:
        terminate([make_process(7)], Breaks(), term_timeout=0, kill_timeout=0, clock=FakeClock())
    assert caught.value.result()["changed"] is True
