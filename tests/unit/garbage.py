# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text as no tool should print it: anything at all, and what real ones did print with a few things gone wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from tests.unit.recorded import FIXTURES

# In place of a value. A digit to Unicode, a number to `int` and a number to the kernel are three different things.
CELLS = (
    *("", "-1", "0", "1", "+5", "1_000", "0x10", "1.5", "1e309", "-1e309", "NaN", "Infinity", "9" * 20, "9" * 400),
    *("9" * 5000, "²", "١٢", "4294967295", "18446744073709551615", "3 MiB", "3 GiB", "a, b", "c,d", "1) S 1 (x"),
    *("[GPU is lost]", "[N/A]", "[Not Supported]", "[GPU requires reset]", "[Unknown Error]", "[", "running"),
    *("\0", "\ud800", "\N{ZERO WIDTH SPACE}", "\N{KELVIN SIGN}", "x" * 5000, "\x1b[2J", "../..", "/", "%s"),
)

# What some function takes for the end of a line. To the kernel and to the tools only the first is one.
LINE_ENDS = ("\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")

ANY_TEXT = st.text(st.one_of(st.characters(), st.sampled_from("".join(LINE_ENDS) + "\0\ud800")), max_size=200)

Edit = Callable[[st.DrawFn, str], str]


def _swap_a_value(draw: st.DrawFn, text: str) -> str:
    """A word or number becomes something else; or, with an empty cell, a column goes missing."""
    words = list(re.finditer(r"[\w.]+", text))
    if not words:
        return text
    word = draw(st.sampled_from(words))
    return text[: word.start()] + draw(st.sampled_from(CELLS)) + text[word.end() :]


def _put_something_in(draw: st.DrawFn, text: str) -> str:
    position = draw(st.integers(0, len(text)))
    return text[:position] + draw(st.sampled_from((*CELLS, *LINE_ENDS, ",", ", ", ")", "(", ":"))) + text[position:]


def _cut_off(draw: st.DrawFn, text: str) -> str:
    return text[: draw(st.integers(0, len(text)))]


def _lose_a_piece(draw: st.DrawFn, text: str) -> str:
    begin = draw(st.integers(0, len(text)))
    return text[:begin] + text[begin + draw(st.integers(1, 30)) :]


def _repeat_a_line(draw: st.DrawFn, text: str) -> str:
    lines = text.split("\n")
    line = draw(st.sampled_from(lines))
    position = draw(st.integers(0, len(lines)))
    return "\n".join([*lines[:position], line, *lines[position:]])


def _end_lines_otherwise(draw: st.DrawFn, text: str) -> str:
    return text.replace("\n", draw(st.sampled_from(LINE_ENDS)))


_EDITS: tuple[Edit, ...] = (
    *(_swap_a_value, _swap_a_value, _put_something_in, _put_something_in),
    *(_cut_off, _lose_a_piece, _repeat_a_line, _end_lines_otherwise),
)


@st.composite
def mutated(draw: st.DrawFn, originals: Sequence[str]) -> str:
    """One of the texts, with up to six things gone wrong."""
    text = draw(st.sampled_from(originals))
    for edit in draw(st.lists(st.sampled_from(_EDITS), max_size=6)):
        text = edit(draw, text)
    return text


def hostile(originals: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts that a parser of ``originals`` must survive."""
    return st.one_of(ANY_TEXT, mutated(originals), st.lists(mutated(originals), max_size=3).map("".join))


def printed(tool: str) -> list[str]:
    """All that a real tool is known to have printed, on either stream."""
    paths = sorted(path for name in ("stdout", "stderr") for path in (FIXTURES / tool).glob(f"*/{name}"))
    return [path.read_text(encoding="utf-8") for path in paths]


NVIDIA_SMI_TEXT = hostile(printed("nvidia_smi"))
PCT_TEXT = hostile(printed("pct"))
