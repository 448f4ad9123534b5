"""What makes the role refuse before anything is touched: one clear sentence, outcome `refused`, nothing changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import standing_lab
from tests.integration.play import play
from tests.integration.test_incident import server_pids
from tests.lab.lab import Lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab whose server is down, so that detect is quick and a restart is wanted."""
    with standing_lab("dead") as dead:
        yield dead


REFUSALS: dict[str, tuple[dict[str, Any], str | None, list[str]]] = {
    "a unit that is not there": (
        {"verified_restart_service": "no-such.service"},
        None,
        ["There is no systemd unit no-such.service", "Correct verified_restart_service"],
    ),
    "no way to start": ({"verified_restart_service": ""}, None, ["not known how to start it", "start_command"]),
    "a container that does not run": (
        {"verified_restart_vmid": 131},
        None,
        ["Container 131 is stopped", "pct start 131"],
    ),
    "a container that is not here": ({"verified_restart_vmid": 105}, None, ["no container 105 on this node"]),
    "a pattern that is no regular expression": (
        {"verified_restart_kill_patterns": ["sglang("]},
        None,
        ["invalid regular expression"],
    ),
    "more cards than there are": ({"verified_restart_expected_gpus": 9}, None, ["Expected 9 GPUs, but only 8"]),
    "a card that is not there": ({"verified_restart_gpus": ["9"]}, None, ["GPU 9"]),
    "a driver that hangs": ({"verified_restart_driver_timeout": 1}, "hang", ["within 1 s", "nothing was touched"]),
    "a driver that is not loaded": ({}, "no_driver", ["nothing was touched"]),
    "a driver that prints garbage": ({}, "garbage", ["nothing was touched"]),
    "a node that cannot be reached": (
        {"verified_restart_node": "no-such-node.invalid"},
        None,
        ["cannot all be read", "nothing was touched"],
    ),
    "a lost card": ({}, "lost:3", ["GPU", "3", "nothing was touched"]),
    "a card that is lost while it is read": (
        {"verified_restart_expected_gpus": None},
        "lost_row:3",
        ["nothing was touched"],
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_the_role_refuses(lab: Lab, name: str) -> None:
    variables, fault, said = REFUSALS[name]
    before = server_pids(lab)
    faults = lab.state / "faults.json"
    faults.write_text(json.dumps({"nvidia_smi": fault}), encoding="utf-8")
    try:
        played = play(lab, **variables)
    finally:
        faults.write_text(json.dumps({"nvidia_smi": None}), encoding="utf-8")
    assert played.rc != 0
    assert played.result is not None, played.output
    needs = "reboot" if fault is not None and fault.startswith("lost") else "operator"
    assert (played.result["outcome"], played.result["needs"]) == ("refused", needs), played.result["reason"]
    for words in said:
        assert words in played.result["reason"]
    assert played.result["changed"] is False
    assert played.changed == 0
    assert played.rungs == ["detect"]
    assert server_pids(lab) == before


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"verified_restart_node": "kimi"}, "verified_restart_node must be the inventory name of the Proxmox node"),
        ({"verified_restart_kill_patterns": []}, "verified_restart_kill_patterns is empty"),
        ({"verified_restart_health_timeout": 20}, "Give more than 20"),
        ({"verified_restart_verify_retries": 0}, "must be 1 or more"),
        ({"verified_restart_engine": "triton"}, "must be one of: sglang, vllm, llamacpp, openai"),
        ({"verified_restart_url": "not a url"}, "A server asked there would always seem hung"),
        ({"verified_restart_gpus": []}, "Name at least one card"),
        ({"verified_restart_expected_gpus": 0}, "Name at least one card"),
        ({"verified_restart_vmid": "abc"}, "verified_restart_vmid"),
    ],
)
def test_variables_that_cannot_be_meant_fail_the_play_at_once(lab: Lab, variables: dict[str, Any], said: str) -> None:
    played = play(lab, **variables)
    assert played.rc != 0
    assert said in " ".join(played.output.split())
    assert played.changed == 0
    # What the argument specification refuses does not even reach the role's first task.
    if played.result is not None:
        assert played.result["outcome"] == "refused"
        assert said in played.result["reason"]


def test_a_report_that_cannot_be_written_does_not_hide_how_it_ended(lab: Lab) -> None:
    played = play(lab, verified_restart_report_dir="/proc/nowhere", verified_restart_service="no-such.service")
    assert played.rc != 0
    said = " ".join(played.output.split())
    assert "The result was not written to /proc/nowhere" in said
    assert "refused: There is no systemd unit no-such.service" in said


def test_variables_may_come_from_the_command_line_as_text(lab: Lab) -> None:
    text = ["force=true", "expected_gpus=8", "idle_memory_mib=100", "vmid=129", "stop_retries=3", "verify_delay=1"]
    options = [word for one in text for word in ("-e", f"verified_restart_{one}")]
    played = play(lab, "--check", *options)
    assert played.rc == 0, played.output
    assert "Would stop sglang-kimi.service" in " ".join(played.output.split())
