# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._errors import DriverError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import ComputeProcess
from ansible_collections.gpuops.inference.plugins.module_utils._memory_facts import (
    FactsRequest,
    MemoryFacts,
    gather,
    processes_by_card,
)
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from tests.unit.fake_proc import FakeProc
from tests.unit.recorded import Answer, ScriptedRunner, completed, recorded

ALL = FactsRequest(None, 100, None, "nvidia_smi", "nvidia-smi", True, 20.0)
NOBODY = completed("")
PROCESS_KEYS = {
    *("pid", "container_pid", "vmid", "name", "command", "state", "uid", "start_time", "unit", "parent"),
    *("used_memory_mib", "visible"),
}


def row(index: int, used: object, bus: Optional[int] = None) -> str:
    where = f"00000000:{(bus if bus is not None else index + 0x31):02x}:00.0"
    return f"{index}, GPU-0000000{index}, {where}, 97887, {used}, 97264, 580.95.05, card\n"


def facts_of(cards: str, request: FactsRequest = ALL, *, apps: Answer = NOBODY, rc: int = 0) -> MemoryFacts:
    script: dict[str, list[Answer]] = {"--query-gpu": [completed(cards, rc=rc)], "--query-compute-apps": [apps]}
    return gather(request, runner=ScriptedRunner({**script, "-q": [completed("")]}), procfs=ProcFs())


def all_rows(*used: object) -> str:
    return "".join(row(index, one) for index, one in enumerate(used))


def test_the_incident_names_card_1() -> None:
    facts = facts_of(recorded("nvidia_smi", "incident").stdout, apps=recorded("nvidia_smi", "incident_processes")).facts
    assert (facts["count"], facts["idle"], facts["busy"], facts["unknown"]) == (8, [0, 2, 3, 4, 5, 6, 7], [1], [])
    assert facts["all_idle"] is False
    card = facts["gpus"][1]
    assert (card["state"], card["memory_used_mib"], card["error"]) == ("busy", 76115, None)
    assert [one["used_memory_mib"] for one in card["processes"]] == [76064]
    assert facts["gpus"][0]["processes"] == []
    assert facts["floor_hint"] is None


def test_all_idle_means_that_all_were_read_and_are_idle() -> None:
    assert facts_of(all_rows(3, 51, 100)).facts["all_idle"] is True
    assert facts_of(all_rows(3, 101)).facts["all_idle"] is False


@pytest.mark.parametrize("rc", [0, 255])
def test_a_dead_card_is_unknown_and_never_idle(rc: int) -> None:
    sentence = "Unable to determine the device handle for GPU0000:34:00.0: Unknown Error\n"
    facts = facts_of(sentence + all_rows(0, 0, 0), rc=rc).facts
    assert (facts["all_idle"], facts["unknown"], facts["idle"]) == (False, ["0000:34:00.0"], [0, 1, 2])
    assert facts["gpus"][3]["error"] == {"reason": "unknown_error", "text": sentence.strip()}


def test_a01_memory_that_is_not_reported_is_null() -> None:
    facts = facts_of(row(0, "[N/A]")).facts
    assert (facts["gpus"][0]["memory_used_mib"], facts["unknown"], facts["all_idle"]) == (None, [0], False)
    assert facts["gpus"][0]["error"] == {"reason": "not_available", "text": "[N/A]"}


def test_a05_an_idle_mig_card_is_idle_by_the_limit() -> None:
    assert facts_of(row(0, 59)).facts["idle"] == [0]


def test_the_choice_of_cards_decides_what_all_idle_is_about() -> None:
    cards = all_rows(3, 76115, "[GPU is lost]")
    assert facts_of(cards, ALL._replace(gpus=("0",))).facts["all_idle"] is True
    assert facts_of(cards, ALL._replace(gpus=("0", "2"))).facts["all_idle"] is False
    assert facts_of(cards, ALL._replace(gpus=("2",))).facts["count"] == 1


@pytest.mark.parametrize("gpus", [None, ("0",)])
def test_a08_missing_cards_fail_with_what_was_read(gpus: Optional[tuple[str, ...]]) -> None:
    cards = "".join(row(index, 3) for index in (0, 1, 2, 4, 5, 6)) + row(7, "[GPU is lost]")
    with pytest.raises(DriverError) as caught:
        facts_of(cards, ALL._replace(expected_gpus=8, gpus=gpus))
    error = caught.value
    assert error.reason == "gpus_missing"
    assert "Expected 8 GPUs, but only 6 could be read. Missing: index 3." in error.message
    assert "GPU 7 (0000:38:00.0) is unreadable (gpu_lost): [GPU is lost]." in error.message
    assert (error.fields["missing_indices"], error.fields["unreadable_gpus"]) == ([3], ["7 (0000:38:00.0)"])
    assert error.fields["readable_gpus"] == 6
    assert error.fields["gpu_memory"]["all_idle"] is False or gpus is not None
    assert error.fields["gpu_memory"]["count"] == (7 if gpus is None else 1)


def test_a20_a_card_that_needs_a_reset_is_not_one_of_the_expected() -> None:
    with pytest.raises(DriverError, match="requires_reset"):
        facts_of(row(0, "[GPU requires reset]"), ALL._replace(expected_gpus=1))


def test_more_cards_than_expected_are_fine() -> None:
    assert facts_of(all_rows(3, 3), ALL._replace(expected_gpus=1)).facts["count"] == 2


def test_a_process_is_joined_with_proc() -> None:
    apps = completed(f"GPU-00000000, {os.getpid()}, 300\n")
    (process,) = facts_of(row(0, 310), apps=apps).facts["gpus"][0]["processes"]
    assert set(process) == PROCESS_KEYS
    assert (process["pid"], process["visible"], process["used_memory_mib"]) == (os.getpid(), True, 300)
    assert process["parent"]["pid"] == os.getppid()


@pytest.mark.parametrize(
    ("threads", "thread", "visible", "state"), [(1, "Z", False, None), (2, "S", True, "Z"), (2, "D", True, "D")]
)
def test_a_zombie_holds_nothing_unless_a_thread_of_it_lives(
    tmp_path: Path, threads: int, thread: str, visible: bool, state: Optional[str]
) -> None:
    """Z is what /proc says of a leader that has exited. Whoever sleeps in the driver is its thread."""
    proc = FakeProc(tmp_path)
    proc.add(4242, state="Z", threads=threads)
    if threads > 1:
        proc.thread(4242, 4243, state=thread)
    listed = [ComputeProcess(4242, "GPU-1", 76064)]
    [process] = (processes_by_card(listed, proc.procfs) or {})["GPU-1"]
    assert (process["pid"], process["visible"], process["state"]) == (4242, visible, state)


def test_a24_a_process_of_another_namespace_is_listed_all_the_same() -> None:
    (process,) = facts_of(row(0, 310), apps=completed("GPU-00000000, 4194304, [N/A]\n")).facts["gpus"][0]["processes"]
    assert set(process) == PROCESS_KEYS
    assert {key for key, value in process.items() if value is not None} == {"pid", "visible"}
    assert process["visible"] is False


def test_processes_that_are_not_known_are_null() -> None:
    unread = facts_of(row(0, 310), apps=completed("", rc=255))
    assert unread.facts["gpus"][0]["processes"] is None
    assert len(unread.warnings) == 1
    not_asked = facts_of(row(0, 310), ALL._replace(processes=False))
    assert (not_asked.facts["gpus"][0]["processes"], not_asked.warnings) == (None, ())


FLOOR = {
    "below the limit, nobody": (all_rows(480, 500, 3), completed(""), True),
    "a holder": (row(0, 480), completed("GPU-00000000, 77, 400\n"), False),
    "too much": (row(0, 1024), completed(""), False),
    "list unreadable": (row(0, 480), completed("", rc=255), False),
    "an entry was dropped": (row(0, 480), completed("GPU-00000000, 0, 400\n"), False),
    "unknown": (row(0, "[N/A]"), completed(""), False),
    "idle": (row(0, 99), completed(""), False),
}


@pytest.mark.parametrize("case", FLOOR)
def test_a_small_amount_that_nobody_holds_may_be_the_floor(case: str) -> None:
    cards, apps, hinted = FLOOR[case]
    hint = facts_of(cards, apps=apps).facts["floor_hint"]
    assert (hint is not None) is hinted
    if hint is not None:
        assert hint.startswith("GPUs 0, 1 hold 480, 500 MiB without any process")
        assert "raise idle_memory_mib, now 100, to 500 or more" in hint


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"idle_memory_mib": -1}, "idle_memory_mib"),
        ({"expected_gpus": 0}, "expected_gpus"),
        ({"timeout": 0.0}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_asked(change: dict[str, Any], option: str) -> None:
    runner = ScriptedRunner({})
    with pytest.raises(InputError, match=option):
        gather(ALL._replace(**change), runner=runner, procfs=ProcFs())
    assert runner.calls == []


def test_b19_memory_that_is_let_go_late_is_seen_to_fall() -> None:
    states = [facts_of(row(0, used), ALL._replace(idle_memory_mib=600)).facts for used in (80000, 80000, 41000, 500)]
    assert [one["all_idle"] for one in states] == [False, False, False, True]
