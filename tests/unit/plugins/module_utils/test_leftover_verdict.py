# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role makes of the leftovers: who is in the way, and what is said of the memory."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._leftover_verdict import leftovers_summary, port_verdict


def process(**fields: Any) -> dict[str, Any]:
    known = {"pid": 621, "container_pid": 66, "vmid": 129, "name": "nc", "state": "S", "unit": None}
    return {**known, **fields}


def listener(who: dict[str, Any] | None, address: str = "127.0.0.1", port: int = 30000) -> dict[str, Any]:
    return {"port": port, "address": address, "process": who}


def segment(name: str, reason: str | None = None, *, removed: bool = False) -> dict[str, Any]:
    facts = {"name": name, "size_mib": 1.0, "age_s": 60.0, "owner_pid": None, "in_use_by": [], "owner_alive": None}
    return {**facts, "reason": reason, "stale": reason in (None, "not_removed"), "removed": removed}


def look(*segments: dict[str, Any], free: float = 4096.0, **more: Any) -> dict[str, Any]:
    stale = [one for one in segments if one["stale"]]
    removed = [one for one in stale if one["removed"]]
    return {
        "listeners": [],
        "segments": list(segments),
        "shm": {"path": "/dev/shm", "size_mib": 8192.0, "free_mib": free, "reason": None, "message": None},
        "stale": [one["name"] for one in stale],
        "stale_mib": float(len(stale)),
        "removed": [one["name"] for one in removed],
        "removed_mib": float(len(removed)),
        **more,
    }


@pytest.mark.parametrize("leftovers", [{}, {"listeners": []}, {"listeners": None}, {"msg": "no pct"}, look()])
def test_nobody_is_in_the_way_of_a_free_port(leftovers: dict[str, Any]) -> None:
    assert port_verdict(leftovers) is None


def test_who_has_the_port_is_named_and_the_server_is_not_started() -> None:
    found = port_verdict({"listeners": [listener(process(unit="files.service"))]})
    assert found is not None
    assert (found["outcome"], found["needs"]) == ("refused", "operator")
    holder = "621 (nc, container 129, unit files.service)"
    assert f"port 30000 is not: {holder} listens on 127.0.0.1:30000." in found["reason"]
    assert "was not started" in found["reason"]
    assert "verified_restart_port" in found["reason"]


def test_all_who_have_it_are_named_once() -> None:
    two = [listener(process()), listener(process(), "::1"), listener(process()), listener(process(pid=700), port=30001)]
    found = port_verdict({"listeners": two})
    assert found is not None
    assert "port 30000, 30001 is not" in found["reason"]
    assert found["reason"].count("621 (nc, container 129) listens on 127.0.0.1:30000") == 1
    assert "listens on [::1]:30000" in found["reason"]
    assert "700 (nc, container 129) listens on 127.0.0.1:30001" in found["reason"]


def test_a_port_that_nobody_is_seen_to_have_is_not_free() -> None:
    found = port_verdict({"listeners": [listener(None)]})
    assert found is not None
    assert "somebody who is not to be seen from here listens" in found["reason"]


@pytest.mark.parametrize("init", [{"pid": 1, "container_pid": None}, {"container_pid": 1}])
def test_an_init_that_listens_does_so_for_the_unit(init: dict[str, Any]) -> None:
    assert port_verdict({"listeners": [listener(process(name="systemd", **init))]}) is None


def test_a_process_of_the_unit_that_is_being_stopped_is_systemd_s_to_wait_for() -> None:
    ours = {"listeners": [listener(process(unit="sglang.service"))]}
    assert port_verdict(ours, going="sglang.service") is None
    assert port_verdict(ours, going="sglang") is None
    assert port_verdict(ours, going="other.service") is not None
    assert port_verdict(ours) is not None
    assert port_verdict({"listeners": [listener(process())]}, going="") is not None


def said(*segments: dict[str, Any], **more: Any) -> str:
    summary = leftovers_summary(look(*segments, **more))
    assert summary is not None
    text: str = summary["said"]
    return text


def test_nothing_left_is_nothing_said() -> None:
    assert said() == ""
    assert said(segment("psm_0a", "in_use")) == ""
    assert leftovers_summary({}) is None


def test_stale_segments_are_counted_and_the_variable_is_named() -> None:
    text = said(segment("psm_0a"))
    assert text.startswith("Left in /dev/shm by dead processes: 1 stale segment, 1.0 MiB.")
    assert text.endswith("With verified_restart_clean_shm they are removed.")
    assert "2 stale segments, 2.0 MiB" in said(segment("psm_0a"), segment("psm_0b"))


def test_what_was_removed_is_said_and_what_could_not_be() -> None:
    removed = segment("psm_0a", removed=True)
    assert said(removed) == "Removed from /dev/shm: 1 stale segment, 1.0 MiB."
    text = said(removed, segment("psm_0b", "not_removed"))
    assert "Left in /dev/shm by dead processes: 1 stale segment, 1.0 MiB. Not all could be removed." in text


def test_what_is_not_known_is_said() -> None:
    assert "perhaps still needed: 1 segment." in said(segment("psm_0a", "unreadable"))


def test_a_full_memory_is_warned_of() -> None:
    assert "Only 3.5 of 8192.0 MiB are free in /dev/shm" in said(free=3.5)
    assert "SIGBUS" in said(free=0.0)


def test_a_look_that_failed_is_said() -> None:
    summary = leftovers_summary({"msg": "pct is not installed."})
    assert summary is not None
    assert summary["said"] == "Leftovers could not be looked for: pct is not installed."
    assert (summary["stale"], summary["removed"], summary["listeners"], summary["shm"]) == ([], [], [], None)
    shm = {"path": "/dev/shm", "size_mib": None, "free_mib": None, "reason": "shm_missing", "message": "It is missing."}
    assert said(shm=shm) == "It is missing."


def test_a_container_that_does_not_run_has_nothing_to_say() -> None:
    assert said(shm=None) == ""


def test_what_is_kept_is_shown_with_the_reason() -> None:
    summary = leftovers_summary(look(segment("psm_0a"), segment("psm_0b", "in_use")))
    assert summary is not None
    assert summary["kept"] == [
        {"name": "psm_0b", "size_mib": 1.0, "age_s": 60.0, "owner_pid": None, "reason": "in_use"},
    ]
    assert summary["stale"] == ["psm_0a"]
