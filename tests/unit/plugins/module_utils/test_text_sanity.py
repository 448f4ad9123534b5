# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._text_sanity import (
    EMPTY,
    NOT_TEXT,
    REPETITION,
    answers,
    defect,
)

PROSE = (
    "The keeper climbed the stair with the first gust at the glass. He trimmed the lamp, wound the clockwork and wrote "
    "the hour into his book. By midnight the sea stood as high as the lower window, and the whole tower hummed."
)
CODE = "def get(self, key: str) -> int:\n    if key in self._data:\n        return self._data[key]\n    return -1\n"
TABLE = "| day | high | low |\n|-----|------|-----|\n" + "".join(
    f"| {day} | {300 + day * 7} | {40 + day * 3} |\n" for day in range(30)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROSE, None),
        (CODE * 3, None),
        (TABLE, None),
        ("391", None),
        ("ha ha ha", None),
        ("no, no, no, no!", None),
        (", ".join(str(number) for number in range(200)), None),
        ("2**10 = 1024\n" + "-" * 20, None),
        ("", EMPTY),
        (" \n\t ", EMPTY),
        ("!" * 64, REPETITION),
        ("the " * 40, REPETITION),
        ("and so on, " * 40, REPETITION),
        ("的" * 80, REPETITION),
        ("1. " * 90, REPETITION),
        (PROSE + " over and over" * 40, REPETITION),
        (" ".join(["lamp" if number % 4 else f"word{number}" for number in range(60)]), REPETITION),
        ("\ufffd" * 30 + "abc", NOT_TEXT),
        ("\x00\x01\x02 and \x1b", NOT_TEXT),
    ],
)
def test_what_is_wrong_with_a_text(text: str, expected: Optional[str]) -> None:
    assert defect(text) == expected


def test_a_long_text_is_looked_at_quickly() -> None:
    assert defect("ab " * 300_000) == REPETITION


@pytest.mark.parametrize(
    ("text", "answer", "cut", "expected"),
    [
        ("17 x 23 = 391.", r"(?<!\d)391(?!\d)", False, True),
        ("It is 1391.", r"(?<!\d)391(?!\d)", False, False),
        ("Let me think about rows and", r"391", True, None),
        ("It is 392.", r"391", False, False),
        ("anything", None, False, None),
    ],
)
def test_whether_the_answer_is_right(text: str, answer: Optional[str], cut: bool, expected: Optional[bool]) -> None:
    assert answers(text, answer, cut) is expected
