# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A card is reset only when nobody has it, persistence mode comes back whatever happens, and the memory decides."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Sequence, Union

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _gpu_reset
from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed
from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Scan
from ansible_collections.gpuops.inference.plugins.module_utils._errors import (
    CommandError,
    DriverError,
    GpuopsError,
    InputError,
    SurvivorsError,
)
from ansible_collections.gpuops.inference.plugins.module_utils._gpu_reset import ResetRequest, reset
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import (
    ComputeProcess,
    DriverReading,
    Gpu,
    GpuError,
)
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import FakeProc
from tests.unit.recorded import completed, recorded


def given(answer: Union[Completed, Exception]) -> Completed:
    """What a command answers, or what running it raises."""
    if isinstance(answer, Exception):
        raise answer
    return answer


FULL, IDLE = 76115, 51
REFUSED = recorded("nvidia_smi_reset", "B11")


def card(index: int, minor: Optional[int], used: Optional[int]) -> Gpu:
    error = GpuError("requires_reset", "[GPU requires reset]") if used is None else None
    return Gpu(index, f"GPU-{index}", f"0000:{index:02x}:00.0", minor, "RTX", 97887, used, 21772, error)


class World:
    """A machine with an idle GPU 0 (/dev/nvidia3) and GPU 1 (/dev/nvidia4), whose memory is leaked. It is nvidia-smi,
    too: a reset frees the memory, unless it is ``useless``, or answered with something else.
    """

    def __init__(self, proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc = proc
        self.nodes = {0: proc.card(3), 1: proc.card(4)}
        self.gpus = {0: card(0, 3, IDLE), 1: card(1, 4, FULL)}
        self.listed: Optional[tuple[ComputeProcess, ...]] = ()
        self.invalid_pids = 0
        self.persistent = {0: True, 1: False}
        self.obeys = True
        self.useless = False
        self.late_s = 0.0
        self.answer: Optional[Any] = None
        self.blind_after = 99
        self.reads = 0
        self.calls: list[str] = []
        self.clock = FakeClock()
        monkeypatch.setattr(_gpu_reset, "read_driver", self._read)

    def _read(self, **_options: Any) -> DriverReading:
        self.reads += 1
        if self.reads > self.blind_after:
            raise DriverError("The driver does not answer.", reason="timeout")
        if "--gpu-reset" in self.calls and not self.useless and self.answer is None and self.clock.time >= self.late_s:
            self.gpus[1] = card(1, 4, IDLE)
        return DriverReading("nvidia_smi", "580", tuple(self.gpus.values()), self.listed, self.invalid_pids, ())

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        cards = [int(index) for index in argv[-1].split(",")]
        if argv[1].startswith("--query-gpu=index,persistence_mode"):
            words = {True: "Enabled", False: "Disabled"}
            return completed("".join(f"{index}, {words[self.persistent[index]]}\n" for index in cards))
        self.calls.append(" ".join(argv[1:-2]))
        if argv[1] == "-pm":
            if not self.obeys:
                return recorded("nvidia_smi_persistence", "no_permission", rc=4)
            for index in cards:
                self.persistent[index] = argv[2] == "1"
            self.on_persistence(argv[2] == "1")
            return completed("All done.\n")
        return given(self.answer or completed("GPU 00000000:01:00.0 was successfully reset.\nAll done.\n"))

    def on_persistence(self, on: bool) -> None:
        """Replaced by tests with a daemon."""

    def reset(self, *, gpus: Sequence[str] = ("1",), dry_run: bool = False, **options: Any) -> dict[str, Any]:
        request = ResetRequest(
            gpus=gpus,
            idle_memory_mib=100,
            device_directory=str(self.proc.devices),
            backend="auto",
            nvidia_smi_path="nvidia-smi",
            driver_timeout=20,
            reset_timeout=60,
            settle_timeout=2,
        )._replace(**options)
        machine = Machine(self, self.proc.procfs, self.clock, FakeKernel(self.proc), dry_run=dry_run)
        return reset(request, machine)

    def refused(self, kind: type[GpuopsError] = DriverError, **options: Any) -> GpuopsError:
        with pytest.raises(kind) as raised:
            self.reset(**options)
        return raised.value


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(FakeProc(tmp_path), monkeypatch)


def test_a_card_that_nobody_has_is_reset_and_looked_at_again(world: World) -> None:
    result = world.reset()
    assert world.calls == ["--gpu-reset"]
    assert (result["changed"], result["gpus"], result["reset"]) == (True, [1], [1])
    assert (result["before"][0]["state"], result["before"][0]["memory_used_mib"]) == ("busy", FULL)
    assert (result["after"][0]["state"], result["after"][0]["memory_used_mib"]) == ("idle", IDLE)
    assert (result["persistence_mode_switched"], result["warnings"]) == ([], [])


def test_an_idle_card_is_left_alone_and_so_is_no_card(world: World) -> None:
    for gpus in (["0"], []):
        result = world.reset(gpus=gpus)
        assert (result["changed"], result["reset"], world.calls) == (False, [], [])
    assert world.reset(gpus=["0"])["after"][0]["state"] == "idle"


def test_of_several_cards_only_those_that_need_it_are_reset(world: World) -> None:
    result = world.reset(gpus=["0", "1"])
    assert (result["gpus"], result["reset"]) == ([0, 1], [1])


def test_a_second_run_changes_nothing(world: World) -> None:
    assert world.reset()["changed"] is True
    assert world.reset()["changed"] is False
    assert world.calls == ["--gpu-reset"]


def test_a_card_that_asks_for_a_reset_gets_it(world: World) -> None:
    world.gpus[1] = card(1, 4, None)
    assert world.reset()["reset"] == [1]


@pytest.mark.parametrize("name", ["nvtop", "nv-hostengine", "Xorg", "python3"])
def test_whoever_has_the_card_open_is_named_and_it_is_not_reset(world: World, name: str) -> None:
    world.proc.add(900, name, fds=[world.nodes[1]], cgroup="0::/system.slice/some.service\n")
    error = world.refused(SurvivorsError)
    assert (error.reason, world.calls) == ("held", [])
    assert f"900 ({name}, unit some.service) has. End it first." in error.message
    assert [one["pid"] for one in error.fields["holders"]] == [900]


def test_whoever_has_another_card_open_is_in_no_way(world: World) -> None:
    world.proc.add(900, "nvtop", fds=[world.nodes[0]])
    assert world.reset()["reset"] == [1]


def test_one_that_is_being_torn_down_has_no_handle_but_the_driver_lists_it(world: World) -> None:
    world.proc.add(4242, "python3", state="D")
    world.listed = (ComputeProcess(4242, "GPU-1", 76064),)
    error = world.refused(SurvivorsError)
    assert (error.reason, error.fields["holders"][0]["evidence"]) == ("held", ["driver"])
    assert "4242 (python3, state D)" in error.message


@pytest.mark.parametrize("zombie", [False, True])
def test_a_pid_that_the_driver_still_lists_and_nobody_has_is_gone(world: World, zombie: bool) -> None:
    if zombie:
        world.proc.add(4242, state="Z")
    world.listed = (ComputeProcess(4242, "GPU-1", 76064),)
    assert world.reset()["reset"] == [1]


def test_nothing_is_reset_where_somebody_may_be_overlooked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.listed = None
    assert "does not list who computes" in world.refused().message
    world.listed, world.invalid_pids = (), 2
    assert "lists 2 that it gives no possible pid for" in world.refused().message
    world.invalid_pids = 0
    monkeypatch.setattr(_gpu_reset, "find_holders", lambda *_arguments: Scan((), 7))
    error = world.refused()
    assert (error.reason, "7 processes could not be looked into" in error.message) == ("holders_unknown", True)
    assert world.calls == []


def test_nothing_is_reset_from_inside_a_container(world: World) -> None:
    namespace = world.proc.root / "self" / "ns" / "pid"
    namespace.unlink()
    namespace.symlink_to("pid:[4026532001]")
    error = world.refused()
    assert (error.reason, world.calls) == ("holders_unknown", [])
    assert "not the machine's own pid namespace" in error.message


def test_nothing_is_reset_whose_node_is_not_known(world: World) -> None:
    world.gpus[1] = card(1, None, FULL)
    assert world.refused().reason == "minor_unknown"
    world.gpus[1] = card(1, 9, FULL)
    assert world.refused(InputError).reason == "no_device_nodes"
    assert world.refused(InputError, gpus=["7"]).reason == "no_such_gpu"
    assert world.calls == []


def test_persistence_mode_is_off_for_the_reset_and_on_again(world: World) -> None:
    world.persistent[1] = True
    result = world.reset()
    assert world.calls == ["-pm 0", "--gpu-reset", "-pm 1"]
    assert (result["persistence_mode_switched"], world.persistent[1]) == ([1], True)


@pytest.mark.parametrize(
    "answer", [REFUSED, completed("", rc=-9), CommandError("No answer.", reason="timeout", unkillable=True)]
)
def test_persistence_mode_is_on_again_when_the_reset_fails(world: World, answer: Any) -> None:
    world.persistent[1], world.answer = True, answer
    world.refused(GpuopsError)
    assert world.calls == ["-pm 0", "--gpu-reset", "-pm 1"]
    assert world.persistent[1] is True


def test_persistence_mode_that_hangs_after_the_reset_is_a_warning(world: World) -> None:
    def hang(on: bool) -> None:
        if on:
            raise CommandError("nvidia-smi did not end within 20 s.", reason="timeout")

    world.persistent[1] = True
    world.on_persistence = hang  # type: ignore[method-assign]
    result = world.reset()
    assert result["changed"]
    (warning,) = result["warnings"]
    assert "could not be switched on again: nvidia-smi did not end within 20 s." in warning
    assert "nvidia-smi -pm 1 -i 1" in warning


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_job_that_is_cancelled_meanwhile_ends_with_persistence_mode_on(world: World, number: int) -> None:
    class Cancelled(BaseException):
        pass

    def end(_number: int, _frame: object) -> None:
        # Whoever is asked to end does so here, whatever was still to be done.
        raise Cancelled(list(world.calls))

    world.persistent[1] = True
    world.on_persistence = lambda on: None if on else os.kill(os.getpid(), number)  # type: ignore[method-assign]
    before = signal.signal(number, end)
    try:
        with pytest.raises(Cancelled) as raised:
            world.reset()
    finally:
        signal.signal(number, before)
    assert raised.value.args == (["-pm 0", "--gpu-reset", "-pm 1"],)
    assert world.persistent[1] is True


def test_a_persistence_daemon_lets_go_when_the_mode_is_off(world: World) -> None:
    world.persistent[1] = True
    world.proc.add(700, "nvidia-persiste", fds=[world.nodes[0], world.nodes[1]])

    def let_go(time: float) -> None:
        if time >= 0.5 and "-pm 1" not in world.calls:
            world.proc.remove(700)

    world.clock = FakeClock(at=let_go)
    assert world.reset()["reset"] == [1]
    assert world.calls == ["-pm 0", "--gpu-reset", "-pm 1"]


def test_a_persistence_daemon_that_does_not_let_go_is_named(world: World) -> None:
    world.persistent[1] = True
    world.proc.add(
        700, "nvidia-persiste", fds=[world.nodes[1]], cgroup="0::/system.slice/nvidia-persistenced.service\n"
    )
    error = world.refused(SurvivorsError)
    assert (error.reason, world.calls) == ("held", ["-pm 0", "-pm 1"])
    assert "unit nvidia-persistenced.service" in error.message
    assert "one that does not has to be stopped" in error.message
    assert (error.fields["changed"], error.fields["reset"]) == (False, [])


def test_a_persistence_daemon_is_a_holder_like_others_where_the_mode_is_off(world: World) -> None:
    world.proc.add(700, "nvidia-persiste", fds=[world.nodes[1]])
    assert world.refused(SurvivorsError).reason == "held"
    assert world.calls == []


def test_one_who_comes_while_persistence_mode_goes_off_stops_the_reset(world: World) -> None:
    world.persistent[1] = True

    def come(on: bool) -> None:
        if not on:
            world.proc.add(900, "nvtop", fds=[world.nodes[1]])

    world.on_persistence = come  # type: ignore[method-assign]
    assert world.refused(SurvivorsError).reason == "held"
    assert world.calls == ["-pm 0", "-pm 1"]


def test_persistence_mode_that_cannot_be_switched_off_stops_the_reset(world: World) -> None:
    world.persistent[1], world.obeys = True, False
    error = world.refused()
    assert (error.reason, "--gpu-reset" in world.calls) == ("persistence_mode", False)
    assert "Insufficient Permissions" in error.message


def test_persistence_mode_that_stays_off_is_a_warning_and_part_of_an_error(world: World) -> None:
    world.persistent[1] = True

    def stop_obeying(on: bool) -> None:
        world.obeys = False

    world.on_persistence = stop_obeying  # type: ignore[method-assign]
    [warning] = world.reset()["warnings"]
    assert warning.startswith("Persistence mode of GPU 1 was on before, and could not be switched on again")
    assert warning.endswith("nvidia-smi -pm 1 -i 1")

    world.gpus[1], world.persistent[1], world.obeys, world.answer = card(1, 4, FULL), True, True, REFUSED
    error = world.refused()
    assert "could not be switched on again" in error.message
    # No card was reset, but persistence mode is not as it was.
    assert (error.fields["changed"], error.fields["reset"]) == (True, [])


def test_a_refusal_is_passed_on_in_the_tool_s_words(world: World) -> None:
    world.answer = REFUSED
    error = world.refused()
    assert error.message.startswith("GPU 1 (0000:01:00.0) was not reset. nvidia-smi said: The following GPUs could not")
    assert (error.reason, error.fields["rc"], error.fields["changed"]) == ("reset_in_use", 255, False)
    assert error.fields["after"] is None


def test_a_reset_that_frees_nothing_is_a_failure(world: World) -> None:
    world.useless = True
    error = world.refused()
    assert (error.reason, error.fields["changed"], error.fields["reset"]) == ("still_busy", True, [1])
    assert "says that GPU 1 (0000:01:00.0) was reset, but what it holds now is 76115 MiB. Reboot" in error.message
    assert error.fields["after"][0]["state"] == "busy"
    assert world.clock.time >= 2


def test_memory_that_goes_late_is_waited_for(world: World) -> None:
    world.late_s = 1.0
    assert world.reset()["after"][0]["state"] == "idle"


def test_of_two_cards_one_is_reset_and_the_other_refused(world: World) -> None:
    world.gpus[0] = card(0, 3, FULL)
    world.persistent[0] = False
    done = "GPU 00000000:01:00.0 was successfully reset.\n"
    world.answer = completed(done + REFUSED.stdout.replace("1A:", "00:"), rc=255)
    world.gpus[1] = replace(card(1, 4, FULL))
    error = world.refused(gpus=["0", "1"])
    assert (error.reason, error.fields["changed"], error.fields["reset"]) == ("reset_in_use", True, [1])
    assert error.message.startswith("GPU 0 (0000:00:00.0) was not reset.")


def test_a_bad_exit_status_of_a_reset_that_was_done_is_for_the_memory_to_judge(world: World) -> None:
    world.answer = completed("Warning: not supported\nGPU 00000000:01:00.0 was successfully reset.\n", rc=255)
    assert world.refused().reason == "still_busy"


def test_a_reset_without_an_answer_may_have_changed_the_card(world: World) -> None:
    world.answer = CommandError("No answer within 60 s.", reason="timeout", unkillable=True)
    error = world.refused(CommandError)
    assert (error.reason, error.fields["changed"], error.fields["reset"]) == ("timeout", True, [1])
    assert (error.fields["unkillable"], error.fields["after"], world.reads) == (True, None, 1)


def test_cards_that_cannot_be_read_after_a_reset_are_an_error_that_says_so(world: World) -> None:
    world.blind_after = 1
    error = world.refused()
    assert error.message == (
        "GPU 1 (0000:01:00.0) was reset, but then the cards could not be read. The driver does not answer."
    )
    assert (error.reason, error.fields["changed"], error.fields["after"]) == ("timeout", True, None)


@pytest.mark.parametrize("persistent", [False, True])
def test_check_mode_says_what_would_be_reset_and_changes_nothing(world: World, persistent: bool) -> None:
    world.persistent[1] = persistent
    world.proc.add(700, "nvidia-persiste", fds=[world.nodes[1]] if persistent else [])
    result = world.reset(dry_run=True)
    assert (result["changed"], result["reset"], result["after"]) == (True, [1], None)
    assert (result["persistence_mode_switched"], world.calls) == ([1] if persistent else [], [])


def test_check_mode_refuses_as_well(world: World) -> None:
    world.proc.add(900, "nvtop", fds=[world.nodes[1]])
    assert world.refused(SurvivorsError, dry_run=True).reason == "held"
