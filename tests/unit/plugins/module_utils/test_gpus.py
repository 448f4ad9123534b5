# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import (
    Gpu,
    GpuError,
    in_order,
    is_possible_pid,
    memory_state,
    normal_bus_id,
    ranges,
    select_gpus,
    unreadable_gpu,
)

LOST = GpuError("gpu_lost", "[GPU is lost]")


def card(index: int, used: Optional[int] = 3, domain: int = 0) -> Gpu:
    bus_id = f"{domain:04x}:{index + 10:02x}:00.0"
    return Gpu(index, f"GPU-0000000{index}-aaaa", bus_id, index, "card", 100, used, 97, None)


EIGHT = tuple(card(index) for index in range(8))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("0000:0f:00.0", "0000:0f:00.0"),
        ("0F:00.0", "0000:0f:00.0"),
        ("00010000:81:00.0", "10000:81:00.0"),
        ("10000:81:00.0", "10000:81:00.0"),
        (" 0008:01:00.0 ", "0008:01:00.0"),
        ("0000:0f:00", None),
        ("0000:0f:00.8", None),
        ("[N/A]", None),
        ("", None),
    ],
)
def test_every_spelling_of_a_bus_id_is_the_kernels(text: str, expected: Optional[str]) -> None:
    assert normal_bus_id(text) == expected


@pytest.mark.parametrize(
    ("gpu", "limit", "state"),
    [
        (card(0, 0), 0, "idle"),
        (card(0, 51), 100, "idle"),
        (card(0, 100), 100, "idle"),
        (card(0, 101), 100, "busy"),
        (card(0, 76115), 100, "busy"),
        (card(0, None), 100, "unknown"),
        (replace(card(0, 0), error=LOST), 100, "unknown"),
        (unreadable_gpu(LOST, index=3), 10**9, "unknown"),
    ],
)
def test_idle_is_at_or_below_the_limit_and_unknown_is_not_idle(gpu: Gpu, limit: int, state: str) -> None:
    assert memory_state(gpu, limit) == state


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        (["1"], [1]),
        (["5", "3"], [3, 5]),
        ([" 2 ", "2", "GPU-00000002-AAAA", "0000:0c:00.0", "0C:00.0", "00000000:0C:00.0"], [2]),
        (["gpu-00000007-aaaa"], [7]),
    ],
)
def test_a_card_is_chosen_by_any_of_its_names_and_only_once(wanted: list[str], indices: list[int]) -> None:
    assert [gpu.index for gpu in select_gpus(EIGHT, wanted)] == indices


@pytest.mark.parametrize(
    ("wanted", "reason", "sentence"),
    [
        (["9"], "no_such_gpu", "GPU 9 is not among the 8 cards of this machine (indices 0-7)."),
        (["9", "1", "12"], "no_such_gpu", "GPUs 9, 12 are not among the 8 cards of this machine (indices 0-7)."),
        (["GPU-ffff"], "no_such_gpu", "GPU-00000007-aaaa)."),
        (["ff:00.0"], "no_such_gpu", "0000:11:00.0)."),
        (["MIG-00000000-0000-0000-0000-00000000000a"], "bad_input", "is a MIG device"),
        (["MIG-GPU-00000000/1/0"], "bad_input", "is a MIG device"),
        (["nvidia1"], "bad_input", "'nvidia1' is not a card"),
        (["-1"], "bad_input", "'-1' is not a card"),
        ([""], "bad_input", "'' is not a card"),
        ([], "bad_input", "gpus is an empty list"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(wanted: list[str], reason: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        select_gpus(EIGHT, wanted)
    assert caught.value.reason == reason
    assert sentence in caught.value.message


def test_a_dead_card_can_be_chosen_by_what_is_known_of_it() -> None:
    dead = unreadable_gpu(LOST, pci_bus_id="0000:34:00.0")
    gpus = (*EIGHT[:3], *EIGHT[4:], dead)
    assert select_gpus(gpus, ["34:00.0"]) == (dead,)
    with pytest.raises(InputError, match=r"\(indices 0-2, 4-7; index not known: 0000:34:00.0\)"):
        select_gpus(gpus, ["3"])


def test_a_bus_id_without_domain_must_mean_one_card() -> None:
    gpus = (card(0, domain=8), card(0, domain=9))
    assert select_gpus(gpus, ["0009:0a:00.0"]) == (gpus[1],)
    with pytest.raises(InputError, match="means 2 cards"):
        select_gpus(gpus, ["0a:00.0"])


def test_cards_without_an_index_come_last() -> None:
    dead = [unreadable_gpu(LOST, pci_bus_id=bus_id) for bus_id in ("0000:34:00.0", "0000:12:00.0")]
    assert [gpu.label for gpu in in_order([dead[0], EIGHT[1], dead[1], EIGHT[0]])] == [
        "0 (0000:0a:00.0)",
        "1 (0000:0b:00.0)",
        "0000:12:00.0",
        "0000:34:00.0",
    ]


@pytest.mark.parametrize(("pid", "possible"), [(0, False), (1, False), (2, True), (4194304, True), (4294967295, False)])
def test_zero_minus_one_and_init_are_no_processes_to_name(pid: int, possible: bool) -> None:
    assert is_possible_pid(pid) is possible


def test_ranges() -> None:
    assert ranges([7, 0, 1, 2, 4, 5]) == "0-2, 4-5, 7"
    assert ranges([]) == "none"


@given(st.lists(st.text(max_size=20), max_size=4))
def test_no_choice_whatever_it_says_breaks_the_selection(wanted: list[str]) -> None:
    with suppress(InputError):
        assert set(select_gpus(EIGHT, wanted)) <= set(EIGHT)
