"""The canary as an operator runs it, against the lab's SGLang: each scenario that serves badly has its verdict."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.integration.conftest import MakeLab
from tests.integration.play import module
from tests.lab.lab import Lab

KIMI = {"algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4}
EXPECTED = {"expect_speculation": KIMI, "expect_accept_length": 2.4}


def canary(lab: Lab, **arguments: Any) -> dict[str, Any]:
    inventory = yaml.safe_load(lab.inventory.read_text(encoding="utf-8"))
    url = inventory["inference"]["hosts"]["kimi"]["verified_restart_url"]
    return module(lab, "kimi", "inference_canary", {"url": url, "max_tokens": 80, "timeout": 20, **arguments})


def test_a_server_that_is_well_passes(make_lab: MakeLab) -> None:
    # The lab decodes 163 tokens/s; a machine with other work to do makes it slower, never faster.
    result = canary(make_lab("healthy"), **EXPECTED, expect_tokens_per_second=82, tolerance=0.3)
    assert (result["failed"], result["verdict"], result["changed"]) == (False, "ok", False), result["reason"]
    assert (result["engine"], result["model"], result["accept_source"]) == ("sglang", "Kimi-K2.5", "stream")
    assert result["accept_length"] == 2.65
    assert result["configured_speculation"] == KIMI
    assert [one["prompt"] for one in result["requests"]] == ["prose", "code", "arithmetic", "long_input"]
    assert [one["answer_right"] for one in result["requests"]] == [None, None, True, None]


@pytest.mark.parametrize(
    ("scenario", "verdict", "words"),
    [
        ("no-speculation", "speculation_off", "without speculative decoding"),
        ("half-speed", "slow", "163.0 are expected"),
        ("degenerate", "degenerate", "!!!!!!!!"),
    ],
)
def test_a_server_that_only_looks_well_does_not(make_lab: MakeLab, scenario: str, verdict: str, words: str) -> None:
    result = canary(make_lab(scenario), **EXPECTED, expect_tokens_per_second=163, tolerance=0.1)
    assert (result["failed"], result["verdict"]) == (True, verdict), result
    assert words in result["msg"]
