"""The summary of a recorded run of the incident (the result as the role wrote it, without its lists of processes)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.demo import summary

RECORDED = Path(__file__).parents[1] / "fixtures" / "demo" / "incident" / "result.json"
NOW = [{"index": index, "memory_used_mib": 76115 if index < 3 else 76067} for index in range(8)]


@pytest.fixture
def incident() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return result


def test_every_rung_is_shown_with_its_time(incident: dict[str, Any]) -> None:
    lines = summary.ladder(incident).splitlines()[2:]
    assert [line.split()[0] for line in lines] == [
        "detect",
        "stop",
        "kill",
        "verify",
        "reclaim",
        "verify",
        "start",
        "prove",
    ]
    assert all(" s " in line for line in lines)


def test_the_card_that_survived_the_kill_stands_out(incident: dict[str, Any]) -> None:
    rows = [line.split() for line in summary.cards(incident, NOW).splitlines()[2:]]
    assert rows[0] == ["0", "76115*", "51", "51", "76115"]
    assert rows[1] == ["1", "76115*", "76115*", "39", "76115"]
    assert rows[7] == ["7", "76067*", "3", "3", "76067"]


def test_columns_end_at_one_edge(incident: dict[str, Any]) -> None:
    lines = summary.cards(incident, NOW).splitlines()[1:]
    assert len({len(line) for line in lines}) == 1


def test_outcome_names_what_is_left_to_do() -> None:
    result = {"outcome": "gpus_not_free", "needs": "gpu_reset", "reason": "Card 1 holds memory.", "downtime_s": None}
    assert summary.outcome(result).splitlines() == [
        "Outcome: gpus_not_free",
        "Needs:   gpu_reset",
        "Reason:  Card 1 holds memory.",
    ]


def test_unknown_is_said_and_is_no_number() -> None:
    card = {"index": 3, "memory_used_mib": None, "state": "unknown"}
    rung = {"name": "detect", "gpus_before": None, "gpus_after": [card]}
    assert summary.cards({"rungs": [rung]}, []).splitlines()[2].split() == ["3", "unknown", "-", "-", "-"]


def test_a_slow_driver_is_read_after_the_verify_that_waited() -> None:
    def reading(used: int) -> list[dict[str, Any]]:
        return [{"index": 1, "memory_used_mib": used, "state": "busy" if used > 100 else "idle"}]

    rungs = [
        {"name": "kill", "gpus_before": reading(76115), "gpus_after": reading(76115)},
        {"name": "verify", "gpus_before": reading(76115), "gpus_after": reading(39)},
    ]
    assert summary.cards({"rungs": rungs}, []).splitlines()[2].split() == ["1", "76115*", "39", "-", "-"]


def test_a_result_without_any_reading() -> None:
    rung = {"name": "detect", "gpus_before": None, "gpus_after": None}
    assert summary.cards({"rungs": [rung]}, []).splitlines()[2:] == []
