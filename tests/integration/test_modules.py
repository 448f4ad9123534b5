"""The modules one by one, against a lab whose server is well: what they return, and that bad input signals nobody."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import HAS_LXC, standing_lab
from tests.integration.play import alive, module
from tests.integration.test_incident import server_pids, used
from tests.lab import state as lab_state
from tests.lab.lab import Lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One lab for the module: nothing here may change its server."""
    with standing_lab("healthy") as healthy:
        yield healthy


@pytest.fixture
def untouched(lab: Lab) -> Iterator[None]:
    """Fails the test when a process of the container went or came."""
    before = server_pids(lab)
    yield
    assert server_pids(lab) == before


@pytest.fixture
def nvidia_smi_fault(lab: Lab) -> Iterator[Any]:
    """Switch a fault of the lab's nvidia-smi on; it is off again after the test."""
    path = lab.state / "faults.json"
    before = path.read_text(encoding="utf-8")

    def switch(fault: str) -> None:
        path.write_text(json.dumps({**json.loads(before), "nvidia_smi": fault}), encoding="utf-8")

    yield switch
    path.write_text(before, encoding="utf-8")


def facts(lab: Lab, **arguments: Any) -> dict[str, Any]:
    smi = {"nvidia_smi_path": str(lab.bin / "nvidia-smi"), "backend": "nvidia_smi"}
    return module(lab, "node", "gpu_memory_facts", {**smi, **arguments})


def kill(lab: Lab, *options: str, **arguments: Any) -> dict[str, Any]:
    known = {"vmid": 129, "patterns": ["^nobody-is-called-so$"], "pct_path": str(lab.bin / "pct")}
    return module(lab, "node", "pct_kill_processes", {**known, **arguments}, *options)


def reclaim(lab: Lab, *options: str, **arguments: Any) -> dict[str, Any]:
    known = {
        "nvidia_smi_path": str(lab.bin / "nvidia-smi"),
        "pct_path": str(lab.bin / "pct"),
        "device_directory": str(lab.state / "dev"),
    }
    return module(lab, "node", "nvidia_fuser_reclaim", {**known, **arguments}, *options)


def test_the_cards_are_read_as_the_lab_knows_them_with_their_holders(lab: Lab, untouched: None) -> None:
    memory = facts(lab, expected_gpus=8)["ansible_facts"]["gpu_memory"]
    world = lab.status()["cards"]
    assert [card["memory_used_mib"] for card in memory["gpus"]] == [card["memory_used_mib"] for card in world]
    assert [card["minor"] for card in memory["gpus"]] == [card["minor"] for card in world]
    assert [one["pid"] for one in memory["gpus"][1]["processes"]] == [one["pid"] for one in world[1]["holders"]]
    assert memory["gpus"][1]["processes"][0]["name"] == "sglang::schedul"
    assert (memory["busy"], memory["idle"], memory["unknown"]) == (list(range(8)), [], [])
    assert memory["all_idle"] is False
    if HAS_LXC:
        assert memory["gpus"][1]["processes"][0]["vmid"] == 129
        assert memory["gpus"][1]["processes"][0]["unit"] == "sglang-kimi.service"


def test_a_card_may_be_named_by_index_uuid_or_bus_id(lab: Lab) -> None:
    cards = lab.status()["cards"]
    named = ["0", cards[2]["uuid"], cards[5]["pci_bus_id"].lower()]
    memory = facts(lab, gpus=named, idle_memory_mib=90000)["ansible_facts"]["gpu_memory"]
    assert memory["idle"] == [0, 2, 5]
    assert memory["all_idle"] is True


def test_bad_input_to_the_facts_gives_one_clear_error(lab: Lab, untouched: None) -> None:
    for arguments, said in (
        ({"gpus": ["9"]}, "GPU 9"),
        ({"expected_gpus": 9}, "9"),
        ({"expected_gpus": 10**23}, "expected_gpus"),
        ({"idle_memory_mib": 97887}, "but a card has only 97887 MiB"),
        ({"nvidia_smi_path": "/nowhere/nvidia-smi"}, "/nowhere/nvidia-smi"),
        ({"idle_memory_mib": -1}, "idle_memory_mib"),
    ):
        result = facts(lab, **arguments)
        assert result["failed"], arguments
        assert said in result["msg"], (arguments, result["msg"])


@pytest.mark.parametrize(
    ("fault", "reason"), [("hang", "timeout"), ("no_driver", "driver_not_loaded"), ("garbage", None)]
)
def test_a_driver_that_does_not_answer_fails_every_module_that_asks_it(
    lab: Lab, untouched: None, nvidia_smi_fault: Any, fault: str, reason: str | None
) -> None:
    nvidia_smi_fault(fault)
    read = facts(lab, timeout=1)
    assert read["failed"]
    taken = reclaim(lab, gpus=[1], timeout=1)
    assert taken["failed"]
    for result in (read, taken):
        assert result["reason"] == reason or reason is None, result["msg"]


def test_a_lost_card_is_unknown_and_the_seven_others_are_read(lab: Lab, nvidia_smi_fault: Any) -> None:
    nvidia_smi_fault("lost:3")
    result = facts(lab)
    memory = result["ansible_facts"]["gpu_memory"]
    assert memory["unknown"] == [3]
    assert memory["busy"] == [0, 1, 2, 4, 5, 6, 7]
    assert memory["gpus"][3]["memory_used_mib"] is None
    assert memory["gpus"][3]["error"]["reason"] == "gpu_lost"


@pytest.mark.parametrize("via", ["host", "pct"])
def test_bad_input_to_the_killer_gives_one_clear_error_and_signals_nobody(lab: Lab, untouched: None, via: str) -> None:
    for arguments, reason in (
        ({"vmid": 105}, "ct_not_on_node"),
        ({"vmid": 7}, "bad_input"),
        ({"patterns": []}, "empty_pattern"),
        ({"patterns": ["sglang", ""]}, "empty_pattern"),
        ({"patterns": ["x*"]}, "match_all_pattern"),
        ({"patterns": ["sglang("]}, "invalid_pattern"),
        ({"pct_path": "/nowhere/pct"}, "not_installed"),
        ({"term_timeout": -1}, "bad_input"),
    ):
        result = kill(lab, via=via, **arguments)
        assert result["failed"], arguments
        assert result["reason"] == reason, (arguments, result["msg"])


@pytest.mark.parametrize("via", ["host", "pct"])
def test_a_stopped_container_has_nothing_to_kill(lab: Lab, via: str) -> None:
    result = kill(lab, vmid=131, patterns=["sglang"], via=via)
    assert not result["failed"]
    assert not result["changed"]
    assert (result["container_status"], result["matched"]) == ("stopped", [])


@pytest.mark.parametrize("via", ["host", "pct"])
def test_the_containers_init_is_never_killed_and_the_killer_says_so(lab: Lab, untouched: None, via: str) -> None:
    result = kill(lab, patterns=[r"^(/lib/systemd/systemd|/sbin/init|systemd)(\s|$)"], via=via)
    assert result["failed"] or "container_init" in {one["reason"] for one in result["spared"]}


@pytest.mark.parametrize("via", ["host", "pct"])
def test_check_mode_names_the_same_processes_on_both_ways_and_signals_none(lab: Lab, untouched: None, via: str) -> None:
    result = kill(lab, "--check", patterns=["^sglang::"], via=via)
    assert result["changed"]
    assert result["via"] == via
    assert {one["command"] for one in result["matched"]} == {
        *(f"sglang::scheduler_TP{rank}" for rank in range(8)),
        "sglang::detokenizer",
    }
    world = {one["pid"] for one in lab.status()["processes"] if one["command"].startswith("sglang::")}
    if via == "host":
        assert {one["pid"] for one in result["matched"]} == world


def test_check_mode_of_the_reclaim_names_who_holds_the_card_by_device_and_by_driver(lab: Lab, untouched: None) -> None:
    result = reclaim(lab, "--check", gpus=[1])
    [holder] = result["holders"]
    assert result["changed"]
    assert holder["pid"] == lab.status()["cards"][1]["holders"][0]["pid"]
    assert (holder["gpus"], holder["evidence"]) == ([1], ["driver", "fd"])


def test_the_reclaim_for_another_container_spares_everyone_here(lab: Lab, untouched: None) -> None:
    result = reclaim(lab, gpus=[1], vmid=130)
    assert not result["changed"]
    assert [one["reason"] for one in result["spared"]] == ["other_container"]


def test_no_card_to_reclaim_is_nothing_to_do(lab: Lab, untouched: None) -> None:
    result = reclaim(lab, gpus=[])
    assert (result["failed"], result["changed"], result["holders"]) == (False, False, [])


@pytest.mark.lxc
@pytest.mark.skipif(not HAS_LXC or shutil.which("fuser") is None, reason="needs root, LXC, debootstrap and fuser")
def test_fuser_on_the_node_finds_nothing_where_the_module_finds_the_holder(lab: Lab) -> None:
    card = lab.status()["cards"][1]
    fuser = subprocess.run(
        ["fuser", str(lab.state / "dev" / f"nvidia{card['minor']}")], capture_output=True, text=True, check=False
    )
    assert (fuser.returncode, fuser.stdout.strip()) == (1, "")
    [holder] = reclaim(lab, "--check", gpus=[1])["holders"]
    assert holder["pid"] == card["holders"][0]["pid"]
    assert alive(holder["pid"])


@pytest.mark.parametrize("via", ["host", "pct"])
def test_what_matches_is_killed_and_a_second_run_changes_nothing(lab: Lab, via: str) -> None:
    victim = subprocess.Popen(  # it lives inside the container, and only there
        [str(lab.bin / "pct"), "exec", "129", "--", "/bin/sh", "-c", "exec sleep 4711"], stdin=subprocess.DEVNULL
    )
    try:
        for _look in range(100):
            if any(one["command"] == "sleep 4711" for one in lab.status()["processes"]):
                break
        before = used(lab)
        first = kill(lab, patterns=[r"^sleep 4711$"], via=via, respawn_timeout=0)
        assert [one["command"] for one in first["terminated"]] == ["sleep 4711"], first
        assert victim.wait(timeout=10) != 0
        second = kill(lab, patterns=[r"^sleep 4711$"], via=via)
        assert (first["changed"], second["changed"], second["matched"]) == (True, False, [])
        assert used(lab) == before
    finally:
        victim.kill()
        victim.wait()


def test_a_server_is_looked_at_from_the_node_that_holds_its_container(lab: Lab, untouched: None) -> None:
    port = lab_state.config(str(lab.state))["port"]
    known = {"url": f"http://127.0.0.1:{port}", "pct_path": str(lab.bin / "pct"), "timeout": 3}
    found = module(lab, "node", "inference_health_info", {**known, "vmid": 129})
    if HAS_LXC:
        # The container has a network of its own.
        assert found["failed"]
        assert "which is this node and not container 129" in found["msg"]
        found = module(
            lab, "node", "inference_health_info", {**known, "vmid": 129, "url": f"http://192.0.2.129:{port}"}
        )
        assert found["verdict"] == "unknown"
    else:
        assert (found["verdict"], found["cause"]) == ("healthy", "generates")
    assert not found["failed"]
    [parent] = [one for one in found["processes"] if one["role"] == "parent"]
    workers = [one for one in found["processes"] if one["role"] == "worker"]
    assert [one["parent"]["pid"] for one in workers] == [parent["pid"]] * 9
    inside = {one["pid"] for one in lab.status()["processes"] if one["container_vmid"] == 129}
    assert {one["pid"] for one in found["processes"]} <= inside
    assert all(one["container_pid"] != one["pid"] for one in found["processes"])
    assert {one["vmid"] for one in found["processes"]} == ({129} if HAS_LXC else {None})

    stopped = module(lab, "node", "inference_health_info", {**known, "vmid": 131, "url": "http://127.0.0.1:9"})
    assert (stopped["verdict"], stopped["processes"]) == ("dead", [])
    unknown = module(lab, "node", "inference_health_info", {**known, "vmid": 105})
    assert (unknown["failed"], unknown["reason"]) == (True, "ct_not_on_node"), unknown
