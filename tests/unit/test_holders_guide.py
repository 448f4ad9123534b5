# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of docs/holders.md says what the tests of the other tools have seen, row by row and word by word."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration import test_other_tools as tests_of_rows
from tests.integration.test_other_tools import HOLDERS, NOT_RUN, ROWS, SPARED, STUBBORN

GUIDE = (Path(__file__).parents[2] / "docs" / "holders.md").read_text(encoding="utf-8")

# A row has its id in a comment, and a star where no other tool is run.
TABLE = {
    row: (star, [cell.strip() for cell in cells.split("|")])
    for row, star, cells in re.findall(r"(?m)^\| .*? <!-- (\w+) -->( \*)? \|(.*)\|$", GUIDE)
}


def word(cell: str) -> str:
    """The word that a cell begins with."""
    return re.split(r"[\s:,]", cell.replace("`", ""), maxsplit=1)[0]


def test_each_row_says_what_its_test_has_seen() -> None:
    said = {row: tuple(map(word, cells)) for row, (_star, cells) in TABLE.items() if row in ROWS}
    assert said == {row: tuple(seen) for row, seen in ROWS.items()}


def test_each_row_is_run_or_marked_as_not_run() -> None:
    assert {row: bool(star) for row, (star, _cells) in TABLE.items()} == {
        **dict.fromkeys(ROWS, False),
        **dict.fromkeys(NOT_RUN, True),
    }
    assert all(len(cells) == 5 for _star, cells in TABLE.values())


def test_each_row_that_is_run_has_its_test() -> None:
    alone = {name[len("test_") :] for name in vars(tests_of_rows) if name.startswith("test_")}
    assert set(ROWS) - {*HOLDERS, *SPARED, *STUBBORN} <= alone


def test_each_row_that_is_not_run_names_a_test_of_ours() -> None:
    for why in NOT_RUN.values():
        name = re.fullmatch(r".+; ours: (test_\w+\.py)", why)
        assert name is not None, why
        assert (Path(__file__).parents[1] / "integration" / name[1]).is_file()
