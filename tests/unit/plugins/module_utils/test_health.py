# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signals -> verdict, case by case. Times are seconds; a server gets 20 s to answer, and 600 s to stand still."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._health import Limits, Signal, judge

LIMITS = Limits(hung_after=20, stall_after=600)

Seen = dict[str, Any]


def verdict(seen: Seen) -> tuple[str, str]:
    """``seen``: name -> value, or (value, age), or (value, age, text)."""
    signals = {name: Signal(name, *(value if isinstance(value, tuple) else (value,))) for name, value in seen.items()}
    found = judge(signals, LIMITS)
    assert found.reason.endswith("."), found.reason
    assert found.reason[0].isupper(), found.reason
    return found.verdict, found.cause


UNANSWERED: Seen = {"models": 200, "generation": ("timeout", 30)}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # A text proves it, whatever else is seen.
        ({"models": 200, "generation": "text"}, ("healthy", "generates")),
        ({"models": 200, "generation": "text", "counters": "still", "running": 4}, ("healthy", "generates")),
        ({"models": 200, "generation": "text", "parents": (1, 5), "orphans": 2}, ("healthy", "generates")),
        # The measured case of vLLM: 200 everywhere, nothing running, counters still, and a text that does not come.
        ({**UNANSWERED, "health": 200, "running": 0, "counters": ("still", 30)}, ("hung", "generation_timeout")),
        # Counters alone never make it hung.
        ({"models": 200, "generation": "not_asked", "counters": ("still", 900)}, ("unknown", "not_asked")),
        (
            {"models": 200, "generation": "not_asked", "counters": ("still", 900), "running": 3},
            ("unknown", "not_asked"),
        ),
        # Nor does a generation alone, unless it lasts.
        (UNANSWERED, ("unknown", "generation_timeout")),
        ({"models": 200, "generation": ("timeout", 45)}, ("hung", "generation_timeout")),
        ({**UNANSWERED, "memory": ("still", 30)}, ("unknown", "generation_timeout")),
        # Below the limit nothing is to be told from slow.
        ({**UNANSWERED, "generation": ("timeout", 10), "counters": ("still", 10)}, ("unknown", "generation_timeout")),
        ({**UNANSWERED, "counters": ("still", 3)}, ("unknown", "generation_timeout")),
        # Each other independent signal does.
        ({**UNANSWERED, "heartbeat": ("still", 30)}, ("hung", "generation_timeout")),
        ({**UNANSWERED, "log": ("still", 28800)}, ("hung", "generation_timeout")),
        ({**UNANSWERED, "health": 503, "engine_dead": True}, ("hung", "engine_dead")),
        ({"models": 200, "generation": 500, "health": 503, "engine_dead": True}, ("hung", "engine_dead")),
        ({"models": 200, "health": 503, "engine_dead": True}, ("unknown", "not_asked")),
        # A long prefill: no text, a health check that says 503, and counters that move.
        ({**UNANSWERED, "health": 503, "counters": "moves"}, ("busy", "counters_move")),
        ({**UNANSWERED, "counters": "moves", "heartbeat": ("still", 30)}, ("busy", "counters_move")),
        ({"models": 200, "generation": "not_asked", "waiting": 9, "counters": "moves"}, ("busy", "counters_move")),
        ({"models": 401, "counters": "moves"}, ("busy", "counters_move")),
        # Idle, and only looked at.
        ({"models": 200, "generation": "not_asked", "heartbeat": "moves", "running": 0}, ("healthy", "heartbeat")),
        ({"models": 200, "generation": "not_asked", "heartbeat": "moves", "running": 2}, ("unknown", "not_asked")),
        ({**UNANSWERED, "heartbeat": "moves"}, ("unknown", "generation_timeout")),
        # The zombie that takes connections and never answers.
        ({"models": ("timeout", 30, "headers")}, ("hung", "silent")),
        ({"models": ("timeout", 30, "headers"), "log": ("still", 28800)}, ("hung", "silent")),
        ({"models": ("timeout", 30, "headers"), "log": "moves"}, ("unknown", "timeout")),
        ({"models": ("timeout", 5, "headers")}, ("unknown", "timeout")),
        ({"models": ("timeout", 30, "body")}, ("unknown", "timeout")),
        # No connection at all may be a firewall; a living process tells.
        ({"models": ("timeout", 30, "connect")}, ("unknown", "timeout")),
        ({"models": ("timeout", 30, "connect"), "parents": (1, 9000)}, ("hung", "silent")),
        # Nobody there.
        ({"models": "refused"}, ("unknown", "refused")),
        ({"models": "refused", "parents": 0, "orphans": 0}, ("dead", "no_process")),
        ({"models": "closed_early", "parents": 0, "orphans": 0}, ("dead", "no_process")),
        ({"models": 502, "parents": 0, "orphans": 0}, ("dead", "no_process")),
        ({"models": "refused", "parents": 0, "orphans": 9}, ("orphaned", "parent_gone")),
        ({"models": 502, "parents": 0, "orphans": 9}, ("orphaned", "parent_gone")),
        ({"models": "unreachable", "parents": 0, "orphans": 0}, ("unknown", "unreachable")),
        # Whom nobody sees may live all the same: under a name of its own, or on another port, behind a proxy.
        ({"models": "refused", "parents": 0, "unit": "active (running)"}, ("unknown", "refused")),
        ({"models": "refused", "parents": 0, "unit": "active (exited)"}, ("dead", "no_process")),
        ({"models": "refused", "parents": 0, "elsewhere": 1}, ("unknown", "refused")),
        ({"models": "refused", "parents": 0, "elsewhere": 1, "unit": "failed (failed)"}, ("dead", "no_process")),
        ({"models": 502, "parents": 0, "elsewhere": 1, "unit": "failed (failed)"}, ("unknown", "gateway")),
        ({"models": 504, "parents": 0, "elsewhere": 1}, ("unknown", "gateway")),
        ({"models": "closed_early", "parents": 0, "elsewhere": 1}, ("unknown", "closed_early")),
        ({"models": 504, "parents": 0, "elsewhere": 1, "orphans": 2}, ("unknown", "gateway")),
        ({"models": "refused", "parents": 0, "elsewhere": 1, "orphans": 2}, ("orphaned", "parent_gone")),
        ({"models": 401, "parents": 0, "orphans": 0}, ("unknown", "unauthorized")),
        ({"models": "refused", "unit": "failed (failed)"}, ("dead", "unit_down")),
        ({"models": "refused", "unit": "inactive (dead)"}, ("dead", "unit_down")),
        ({"models": "refused", "unit": "active (running)"}, ("unknown", "refused")),
        # Not ready yet.
        ({"models": "refused", "parents": (1, 40)}, ("starting", "young")),
        ({"models": "refused", "parents": (1, 4000), "memory": "moves"}, ("starting", "progress")),
        ({"models": "refused", "parents": (1, 4000), "log": "moves", "progress": "7/64"}, ("starting", "progress")),
        ({"models": "refused", "unit": "activating (start)"}, ("starting", "says_so")),
        ({"models": 503, "loading": True}, ("starting", "says_so")),
        ({"models": 503, "loading": True, "parents": (1, 700), "log": ("still", 650)}, ("hung", "stalled")),
        # It answers, but its log never said that it is ready. Its log moves because it was asked.
        ({**UNANSWERED, "progress": "64/64", "parents": (1, 40), "counters": ("still", 30)}, ("starting", "young")),
        (
            {**UNANSWERED, "progress": "64/64", "parents": (1, 700), "counters": ("still", 30), "log": "moves"},
            ("hung", "generation_timeout"),
        ),
        ({"models": 200, "generation": 500, "progress": "64/64", "parents": (1, 40)}, ("unknown", "generation_500")),
        ({**UNANSWERED, "health": 503, "loading": True, "counters": ("still", 30)}, ("starting", "says_so")),
        ({"models": 503, "parents": (1, 40)}, ("starting", "young")),
        ({"models": 503}, ("unknown", "unavailable")),
        # Shard 64 of 64, and eight hours of silence: the zombie that refuses.
        (
            {
                "models": "refused",
                "parents": (1, 28900),
                "log": ("still", 28800),
                "memory": ("still", 2),
                "progress": "64/64",
            },
            ("hung", "stalled"),
        ),
        ({"models": "refused", "parents": (1, 700), "log": ("still", 60)}, ("unknown", "refused")),
        # What does not come from the server.
        ({"models": 401}, ("unknown", "unauthorized")),
        ({"models": 403, "parents": (1, 9000)}, ("unknown", "unauthorized")),
        ({"models": 200, "generation": 401}, ("unknown", "unauthorized")),
        ({"models": 502}, ("unknown", "gateway")),
        ({"models": 504, "parents": (1, 9000), "log": ("still", 9000)}, ("unknown", "gateway")),
        ({"models": 200, "generation": 504}, ("unknown", "gateway")),
        ({"models": "closed_early"}, ("unknown", "closed_early")),
        ({"models": "tls"}, ("unknown", "tls")),
        ({"models": 404}, ("unknown", "models_404")),
        ({"models": 200, "generation": "empty"}, ("unknown", "generation_empty")),
        ({"models": 200, "generation": 400}, ("unknown", "generation_400")),
        ({}, ("unknown", "not_enough_seen")),
    ],
)
def test_each_case_has_its_verdict(seen: Seen, expected: tuple[str, str]) -> None:
    assert verdict(seen) == expected


STATUSES = st.sampled_from([None, 200, 401, 403, 404, 500, 502, 503, 504, "refused", "timeout", "closed_early", "tls"])
AGES = st.sampled_from([0.0, 5.0, 25.0, 45.0, 700.0])
MOVEMENT = st.one_of(st.none(), st.tuples(st.sampled_from(["moves", "still"]), AGES))
COUNTS = st.one_of(st.none(), st.tuples(st.integers(0, 3), AGES))
ANY_SIGNALS = st.fixed_dictionaries(
    {
        "models": st.one_of(st.none(), st.tuples(STATUSES, AGES, st.sampled_from(["connect", "headers", "body"]))),
        "health": STATUSES,
        "generation": st.one_of(STATUSES, st.tuples(st.sampled_from(["timeout", "empty", "not_asked"]), AGES)),
        "loading": st.sampled_from([None, True]),
        "progress": st.sampled_from([None, "64/64"]),
        "engine_dead": st.sampled_from([None, True]),
        "unit": st.sampled_from([None, "active (running)", "failed (failed)", "activating (start)"]),
        **dict.fromkeys(("counters", "heartbeat", "log", "memory"), MOVEMENT),
        **dict.fromkeys(("parents", "orphans", "elsewhere", "running", "waiting"), COUNTS),
    }
)


@given(ANY_SIGNALS)
def test_whatever_is_seen_the_rules_that_protect_a_server_hold(drawn: Seen) -> None:
    seen = {name: value for name, value in drawn.items() if value is not None}
    seen = {name: value for name, value in seen.items() if not (isinstance(value, tuple) and value[0] is None)}
    found, _cause = verdict(seen)

    def value(name: str) -> Any:
        given_value = seen.get(name)
        return given_value[0] if isinstance(given_value, tuple) else given_value

    if value("counters") == "moves":
        assert found == "busy"
    if value("models") in (401, 403, 502, 504, "closed_early", "tls"):
        assert found != "hung"
    if found == "hung":
        stalled = value("models") in ("timeout", "refused") or value("loading")
        assert value("generation") not in (None, "not_asked") or stalled
    if found == "dead":
        assert not value("parents")
        assert value("parents") == 0 or value("unit") is not None
        assert value("unit") != "active (running)"
        assert not value("elsewhere") or (value("models"), value("unit")) == ("refused", "failed (failed)")
    if found == "orphaned":
        assert value("orphans")
        assert not value("parents")


def test_the_shards_that_are_loaded_are_in_the_reason() -> None:
    signals = [Signal("models", "refused"), Signal("parents", 1, 9), Signal("progress", "63/64")]
    assert "63/64 loaded" in judge({one.name: one for one in signals}, LIMITS).reason


def test_the_order_in_which_things_were_seen_decides_nothing() -> None:
    seen = [Signal("models", 200), Signal("generation", "timeout", 30), Signal("counters", "still", 30)]
    verdicts = {judge({one.name: one for one in order}, LIMITS) for order in itertools.permutations(seen)}
    assert len(verdicts) == 1
