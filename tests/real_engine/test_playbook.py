"""The whole playbook on a real engine, in a real container with systemd, while its processes hold the lab's cards."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import HAS_LXC
from tests.integration.play import Played, alive, play
from tests.lab import state as lab_state
from tests.lab import status, units
from tests.lab.cards import CARDS
from tests.lab.container import VMID, open_container
from tests.lab.lab import Lab
from tests.lab.server import DEVICES_MARK
from tests.lab.state import REPOSITORY
from tests.real_engine import server
from tests.real_engine.server import ENGINE, START_LIMIT_S, WORKER
from tests.tooling.real_engine import RealEngine

pytestmark = [pytest.mark.real_engine, pytest.mark.root, pytest.mark.lxc]

UNIT = "vllm-tiny.service"
PORT = 8000
# Of each card, by each of the two processes that compute.
CLAIM_MIB = 38_000
IDLE = [card.floor_mib for card in CARDS]
LOADED = [floor + 2 * CLAIM_MIB for floor in IDLE]


def unit_text(engine: RealEngine, lab: Lab) -> str:
    """The unit as an operator writes it, with the hook by which its processes hold the cards."""
    variables = {
        **server.environment(engine, Path("/root")),
        "PYTHONPATH": f"{Path(__file__).with_name('card_holder')}:{REPOSITORY}",
        "PYTHONDONTWRITEBYTECODE": "1",
        lab_state.MARK: str(lab.state),
        DEVICES_MARK: "/dev",
        "GPUOPS_CLAIM_MIB": str(CLAIM_MIB),
    }
    command = " ".join(units.quote(word) for word in server.argv(engine, PORT))
    lines = ["[Unit]", "Description=vLLM with a tiny model", "[Service]", f"ExecStart={command}"]
    lines += [f"Environment={units.quote('%s=%s' % item)}" for item in variables.items()]
    lines += [f"StandardOutput=append:{lab.state}/log/vllm.log", "StandardError=inherit"]
    return "\n".join([*lines, "Restart=always", "TimeoutStopSec=60s", ""])


@pytest.fixture
def lab(engine: RealEngine) -> Iterator[Lab]:
    """A node with eight cards and container 129, in which the real engine serves beside the lab's own stopped one."""
    if not HAS_LXC:
        pytest.skip("needs root, lxc and debootstrap")
    # The path is without blanks, since a unit's log file may have none.
    with (
        tempfile.TemporaryDirectory(prefix="gpuops-lab-") as directory,
        Lab(directory, "dead", container=True, shown=engine.shown) as standing,
    ):
        ours = open_container(VMID, standing.state, CARDS, lxc=True)
        ours.install_unit(UNIT, unit_text(engine, standing))
        assert os.spawnvp(os.P_WAIT, "lxc-attach", ours.service_manager_argv("start", UNIT)) == 0
        deadline = time.monotonic() + START_LIMIT_S
        while not status.healthy(ours, PORT, 5):
            assert time.monotonic() < deadline, log_tail(standing)
            time.sleep(3)
        yield standing


def log_tail(lab: Lab) -> str:
    return (lab.state / "log" / "vllm.log").read_text(encoding="utf-8", errors="replace")[-2000:]


def restart(lab: Lab) -> Played:
    variables: dict[str, Any] = {
        "verified_restart_engine": "vllm",
        "verified_restart_service": UNIT,
        "verified_restart_url": f"http://127.0.0.1:{PORT}",
        "verified_restart_hung_after": 2,
        "verified_restart_detect_delay": 2,
        "verified_restart_start_retries": START_LIMIT_S,
        # Random weights do not count. That a text comes is all that can be asked of them.
        "verified_restart_prove_expect": "(?s).",
    }
    return play(lab, **variables)


def cards(lab: Lab) -> list[int]:
    return [one["memory_used_mib"] for one in lab.status()["cards"]]


def titled(lab: Lab, *titles: str) -> dict[str, int]:
    """Title -> pid on the node, of the engine's processes in the container."""
    found = lab.status()["processes"]
    return {title: one["pid"] for title in titles for one in found if one["command"].startswith(title)}


def test_a_hung_engine_is_restarted_on_verified_cards_and_a_healthy_one_is_left_alone(lab: Lab) -> None:
    before = titled(lab, ENGINE, WORKER)
    assert set(before) == {ENGINE, WORKER}
    assert cards(lab) == LOADED
    holders = {one["pid"] for card in lab.status()["cards"] for one in card["holders"]}
    assert holders == set(before.values())

    well = restart(lab)
    assert (well.rc, well.result and well.result["outcome"]) == (0, "not_needed"), well.output
    assert titled(lab, ENGINE, WORKER) == before

    os.kill(before[ENGINE], signal.SIGSTOP)
    cured = restart(lab)
    assert (cured.rc, cured.result and cured.result["outcome"]) == (0, "healthy"), cured.output
    assert cured.result is not None
    print(f"{cured.result['detected']} {cured.result['reason']} Down for {cured.result['downtime_s']} s.")
    for one in cured.result["rungs"]:
        print(f"{one['name']}: {one['duration_s']} s, cards {[card['memory_used_mib'] for card in one['gpus_after']]}")
    assert cured.result["detected"].startswith("The server is hung. ")
    assert cured.rungs == ["detect", "stop", "kill", "verify", "start", "prove"]
    assert cured.cards_after("detect") == LOADED
    assert cured.cards_after("kill") == IDLE
    assert cured.cards_after("start") == LOADED
    assert not any(map(alive, before.values()))
    after = titled(lab, ENGINE, WORKER)
    assert set(after) == {ENGINE, WORKER}
    assert not set(after.values()) & set(before.values())
    assert cards(lab) == LOADED
