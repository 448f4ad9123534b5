# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The child is the subject here, so it is really started, with a stand-in for the library on its path."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed, SystemRunner
from ansible_collections.gpuops.inference.plugins.module_utils._driver import has_nvml_binding
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, DriverError, GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import ComputeProcess, DriverReading
from ansible_collections.gpuops.inference.plugins.module_utils._nvml import parse, read
from tests.unit.recorded import FIXTURES, completed


def ask_system(argv: Sequence[str]) -> Completed:
    return SystemRunner().run(argv, timeout=20)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("PYTHONPATH", str(FIXTURES / "nvml" / "fake"))
    return monkeypatch


def reading_in(library: pytest.MonkeyPatch, mode: str, *, processes: bool = True) -> DriverReading:
    library.setenv("FAKE_NVML", mode)
    return read(ask_system, processes=processes)


def failure_in(library: pytest.MonkeyPatch, mode: str) -> DriverError:
    with pytest.raises(DriverError) as caught:
        reading_in(library, mode)
    return caught.value


def test_eight_cards_and_who_computes_on_them(library: pytest.MonkeyPatch) -> None:
    reading = reading_in(library, "")
    assert (reading.backend, reading.driver_version, reading.warnings) == ("nvml", "580.95.05", ())
    assert [gpu.memory_used_mib for gpu in reading.gpus] == [51, 76115, 51, 3, 3, 3, 3, 3]
    assert [gpu.index for gpu in reading.gpus] == list(range(8))
    first = reading.gpus[0]
    assert (first.uuid, first.pci_bus_id, first.minor) == ("GPU-00000000", "0000:31:00.0", 7)
    assert (first.memory_total_mib, first.memory_free_mib, first.error) == (97887, 97267, None)
    # 0 and 4294967295 are no processes; memory that is not available is unknown, not 17,592,186,044,415 MiB.
    assert reading.compute_processes == (
        ComputeProcess(24871, "GPU-00000001", 76064),
        ComputeProcess(500, "GPU-00000002", None),
        ComputeProcess(501, "GPU-00000004", None),
    )
    assert reading.invalid_pids == 2


@pytest.mark.parametrize("mode", ["old", "old_driver"])
def test_an_old_library_or_driver_answers_without_version_2(library: pytest.MonkeyPatch, mode: str) -> None:
    reading = reading_in(library, mode)
    assert reading.gpus[1].memory_used_mib == 76115 + 620
    if mode == "old":
        assert (reading.driver_version, reading.gpus[1].minor) == ("535.54.03", None)


@pytest.mark.parametrize(("mode", "bus_id"), [("lost", None), ("lost_later", "0000:34:00.0")])
def test_one_lost_card_does_not_hide_the_others(library: pytest.MonkeyPatch, mode: str, bus_id: object) -> None:
    reading = reading_in(library, mode)
    lost = reading.gpus[3]
    assert lost.error is not None
    assert (lost.index, lost.pci_bus_id, lost.memory_used_mib) == (3, bus_id, None)
    assert (lost.error.reason, lost.error.text) == ("gpu_lost", "GPU is lost")
    assert [gpu.error for gpu in reading.gpus if gpu.index != 3] == [None] * 7
    assert reading.compute_processes is not None


def test_a_list_that_may_not_be_read_is_not_empty(library: pytest.MonkeyPatch) -> None:
    reading = reading_in(library, "no_permission")
    assert reading.compute_processes is None
    assert "Insufficient Permissions" in reading.warnings[0]
    assert reading_in(library, "no_permission", processes=False).warnings == ()


@pytest.mark.parametrize(
    ("mode", "reason"), [("not_loaded", "driver_not_loaded"), ("empty", "no_devices"), ("crash", "crashed")]
)
def test_a_failure_has_its_reason_and_does_not_show_the_script(
    library: pytest.MonkeyPatch, mode: str, reason: str
) -> None:
    error = failure_in(library, mode)
    assert error.reason == reason
    assert "nvmlInit" not in json.dumps(error.result())


def test_a_hung_driver_is_given_up_on(library: pytest.MonkeyPatch) -> None:
    library.setenv("FAKE_NVML", "hang")
    with pytest.raises(CommandError) as caught:
        read(lambda argv: SystemRunner().run(argv, timeout=0.3), processes=True)
    assert caught.value.reason == "timeout"


def test_the_current_directory_is_not_on_the_path_of_the_child(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "pynvml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DriverError) as caught:
        read(ask_system, processes=True)
    assert caught.value.fields["rc"] != 99


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('no pynvml here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DriverError) as caught:
        read(ask_system, processes=True)
    assert caught.value.reason == "not_installed"
    assert "nvidia-ml-py" in caught.value.message


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed")
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a driver")
def test_the_real_library_without_a_driver_says_so() -> None:
    assert has_nvml_binding()
    with pytest.raises(DriverError) as caught:
        read(ask_system, processes=True)
    assert caught.value.reason in ("library_not_found", "driver_not_loaded")


def test_importable_means_found_and_an_interpreter_to_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not has_nvml_binding()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert has_nvml_binding()
    monkeypatch.setattr(sys, "executable", "")
    assert not has_nvml_binding()


def test_a33_pids_that_mean_groups_or_nobody_are_counted_and_dropped() -> None:
    pids = json.loads((FIXTURES / "nvml" / "A33" / "pids.json").read_text())
    card = {"index": 0, "uuid": "GPU-0", "used": 0, "processes": [[pid, None] for pid in pids]}
    reading = parse(completed(json.dumps({"gpus": [card]})), processes=True)
    assert [one.pid for one in reading.compute_processes or ()] == [1184, 16040]
    assert reading.invalid_pids == 6


ANSWERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["gpus", "failure", "code", "reason", "text", "index", "uuid", "used", "processes"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.one_of(st.text(), ANSWERS.map(json.dumps), st.just("[" * 100000)), st.sampled_from([0, 1, -6]))
def test_no_answer_makes_the_reader_fail_in_any_other_way(text: str, rc: int) -> None:
    try:
        reading = parse(completed(text, rc=rc), processes=True)
    except GpuopsError:
        return
    assert reading.gpus
