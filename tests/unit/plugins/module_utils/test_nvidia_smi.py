# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked, in which order, and what is made of it. Recorded answers have the numbers of their field cases."""

from __future__ import annotations

from typing import Optional, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed
from ansible_collections.gpuops.inference.plugins.module_utils._errors import DriverError, GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import ComputeProcess, DriverReading
from ansible_collections.gpuops.inference.plugins.module_utils._nvidia_smi import read, read_minors
from tests.unit.garbage import NVIDIA_SMI_TEXT
from tests.unit.recorded import Answer, ScriptedRunner, completed, exit_codes, recorded

NONE = completed("")
CORE = "--query-gpu=index,uuid,pci.bus_id,memory.total,memory.used,memory.free,driver_version,name"
LEAST = "--query-gpu=index,memory.used"
PROCESSES = "--query-compute-apps=gpu_uuid,pid,used_memory"
FORMAT = "--format=csv,noheader,nounits"
UUID = "GPU-11111111-0000-0000-0000-000000000000"


def reading_of(
    gpu: Sequence[Answer], apps: Answer = NONE, listed: Answer = NONE
) -> tuple[DriverReading, list[list[str]]]:
    runner = ScriptedRunner({"--query-gpu": list(gpu), "--query-compute-apps": [apps], "-L": [listed]})
    found = read(lambda arguments: runner.run(["nvidia-smi", *arguments], timeout=1), processes=True)
    return found, [call[1:] for call in runner.calls]


def test_the_incident_is_read_as_it_was() -> None:
    reading, calls = reading_of([recorded("nvidia_smi", "incident")], apps=recorded("nvidia_smi", "incident_processes"))
    assert [gpu.memory_used_mib for gpu in reading.gpus] == [51, 76115, 51, 3, 3, 3, 3, 3]
    assert [gpu.index for gpu in reading.gpus] == list(range(8))
    assert reading.gpus[1].pci_bus_id == "0000:15:00.0"
    assert reading.gpus[1].memory_free_mib == 97887 - 620 - 76115
    assert reading.driver_version == "580.95.05"
    assert reading.compute_processes == (ComputeProcess(24871, "GPU-00000000-0000-0000-0000-000000000001", 76064),)
    assert (reading.backend, reading.invalid_pids, reading.warnings) == ("nvidia_smi", 0, ())
    assert calls == [[CORE, FORMAT], [PROCESSES, FORMAT]]


WHOLE_FAILURES = {
    "A12": "no_devices",
    "A14": "driver_not_loaded",
    "A16": "nvml_init_failed",
    "A22": "bad_query",
    "A29": "empty_output",
    "A38": "not_installed",
}


@pytest.mark.parametrize(("case", "reason"), WHOLE_FAILURES.items())
def test_a_call_without_rows_fails_with_its_reason_and_all_it_said(case: str, reason: str) -> None:
    answer = recorded("nvidia_smi", case)
    with pytest.raises(DriverError) as caught:
        reading_of([answer])
    error = caught.value
    assert error.reason == reason
    assert (error.fields["rc"], error.fields["stdout"], error.fields["stderr"]) == (
        answer.rc,
        answer.stdout,
        answer.stderr,
    )


@pytest.mark.parametrize(
    ("rc", "stdout", "reason"),
    [
        (2, "", "bad_query"),
        (4, "", "no_permission"),
        (9, "", "driver_not_loaded"),
        (
            12,
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n",
            "library_not_found",
        ),
        (15, "", "gpu_lost"),
        (18, "Failed to initialize NVML: Driver/library version mismatch\n", "version_mismatch"),
        (4, "Failed to initialize NVML: Insufficient Permissions\n", "no_permission"),
        (17, "Failed to initialize NVML: GPU access blocked by the operating system\n", "access_blocked"),
        (-11, "", "crashed"),
        (-9, "0, 3\n", "crashed"),
        (-1, "Unable to determine the device handle for GPU3: 0000:34:00.0: Unknown Error\n0, 3\n", "crashed"),
        (42, "0, 3\n", "unknown_error"),
        (0, "\x1b[2J%PDF-1.4 ????, 0x7f, \n;;;,,,\n1e309, -7, NaN\n", "bad_output"),
        (0, "0, 3\n0, 4\n", "bad_output"),
        (0, "index, memory.used [MiB]\n", "bad_output"),
        (126, "", "not_executable"),
    ],
)
def test_exit_status_and_sentence_give_the_reason(rc: int, stdout: str, reason: str) -> None:
    with pytest.raises(DriverError) as caught:
        reading_of([completed(stdout, rc=rc)])
    assert caught.value.reason == reason


@pytest.mark.parametrize("text", ["no row at all\n", "GPU access blocked by the operating system\n"])
def test_fewer_fields_are_asked_for_only_where_one_was_refused(text: str) -> None:
    asked: list[Sequence[str]] = []

    def ask(arguments: Sequence[str]) -> Completed:
        asked.append(arguments)
        return completed(text, rc=17)

    with pytest.raises(DriverError):
        read(ask, processes=False)
    assert len(asked) == 1


def test_control_characters_stay_out_of_the_message() -> None:
    with pytest.raises(DriverError) as caught:
        reading_of([completed("\x1b[2Jgarbage\n")])
    assert caught.value.message.isprintable()


def rows(*indices: int) -> str:
    return "".join(
        f"{index}, GPU-0000000{index}, 00000000:{index + 0x31:02x}:00.0, 97887, 3, 97264, 580.95.05, card\n"
        for index in indices
    )


@pytest.mark.parametrize("rc", exit_codes("nvidia_smi", "A08"))
@pytest.mark.parametrize(
    ("sentence", "index"),
    [("GPU3: 0000:34:00.0: Unknown Error", 3), ("GPU0000:34:00.0: Unknown Error", None)],
)
def test_a08_a_dead_card_beside_rows_is_unknown_and_leaves_a_gap(rc: int, sentence: str, index: Optional[int]) -> None:
    text = f"Unable to determine the device handle for {sentence}\n" + rows(0, 1, 2, 4, 5, 6, 7)
    reading, calls = reading_of([completed(text, rc=rc)])
    dead = next(gpu for gpu in reading.gpus if gpu.error is not None)
    assert (dead.index, dead.pci_bus_id) == (index, "0000:34:00.0")
    assert [gpu.index for gpu in reading.gpus if gpu.error is None] == [0, 1, 2, 4, 5, 6, 7]
    assert len(calls) == 2


@pytest.mark.parametrize("rc", exit_codes("nvidia_smi", "A07"))
def test_a07_a_sentence_and_a_row_of_words_are_one_dead_card(rc: int) -> None:
    text = recorded("nvidia_smi", "A07").stdout.replace(
        "NVIDIA GeForce RTX 5060 Ti, 18", "00000000:01:00.0, 16311, 18, 16000, 580.95.05, NVIDIA GeForce RTX 5060 Ti"
    )
    reading, _calls = reading_of([completed(text, rc=rc)])
    assert [(gpu.index, gpu.memory_used_mib, gpu.pci_bus_id) for gpu in reading.gpus] == [
        (0, 18, "0000:01:00.0"),
        (None, None, "0000:02:00.0"),
    ]


def test_an_index_that_a_row_has_is_not_given_to_a_dead_card() -> None:
    text = "Unable to determine the device handle for GPU0: 0000:34:00.0: Unknown Error\n" + rows(0, 1)
    reading, _calls = reading_of([completed(text)])
    assert [(gpu.index, gpu.error is None) for gpu in reading.gpus] == [(0, True), (1, True), (None, False)]


def test_a_card_with_a_row_and_a_sentence_is_not_believed() -> None:
    text = "Unable to determine the device handle for GPU 0000:32:00.0: GPU is lost.\n" + rows(0, 1)
    reading, _calls = reading_of([completed(text)])
    assert [gpu.error.reason if gpu.error else None for gpu in reading.gpus] == [None, "gpu_lost"]


HIDING = "Unable to determine the device handle for GPU3: 0000:34:00.0: GPU is lost.  Reboot the system.\n"


def listing(*indices: int) -> str:
    return "".join(f"GPU {index}: NVIDIA card (UUID: GPU-0000000{index})\n" for index in indices)


@pytest.mark.parametrize("list_rc", [0, 15])
def test_one_dead_card_does_not_hide_the_others(list_rc: int) -> None:
    reading, calls = reading_of(
        [completed(HIDING, rc=15), completed(rows(0, 1, 2, 4, 5, 6, 7))],
        listed=completed(HIDING + listing(0, 1, 2, 4, 5, 6, 7), rc=list_rc),
    )
    assert [gpu.index for gpu in reading.gpus] == list(range(8))
    assert [gpu.index for gpu in reading.gpus if gpu.error is not None] == [3]
    dead = reading.gpus[3]
    assert dead.error is not None
    assert (dead.pci_bus_id, dead.error.reason, dead.error.text) == ("0000:34:00.0", "gpu_lost", HIDING.strip())
    others = ["-i", "0,1,2,4,5,6,7"]
    assert calls == [[CORE, FORMAT], ["-L"], [CORE, FORMAT, *others], [PROCESSES, FORMAT, *others]]


def test_when_no_card_answers_the_lost_one_is_the_reason() -> None:
    with pytest.raises(DriverError) as caught:
        reading_of([completed(HIDING, rc=15)], listed=completed(HIDING, rc=15))
    assert (caught.value.reason, caught.value.fields["rc"]) == ("gpu_lost", 15)


def test_when_the_others_do_not_answer_either_nothing_is_asked_for_ever() -> None:
    with pytest.raises(DriverError):
        reading_of([completed(HIDING, rc=15)], listed=completed(listing(0, 1)))


def test_a18_a_corrupted_inforom_is_a_warning() -> None:
    text = "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n" + rows(0)
    reading, _calls = reading_of([completed(text, rc=14)])
    assert [gpu.memory_used_mib for gpu in reading.gpus] == [3]
    assert reading.warnings == ("infoROM is corrupted at gpu 0000:01:00.0",)


def test_a22_a_refused_field_leaves_index_and_memory() -> None:
    reading, calls = reading_of([recorded("nvidia_smi", "A22"), completed("0, 3\n1, 76115\n")])
    assert [(gpu.index, gpu.memory_used_mib, gpu.uuid) for gpu in reading.gpus] == [(0, 3, None), (1, 76115, None)]
    assert calls == [[CORE, FORMAT], [LEAST, FORMAT], [PROCESSES, FORMAT]]
    assert len(reading.warnings) == 1
    assert 'Field "cuda_version" is not a valid field to query.' in reading.warnings[0]


@pytest.mark.parametrize(
    ("answer", "listed", "invalid"),
    [
        (completed(""), (), 0),
        (completed("No running processes found\n"), (), 0),
        (completed(f"{UUID}, 77, 12\n{UUID}, 0, 12\n{UUID}, 4294967295, 1\n"), (ComputeProcess(77, UUID, 12),), 2),
        (completed(f"{UUID}, 77, 12\n{UUID}, 0, 12\n"), (ComputeProcess(77, UUID, 12),), 1),
        (completed(f"{UUID}, [N/A], 12\n[N/A], 77, 12\n{UUID}, 77\n"), (), 3),
        (completed("Insufficient Permissions to list processes\n"), None, 0),
        (completed("", rc=255), None, 0),
        (completed(f"{UUID}, 77, 12\n", rc=-9), None, 0),
    ],
)
def test_a_list_that_was_not_read_is_not_an_empty_one(
    answer: Completed, listed: Optional[tuple[ComputeProcess, ...]], invalid: int
) -> None:
    reading, _calls = reading_of([completed(rows(0))], apps=answer)
    assert reading.compute_processes == listed
    assert (reading.invalid_pids, len(reading.warnings)) == (invalid, 1 if listed is None else 0)


def test_processes_are_not_asked_for_when_not_wanted() -> None:
    runner = ScriptedRunner({"--query-gpu": [completed(rows(0))]})
    found = read(lambda arguments: runner.run(["nvidia-smi", *arguments], timeout=1), processes=False)
    assert (found.compute_processes, found.invalid_pids) == (None, 0)
    assert len(runner.calls) == 1


@pytest.mark.parametrize(("rc", "minors"), [(0, {"0000:31:00.0": 4}), (14, {"0000:31:00.0": 4}), (15, {})])
def test_minors_are_asked_of_the_cards_that_answer(rc: int, minors: dict[str, int]) -> None:
    asked: list[Sequence[str]] = []

    def ask(arguments: Sequence[str]) -> Completed:
        asked.append(arguments)
        return completed("GPU 00000000:31:00.0\n    Minor Number : 4\n", rc=rc)

    gpus = reading_of([completed(rows(0, 2))])[0].gpus
    assert read_minors(ask, gpus) == minors
    assert asked == [["-q", "-i", "0,2"]]


@given(
    gpu=st.lists(NVIDIA_SMI_TEXT, min_size=1, max_size=3),
    apps=NVIDIA_SMI_TEXT,
    listed=NVIDIA_SMI_TEXT,
    rc=st.sampled_from([0, 2, 14, 15, -11]),
)
def test_no_text_makes_the_reader_fail_in_any_other_way(gpu: list[str], apps: str, listed: str, rc: int) -> None:
    try:
        reading, calls = reading_of(
            [completed(text, rc=rc) for text in gpu], apps=completed(apps), listed=completed(listed, rc=rc)
        )
    except GpuopsError:
        return
    assert reading.gpus
    assert len(calls) <= 5
    assert all(gpu.error is not None or gpu.memory_used_mib is not None for gpu in reading.gpus)
    for one in reading.compute_processes or ():
        assert 1 < one.pid <= 4194304
