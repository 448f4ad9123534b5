"""How the wait for a starting server ends, and what the operator sees meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.conftest import MakeLab
from tests.integration.play import ansible, play, run
from tests.tooling.environment import ROOT


def wait(make_lab: MakeLab, scenario: str, *, stall_after: float = 60) -> tuple[dict[str, Any], str]:
    """What the action returned, and what stood on the terminal."""
    lab = make_lab(scenario, container=False)
    output = lab.state / "end.json"
    variables = {"start_wait_output": str(output), "start_wait_stall_after": stall_after}
    playbook = ROOT / "tests" / "integration" / "start_wait.playbook"
    argv = ansible("ansible-playbook", "-i", str(lab.inventory), "-e", json.dumps(variables), str(playbook))
    rc, said = run(argv)
    assert rc == 0, said
    result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return result, said


def test_a_server_that_loads_is_shown_and_ready(make_lab: MakeLab) -> None:
    result, said = wait(make_lab, "dead")
    assert (result["end"], result["state"], result["health_status"]) == ("ready", "ready", 200)
    assert (result["shards_loaded"], result["shards_total"]) == (64, 64)
    assert result["memory_used_mib"][1] == 76115
    lines = [line for line in said.splitlines() if line.startswith("kimi: ")]
    assert "64 of 64 shards, cards " in lines[-1]
    assert "RETRYING" not in said
    # A terminal and AWX's plain log show the same: no control characters.
    assert "\x1b" not in said
    assert "\r" not in said


@pytest.mark.parametrize(
    ("scenario", "cause"),
    [("load-sigbus", "shm_full"), ("load-weights", "weights_missing"), ("load-port", "port_in_use")],
)
def test_a_server_that_ends_while_it_loads_is_seen_at_once_with_the_cause(
    make_lab: MakeLab, scenario: str, cause: str
) -> None:
    result, _said = wait(make_lab, scenario)
    assert (result["end"], result["cause"]) == ("exited", cause), result
    assert f"Likely cause: {cause}" in result["msg"]
    assert result["log_tail"]
    assert result["seconds"] < 60


def test_a_server_that_stands_still_at_the_last_shard_has_stalled(make_lab: MakeLab) -> None:
    result, _said = wait(make_lab, "load-stall", stall_after=10)
    assert (result["end"], result["cause"]) == ("stalled", None), result
    assert (result["shards_loaded"], result["shards_total"]) == (64, 64)
    assert "nothing moved, neither log nor cards; 64 of 64 shards" in result["msg"]


def test_the_play_ends_as_start_failed_and_says_why(make_lab: MakeLab) -> None:
    """For one cause: the play tells on what the action returned, whatever that is."""
    played = play(make_lab("load-oom", container=False))
    assert played.rc != 0
    assert played.result is not None, played.output
    assert (played.result["outcome"], played.result["needs"]) == ("start_failed", "operator")
    assert "The server ended while it started" in played.result["reason"]
    assert "Likely cause: gpu_out_of_memory" in played.result["reason"]
    assert played.rungs[-1] == "start"
