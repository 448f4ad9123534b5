"""The probe of a real card, played on a lab: all that it does but CUDA and NVML themselves. See tests/gpu/README.md."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.play import alive
from tests.lab.cards import CARDS
from tests.lab.lab import Lab
from tests.tooling.environment import PYTHON, ROOT

# Holds the card's node and CUDA's, as a process with a context does that has just come.
HOLDS = "import sys; held = [open(path, 'rb') for path in sys.argv[1:]]; print(flush=True); sys.stdin.read()"


def probe(output: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, what was printed, and result.json."""
    argv = [str(PYTHON), "-m", "tests.gpu", "--output", str(output), *options]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=1500, check=False)
    path = output / "result.json"
    return done.returncode, done.stdout + done.stderr, json.loads(path.read_text()) if path.exists() else {}


class Played(NamedTuple):
    """One run of the whole probe, while a stranger had the card's nodes open. ``lab_after`` is read afresh."""

    rc: int
    printed: str
    result: dict[str, Any]
    output: Path
    stranger_pid: int
    stranger_lived: bool
    lab_after: dict[str, Any]

    def data(self, step: str) -> dict[str, Any]:
        """What a step found."""
        found: dict[str, Any] = self.result["steps"][step]["data"]
        return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """On cards that nobody computes on; nothing here needs a container."""
    output = tmp_path_factory.mktemp("probe")
    with tempfile.TemporaryDirectory(prefix="gpuops probe ") as directory, Lab(directory, "dead") as lab:
        nodes = [str(lab.state / "dev" / name) for name in (CARDS[0].node_name, "nvidia-uvm")]
        with subprocess.Popen(
            [sys.executable, "-c", HOLDS, *nodes], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as stranger:
            try:
                assert stranger.stdout is not None
                assert stranger.stdout.readline()
                rc, printed, result = probe(output, "--lab", str(lab.state), "--repeats", "2")
                yield Played(rc, printed, result, output, stranger.pid, alive(stranger.pid), lab.status())
            finally:
                stranger.kill()


def test_every_step_ends_well(played: Played) -> None:
    steps = played.result["steps"]
    assert {name: one["why"] for name, one in steps.items() if one["status"] != "done"} == {}, played.printed
    assert (played.rc, played.result["kind"], played.result["card"]["index"]) == (0, "lab", 0)
    checks = played.data("modules")["checks"]
    assert checks
    assert all(checks.values()), checks
    nodes = played.data("nodes")
    assert (nodes["cuda_opens_uvm"], nodes["nvml_only_opens_uvm"]) == (True, False)
    for name, times in played.data("release").items():
        assert name == "before_mib" or (times["freed"]["n"], times["not_freed"]) == (2, 0), (name, times)


def test_nobody_is_ended_whom_the_probe_did_not_start_and_nobody_is_left_behind(played: Played) -> None:
    assert played.stranger_lived
    # Without the probe's own guard the stranger would be meant as well, since it has CUDA's node open.
    plan = played.data("modules")["results"]["reclaim_check"]
    assert played.stranger_pid in [one["pid"] for one in plan["terminated"]]
    assert [one for card in played.lab_after["cards"] for one in card["holders"]] == []


def test_its_fixtures_have_the_layout_of_the_recorded_ones(played: Played) -> None:
    cases = played.output / "fixtures" / "nvidia_smi"
    found = {path.name for path in cases.iterdir()}
    assert {"idle_cards", "context_cards", "busy_process_names", "killed_processes", "idle_wrong_field"} <= found
    for case in found:
        assert {path.name for path in (cases / case).iterdir()} == {"stdout", "stderr", "rc"}
    assert (cases / "idle_wrong_field" / "rc").read_text() == "2\n"
    assert (cases / "allocated_processes" / "stdout").read_text().count("\n") == 1


def test_nothing_that_it_writes_names_the_machine_s_cards(played: Played) -> None:
    written = "".join(path.read_text() for path in played.output.rglob("*") if path.is_file())
    assert not any(card.uuid in written for card in CARDS)


def test_without_a_card_it_says_so_or_leaves_out_what_needs_one(tmp_path: Path) -> None:
    rc, printed, result = probe(tmp_path, "--nvidia-smi", "/nowhere/nvidia-smi")
    assert (rc, result) == (2, {})
    assert "There is no card to probe: /nowhere/nvidia-smi cannot be run" in printed
    rc, printed, result = probe(tmp_path, "--nvidia-smi", "/nowhere/nvidia-smi", "--dry-run", "--repeats", "1")
    assert rc == 0, printed
    statuses = {name: one["status"] for name, one in result["steps"].items()}
    assert [name for name, status in statuses.items() if status == "done"] == ["machine", "exits", "errors"]
    assert set(statuses.values()) == {"done", "no_card"}
