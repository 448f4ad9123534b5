"""When the demo believes that the server is well, and when not."""

from __future__ import annotations

from typing import Any

from tests.demo import proof

SERVER_PID = 20
FOREIGN_PID = 99


def status(*, used: int = 76115, holder: int = SERVER_PID, reachable: bool = True) -> dict[str, Any]:
    """What `lab status` says of a host with one card."""
    return {
        "cards": [{"index": 0, "memory_used_mib": used, "holders": [{"pid": holder}]}],
        "server": {"reachable": reachable, "pids": [SERVER_PID], "expected_mib": [76115]},
        "processes": [
            {"pid": SERVER_PID, "start_time": 5, "name": "python3", "container_vmid": 129},
            {"pid": 7, "start_time": 1, "name": "monitor", "container_vmid": None},
        ],
    }


HUNG = status(reachable=False)
WELL = status()


def test_healthy_and_seen_so() -> None:
    assert proof.doubts({"outcome": "healthy"}, HUNG, WELL) == []


def test_not_needed_is_good_only_where_the_server_was_well_at_first() -> None:
    assert proof.doubts({"outcome": "not_needed"}, WELL, WELL) == []
    assert proof.doubts({"outcome": "not_needed"}, HUNG, WELL) == ["The outcome is not_needed, not healthy."]


def test_no_result() -> None:
    assert proof.doubts(None, HUNG, WELL) == ["The playbook wrote no result."]


def test_a_claim_of_health_is_not_enough() -> None:
    result = {"outcome": "healthy"}
    assert "holds 51 MiB" in proof.doubts(result, HUNG, status(used=51))[0]
    assert proof.doubts(result, HUNG, status(holder=FOREIGN_PID)) == ["Card 0 is held, but not by the server."]
    assert proof.doubts(result, HUNG, HUNG) == ["The server does not answer."]
    assert "The lab shows no card." in proof.doubts(result, HUNG, {**WELL, "cards": []})


def test_check_mode_leaves_the_same_processes_and_amounts() -> None:
    assert proof.changes(HUNG, HUNG) == []


def test_another_process_under_the_same_pid_is_a_change() -> None:
    restarted = status()
    restarted["processes"][0]["start_time"] = 6
    assert proof.changes(WELL, restarted) == ["Process 20 (python3) is gone.", "Process 20 (python3) is new."]
    assert proof.changes(WELL, status(used=51)) == ["Card 0 held 76115 MiB, now 51."]


def test_what_runs_on_the_node_does_not_matter() -> None:
    without_monitor = status()
    del without_monitor["processes"][1]
    assert proof.changes(WELL, without_monitor) == []
