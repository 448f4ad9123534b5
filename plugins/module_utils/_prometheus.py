# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text in which a server shows its metrics. Pure.

Source: the exposition format of Prometheus, version 0.0.4: ``name{label="value",...} value [timestamp]`` a line, and
comments that begin with ``#``. A label's value may hold anything, escaped.
"""

from __future__ import annotations

import math
import re

_SAMPLE = re.compile(r'([A-Za-z_:][\w:]*)\s*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+(\S+)(?:\s+-?\d+)?\s*')


def sums(text: str) -> dict[str, float]:
    """Each metric by its name, added up over all its labels. What is no sample, or no number, is left out."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            continue
        try:
            value = float(sample[2])
        except ValueError:
            continue
        total = found.get(sample[1], 0.0) + value
        if math.isfinite(total):
            found[sample[1]] = total
    return found
