"""What the playbook makes of each other state of the world."""

from __future__ import annotations

import os

import pytest

from tests.integration.conftest import HAS_LXC, MakeLab
from tests.integration.play import alive, play
from tests.integration.test_incident import server_pids, used


def test_a_worker_under_its_own_name_is_killed_by_the_patterns_alone(make_lab: MakeLab) -> None:
    played = play(make_lab("renamed-worker"))
    assert played.result is not None, played.output
    assert played.result["outcome"] == "healthy"
    assert played.rungs == ["detect", "stop", "kill", "verify", "start", "prove"]


def test_a_healthy_server_is_left_alone_and_restarted_when_forced(make_lab: MakeLab) -> None:
    lab = make_lab("healthy")
    before = server_pids(lab)
    left = play(lab)
    assert left.result is not None, left.output
    assert (left.rc, left.result["outcome"], left.changed) == (0, "not_needed", 0)
    assert server_pids(lab) == before

    forced = play(lab, verified_restart_force=True)
    assert forced.result is not None, forced.output
    assert (forced.rc, forced.result["outcome"]) == (0, "healthy")
    # All but the containers' own processes are new.
    assert len(server_pids(lab) - before) >= 9


def test_a_stopped_server_on_idle_cards_is_started(make_lab: MakeLab) -> None:
    played = play(make_lab("dead"))
    assert played.result is not None, played.output
    assert played.result["outcome"] == "healthy"
    assert "reclaim" not in played.rungs


def test_a_driver_that_gives_memory_back_late_is_waited_for_and_nobody_is_reclaimed(make_lab: MakeLab) -> None:
    played = play(make_lab("slow-release"), verified_restart_verify_delay=1)
    assert played.result is not None, played.output
    assert played.result["outcome"] == "healthy"
    assert "reclaim" not in played.rungs


def test_leaked_memory_needs_a_reset_and_the_server_is_not_started(make_lab: MakeLab) -> None:
    lab = make_lab("leak")
    played = play(lab, verified_restart_verify_retries=1, verified_restart_verify_delay=1)
    assert played.result is not None, played.output
    assert played.rc != 0
    assert (played.result["outcome"], played.result["needs"]) == ("gpus_not_free", "gpu_reset")
    assert "GPU 1 holds 76115 MiB and no process holds it" in played.result["reason"]
    assert "start" not in played.rungs
    assert not lab.status()["server"]["reachable"]
    assert played.result["reason"].split(".")[0] in " ".join(played.output.split())


def test_a_unit_that_restarts_its_server_is_stopped_first(make_lab: MakeLab) -> None:
    played = play(make_lab("respawn"))
    assert played.result is not None, played.output
    assert (played.rc, played.result["outcome"]) == (0, "healthy")
    assert played.result["killed"]["respawned"] == []


def test_a_unit_that_the_role_does_not_know_is_named_when_it_respawns_the_server(make_lab: MakeLab) -> None:
    played = play(make_lab("respawn-unknown-unit"))
    assert played.result is not None, played.output
    assert played.rc != 0
    assert (played.result["outcome"], played.result["needs"]) == ("refused", "operator")
    # Without a cgroup of its own there is no unit to be seen, only the parent.
    assert ("Unit sglang-kimi.service starts it" if HAS_LXC else "Its parent is") in played.result["reason"]
    assert "start" not in played.rungs


def test_a_neighbours_process_lives_on_and_is_named(make_lab: MakeLab) -> None:
    lab = make_lab("neighbour")
    holders = lab.status()["cards"][1]["holders"]
    [neighbour] = [holder for holder in holders if holder["name"].startswith("python3 fine")]
    played = play(lab)
    assert played.result is not None, played.output
    assert played.rc != 0
    assert (played.result["outcome"], played.result["needs"]) == ("gpus_not_free", "operator")
    assert f"GPU 1 holds 76115 MiB: {neighbour['pid']} (" in played.result["reason"]
    assert alive(neighbour["pid"])
    if HAS_LXC:
        assert "container 130" in played.result["reason"]


def test_a_monitor_lives_on(make_lab: MakeLab) -> None:
    lab = make_lab("monitor")
    monitors = [one["pid"] for one in lab.status()["processes"] if one["name"] == "nvtop"]
    assert monitors
    played = play(lab)
    assert played.result is not None, played.output
    assert (played.rc, played.result["outcome"]) == (0, "healthy")
    assert all(alive(pid) for pid in monitors)
    assert used(lab) == lab.status()["server"]["expected_mib"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a frozen file system needs root")
def test_a_process_in_uninterruptible_sleep_is_named_with_where_it_sleeps(make_lab: MakeLab) -> None:
    lab = make_lab("d-state")
    played = play(lab, verified_restart_kill_timeout=2)
    assert played.result is not None, played.output
    assert played.rc != 0
    assert (played.result["outcome"], played.result["needs"]) == ("gpus_not_free", "reboot")
    [survivor] = played.result["reclaimed"]["survivors"]
    assert survivor["state"] == "D"
    assert survivor["wchan"]
    assert survivor["reason"] == "uninterruptible"
    assert f"{survivor['pid']} (" in played.result["reason"]
    assert "state D" in played.result["reason"]
    assert survivor["wchan"] in played.result["reason"]
    assert "start" not in played.rungs
