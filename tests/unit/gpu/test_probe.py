# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe of a real card, as far as it goes without one: whom it may end, what it writes, that nothing stops it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_patterns, matches
from tests.gpu import __main__ as probe
from tests.gpu import cuda, nvml, steps
from tests.gpu.children import TOKEN
from tests.gpu.rig import Card, Rig
from tests.unit.fake_proc import make_process

UUIDS = ("GPU-5d1a7c1e-0f2b-4c33-9a61-70c1b5e0a410", "GPU-c94f3a02-6d7e-4b1f-8e05-1b9d2c7f4e21")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    card = Card(0, UUIDS[0], "0000:0f:00.0", 97887, 51)
    return Rig("/nowhere/nvidia-smi", str(tmp_path / "dev"), tmp_path, chosen=card)


@pytest.mark.parametrize(
    ("name", "command", "ours"),
    [
        (TOKEN, f"python3 -m tests.gpu.holder {TOKEN} cuda {{}}", True),
        ("python3", f"python3 -m tests.gpu.holder {TOKEN} cuda {{}}", False),
        (TOKEN, "python3 train.py", False),
        ("pt_main_thread", "python3 train.py", False),
        ("", "", False),
        ("x\n", f"a\n{TOKEN[:-1]}", False),
    ],
    # The name has a process id in it, and workers that share the tests must call them the same.
    ids=["both", "command", "name", "neither", "nothing", "almost"],
)
def test_only_who_bears_the_probe_s_name_twice_may_be_ended(name: str, command: str, ours: bool) -> None:
    guard = compile_patterns([steps.GUARD], "protect")
    assert matches(make_process(name=name, command=command), guard) is not ours
    assert len(TOKEN) <= 15


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        ([], {"n": 0}),
        ([2.0], {"n": 1, "p50": 2.0, "p90": 2.0, "max": 2.0}),
        ([float(one) for one in range(10, 0, -1)], {"n": 10, "p50": 5.0, "p90": 9.0, "max": 10.0}),
    ],
)
def test_a_percentile_is_a_sample(samples: list[float], found: dict[str, Any]) -> None:
    assert steps.percentiles(samples) == found


def test_nothing_that_is_written_tells_the_machine(rig: Rig) -> None:
    text = f"{UUIDS[1]}, {UUIDS[0]}\n    Serial Number                         : 1652923012345\n{UUIDS[1]}\n"
    scrubbed = rig.scrub(text)
    assert not any(one in scrubbed for one in (*UUIDS, "1652923012345"))
    first, _serial, third, _end = scrubbed.split("\n")
    assert first.split(", ")[0] == third != first.split(", ")[1]


def fails(_rig: Rig, record: dict[str, Any]) -> None:
    record["seen"] = 1
    raise ZeroDivisionError("no such thing")


def hangs(_rig: Rig, record: dict[str, Any]) -> None:
    record["seen"] = 1
    signal.pause()


def breaks_a_promise(_rig: Rig, record: dict[str, Any]) -> None:
    record.update(seen=1, checks={"held": True, "not_held": False})


def refuses(_rig: Rig, record: dict[str, Any]) -> None:
    record["seen"] = 1
    raise steps.RefusedError("somebody else's")


def has_no_nvidia_smi(rig: Rig, record: dict[str, Any]) -> None:
    record["seen"] = 1
    rig.cards()


@pytest.mark.parametrize(
    ("take", "status", "why"),
    [
        (fails, "failed", "ZeroDivisionError: no such thing"),
        (hangs, "timeout", "not done within 0 s"),
        (breaks_a_promise, "failed", "not so: not_held"),
        (refuses, "refused", "somebody else's"),
        (has_no_nvidia_smi, "failed", "/nowhere/nvidia-smi cannot be run"),
    ],
)
def test_what_goes_wrong_is_written_down_with_what_was_seen_until_then(
    rig: Rig, take: Any, status: str, why: str
) -> None:
    outcome = probe.run(probe.Step("x", 9, True, take), rig, 0.05)
    assert (outcome["status"], outcome["data"]["seen"]) == (status, 1)
    assert why in outcome["why"]


def test_a_step_without_its_card_or_without_time_is_not_begun(rig: Rig) -> None:
    step = probe.Step("x", 9, True, fails)
    for left in (0, -1):
        refused = probe.run(step, rig, left)
        assert (refused["status"], refused["data"]) == ("timeout", {})
    rig.chosen = None
    assert probe.run(step, rig, 9)["status"] == "no_card"


def test_all_steps_together_end_within_six_minutes() -> None:
    assert probe.LIMIT_S < 360


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a card")
def test_without_a_driver_its_libraries_say_so() -> None:
    with pytest.raises(cuda.CudaError):
        cuda.Cuda()
    with pytest.raises(nvml.NvmlError):
        nvml.Nvml()


def test_the_card_that_somebody_uses_is_not_chosen(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "--query-gpu": f"0, {UUIDS[0]}, 00000000:0F:00.0, 97887, 51, 97216, 580, RTX\n"
        f"1, {UUIDS[1]}, 00000000:15:00.0, 97887, 3, 97264, 580, RTX\n",
        "--query-compute-apps": f"{UUIDS[0]}, 4242, 12\n",
    }

    def answer(self: Rig, arguments: Any) -> tuple[subprocess.CompletedProcess[str], float]:
        name = arguments[0].partition("=")[0]
        others = name == "--query-compute-apps" and arguments[-1] != "0"
        return subprocess.CompletedProcess([], 0, "" if others else table[name], ""), 0.0

    monkeypatch.setattr(Rig, "_run", answer)
    assert (probe.choose(rig, None), rig.card.index) == (None, 1)
    assert probe.choose(rig, 0) == "every card is in use"
    assert probe.choose(rig, 7) == "there is no card 7"
    assert rig.chosen is None
