# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an operator names processes, and what names nobody or everybody."""

from __future__ import annotations

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import (
    compile_killers,
    compile_patterns,
    matches,
)
from tests.unit.fake_proc import make_process


@pytest.mark.parametrize("text", ["", " ", "\t\n"])
def test_an_empty_pattern_is_refused(text: str) -> None:
    for compile_them in (compile_patterns, compile_killers):
        with pytest.raises(InputError, match="patterns holds an empty pattern") as caught:
            compile_them(["ok", text], "patterns")
        assert caught.value.reason == "empty_pattern"


@pytest.mark.parametrize("text", ["(", "[a", "*x", "(?P<a", "a{99999999999999999999}"])
def test_an_invalid_pattern_is_refused_and_named(text: str) -> None:
    with pytest.raises(InputError, match="exclude holds an invalid regular expression") as caught:
        compile_patterns([text], "exclude")
    assert caught.value.reason == "invalid_pattern"
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    "text", [".*", "a*", "^", "$", "()", "x|", ".", ".+", r"\S", "(?s).", r"\w|\W", "[^x]", ".?", "..", r"\w", "[a-z]"]
)
def test_a_pattern_that_matches_everything_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="matches every process") as caught:
        compile_killers([text], "patterns")
    assert caught.value.reason == "match_all_pattern"


@pytest.mark.parametrize("text", ["python", "^sglang::", r"\d+", "^.$x?y", "(?i)VLLM", "a b; touch /tmp/x"])
def test_a_pattern_that_means_somebody_is_taken(text: str) -> None:
    assert [pattern.pattern for pattern in compile_killers([text], "patterns")] == [text]


def test_no_pattern_at_all_is_refused_only_for_those_to_be_killed() -> None:
    with pytest.raises(InputError, match="patterns is empty"):
        compile_killers([], "patterns")
    assert compile_patterns([], "exclude") == ()


@pytest.mark.parametrize(("name", "command", "found"), [("vllm", "", True), ("", "vllm", True), ("x", "x", False)])
def test_the_name_or_the_command_line_is_enough(name: str, command: str, found: bool) -> None:
    assert matches(make_process(name=name, command=command), compile_patterns(["y", "vllm"], "patterns")) is found
