# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a text means. The numbers of the cases are those of the field cases that they come from."""

from __future__ import annotations

import re
from typing import Any, Optional, Sequence

import pytest
from hypothesis import given

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import ComputeProcess
from ansible_collections.gpuops.inference.plugins.module_utils._nvidia_smi import (
    CARD_FIELDS,
    LEAST_FIELDS,
    PROCESS_FIELDS,
    number,
    parse_cards,
    parse_list,
    parse_minors,
    parse_processes,
    parse_table,
)
from tests.unit.garbage import NVIDIA_SMI_TEXT
from tests.unit.recorded import exit_codes, recorded

UUID = "GPU-11111111-0000-0000-0000-000000000000"


def values(text: str, fields: Sequence[str]) -> list[tuple[Any, ...]]:
    cards = parse_cards(text, fields)
    return [
        (gpu.index, gpu.memory_used_mib, gpu.error.reason if gpu.error else None, gpu.pci_bus_id)
        for gpu in (*cards.gpus, *cards.dead)
    ]


CELLS = {
    # case: (fields that were asked for, (index, MiB used, reason, bus id) of every card)
    "A01": ("index memory.used", [(0, None, "not_available", None)]),
    "A05": ("index memory.used utilization.gpu", [(0, 59, None, None)]),
    "A07": ("index uuid name memory.used", [(0, 18, None, None), (None, None, "unknown_error", "0000:02:00.0")]),
    "A08": (
        "index memory.used",
        [*((index, 0, None, None) for index in (0, 1, 2, 4, 5, 6, 7)), (3, None, "unknown_error", "0000:34:00.0")],
    ),
    "A12": ("index memory.used", []),
    "A14": ("index memory.used", []),
    "A16": ("index memory.used", []),
    "A18": ("index memory.used", [(0, 300, None, None)]),
    "A20": (
        "index uuid utilization.gpu memory.used power.draw temperature.gpu",
        [(0, None, "requires_reset", None)],
    ),
    "A22": ("index memory.used", []),
    "A29": ("index memory.used", []),
}


@pytest.mark.parametrize("case", CELLS)
def test_cards_of_the_field_cases(case: str) -> None:
    fields, expected = CELLS[case]
    assert values(recorded("nvidia_smi", case).stdout, fields.split()) == expected


def test_a03_a_word_leaves_the_other_cells_of_its_row_alone() -> None:
    fields = ("memory.used", "memory.reserved", "utilization.gpu", "temperature.gpu", "power.draw", "a", "b")
    (row,) = parse_table(recorded("nvidia_smi", "A03").stdout, fields).rows
    assert [number(cell) for cell in row.values()] == [2004, 2004, 0, 44, None, 0, 0]


def test_a31_rows_are_split_before_cells() -> None:
    table = parse_table(recorded("nvidia_smi", "A31").stdout, ("memory.used", "memory.total"))
    assert [[number(cell) for cell in row.values()] for row in table.rows] == [[5, 16384], [5, 16384]]


@pytest.mark.parametrize(
    ("cell", "value"),
    [("3", 3), (" 76115 ", 76115), ("76115 MiB", 76115), ("40 %", 40), ("[N/A]", None), ("", None), ("-1", None)]
    + [(word, None) for word in ("1e3", "0x10", "1.5", "1 GiB", "٣", "9" * 5000, "NaN")],
)
def test_a_number_is_digits_or_nothing(cell: str, value: Optional[int]) -> None:
    assert number(cell) == value


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("[N/A]", "not_available"),
        ("N/A", "not_available"),
        ("[Not Supported]", "not_supported"),
        ("Not Supported", "not_supported"),
        ("[Insufficient Permissions]", "no_permission"),
        ("[Unknown Error]", "unknown_error"),
        ("[GPU is lost]", "gpu_lost"),
        ("[GPU requires reset]", "requires_reset"),
        ("", "bad_output"),
        ("[something new]", "bad_output"),
        ("76.5", "bad_output"),
    ],
)
def test_every_word_in_place_of_memory_is_unknown_with_its_reason(word: str, reason: str) -> None:
    (gpu,) = parse_cards(f"4, {word}\n", LEAST_FIELDS).gpus
    assert (gpu.index, gpu.memory_used_mib) == (4, None)
    assert gpu.error is not None
    assert (gpu.error.reason, gpu.error.text) == (reason, word)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        # a card lost in mid-answer, whole row or cut
        (f"1, {UUID}, 00000000:15:00.0, 97887, 0, [GPU is lost], 580.95.05, name", "gpu_lost"),
        ("1, [GPU is lost]", "gpu_lost"),
        # an answer cut in the middle of 76115
        (f"1, {UUID}, 00000000:15:00.0, 97887, 76", "bad_output"),
    ],
)
def test_numbers_beside_a_lost_card_or_in_a_cut_row_do_not_count(row: str, reason: str) -> None:
    (gpu,) = parse_cards(row, CARD_FIELDS).gpus
    assert gpu.index == 1
    assert gpu.error is not None
    assert gpu.error.reason == reason


@pytest.mark.parametrize("fields", ["pid name", "pid name a", "pid name a b", "pid a name b c", "pid a b c name"])
@pytest.mark.parametrize("name", ["x", "x, y", "x, y, z", "a, b, c, d, e"])
def test_commas_in_the_one_cell_that_may_hold_them_shift_no_other(fields: str, name: str) -> None:
    names = fields.split()
    cells = {field: name if field == "name" else str(number) for number, field in enumerate(names)}
    (row,) = parse_table(", ".join(cells.values()), names).rows
    assert row == cells


def test_of_a_short_row_the_first_word_tells_why_and_no_number_counts() -> None:
    (gpu,) = parse_cards(f"1, {UUID}, [N/A], 97887, [Not Supported]\n", CARD_FIELDS).gpus
    assert gpu.error is not None
    assert (gpu.error.reason, gpu.error.text) == ("not_available", "[N/A]")
    assert (gpu.memory_total_mib, gpu.memory_used_mib, gpu.memory_free_mib) == (None, None, None)


def test_a_row_without_a_word_that_is_short_says_that_it_is() -> None:
    row = f"1, {UUID}, 00000000:15:00.0, 97887, 76, 97264, 580.95.05"
    (whole,) = parse_cards(f"{row}, name\n", CARD_FIELDS).gpus
    (short,) = parse_cards(f"{row}\n", CARD_FIELDS).gpus
    assert (whole.error, whole.memory_total_mib, whole.memory_free_mib) == (None, 97887, 97264)
    assert short.error is not None
    assert short.error.text == "the row has more or fewer cells than were asked for"
    assert (short.memory_total_mib, short.memory_used_mib, short.memory_free_mib) == (None, None, None)


def test_of_many_warnings_the_first_ten_are_kept() -> None:
    said = [f"infoROM is corrupted at gpu 0000:{number:02x}:00.0" for number in range(12)]
    assert parse_cards("".join(f"WARNING: {one}\n" for one in said), CARD_FIELDS).warnings == tuple(said[:10])


def test_a_comma_in_a_cards_name_shifts_nothing() -> None:
    (gpu,) = parse_cards(f"0, {UUID}, 00000000:0F:00.0, 97887, 3, 97264, 580.95.05, RTX, 6000, x\n", CARD_FIELDS).gpus
    assert (gpu.memory_used_mib, gpu.name, gpu.error) == (3, "RTX, 6000, x", None)


@pytest.mark.parametrize("rc", exit_codes("nvidia_smi", "A10"))
def test_a10_a_list_names_who_answers_and_who_does_not(rc: int) -> None:
    indices, dead = parse_list(recorded("nvidia_smi", "A10", rc=rc).stdout)
    assert indices == (1, 2, 3)
    assert [(gpu.index, gpu.pci_bus_id) for gpu in dead] == [(None, "0000:18:00.0")]


def test_a35_mig_devices_are_no_cards() -> None:
    assert parse_list(recorded("nvidia_smi", "A35").stdout) == ((0, 2), ())


def test_a24_a_process_without_name_and_memory_is_still_one() -> None:
    found = parse_processes(recorded("nvidia_smi", "A24").stdout, ("pid", "process_name", "used_memory"))
    assert found == ((ComputeProcess(63488, "", None),), 0)


def test_a26_names_may_hold_commas_and_quotes() -> None:
    fields = ("gpu_uuid", "pid", "process_name", "used_memory")
    text = recorded("nvidia_smi", "A26").stdout
    assert [row["process_name"] for row in parse_table(text, fields).rows] == [
        "/root/tools/mem, hog",
        "/a, b, c, d",
        '/root/tools/mem "q" hog',
        "/root/tools/memhög ünïcode",
    ]
    listed, invalid = parse_processes(text, fields)
    assert listed == tuple(
        ComputeProcess(pid, UUID, mib) for pid, mib in ((42, 818), (43, 12), (10528, 818), (10529, 818))
    )
    assert invalid == 0


def test_a28_the_sum_of_the_processes_is_not_made_a_verdict() -> None:
    listed, _invalid = parse_processes(
        recorded("nvidia_smi", "A28").stdout, ("gpu_uuid", "pid", "process_name", "used_memory")
    )
    assert listed is not None
    assert sum(one.used_memory_mib or 0 for one in listed) == 11052


def test_minors_come_from_the_blocks_of_the_details() -> None:
    minors = parse_minors(recorded("nvidia_smi", "incident_details").stdout)
    assert minors["0000:0f:00.0"] == 2
    assert sorted(minors.values()) == list(range(8))
    assert parse_minors("GPU 00000000:0F:00.0\n    Minor Number      : N/A\n") == {}
    assert parse_minors("    Minor Number      : 4\n") == {}


@pytest.mark.parametrize(
    "name",
    [
        "x\n    Minor Number : 0",
        "x\nGPU 00000000:D6:00.0\n    Minor Number : 0",
        "x\n    Minor Number : 0\nGPU 00000000:0F:00.0",
        "x\x85    Minor Number : 0",
    ],
)
def test_a_process_that_calls_itself_a_card_gives_no_card_another_minor(name: str) -> None:
    """Its name is printed below its card. With another minor, the holders of another card would be ended."""
    details = recorded("nvidia_smi", "incident_details").stdout
    first, *others = re.split(r"(?m)^(?=GPU 00000000:15)", details)
    forged = parse_minors("".join([first, f"    Processes\n        Name : {name}\n", *others]))
    assert forged.items() <= parse_minors(details).items()
    assert len(forged) >= 6


def test_a_card_without_a_minor_gets_none_from_a_process() -> None:
    text = "GPU 00000000:0F:00.0\n    Minor Number : N/A\n    Processes\n        Name : x\n    Minor Number : 0\n"
    assert parse_minors(text) == {}


@pytest.mark.parametrize("separator", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_a_newline_ends_a_row(separator: str) -> None:
    row = "0, GPU-0, 00000000:0F:00.0, 97887, 3, 97264, 580, NVIDIA"
    cards = parse_cards(f"{row}{separator}{row}\r\n1{row[1:]}\r\n", CARD_FIELDS)
    assert [gpu.index for gpu in cards.gpus] == [0, 1]
    assert parse_processes(f"GPU-0, 42, 3{separator}GPU-0, 43, 3\n", PROCESS_FIELDS) == ((), 1)
    assert parse_list(f"GPU 0: x (UUID: GPU-0){separator}GPU 1: x (UUID: GPU-1)\n")[0] == (0,)


@given(text=NVIDIA_SMI_TEXT)
def test_no_text_makes_a_parser_fail(text: str) -> None:
    parse_cards(text, CARD_FIELDS)
    parse_cards(text, LEAST_FIELDS)
    parse_processes(text, PROCESS_FIELDS)
    parse_minors(text)
    parse_list(text)
