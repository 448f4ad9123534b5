# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each card that is not free has exactly one verdict, and memory without a holder is only said where all were seen."""

from __future__ import annotations

import itertools
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._verdict import verdict
from tests.unit.verdicts import card, held, looked, process, reading

BUSY = reading(card())
NEEDS = {
    "held": {"operator", "container_restart"},
    "unkillable": {"reboot"},
    "no_holder": {"gpu_reset", "reboot"},
    "holder_unknown": {"operator", "container_restart"},
    "unknown": {"operator", "gpu_reset", "reboot"},
}


def the_card(reading: Any, **more: Any) -> dict[str, Any]:
    """The verdict on the one card that is not free."""
    found = verdict(reading=reading, **more)
    assert found is not None
    [one] = found["cards_not_free"]
    assert set(one) == {
        *("index", "pci_bus_id", "memory_used_mib", "verdict", "needs", "sentence", "holders", "bystanders"),
    }
    assert one["sentence"] in found["reason"]
    assert found["needs"] == one["needs"]
    assert one["needs"] in NEEDS[one["verdict"]]
    return dict(one)


SPARED = [None, "other_container", "protected", "monitor", "outside_namespace"]
LEFT = [None, "uninterruptible", "timeout"]
LISTED = [None, [], [process(11)], [process(11, visible=False)]]
LOOKS = [{}, {"gpus": [1], "scan_complete": False}, looked()]


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize("invalid_pids", [0, 2])
@pytest.mark.parametrize("look", LOOKS)
def test_the_table(host: bool, invalid_pids: int, look: dict[str, Any]) -> None:
    """Every combination, and what must be true of each; written without regard to how the code decides."""
    for spared, left, listed, vmid in itertools.product(SPARED, LEFT, LISTED, [None, 129]):
        found = the_card(
            {**reading(card(processes=listed)), "host_pid_namespace": host, "invalid_pids": invalid_pids},
            kill={"vmid": vmid} if vmid else {},
            reclaim={
                **look,
                "spared": [held(spared, 20, None if spared == "outside_namespace" else "x")] if spared else [],
                "survivors": [held(left, 30)] if left else [],
            },
        )
        stale = host and spared == "outside_namespace"
        holders = {
            *({20} if spared not in (None, "monitor") and not stale else ()),
            *({30} if left else ()),
            *({11} if listed and (listed[0]["visible"] or not host) else ()),
        }
        assert {one["pid"] for one in found["holders"]} == holders
        if left == "uninterruptible":
            expected = "unkillable"
        elif holders:
            expected = "held"
        elif host and not invalid_pids and listed is not None and look.get("scan_complete"):
            expected = "no_holder"
        else:
            expected = "holder_unknown"
        assert found["verdict"] == expected
        assert (found["needs"] == "container_restart") <= (vmid is not None)
        assert [one["pid"] for one in found["bystanders"]] == ([20] if spared == "monitor" else [])
        assert all(f"{pid} (" in found["sentence"] for pid in holders)
        assert found["sentence"].startswith("GPU 1 holds 76115 MiB")


WHY: dict[str, tuple[dict[str, Any], dict[str, Any], bool, str]] = {
    # why a holder may be overlooked: (reading, reclaim, whether a restart of the container may help, what is said)
    "nobody looked": ({}, {}, False, "nobody has looked who holds it"),
    "the card got busy later": ({}, {"gpus": [0], "scan_complete": True}, False, "nobody has looked who holds it"),
    "some could not be looked into": ({}, {"gpus": [1]}, True, "Others could not be: run this as root"),
    "the driver lists what is no process": ({"invalid_pids": 2}, looked(), True, "but the driver lists 2 that"),
    "from inside a container": ({"host_pid_namespace": False}, looked(), False, "let verified_restart_node name"),
    "the driver lists nothing": ({"gpus": [card(processes=None)]}, looked(), False, "holds it could not be read"),
}


@pytest.mark.parametrize("why", WHY)
@pytest.mark.parametrize("vmid", [None, 129])
def test_where_a_holder_may_have_been_overlooked_it_is_said_why(why: str, vmid: Optional[int]) -> None:
    more, reclaim, container_may_help, words = WHY[why]
    kill = {} if vmid is None else {"vmid": vmid}
    found = the_card({**BUSY, **more}, reclaim=reclaim, kill=kill)
    needs = "container_restart" if container_may_help and vmid is not None else "operator"
    assert (found["verdict"], found["needs"]) == ("holder_unknown", needs)
    assert words in found["sentence"]


def test_a_card_that_cannot_be_read_has_no_memory_and_no_holders() -> None:
    lost = card(1, 3, "unknown", error={"reason": "gpu_lost", "text": "GPU is lost"})
    found = the_card(reading(lost), reclaim=looked(spared=[held("other_container")]))
    assert (found["verdict"], found["needs"], found["memory_used_mib"]) == ("unknown", "reboot", None)
    assert found["holders"] == []


def test_one_that_the_kill_could_not_end_is_known_again_on_the_driver_s_list() -> None:
    """It is being torn down: it has no handle any more, so that the reclaim does not find it."""
    stuck = process(state="D", reason="uninterruptible", wchan="nvidia_close")
    found = the_card(reading(card(processes=[process(state="D")])), kill={"survivors": [stuck]}, reclaim=looked())
    assert found["verdict"] == "unkillable"
    assert "4242 (pt_main_thread, state D, asleep in nvidia_close) sleeps in the kernel" in found["sentence"]


def test_one_in_state_d_that_has_no_handle_left_is_being_torn_down_and_cannot_be_ended() -> None:
    busy = reading(card(processes=[process(state="D")]))
    assert the_card(busy, reclaim=looked(holders=[]))["verdict"] == "unkillable"
    # One that still has its handles may merely wait for a disk.
    assert the_card(busy, reclaim=looked(holders=[held("listed")]))["verdict"] == "held"


def test_whoever_has_the_card_open_without_memory_must_end_before_a_reset() -> None:
    watcher = held("monitor", name="nvtop", evidence=["fd"], unit="nvtop.service")
    found = the_card(BUSY, reclaim=looked(spared=[watcher]))
    assert (found["verdict"], found["holders"], found["bystanders"]) == ("no_holder", [], [watcher])
    assert "cannot be reset while others have it open: 4242 (nvtop, unit nvtop.service)." in found["sentence"]


@pytest.mark.parametrize("failed", [{}, {"msg": "It says that it was.", "reason": "still_busy"}])
def test_a_reset_that_freed_nothing_needs_a_reboot(failed: dict[str, str]) -> None:
    found = the_card(BUSY, reclaim=looked(), reset={"reset": [1], "changed": True, **failed})
    assert (found["verdict"], found["needs"]) == ("no_holder", "reboot")
    assert found["sentence"] == "GPU 1 holds 76115 MiB and no process holds it, and a reset did not free it."


@pytest.mark.parametrize(
    ("reason", "needs"),
    [
        ("held", "gpu_reset"),
        ("reset_in_use", "gpu_reset"),
        ("holders_unknown", "gpu_reset"),
        ("no_permission", "gpu_reset"),
        ("reset_not_supported", "reboot"),
        ("reset_failed", "reboot"),
        ("gpu_lost", "reboot"),
    ],
)
def test_a_reset_that_was_refused_is_told_with_the_reason(reason: str, needs: str) -> None:
    refused = {"msg": "It was in use.", "reason": reason, "reset": []}
    found = the_card(BUSY, reclaim=looked(), reset=refused)
    assert (found["verdict"], found["needs"]) == ("no_holder", needs)
    assert "the driver leaked it. It could not be reset: It was in use." in found["sentence"]


def test_a_reset_that_hangs_and_cannot_be_killed_needs_a_reboot() -> None:
    hung = {"msg": "No answer.", "reason": "timeout", "unkillable": True}
    assert the_card(BUSY, reclaim=looked(), reset=hung)["needs"] == "reboot"


def test_a_restart_of_the_container_that_did_not_help_is_not_asked_for_again() -> None:
    init = {**looked(), "spared": [held("container_init", name="systemd")]}
    unseen = {**looked(), "scan_complete": False}
    for reclaim in (init, unseen):
        before = the_card(BUSY, kill={"vmid": 129}, reclaim=reclaim)
        after = the_card(BUSY, kill={"vmid": 129}, reclaim=reclaim, container={"changed": True})
        assert (before["needs"], after["needs"]) == ("container_restart", "operator")
    failed = the_card(BUSY, kill={"vmid": 129}, reclaim=init, container={"changed": False, "reason": "ct_locked"})
    assert failed["needs"] == "container_restart"
