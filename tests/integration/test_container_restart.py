"""When a container is restarted by pct or ha-manager, and when it is left alone.

Plays that come to that rung are in test_proxmox_api.py, on LXC with its real systemd, and in test_container_plays.py.
"""

from __future__ import annotations

import json
from typing import Any

from tests.integration.conftest import MakeLab
from tests.integration.play import Played, module
from tests.integration.test_incident import used
from tests.lab.lab import Lab

CLIMBED = ["detect", "stop", "kill", "verify", "reclaim", "verify"]
CURED = [*CLIMBED, "container_restart", "stop", "kill", "verify", "start", "prove"]
# A card whose holder lives needs no patience.
SOON: dict[str, Any] = {"verified_restart_driver_timeout": 60, "verified_restart_verify_delay": 1}


def init_of(lab: Lab) -> int:
    [init] = [one["init_pid"] for one in lab.status()["containers"] if one["vmid"] == 129]
    return int(init)


def assert_restarted(lab: Lab, played: Played, before: int) -> None:
    assert played.result is not None, played.output
    assert (played.rc, played.result["outcome"], played.rungs) == (0, "healthy", CURED), played.output
    told = played.result["container"]
    assert (told["before"]["init_pid"], told["after"]["init_pid"]) == (before, init_of(lab))
    assert told["after"]["init_pid"] != before
    assert used(lab) == lab.status()["server"]["expected_mib"]
    assert not (lab.state / "leases" / "ct-129.json").exists()


def test_what_forbids_it_is_named_and_high_availability_is_asked_for_it(make_lab: MakeLab) -> None:
    lab = make_lab("dead", container=False)
    init = init_of(lab)
    arguments = {"vmid": 129, "pct_path": str(lab.bin / "pct"), "ha_manager_path": str(lab.bin / "ha-manager")}
    locks = lab.state / "locks.json"
    locks.write_text(json.dumps({"129": "backup"}), encoding="utf-8")
    locked = module(lab, "node", "proxmox_container_restart", arguments)
    assert (locked["failed"], locked["reason"], init_of(lab)) == (True, "ct_locked", init)
    locks.unlink()

    state = lab.state / "ha.json"
    state.write_text(json.dumps({"129": "error"}), encoding="utf-8")
    failed = module(lab, "node", "proxmox_container_restart", arguments)
    assert (failed["failed"], failed["reason"], init_of(lab)) == (True, "ha_state", init)

    state.write_text(json.dumps({"129": "started"}), encoding="utf-8")
    done = module(lab, "node", "proxmox_container_restart", arguments)
    assert (done["failed"], done["ha_managed"], done["forced"]) == (False, True, False), done
    assert (done["before"]["init_pid"], done["after"]["init_pid"]) == (init, init_of(lab))
    assert json.loads(state.read_text(encoding="utf-8")) == {"129": "started"}
