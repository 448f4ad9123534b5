"""The soak, short: the same lab is broken and cured twice. And that it would notice."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cards import CARDS
from tests.lab.errors import LabError
from tests.lab.lab import Lab
from tests.soak import traces, verdict
from tests.tooling.environment import ROOT

LIMIT_S = 600


@pytest.mark.long
def test_the_incident_is_cured_twice_in_one_lab_and_nothing_is_left_over() -> None:
    played = subprocess.run(
        [ROOT / "scripts" / "soak", "2", "--namespaces"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert played.returncode == 0, played.stdout
    assert [line.split()[0] for line in played.stdout.splitlines() if " healthy " in line] == ["1", "2"]
    assert played.stdout.splitlines()[-1] == "2 rounds, 0 wrong; nothing was left over"


def test_what_is_left_over_is_named_with_its_kind(tmp_path: Path) -> None:
    before = traces.look(tmp_path)
    child = subprocess.Popen(["sleep", "4711"])
    try:
        (tmp_path / "ansible-tmp-1.5-77").mkdir()
        after = traces.look(tmp_path)
    finally:
        child.kill()
        child.wait()
    found = traces.changed(before, after)
    assert f"more: process sleep 4711 (pid {child.pid}) (0 before, 1 now)" in found
    assert f"more: file {tmp_path}/ansible-tmp-1.5-77 (0 before, 1 now)" in found
    assert f"less: process sleep 4711 (pid {child.pid}) (1 before, 0 now)" in traces.changed(before=after, after=before)


def test_numbers_in_names_do_not_count_and_how_many_there_are_does() -> None:
    one = traces.sorted_out([("file", "inside /dev/shm/nccl-1f2eab"), ("file", "inside /dev/shm/sgl_shm_mm_7_beef")])
    other = traces.sorted_out([("file", "inside /dev/shm/nccl-3c4dab"), ("file", "inside /dev/shm/sgl_shm_mm_8_face")])
    assert traces.changed(one, other) == []
    more = traces.sorted_out([("file", "/dev/shm/nccl-1"), ("file", "/dev/shm/nccl-2")])
    assert traces.changed(traces.sorted_out([("file", "/dev/shm/nccl-3")]), more) == [
        "more: file /dev/shm/nccl-2 (1 before, 2 now)"
    ]


def test_a_note_about_a_servers_health_may_stay_and_nothing_else() -> None:
    found = [("file", "/run/gpuops"), ("file", "/run/gpuops/health-1f2e.json"), ("file", "/run/gpuops/health.lock")]
    assert traces.without_notes(traces.sorted_out(found)) == traces.sorted_out(found[2:])


def test_a_scenario_that_is_more_than_its_server_is_not_put_into_a_standing_lab(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="cannot be put into a lab that stands"):
        Lab(tmp_path, "neighbour").up_again()


IDLE = [card.floor_mib for card in CARDS]


def result(after_kill: list[int], after_reclaim: list[int], outcome: str = "healthy") -> dict[str, Any]:
    """A role's result with the cards' MiB at the two verifications, 1.5 s and 4 s after the stop began."""
    looks = iter([(1, after_kill), (3, after_reclaim)])
    rungs = []
    for name in verdict.LADDERS["incident"]:
        second, cards = next(looks) if name == "verify" else (0, [])
        began = f"2026-01-01T00:00:0{second}Z"
        gpus = [{"memory_used_mib": mib} for mib in cards]
        rungs.append({"name": name, "started": began, "duration_s": 1.0, "gpus_after": gpus})
    return {"outcome": outcome, "needs": None, "reason": "It is so.", "rungs": rungs}


def test_a_right_verdict_raises_no_doubt_and_tells_when_the_cards_were_free() -> None:
    right = result([51, 76115, *IDLE[2:]], IDLE)
    assert verdict.doubts("incident", right) == []
    assert verdict.seconds_to_free(right) == 4.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (None, "no result"),
        (result([51, 76115, *IDLE[2:]], IDLE, outcome="unhealthy"), "Outcome unhealthy"),
        (result(IDLE, IDLE), "After the kill"),
        (result([51, 76115, *IDLE[2:]], [52, *IDLE[1:]]), "Before the start"),
    ],
)
def test_a_wrong_verdict_is_one(wrong: dict[str, Any] | None, said: str) -> None:
    [doubt] = verdict.doubts("incident", wrong)
    assert said in doubt
