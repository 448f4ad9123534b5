"""The incident, from the zombie server to the proof, in LXC where it is there; in namespaces, test_soak.py cures it."""

from __future__ import annotations

import json

from tests.integration.conftest import MakeLab
from tests.integration.play import Played, play
from tests.lab.lab import Lab


def used(lab: Lab) -> list[int]:
    """MiB on each card, by the lab's own road."""
    return [card["memory_used_mib"] for card in lab.status()["cards"]]


def server_pids(lab: Lab) -> set[tuple[int, int]]:
    """Identities of everything in container 129."""
    return {
        (process["pid"], process["start_time"])
        for process in lab.status()["processes"]
        if process["container_vmid"] == 129
    }


def test_check_mode_shows_the_plan_and_touches_nothing_then_the_incident_is_cured_and_a_second_run_changes_nothing(
    make_lab: MakeLab,
) -> None:
    lab = make_lab("incident")
    before = server_pids(lab)
    assert used(lab)[1] == 76115

    dry = play(lab, "--check")
    assert dry.rc == 0, dry.output
    assert "Would stop sglang-kimi.service, kill 9 processes in container 129" in " ".join(dry.output.split())
    assert server_pids(lab) == before

    cured = play(lab)
    assert_cured(cured)
    assert_heard(lab, before)
    after = lab.status()
    assert after["server"]["reachable"]
    assert used(lab) == after["server"]["expected_mib"]

    again = play(lab)
    assert again.rc == 0, again.output
    assert again.result is not None
    assert again.result["outcome"] == "not_needed"
    assert again.changed == 0
    assert again.rungs == ["detect"]


def assert_heard(lab: Lab, before: set[tuple[int, int]]) -> None:
    """The only witnesses told what they knew before they were ended."""
    evidence = json.loads((lab.state / "report" / "evidence" / "kimi.json").read_text(encoding="utf-8"))
    assert (evidence["health"]["verdict"], evidence["unit"]["state"]) == ("hung", "active")
    seen = {process["pid"]: process for process in evidence["processes"]}
    assert {pid for pid, _start in before} <= set(seen)
    assert "pt_main_thread" in {process["name"] for process in seen.values()}
    assert all(process["threads"] for process in seen.values())
    assert evidence["cards"]["gpus"][1]["memory_used_mib"] == 76115
    assert any("64/64" in line for line in evidence["log"])


def assert_cured(cured: Played) -> None:
    assert cured.rc == 0, cured.output
    assert cured.result is not None
    assert cured.result["outcome"] == "healthy"
    assert cured.result["needs"] is None
    assert cured.rungs == ["detect", "stop", "kill", "verify", "reclaim", "verify", "start", "prove"]
    after_kill = cured.cards_after("verify", 0)
    assert after_kill[1] == 76115
    assert max(mib for index, mib in enumerate(after_kill) if index != 1) <= 51
    assert max(cured.cards_after("verify", 1)) <= 51
    assert [one["name"] for one in cured.result["reclaimed"]["killed"]] == ["pt_main_thread"]
    # Each of the eight dead ranks left one; nobody allowed to remove them.
    left = cured.result["leftovers"]
    assert len([name for name in left["stale"] if name.startswith("sgl_shm_mm_")]) == 8
    assert (left["removed"], left["listeners"]) == ([], [])
