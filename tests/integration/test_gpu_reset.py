"""nvidia_gpu_reset against a lab whose cards are idle: who may be reset, who may not, and whether it helped."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integration.conftest import SEES_ALL
from tests.integration.play import alive, module
from tests.integration.test_incident import used
from tests.lab.lab import Lab
from tests.tooling.environment import ROOT

pytestmark = [
    pytest.mark.root,
    pytest.mark.alone,
    pytest.mark.skipif(not SEES_ALL, reason="a reset needs root, in the machine's own pid namespace"),
]

FULL_MIB, FLOOR_MIB = 76115, 39

# Each begins with what the others need, prints a line when it is ready, and lives until its input ends.
START = """
import os, sys, time
from tests.lab import claims, state
from tests.lab.cards import CARDS
from tests.lab.titles import set_title
lab, devices, card = sys.argv[1], sys.argv[1] + '/dev', CARDS[1]
"""
LEAKS = START + "claims.HeldClaim(lab, devices, card, leak=True).set_mib(76076); print(flush=True)"
WATCHES = START + "set_title('nvtop'); held = claims.open_nodes(devices, [card.node_name]); print(flush=True); input()"
PERSISTS = (
    START
    + """
set_title('/usr/bin/nvidia-persistenced', 'nvidia-persistenced'[:15])
held = claims.open_nodes(devices, [card.node_name])
print(flush=True)
while card.index not in state.without_persistence(lab):
    time.sleep(0.02)
os.close(held[0])
input()
"""
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="gpuops lab ") as directory, Lab(directory, "dead") as dead:
        yield dead


@contextmanager
def running(lab: Lab, code: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", code, str(lab.state)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"\n"
            yield child
        finally:
            child.kill()


@pytest.fixture
def leak(lab: Lab) -> Iterator[None]:
    """Card 1 holds memory of nobody; whatever is left of it afterwards goes."""
    with running(lab, LEAKS) as child:
        child.wait(timeout=20)
    assert used(lab)[1] == FULL_MIB
    yield
    for claim in (lab.state / "claims").iterdir():
        claim.unlink()
    (lab.state / "faults.json").write_text("{}", encoding="utf-8")


def reset(lab: Lab, *options: str, gpus: tuple[int, ...] = (1,)) -> dict[str, Any]:
    arguments = {
        "gpus": list(gpus),
        "nvidia_smi_path": str(lab.bin / "nvidia-smi"),
        "device_directory": str(lab.state / "dev"),
        "settle_timeout": 1,
        # Far above what it takes: a machine that is busy with other tests answers late.
        "timeout": 120,
    }
    return module(lab, "node", "nvidia_gpu_reset", arguments, *options)


def persistence(lab: Lab) -> str:
    argv = [str(lab.bin / "nvidia-smi"), "--query-gpu=persistence_mode", "--format=csv,noheader", "-i", "1"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def test_idle_cards_are_left_alone(lab: Lab) -> None:
    result = reset(lab, gpus=(0, 1, 2))
    assert (result["failed"], result["changed"], result["gpus"], result["reset"]) == (False, False, [0, 1, 2], [])


def test_a_leak_is_reset_once_and_persistence_mode_is_on_again(lab: Lab, leak: None) -> None:
    dry = reset(lab, "--check", "--diff")
    assert (dry["changed"], dry["reset"], used(lab)[1]) == (True, [1], FULL_MIB)

    done = reset(lab)
    assert (done["failed"], done["changed"], done["reset"]) == (False, True, [1]), done
    assert done["persistence_mode_switched"] == [1]
    assert (used(lab)[1], persistence(lab)) == (FLOOR_MIB, "Enabled")
    assert done["after"][0]["memory_used_mib"] == FLOOR_MIB

    assert reset(lab)["changed"] is False


def test_nothing_is_reset_while_a_monitor_has_the_card(lab: Lab, leak: None) -> None:
    with running(lab, WATCHES) as monitor:
        refused = reset(lab)
        assert (refused["failed"], refused["reason"]) == (True, "held"), refused
        assert [one["pid"] for one in refused["holders"]] == [monitor.pid]
        assert f"{monitor.pid} (nvtop" in refused["msg"]
        assert alive(monitor.pid)
    assert (used(lab)[1], persistence(lab)) == (FULL_MIB, "Enabled")


def test_a_persistence_daemon_lets_go_and_lives_on(lab: Lab, leak: None) -> None:
    with running(lab, PERSISTS) as daemon:
        done = reset(lab)
        assert (done["failed"], done["reset"]) == (False, [1]), done
        assert alive(daemon.pid)
    assert used(lab)[1] == FLOOR_MIB


@pytest.mark.parametrize(
    ("fault", "reason", "changed", "words"),
    [
        ("reset_refused", "reset_in_use", False, "In use by another client"),
        ("reset_useless", "still_busy", True, "but what it holds now is 76115 MiB"),
    ],
)
def test_a_reset_that_did_not_help_is_a_failure(
    lab: Lab, leak: None, fault: str, reason: str, changed: bool, words: str
) -> None:
    (lab.state / "faults.json").write_text(json.dumps({"nvidia_smi": fault}), encoding="utf-8")
    failed = reset(lab)
    assert (failed["failed"], failed["reason"], failed["changed"]) == (True, reason, changed), failed
    assert words in failed["msg"]
    assert persistence(lab) == "Enabled"
