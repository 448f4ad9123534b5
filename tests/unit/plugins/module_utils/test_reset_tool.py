# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi says of a reset and of persistence mode, and how it is asked."""

from __future__ import annotations

from typing import Optional

import pytest
from hypothesis import given

from ansible_collections.gpuops.inference.plugins.module_utils._errors import DriverError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu
from ansible_collections.gpuops.inference.plugins.module_utils._reset_tool import (
    ResetTool,
    names,
    parse_persistence,
    parse_reset,
    said,
)
from tests.unit.garbage import NVIDIA_SMI_TEXT
from tests.unit.recorded import ScriptedRunner, completed, exit_codes, recorded

CASES: dict[str, tuple[set[str], Optional[str]]] = {
    # case: (bus ids that were reset, reason code of the refusal)
    "done": ({"0000:55:00.0"}, None),
    "B11": (set(), "reset_in_use"),
    "in_use_460": (set(), "reset_in_use"),
    "in_use_unable": (set(), "reset_in_use"),
    "not_supported": (set(), "reset_not_supported"),
    "primary": (set(), "reset_not_supported"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_reset_and_why_not_whatever_the_exit_status(case: str) -> None:
    done, reason = CASES[case]
    for rc in exit_codes("nvidia_smi_reset", case):
        answer = parse_reset(recorded("nvidia_smi_reset", case, rc=rc))
        assert (set(answer.done), answer.reason) == (done, reason)


def test_two_blanks_and_several_cards() -> None:
    answer = parse_reset(recorded("nvidia_smi_reset", "done_several"))
    assert (sorted(answer.done), answer.reason) == (["0000:14:00.0", "0000:15:00.0", "0000:18:00.0"], None)


def test_a_bad_exit_is_a_failure_whatever_was_said() -> None:
    assert parse_reset(completed("All done.\n", rc=255)).reason == "reset_failed"
    assert parse_reset(completed("", rc=-11)) == (frozenset(), "reset_failed", "nothing (killed by signal 11)")


def test_some_cards_reset_and_one_refused() -> None:
    text = recorded("nvidia_smi_reset", "done").stdout + recorded("nvidia_smi_reset", "B11").stdout
    answer = parse_reset(completed(text, rc=255))
    assert (set(answer.done), answer.reason) == ({"0000:55:00.0"}, "reset_in_use")


def test_the_tool_s_own_words_are_passed_on_on_one_line() -> None:
    words = parse_reset(recorded("nvidia_smi_reset", "B11")).said
    assert words.startswith(
        "The following GPUs could not be reset: GPU 00000000:1A:00.0: In use by another client 1 dev"
    )
    assert "Fabric Manager" in words
    assert len(said(completed("x\x1b[2J" * 1000))) <= 600
    assert "\x1b" not in said(completed("x\x1b[2J"))


@given(text=NVIDIA_SMI_TEXT)
def test_no_text_breaks_the_parsers(text: str) -> None:
    assert parse_reset(completed(text, rc=255)).reason is not None
    assert all(value in (True, False) for value in parse_persistence(text).values())


def test_persistence_mode_of_each_card() -> None:
    text = "0, Enabled\n1, Disabled\n2, [N/A]\n3, [GPU requires reset]\nEnabled\nUnable to determine\n"
    assert parse_persistence(text) == {0: True, 1: False}


def gpu(index: Optional[int], uuid: Optional[str] = None) -> Gpu:
    return Gpu(index, uuid, "0000:0f:00.0", 3, None, None, None, None, None)


def test_a_card_is_named_by_what_the_tool_finds_best() -> None:
    assert names([gpu(3, "GPU-3"), gpu(None, "GPU-4"), gpu(None)]) == "3,GPU-4,0000:0f:00.0"


def test_how_it_is_asked() -> None:
    runner = ScriptedRunner(
        {
            "persistence_mode": [completed("1, Enabled\n3, Disabled\n")],
            "-pm": [completed("Disabled persistence mode for GPU 00000000:55:00.0.\nAll done.\n")],
            "--gpu-reset": [recorded("nvidia_smi_reset", "done")],
        }
    )
    tool = ResetTool(runner, "/opt/nvidia-smi", 20, 60)
    cards = [gpu(1), gpu(3)]
    assert tool.persistent(cards) == [gpu(1)]
    tool.persist(cards, on=False)
    tool.persist(cards, on=True)
    tool.reset(cards)
    assert [call[1:] for call in runner.calls[1:]] == [
        ["-pm", "0", "-i", "1,3"],
        ["-pm", "1", "-i", "1,3"],
        ["--gpu-reset", "-i", "1,3"],
    ]
    assert {call[0] for call in runner.calls} == {"/opt/nvidia-smi"}
    assert runner.timeouts == [20, 20, 20, 60]


def test_a_card_that_does_not_answer_about_persistence_mode_is_an_error() -> None:
    lost = completed("Unable to determine the device handle for GPU0: 0000:01:00.0: GPU is lost.\n", rc=15)
    tool = ResetTool(ScriptedRunner({"persistence_mode": [lost]}), "nvidia-smi", 20, 60)
    with pytest.raises(DriverError):
        tool.persistent([gpu(0)])
