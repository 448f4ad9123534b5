"""inference_health_info on the lab's server, run by Ansible in its container: real processes, hung and well."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.integration.conftest import MakeLab
from tests.integration.play import module
from tests.lab import state as lab_state
from tests.lab.lab import Lab
from tests.lab.scenarios import SCENARIOS

KEY = SCENARIOS["api-key"].api_key
WORKERS = {"sglang::detokenizer", *(f"sglang::scheduler_TP{rank}" for rank in range(8))}


def health(lab: Lab, *options: str, **arguments: Any) -> dict[str, Any]:
    """One look from inside the container, with little patience."""
    known = {
        "url": f"http://127.0.0.1:{lab_state.config(str(lab.state))['port']}",
        "timeout": 3,
        "hung_after": 2,
        "samples": 2,
    }
    return module(lab, "kimi", "inference_health_info", {**known, **arguments}, *options)


def verdict(found: dict[str, Any]) -> tuple[str, str]:
    assert not found["failed"], found
    assert not found["changed"]
    return found["verdict"], found["cause"]


def signals(found: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one["value"] for one in found["signals"]}


@contextmanager
def stopped(lab: Lab, command: str) -> Iterator[None]:
    """One process of the server is stopped meanwhile."""
    [pid] = [one["pid"] for one in lab.status()["processes"] if one["command"] == command]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_server_is_healthy_hung_busy_and_healthy_again(make_lab: MakeLab) -> None:
    lab = make_lab("healthy")
    before = lab.status()["server"]["pids"]
    well = health(lab)
    assert verdict(well) == ("healthy", "generates")
    assert (well["engine"], well["version"], well["served_models"]) == ("sglang", "0.5.6", ["Kimi-K2.5"])
    assert well["speculation"] == {"enabled": True, "algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4}
    assert {one["command"] for one in well["processes"] if one["role"] == "worker"} == WORKERS
    assert well["seconds"] < 2

    with stopped(lab, "sglang::scheduler_TP3"):
        for options in ((), ("--check",)):
            hung = health(lab, *options)
            assert verdict(hung) == ("hung", "generation_timeout")
            assert (signals(hung)["models"], signals(hung)["counters"]) == (200, "still")
        assert hung["seconds"] < 3, "it was asked again, although it was known to hang"
    assert verdict(health(lab)) == ("healthy", "generates")

    lab_state.write_json(lab_state.server_manner(str(lab.state)), {"prefill_s": 60})
    busy = health(lab)
    assert verdict(busy) == ("busy", "counters_move")
    assert lab.status()["server"]["pids"] == before


def test_a_hung_engine_behind_a_door_that_answers_is_hung(make_lab: MakeLab) -> None:
    lab = make_lab("hung-engine")
    young = health(lab, log_path=str(lab.server_log))
    assert verdict(young) == ("starting", "young")
    found = health(lab, log_path=str(lab.server_log), stall_after=1)
    assert verdict(found) == ("hung", "generation_timeout")
    assert found["served_models"] == ["Kimi-K2.5"]


def test_the_zombie_of_the_incident_is_hung_and_when_it_is_killed_it_is_not(make_lab: MakeLab) -> None:
    lab = make_lab("incident")
    found = health(lab, engine="sglang", stall_after=1)
    assert verdict(found) == ("hung", "silent")
    assert [one["role"] for one in found["processes"]].count("parent") == 1


def test_a_server_that_loads_is_starting_and_one_that_has_stalled_is_hung(make_lab: MakeLab) -> None:
    lab = make_lab("stalled")
    young = health(lab, log_path=str(lab.server_log))
    assert verdict(young) == ("starting", "young")
    assert "64/64 loaded" in young["reason"]
    time.sleep(1.5)
    stalled = health(lab, log_path=str(lab.server_log), stall_after=1)
    assert verdict(stalled) == ("hung", "stalled")
    assert "64/64 loaded" in stalled["reason"]


def test_a_key_opens_the_server_and_is_in_no_output(make_lab: MakeLab) -> None:
    assert KEY is not None
    lab = make_lab("api-key")
    wrong = "sk-made-up-0001-never-to-be-seen"
    for key, expected in ((KEY, "healthy"), (wrong, "unknown"), (None, "unknown")):
        found = health(lab, "-vvv", **({} if key is None else {"api_key": key}))
        assert found["verdict"] == expected
        assert found["cause"] in ("generates", "unauthorized")
        assert KEY not in str(found)
        assert wrong not in str(found)
        assert "--api-key ********" in found["processes"][0]["command"]


def test_without_processes_and_port_the_server_is_dead(make_lab: MakeLab) -> None:
    lab = make_lab("dead")
    assert verdict(health(lab)) == ("dead", "no_process")
