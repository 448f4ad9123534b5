# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands in the way of a start, case by case, and the sentence that a person acts on."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._verdict import (
    reading_verdict,
    respawn_verdict,
    verdict,
)
from tests.unit.verdicts import FREE_IT, REBOOT_IT, REMEDY, RESET_IT, card, held, looked, process, reading

IDLE = reading(card(1, 51, "idle"))
BUSY = reading(card())


def judge(reading: Any, *, reclaim: Optional[dict[str, Any]] = None, **more: Any) -> tuple[str, str, str]:
    """Outcome, needs and reason, where every process was looked at unless said otherwise."""
    found = verdict(reading=reading, reclaim=looked(**(reclaim or {})), **more)
    assert found is not None
    assert set(found) == {"outcome", "needs", "reason", "cards_not_free"}
    return found["outcome"], found["needs"], found["reason"]


def test_idle_cards_and_nobody_left_stand_in_no_way() -> None:
    done = {"survivors": [], "respawned": [], "spared": [], "terminated": [process()], "killed": []}
    assert verdict(reading=IDLE) is None
    assert verdict(reading=IDLE, kill=done, reclaim=done) is None
    assert verdict(reading=IDLE, kill={}, reclaim={}) is None


@pytest.mark.parametrize("nothing", [None, {}, {"gpus": [], "all_idle": False}, {"gpus": [], "all_idle": True}])
def test_no_reading_is_not_free(nothing: Any) -> None:
    assert judge(nothing, failure={"msg": "driver not loaded", "reason": "driver_not_loaded"}) == (
        "gpus_not_free",
        "operator",
        "The cards could not be read, and unknown is not free: driver not loaded",
    )


def test_no_reading_and_no_error_is_not_free_either() -> None:
    assert judge(None)[2].endswith("the driver gave no answer")


def test_a_driver_that_hangs_and_cannot_be_killed_needs_a_reboot() -> None:
    hangs = {"msg": "The driver gave no answer within 20 s.", "reason": "timeout", "unkillable": True}
    assert judge(None, failure=hangs)[1] == "reboot"
    assert judge(None, failure={**hangs, "unkillable": False})[1] == "operator"


@pytest.mark.parametrize(
    ("reason", "needs"),
    [("driver_not_loaded", "operator"), ("version_mismatch", "reboot"), ("gpu_lost", "reboot"), (None, "operator")],
)
def test_a_silent_driver_makes_every_card_that_was_known_unknown(reason: Optional[str], needs: str) -> None:
    found = verdict(reading=None, failure={"msg": "said so", "reason": reason}, known=[{"index": 0}, {"index": 1}])
    assert found is not None
    assert (found["needs"], [one["index"] for one in found["cards_not_free"]]) == (needs, [0, 1])
    assert {(one["verdict"], one["needs"]) for one in found["cards_not_free"]} == {("unknown", needs)}


@pytest.mark.parametrize(
    ("reason", "needs", "remedy"),
    [
        ("requires_reset", "gpu_reset", RESET_IT),
        ("gpu_lost", "reboot", REBOOT_IT),
        ("device_handle_error", "reboot", REBOOT_IT),
        ("not_listed", "reboot", REBOOT_IT),
        ("not_available", "operator", FREE_IT),
        ("unknown_error", "operator", FREE_IT),
    ],
)
def test_a_card_that_could_not_be_read_is_not_free(reason: str, needs: str, remedy: str) -> None:
    unknown = card(1, None, "unknown", error={"reason": reason, "text": "[said so]"})
    assert judge(reading(unknown)) == (
        "gpus_not_free",
        needs,
        f"GPU 1 could not be read ([said so]), and unknown is not free. {remedy}",
    )


def test_a_card_without_an_index_is_named_by_its_place() -> None:
    assert judge(reading(card(None, None, "unknown")))[2].startswith("GPU 0000:0f:00.0 could not be read (no value)")


def test_a_missing_card_is_not_free() -> None:
    idle = reading(card(1, 3, "idle"), all_idle=False)
    failure = {"msg": "Expected 8 GPUs, but only 7 could be read.", "reason": "gpus_missing", "missing_indices": [7]}
    assert judge(idle, failure=failure) == (
        "gpus_not_free",
        "operator",
        "The cards could not be read, and unknown is not free: Expected 8 GPUs, but only 7 could be read.",
    )
    found = verdict(reading=idle, failure=failure)
    assert found is not None
    assert [(one["index"], one["verdict"]) for one in found["cards_not_free"]] == [(7, "unknown")]


def test_a_survivor_in_uninterruptible_sleep_needs_a_reboot() -> None:
    stuck = held("uninterruptible", state="D", wchan="nvidia_close", vmid=129)
    assert judge(BUSY, reclaim={"survivors": [stuck]}) == (
        "gpus_not_free",
        "reboot",
        "GPU 1 holds 76115 MiB: 4242 (pt_main_thread, state D, asleep in nvidia_close, container 129) sleeps in the "
        f"kernel and cannot be ended, not even by SIGKILL. {REBOOT_IT}",
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("zombie", "has a dead first thread and living others, and did not end"),
        ("permission", "may not be signalled by this account"),
        ("timeout", "did not end within the time limit"),
        ("frozen", "is in a frozen container and acts on no signal until that is thawed (a backup freezes it)"),
    ],
)
def test_another_survivor_needs_an_operator(reason: str, words: str) -> None:
    outcome = judge(BUSY, reclaim={"survivors": [held(reason)]})
    assert outcome == ("gpus_not_free", "operator", f"GPU 1 holds 76115 MiB: 4242 (pt_main_thread) {words}. {FREE_IT}")


def test_whoever_took_the_card_again_is_named_with_its_unit() -> None:
    newcomer = held("respawned", unit="sglang-kimi.service")
    reason = judge(BUSY, reclaim={"respawned": [newcomer]})[2]
    assert "4242 (pt_main_thread, unit sglang-kimi.service) was started again." in reason


def test_a_neighbour_who_was_spared_is_named_as_what_holds_the_card() -> None:
    neighbour = held("other_container", name="python3", vmid=130)
    assert judge(BUSY, reclaim={"spared": [neighbour]}) == (
        "gpus_not_free",
        "operator",
        "GPU 1 holds 76115 MiB: 4242 (python3, container 130) was spared, since it is not in the container that is "
        f"restarted. {FREE_IT}",
    )


def test_a_neighbour_is_blamed_even_where_the_driver_does_not_list_it() -> None:
    """Else a leak would be assumed, and a reset hit him."""
    assert judge(BUSY, reclaim={"spared": [held("other_container", evidence=["fd"])]})[1] == "operator"


@pytest.mark.parametrize("reason", ["init", "ourselves", "kernel_thread", "protected"])
def test_whoever_was_spared_and_has_memory_is_named(reason: str) -> None:
    outcome, needs, sentence = judge(BUSY, reclaim={"spared": [held(reason)]})
    assert (outcome, needs) == ("gpus_not_free", "operator")
    assert "4242 (pt_main_thread) was spared, since it " in sentence


def test_the_first_process_of_a_container_is_not_ended_and_the_container_must_be_restarted() -> None:
    """A server that Docker runs on the machine itself is one."""
    found = judge(BUSY, reclaim={"spared": [held("container_init", name="python3")]})
    assert found[:2] == ("gpus_not_free", "container_restart")
    assert "it is the first process of its container, which would go down with it" in found[2]
    neighbour = held("other_container", 4243)
    assert judge(BUSY, reclaim={"spared": [held("container_init"), neighbour]})[1] == "operator"


def test_one_on_another_card_explains_nothing_about_this_one() -> None:
    other = held("other_container", gpus=[0])
    assert judge(BUSY, reclaim={"spared": [other], "survivors": [held("timeout", gpus=[0])]})[1] == "gpu_reset"


LEAK = f"GPU 1 holds 76115 MiB and no process holds it: the driver leaked it. {RESET_IT}"


def test_memory_that_nobody_holds_is_a_leak() -> None:
    assert judge(BUSY) == ("gpus_not_free", "gpu_reset", LEAK)


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("monitor", "nvtop"),
        ("computes_elsewhere", "python3"),
        ("protected", "nvidia-persiste"),
        ("protected", "nv-hostengine"),
        ("protected", "nv-fabricmanage"),
        ("protected", "dcgm-exporter"),
    ],
)
def test_whoever_merely_has_the_card_open_does_not_hide_a_leak(reason: str, name: str) -> None:
    watcher = held(reason, name=name, evidence=["fd"])
    outcome, needs, sentence = judge(BUSY, reclaim={"spared": [watcher]})
    assert (outcome, needs) == ("gpus_not_free", "gpu_reset")
    assert "no process holds it: the driver leaked it." in sentence


@pytest.mark.parametrize(
    ("name", "evidence"), [("nvidia-cuda-mps", ["driver", "fd"]), ("Xorg", ["fd"]), ("gnome-shell", ["fd"])]
)
def test_a_protected_process_that_may_have_memory_is_named(name: str, evidence: list[str]) -> None:
    protected = held("protected", name=name, evidence=evidence)
    _outcome, needs, reason = judge(BUSY, reclaim={"spared": [protected]})
    assert needs == "operator"
    assert f"4242 ({name}) was spared, since it is protected." in reason


@pytest.mark.parametrize(("used", "hinted"), [(1023, True), (101, True), (1024, False), (76115, False)])
def test_a_small_leak_may_be_what_an_idle_card_shows(used: int, hinted: bool) -> None:
    outcome, needs, reason = judge(reading(card(1, used)))
    assert (outcome, needs) == ("gpus_not_free", "gpu_reset")
    assert ("raise verified_restart_idle_memory_mib" in reason) is hinted


def test_holders_that_the_driver_lists_are_named() -> None:
    busy = reading(card(processes=[process(11, "python3"), process(12, None, state=None)]))
    assert judge(busy) == (
        "gpus_not_free",
        "operator",
        f"GPU 1 holds 76115 MiB: 11 (python3) holds it; 12 (unknown) holds it. {FREE_IT}",
    )


def test_a_listed_holder_that_the_reclaim_saw_go_is_not_blamed() -> None:
    busy = reading(card(processes=[process(11), process(12)]))
    assert judge(busy, reclaim={"terminated": [process(11)], "killed": [process(12)]})[1] == "gpu_reset"


def test_a_card_whose_holders_could_not_be_read_is_no_leak() -> None:
    assert judge(reading(card(processes=None))) == (
        "gpus_not_free",
        "operator",
        f"GPU 1 holds 76115 MiB, and who holds it could not be read. {FREE_IT}",
    )


def test_the_gravest_need_of_several_cards_is_the_need() -> None:
    cards = [card(1), card(2, processes=[process(11)]), card(3)]
    stuck = held("uninterruptible", gpus=[3], state="D")
    outcome, needs, reason = judge(reading(*cards), reclaim={"survivors": [stuck]})
    assert (outcome, needs) == ("gpus_not_free", "reboot")
    assert all(f"GPU {index} holds" in reason for index in (1, 2, 3))
    assert reason.endswith(REMEDY + "reboot the node; free the card, then run this again.")
    found = verdict(reading=reading(*cards), reclaim=looked(survivors=[stuck]))
    assert found is not None
    assert [one["verdict"] for one in found["cards_not_free"]] == ["no_holder", "held", "unkillable"]


def test_eight_cards_in_one_hand_are_eight_sentences_and_one_remedy() -> None:
    neighbour = held("other_container", gpus=list(range(8)))
    eight = reading(*(card(index) for index in range(8)))
    found = verdict(reading=eight, reclaim={"gpus": list(range(8)), "scan_complete": True, "spared": [neighbour]})
    assert found is not None
    assert [found["reason"].count(words) for words in ("was spared", "The server was not started")] == [8, 1]
    assert len(found["cards_not_free"]) == 8


def test_busy_is_no_trouble_before_the_ladder_and_unreadable_is() -> None:
    assert reading_verdict(BUSY) is None
    assert reading_verdict(IDLE) is None
    lost = reading(card(1, None, "unknown", error={"reason": "gpu_lost", "text": "GPU is lost"}), card(2))
    found = reading_verdict(lost)
    assert found is not None
    assert (found["outcome"], found["needs"]) == ("refused", "reboot")
    assert found["reason"] == "GPU 1 could not be read (GPU is lost), and unknown is not free."
    assert [(one["index"], one["verdict"]) for one in found["cards_not_free"]] == [(1, "unknown")]


@pytest.mark.parametrize(
    ("failure", "needs", "indices"),
    [
        ({"msg": "Expected 9.", "reason": "gpus_missing", "missing_indices": [8]}, "operator", [8]),
        ({"msg": "Too slow.", "reason": "timeout", "unkillable": False}, "operator", []),
        ({"msg": "Hangs.", "reason": "timeout", "unkillable": True}, "reboot", []),
        ({"msg": "Not loaded.", "reason": "driver_not_loaded"}, "operator", []),
        ({"msg": "Unreachable.", "unreachable": True}, "operator", []),
    ],
)
def test_a_reading_that_failed_is_told_in_its_own_words(
    failure: dict[str, Any], needs: str, indices: list[int]
) -> None:
    for seen in (None, {}, BUSY):
        found = reading_verdict(seen, failure)
        assert found is not None
        assert (found["outcome"], found["needs"], failure["msg"] in found["reason"]) == ("refused", needs, True)
        assert [one["index"] for one in found["cards_not_free"]] == (indices if seen is BUSY else [])


def test_a_survivor_of_the_old_server_refuses_the_start_although_the_cards_are_free() -> None:
    stuck = process(state="D", reason="uninterruptible", wchan="nfs_wait")
    assert judge(IDLE, kill={"survivors": [stuck]}) == (
        "refused",
        "reboot",
        "The cards are free, but 4242 (pt_main_thread, state D, asleep in nfs_wait) of the old server sleeps in the "
        "kernel and cannot be ended, not even by SIGKILL, and might answer in its place. The server was not started.",
    )
    assert judge(IDLE, kill={"survivors": [process(reason="timeout")]})[:2] == ("refused", "operator")


def test_busy_cards_come_before_survivors_of_the_kill() -> None:
    assert judge(BUSY, kill={"survivors": [process(reason="timeout")]})[0] == "gpus_not_free"


@pytest.mark.parametrize("kill", [{}, {"respawned": []}, {"respawned": None}])
def test_nobody_came_back(kill: dict[str, Any]) -> None:
    assert respawn_verdict(kill) is None


def started_by(unit: Optional[str] = None, pid: int = 7, name: str = "supervisord") -> dict[str, Any]:
    return {"started_by": {**process(pid, name, unit=unit), "kind": "process" if unit is None else "unit"}}


def test_whoever_came_back_is_named_with_the_unit_to_stop() -> None:
    unit = "sglang-kimi.service"
    kill = {"respawned": [process(11, "python3", unit=unit, reason="respawned", **started_by(unit))]}
    assert respawn_verdict(kill) == {
        "outcome": "refused",
        "needs": "operator",
        "reason": "What was killed was started again: 11 (python3, unit sglang-kimi.service). Unit sglang-kimi.service "
        "starts it: name it in verified_restart_service, so that it is stopped first.",
    }


def test_without_a_unit_the_parent_is_named() -> None:
    kill = {"respawned": [process(11, "python3", unit="supervisor.service", **started_by())]}
    found = respawn_verdict(kill)
    assert found is not None
    assert found["reason"].endswith("unit supervisor.service). Its parent is 7 (supervisord): stop that first.")


def test_many_who_came_back_are_counted_and_their_starters_named_once() -> None:
    units = ["b.service", "a.service"] * 3
    kill = {"respawned": [process(pid, "w", unit=unit, **started_by(unit)) for pid, unit in enumerate(units)]}
    found = respawn_verdict(kill)
    assert found is not None
    assert " and 3 more. Unit a.service, b.service starts it" in found["reason"]


def test_one_that_is_only_known_inside_is_named_by_its_pid_there() -> None:
    found = respawn_verdict({"respawned": [process(None, "w", container_pid=312)]})
    assert found is not None
    assert "312 inside (w). Its parent is unknown" in found["reason"]
