# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._prometheus import sums


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# HELP a b\n# TYPE a counter\na 1\n", {"a": 1.0}),
        (
            'vllm:x_total{engine="0",model_name="m"} 19.0\nvllm:x_total{engine="1"} 2\n',
            {"vllm:x_total": 21},
        ),
        ('a{l="}\\" 7 {"} 3\n', {"a": 3.0}),
        ("a 1 1395066363000\n", {"a": 1.0}),
        ("a 1.5e3\r\nb{} 2\r\n", {"a": 1500.0, "b": 2.0}),
        ('a{x="1"} 1e308\na{x="2"} 1e308\n', {"a": 1e308}),
        ("a NaN\nb +Inf\nc -Inf\nd one\n", {}),
        ("a\n 7\n{x} 1\n<html>502 Bad Gateway</html>\n", {}),
        ('a{l="never closed 1\n', {}),
        ("", {}),
    ],
)
def test_metrics_are_added_up_by_name(text: str, expected: dict[str, float]) -> None:
    assert sums(text) == expected


def test_a_hostile_line_does_not_take_long() -> None:
    assert sums('a{l="' + "\\" * 100_001 + "\n" + "a" * 100_000 + " " * 100_000 + "x\n") == {}
