"""What the playbook makes of each other state of the world."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import HAS_LXC, SEES_ALL, MakeLab
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


# Memory that never goes needs no long wait, and a busy machine a driver that may take its time.
SOON: dict[str, Any] = {
    "verified_restart_verify_retries": 1,
    "verified_restart_verify_delay": 1,
    "verified_restart_driver_timeout": 60,
}


@pytest.mark.alone
def test_leaked_memory_needs_a_reset_and_a_reset_that_is_allowed_cures_it(make_lab: MakeLab) -> None:
    lab = make_lab("leak")
    played = play(lab, **SOON)
    assert played.result is not None, played.output
    assert played.rc != 0
    assert played.result["outcome"] == "gpus_not_free"
    assert "GPU 1 holds 76115 MiB and no process " in played.result["reason"]
    assert "start" not in played.rungs
    assert not lab.status()["server"]["reachable"]
    assert played.result["reason"].split(".")[0] in " ".join(played.output.split())
    [card] = played.result["cards_not_free"]
    if not SEES_ALL:
        assert (card["verdict"], played.result["needs"]) == ("holder_unknown", card["needs"])
        return
    assert (card["index"], card["verdict"], card["needs"], card["holders"]) == (1, "no_holder", "gpu_reset", [])
    assert played.result["needs"] == "gpu_reset"

    cured = play(lab, verified_restart_allow_gpu_reset=True, **SOON)
    assert cured.result is not None, cured.output
    assert (cured.rc, cured.result["outcome"], cured.result["reset"]) == (0, "healthy", [1])
    # The container was emptied by the first play, so that there is nothing left to kill.
    assert cured.rungs == [
        "detect",
        "stop",
        "kill",
        "verify",
        "reclaim",
        "verify",
        "gpu_reset",
        "verify",
        "start",
        "prove",
    ]
    assert cured.cards_after("verify", 1)[1] == 76115
    assert cured.cards_after("verify", 2)[1] == 39
    assert used(lab) == lab.status()["server"]["expected_mib"]
    assert cured.result["cards_not_free"] == []


@pytest.mark.root
@pytest.mark.alone
@pytest.mark.skipif(not SEES_ALL, reason="a reset needs root, in the machine's own pid namespace")
def test_a_reset_that_frees_nothing_needs_a_reboot(make_lab: MakeLab) -> None:
    lab = make_lab("leak")
    (lab.state / "faults.json").write_text('{"nvidia_smi": "reset_useless"}', encoding="utf-8")
    played = play(lab, verified_restart_allow_gpu_reset=True, **SOON)
    assert played.result is not None, played.output
    assert played.rc != 0
    assert (played.result["outcome"], played.result["needs"]) == ("gpus_not_free", "reboot")
    assert "GPU 1 holds 76115 MiB and no process holds it, and a reset did not free it." in played.result["reason"]
    assert played.rungs[-3:] == ["verify", "gpu_reset", "verify"]
    assert "start" not in played.rungs


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


def test_a_supervisor_is_named_by_its_process_when_it_starts_the_server_again(make_lab: MakeLab) -> None:
    lab = make_lab("supervisor")
    [supervisor] = [one["pid"] for one in lab.status()["processes"] if one["name"] == "supervisord"]
    played = play(lab)
    assert played.result is not None, played.output
    assert played.rc != 0
    assert (played.result["outcome"], played.result["needs"]) == ("refused", "operator")
    assert f"Its parent is {supervisor} (supervisord" in played.result["reason"]
    assert "start" not in played.rungs
    assert alive(supervisor)


def test_a_fork_storm_is_ended_with_all_its_children_and_the_server_starts(make_lab: MakeLab) -> None:
    lab = make_lab("fork-storm")
    storm = [one for one in lab.status()["processes"] if one["command"] == "sglang::scheduler_TP1"]
    assert len(storm) > 3
    played = play(lab)
    assert played.result is not None, played.output
    assert (played.rc, played.result["outcome"]) == (0, "healthy")
    assert played.result["killed"]["respawned"] == []
    assert "reclaim" not in played.rungs
    assert used(lab) == lab.status()["server"]["expected_mib"]


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


def test_a_stranger_on_the_port_is_named_and_the_server_is_not_started(make_lab: MakeLab) -> None:
    lab = make_lab("port-taken")
    [stranger] = [one for one in lab.status()["processes"] if "http.server" in one["command"]]
    played = play(lab)
    assert played.result is not None, played.output
    assert played.rc != 0
    assert (played.result["outcome"], played.result["needs"]) == ("refused", "operator")
    assert f"{stranger['pid']} (" in played.result["reason"]
    assert "listens on 127.0.0.1:" in played.result["reason"]
    assert "was not started" in played.result["reason"]
    assert alive(stranger["pid"])
    assert max(used(lab)) <= 51
    assert lab.status()["server"]["pids"] == []
    # What the dead left is reported, and nothing is removed unasked.
    assert played.result["leftovers"]["stale"]
    assert played.result["leftovers"]["removed"] == []
    assert "verified_restart_clean_shm" in played.result["leftovers"]["said"]


def test_the_memory_of_the_dead_is_removed_and_that_of_the_living_is_kept(make_lab: MakeLab) -> None:
    lab = make_lab("stale-shm")
    [init] = [one["init_pid"] for one in lab.status()["containers"] if one["vmid"] == 129]
    before = {path.name for path in Path(f"/proc/{init}/root/dev/shm").iterdir()}
    played = play(lab)
    assert played.result is not None, played.output
    assert (played.rc, played.result["outcome"]) == (0, "healthy")
    found = played.result["leftovers"]
    kept = {one["name"]: one["reason"] for one in found["kept"]}
    [named] = [name for name in kept if name != "psm_11fe11fe"]
    assert kept == {"psm_11fe11fe": "in_use", named: "owner_alive"}
    assert named.startswith("multi_tokenizer_args_")
    assert set(found["removed"]) == before - set(kept)
    after = {path.name for path in Path(f"/proc/{init}/root/dev/shm").iterdir()}
    # The new server has made its own, under names of its own.
    assert after & before == set(kept)


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
