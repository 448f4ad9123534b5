"""Each way for a server to be unwell, and each stranger at its address, has its verdict, and the play its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.integration.conftest import MakeLab, standing_lab
from tests.integration.play import play, play_side_by_side
from tests.integration.scripted import Conversation, Script, scripted
from tests.lab import state as lab_state
from tests.lab.lab import Lab
from tests.lab.scenarios import SCENARIOS

KEY = SCENARIOS["api-key"].api_key
WRONG_KEY = "sk-made-up-0001-never-to-be-seen"
HEAD = b"HTTP/1.1 200 OK\r\n"


def flood(one: Conversation) -> None:
    """A hundred megabytes, as announced."""
    one.send(HEAD + b"Content-Length: 104857600\r\n\r\n")
    for _piece in range(100):
        one.send(b"x" * (1 << 20))


def pour(one: Conversation) -> None:
    one.send(HEAD + b"\r\n")
    while True:
        one.send(b"{" * 65536)


def drip(one: Conversation) -> None:
    one.send(HEAD + b"\r\n")
    while not one.stay_silent(0.2):
        one.send(b" ")


# What stands at the address in place of the server, and what the reason says of it.
STRANGERS: dict[str, tuple[Script, str]] = {
    "gateway-502": (lambda one: one.answer(502, "<html>Bad Gateway</html>"), "does not reach the server (status 502)"),
    "gateway-504": (lambda one: one.answer(504), "waits for the server in vain (status 504)"),
    "closes": (lambda one: one.send(HEAD + b"Content-Length: 100\r\n\r\n{"), "in the middle of an answer"),
    "100-mb": (flood, "answers with more than an answer can hold"),
    "endless": (pour, "answers with more than an answer can hold"),
    "drips": (drip, "does not answer in time"),
}


def test_a_key_and_strangers_at_the_address_say_nothing_of_the_server_and_it_is_left_alone(make_lab: MakeLab) -> None:
    assert KEY is not None
    lab = make_lab("api-key", container=False)
    before = lab.status()["server"]["pids"]
    hosts: dict[str, dict[str, str]] = {
        "wrong-key": {"verified_restart_api_key": WRONG_KEY},
        "no-key": {},
    }
    with ExitStack() as servers:
        for name, (script, _said) in STRANGERS.items():
            hosts[name] = {"verified_restart_url": servers.enter_context(scripted(script)).url}
        output, results = play_side_by_side(lab, hosts, "-vvv")

    ends = {name: (one["outcome"], one["needs"]) for name, one in results.items()}
    assert ends == dict.fromkeys(hosts, ("refused", "operator")), output
    for name in ("wrong-key", "no-key"):
        assert "wants another API key" in results[name]["reason"]
    for name, (_script, said) in STRANGERS.items():
        assert said in results[name]["reason"]
    for one in results.values():
        assert [rung["name"] for rung in one["rungs"]] == ["detect"]
        assert not one["changed"]
        # The limit of the look, what goes before it, and a machine that has nine plays to do.
        assert one["duration_s"] < 60
        for key in (KEY, WRONG_KEY):
            assert key not in output
            assert key not in str(one)
    assert lab.status()["server"]["pids"] == before


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One lab for all plays: its server is made unwell anew for each."""
    with standing_lab("healthy", container=False) as standing:
        yield standing


@contextmanager
def manner(lab: Lab, **how: Any) -> Iterator[None]:
    """How the server serves, and how it starts, meanwhile."""
    path = lab_state.server_manner(str(lab.state))
    lab_state.write_json(path, how)
    try:
        yield
    finally:
        lab_state.write_json(path, {})


def restart(lab: Lab, outcome: str = "healthy", **variables: Any) -> dict[str, Any]:
    """A play that restarts the server, and ends like this."""
    played = play(lab, verified_restart_log_path=str(lab.server_log), **variables)
    assert played.result is not None, played.output
    assert (played.result["outcome"], played.rc == 0) == (outcome, outcome == "healthy"), played.result["reason"]
    assert played.rungs[:2] == ["detect", "stop"]
    return played.result


def leave_alone(lab: Lab, outcome: str, **variables: Any) -> dict[str, Any]:
    """A play that looks, ends like this, and touches nothing."""
    before = lab.status()["server"]["pids"]
    played = play(lab, verified_restart_log_path=str(lab.server_log), **variables)
    assert played.result is not None, played.output
    assert (played.result["outcome"], played.rc == 0) == (outcome, outcome == "not_needed"), played.result["reason"]
    assert (played.rungs, played.changed, played.result["changed"]) == (["detect"], 0, False)
    assert lab.status()["server"]["pids"] == before
    return played.result


def evidence(lab: Lab) -> dict[str, Any]:
    """What was kept before anything was ended."""
    kept: dict[str, Any] = json.loads((lab.state / "report" / "evidence" / "kimi.json").read_text(encoding="utf-8"))
    return kept


def test_a_hung_engine_behind_a_door_that_answers_is_restarted(lab: Lab) -> None:
    lab.up_again("hung-engine")
    cured = restart(lab, verified_restart_stall_after=1)
    assert cured["detected"].startswith("The server is hung. A generation was not answered for ")
    kept = evidence(lab)
    signals = {one["name"]: one["value"] for one in kept["health"]["signals"]}
    assert (kept["health"]["verdict"], signals["models"], signals["generation"]) == ("hung", 200, "timeout")
    assert len([one for one in kept["processes"] if one["command"].startswith("sglang::scheduler")]) == 8


def test_orphans_that_hold_the_cards_are_ended_and_the_server_is_restarted(lab: Lab) -> None:
    lab.up_again("orphaned")
    orphans = [one["pid"] for one in lab.status()["processes"] if one["command"].startswith("sglang::")]
    assert len(orphans) == 9
    cured = restart(lab)
    assert cured["detected"].startswith("The server is orphaned. The process that served is gone, but 9 workers of it")
    assert set(orphans) <= {one["pid"] for one in evidence(lab)["processes"]}
    ended = cured["killed"]["terminated"] + cured["killed"]["killed"]
    assert sorted(one["pid"] for one in ended) == sorted(orphans)


def test_a_start_that_stalls_ends_the_play_and_is_left_alone_while_it_is_young_and_then_restarted(lab: Lab) -> None:
    lab.up_again("healthy")
    with manner(lab, start="stall"):
        stalled = restart(lab, "start_failed", verified_restart_force=True, verified_restart_stall_after=5)
    assert "64 of 64 shards" in stalled["reason"]
    assert "nothing moved" in stalled["reason"]
    # What stands there now has loaded all, and refuses connections.
    young = leave_alone(lab, "refused")
    assert young["reason"].startswith("The server is starting.")
    assert "Wait until it has loaded" in young["reason"]
    cured = restart(lab, verified_restart_stall_after=5)
    assert cured["detected"].startswith("The server is hung. It is not ready (64/64 loaded), though it is not young")


def test_a_long_prefill_is_left_alone_and_the_server_restarted_only_when_that_is_forced(lab: Lab) -> None:
    lab.up_again("healthy")
    # The request of the look itself is what takes so long, and goes on afterwards.
    with manner(lab, prefill_s=120):
        busy = leave_alone(lab, "not_needed")
    assert busy["reason"].startswith("The server is busy. It is at work: its counters move")
    assert "verified_restart_force" in busy["reason"]
    with manner(lab, waiting=2):
        forced = restart(lab, verified_restart_force=True)
    assert forced["detected"].startswith("The server is busy.")
    assert "2 requests wait" in forced["detected"]


@pytest.mark.parametrize(
    ("scenario", "verdict", "words"),
    [
        ("wrong-algorithm", "eagle_instead_of_eagle3", "accept length of 1.00"),
        ("no-speculation", "speculation_off", "without speculative decoding"),
        ("half-speed", "slow", "163.0 are expected"),
        ("degenerate", None, '"!!!!!!!!!!!!!!!!!!!!!!!!"'),
    ],
)
def test_a_restart_that_does_not_serve_as_expected_is_no_success(
    lab: Lab, scenario: str, verdict: str | None, words: str
) -> None:
    lab.up_again(scenario)
    # One that generates nonsense is restarted unasked. No restart cures any of them.
    force = scenario != "degenerate"
    expected = {"verified_restart_expect_accept_length": 2.4, "verified_restart_expect_tokens_per_second": 163}
    played = restart(lab, "unhealthy", verified_restart_force=force, **expected)
    assert (played["needs"], (played["canary"] or {}).get("verdict")) == ("operator", verdict)
    assert words in played["reason"]
