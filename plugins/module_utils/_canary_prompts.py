# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the canary asks. The texts are fixed, because the accept length depends on them: on one server it was 1.94 for
one prompt and 3.93 for another. Whoever changes a text has to measure every baseline anew.
"""

from __future__ import annotations

from typing import NamedTuple, Optional


class Prompt(NamedTuple):
    """A message to the model. ``answer`` is a regular expression that a right answer holds; None where many texts are
    right.
    """

    name: str
    text: str
    answer: Optional[str] = None


def _tide_table(days: int) -> str:
    """Lines of a made-up log, each unlike the other: some 34 tokens a line that nothing but reading them yields."""
    return "\n".join(
        f"Day {day:03d}: high water at {(day * 50) % 24:02d}:{(day * 37) % 60:02d}, "
        f"{310 + (day * 29) % 170} cm; low water {40 + (day * 17) % 90} cm; "
        f"{('calm', 'breeze', 'squalls', 'fog')[day % 4]}, {(day * 7) % 12} boats out."
        for day in range(1, days + 1)
    )


PROSE = Prompt(
    "prose",
    "Tell, in plain prose and without headings or lists, how a lighthouse keeper spends one stormy night, from dusk to "
    "dawn. Keep telling until the storm is over.",
)
CODE = Prompt(
    "code",
    "Write a Python class LeastRecentlyUsed, a mapping of limited size that forgets the entry that was not used for "
    "the longest time. Give it get, put, __len__ and __contains__, with type hints and docstrings, without functools, "
    "and then a unit test for each method.",
)
ARITHMETIC = Prompt(
    "arithmetic",
    "A crate holds 17 rows of 23 bottles. How many bottles are in it? Show one short step, then the number.",
    answer=r"(?<!\d)391(?!\d)",
)
LONG_INPUT = Prompt(
    "long_input",
    "Here is the log of a small harbour.\n\n" + _tide_table(120) + "\n\nSum up this log in a few paragraphs for "
    "someone who wants to plan a trip: the range of the high waters, the weather, and how busy the harbour was.",
)

PROMPTS = (PROSE, CODE, ARITHMETIC, LONG_INPUT)

# Asked first, and not counted: the first request after a start compiles kernels and fills caches.
WARM_UP = Prompt("warm_up", "Describe a harbour on a quiet morning, in one paragraph.")


def soak_prompt(number: int) -> Prompt:
    """A short request, each unlike the others, so that no cache answers it."""
    return Prompt("soak", f"Question {number}: name one thing that is made of wood, in one short sentence.")
