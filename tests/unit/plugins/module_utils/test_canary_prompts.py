# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib

from ansible_collections.gpuops.inference.plugins.module_utils._canary_prompts import (
    ARITHMETIC,
    LONG_INPUT,
    PROMPTS,
    WARM_UP,
    soak_prompt,
)
from ansible_collections.gpuops.inference.plugins.module_utils._text_sanity import answers, defect


def test_the_prompts_are_those_that_baselines_were_measured_with() -> None:
    """Whoever changes one changes the accept length and the speed that operators expect: say so in the changelog."""
    digest = hashlib.sha256("\0".join(one.text for one in (*PROMPTS, WARM_UP)).encode()).hexdigest()
    assert digest[:16] == "53bc1407862b7d74"


def test_each_prompt_is_a_text_with_a_name_of_its_own() -> None:
    assert [one.name for one in PROMPTS] == ["prose", "code", "arithmetic", "long_input"]
    assert all(defect(one.text) is None for one in (*PROMPTS, WARM_UP))


def test_the_long_input_is_long_and_its_lines_differ() -> None:
    lines = [line for line in LONG_INPUT.text.splitlines() if line.startswith("Day")]
    assert len(LONG_INPUT.text) > 8_000
    assert len({line[8:] for line in lines}) == len(lines) == 120


def test_the_sum_is_right() -> None:
    assert answers(f"There are {17 * 23} bottles.", ARITHMETIC.answer, False) is True


def test_no_two_requests_of_a_soak_are_the_same() -> None:
    assert len({soak_prompt(number).text for number in range(500)}) == 500
