"""The canary against a server that is told how to answer: each way to serve badly has its verdict, in time."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpuops.inference.plugins.module_utils._canary import CanaryRequest, Outcome, run_canary
from ansible_collections.gpuops.inference.plugins.module_utils._canary_verdict import Expectation
from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._http import Client, parse_url
from ansible_collections.gpuops.inference.plugins.modules import inference_canary
from tests.integration.play import ansible, run
from tests.integration.stand_in import StandIn, stand_in
from tests.tooling.environment import PYTHON

KEY = "sk-made-up-7c1e-never-to-be-seen"
WRONG_KEY = "sk-made-up-0001-never-to-be-seen"
KIMI = {"algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4}
LIMIT_S = 1.0


def canary(server: StandIn, *, key: str | None = None, expected: Expectation | None = None, **given: Any) -> Outcome:
    """Ask the stand-in a little, with a short limit."""
    request = CanaryRequest(
        engine="auto",
        model=None,
        timeout=LIMIT_S,
        prompts=("prose", "arithmetic"),
        requests=2,
        concurrency=1,
        max_tokens=100,
        soak=0,
        template={},
        expected=expected or Expectation(),
    )
    return run_canary(request._replace(**given), Client(parse_url(server.url), key=key))


# -- where each engine tells of its speculation -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manner", "source"),
    [
        ({"engine": "sglang", "tells": "stream"}, "stream"),
        ({"engine": "sglang", "tells": "answer"}, "answer"),
        ({"engine": "sglang", "tells": "native"}, "native"),
        ({"engine": "vllm"}, "counters"),
        ({"engine": "llamacpp"}, "timings"),
    ],
)
def test_speculation_is_found_where_the_engine_tells_of_it(manner: dict[str, Any], source: str) -> None:
    with stand_in(**manner) as server:
        result = canary(server, expected=Expectation(accept_length=2.5, tolerance=0.1)).result
    assert (result["verdict"], result["engine"], result["model"]) == ("ok", manner["engine"], "tiny"), result["reason"]
    assert (result["accept_source"], result["speculation"], result["sane"]) == (source, "on", True)
    assert result["accept_length"] == pytest.approx(2.5, abs=0.1)
    assert result["accept_rate"] == pytest.approx(0.5, abs=0.04)
    assert result["requests"][0]["accept_length"] == pytest.approx(2.5, abs=0.1)
    assert [one["prompt"] for one in result["requests"]] == ["prose", "arithmetic"]
    assert result["requests"][0]["tokens"] == 100


def test_an_engine_that_tells_nothing_is_measured_all_the_same() -> None:
    with stand_in(engine="openai") as server:
        result = canary(server).result
    assert (result["verdict"], result["engine"], result["speculation"]) == ("ok", "openai", "unknown")
    assert result["tokens_per_second"] > 0
    assert result["accept_length"] is None


def test_the_chat_template_is_used_greedily_after_a_warm_up() -> None:
    with stand_in() as server:
        canary(server, template={"thinking": False})
        chats = [body for path, body in server.asked if path == "/v1/chat/completions"]
        others = [path for path, _body in server.asked if path != "/v1/chat/completions"]
    assert len(chats) == 3
    assert all(body["temperature"] == 0 and body["chat_template_kwargs"] == {"thinking": False} for body in chats)
    assert others == ["/v1/models"]
    assert server.most_under_way == 1


def test_only_sglang_is_asked_for_what_only_sglang_knows() -> None:
    with stand_in(engine="vllm") as server:
        canary(server)
        assert all("return_spec_tokens_details" not in body for _path, body in server.asked)


def test_the_speed_is_measured_without_the_wait_before_it() -> None:
    with stand_in(speed=500.0, begins_after_s=0.5) as server:
        result = canary(server, timeout=5.0, prompts=("prose",), requests=1).result
    # 100 tokens in 0.5 s and 0.2 s: no slow machine makes it faster than it is, nor the wait shorter.
    assert result["tokens_per_second"] <= 520.0
    assert result["time_to_first_token"] >= 0.5
    assert result["tokens_per_second"] > 1.3 * result["throughput"]


def test_requests_side_by_side_are_all_measured() -> None:
    with stand_in(engine="vllm") as server:
        result = canary(server, requests=6, concurrency=3).result
    assert server.most_under_way == 3
    assert [one["number"] for one in result["requests"]] == [1, 2, 3, 4, 5, 6]
    assert result["accept_length"] == pytest.approx(2.5, abs=0.2)
    assert result["requests"][0]["accept_length"] is None


def test_tokens_of_others_are_told() -> None:
    with stand_in(engine="vllm") as server:
        alone = canary(server)
        busy = _with_a_neighbour(server)
    assert alone.warnings == ()
    assert "Others used the server" in busy.warnings[0]


def _with_a_neighbour(server: StandIn) -> Outcome:
    """Somebody else gets 1000 tokens as soon as the canary measures."""
    seen = len(server.asked)
    clock: Callable[[], float] = time.monotonic

    def now() -> float:
        with server.lock:
            if len(server.asked) > seen + 2 and server.tokens < 1000:
                server.tokens += 1000
                server.steps += 400
        return clock()

    request = CanaryRequest("vllm", "tiny", LIMIT_S, ("prose",), 1, 1, 50, 0, {}, Expectation())
    return run_canary(request, Client(parse_url(server.url)), now)


# -- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manner", "expected", "verdict", "words"),
    [
        ({}, {"speculation": KIMI, "accept_length": 2.4, "tolerance": 0.1}, "ok", "accept length is 2.4"),
        ({"accept_length": 1.0, "algorithm": "EAGLE"}, {}, "eagle_instead_of_eagle3", "EAGLE3"),
        ({"accept_length": 1.0, "tells": "native", "algorithm": "EAGLE"}, {}, "eagle_instead_of_eagle3", ""),
        ({"accept_length": 1.0, "engine": "vllm"}, {}, "no_draft_accepted", "1.00 over"),
        ({"accept_length": 1.0, "engine": "llamacpp"}, {}, "no_draft_accepted", "1.00 over"),
        ({"accept_length": None}, {"accept_length": 2.4}, "speculation_off", "without speculative decoding"),
        ({"accept_length": None, "tells": "answer"}, {"accept_length": 2.4}, "speculation_off", ""),
        ({"accept_length": None, "engine": "vllm"}, {"accept_length": 2.4}, "speculation_off", ""),
        ({"accept_length": None, "engine": "llamacpp"}, {"accept_length": 2.4}, "speculation_off", ""),
        ({"accept_length": None}, {"speculation": KIMI}, "speculation_off", ""),
        ({"accept_length": None}, {}, "ok", "does not speculate"),
        ({"engine": "openai"}, {"accept_length": 2.4}, "unmeasured", "drafts"),
        ({"accept_length": 1.8}, {"accept_length": 2.4, "tolerance": 0.1}, "low_accept_length", "length of 1.7"),
        ({"algorithm": "STANDALONE"}, {"speculation": KIMI}, "wrong_speculation", "STANDALONE and not EAGLE3"),
        ({"speed": 300.0}, {"tokens_per_second": 600.0, "tolerance": 0.1}, "slow", "600.0 are expected"),
        ({"counts_tokens": False}, {"tokens_per_second": 1.0}, "unmeasured", "usage"),
        ({"gathers": True, "engine": "openai", "counts_tokens": False}, {}, "ok", ""),
        ({"says": "repetition"}, {}, "degenerate", "again and again: '!!!!"),
        ({"says": "nothing"}, {}, "degenerate", "empty"),
        ({"says": "wrong"}, {}, "wrong_answer", "392"),
    ],
)
def test_a_server_that_answers_has_its_verdict(
    manner: dict[str, Any], expected: dict[str, Any], verdict: str, words: str
) -> None:
    with stand_in(**manner) as server:
        result = canary(server, expected=Expectation(**expected)).result
    assert result["verdict"] == verdict, result["reason"]
    assert words in result["reason"]
    assert len(result["requests"]) == 2


@pytest.mark.parametrize(
    ("fault", "verdict", "words"),
    [
        ("silent", "timeout", "hung"),
        ("no_body", "timeout", "hung"),
        ("drips", "timeout", ""),
        ("endless", None, ""),
        ("huge", "bad_answer", "more than"),
        ("closes", "bad_answer", "in the middle of its answer"),
        ("error_event", "bad_answer", "illegal memory access"),
        ("abort", "bad_answer", "abort"),
        ("502", "bad_answer", "status 502"),
        ("504", "bad_answer", "status 504"),
        ("500", "bad_answer", "status 500"),
    ],
)
def test_a_server_that_does_not_answer_has_its_verdict_in_time(fault: str, verdict: str | None, words: str) -> None:
    with stand_in(fault=fault) as server:
        began = time.monotonic()
        result = canary(server).result
        took = time.monotonic() - began
        asked = [path for path, _body in server.asked]
    assert result["verdict"] in ((verdict,) if verdict else ("timeout", "bad_answer")), result["reason"]
    assert words in result["reason"]
    assert took < LIMIT_S + 3.0
    # Whoever did not answer is not asked again.
    assert len(asked) <= 2
    assert (result["requests"], result["sane"]) == ([], None)


def test_nobody_there() -> None:
    with stand_in() as server:
        pass
    result = canary(server).result
    assert (result["verdict"], result["engine"], result["model"]) == ("unreachable", None, None)
    assert "refused" in result["reason"]


def test_a_server_that_echoes_the_key_does_not_give_it_away() -> None:
    with stand_in(fault="echoes") as server:
        result = canary(server, key=KEY).result
    assert "Cannot read" in result["reason"]
    assert KEY not in json.dumps(result)


def test_what_was_measured_before_it_broke_off_is_kept() -> None:
    with stand_in(hangs_after=2) as server:
        result = canary(server).result
    assert result["verdict"] == "timeout"
    assert [one["prompt"] for one in result["requests"]] == ["prose"]


def test_after_a_failure_the_others_under_way_are_the_last() -> None:
    with stand_in(hangs_after=4) as server:
        result = canary(server, requests=20, concurrency=2).result
        chats = [path for path, _body in server.asked if path == "/v1/chat/completions"]
    assert result["verdict"] == "timeout"
    assert len(chats) <= 4 + 2


# -- the soak ---------------------------------------------------------------------------------------------------------


def test_a_soak_finds_a_server_that_hangs_a_hundred_requests_later() -> None:
    with stand_in(hangs_after=3 + 100, speed=20_000.0) as server:
        began = time.monotonic()
        result = canary(server, soak=150).result
        took = time.monotonic() - began
    assert result["verdict"] == "soak_failed"
    assert "100 of 150" in result["reason"]
    assert (result["soak"]["requests"], result["soak"]["answered"]) == (150, 100)
    assert took < LIMIT_S + 10.0


def test_a_soak_that_is_passed() -> None:
    with stand_in(speed=20_000.0) as server:
        result = canary(server, soak=20, concurrency=4).result
    assert (result["verdict"], result["soak"]["answered"]) == ("ok", 20)


def test_no_soak_for_a_server_that_is_found_wanting() -> None:
    with stand_in(says="wrong") as server:
        result = canary(server, soak=20).result
    assert (result["verdict"], result["soak"]) == ("wrong_answer", None)


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"requests": 0}, "requests is 0"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"max_tokens": 1}, "max_tokens is 1"),
        ({"soak": -1}, "soak is -1"),
        ({"prompts": ()}, "empty list"),
        ({"expected": Expectation(tolerance=1.0)}, "tolerance is 1"),
        ({"expected": Expectation(tokens_per_second=0.0)}, "expect_tokens_per_second is 0"),
        ({"expected": Expectation(tokens_per_second=float("nan"))}, "expect_tokens_per_second is nan"),
        ({"expected": Expectation(accept_length=0.9)}, "at least 1"),
    ],
)
def test_values_that_cannot_be_meant_ask_nothing(given: dict[str, Any], words: str) -> None:
    with stand_in() as server:
        with pytest.raises(InputError, match=words):
            canary(server, **given)
        assert server.asked == []


# -- the module -------------------------------------------------------------------------------------------------------


def module(server: StandIn, *options: str, **arguments: Any) -> tuple[dict[str, Any], str]:
    """The module as Ansible runs it: its result, and all that was printed."""
    given = {"url": server.url, "timeout": 5, "prompts": ["prose"], "requests": 1, "max_tokens": 80, **arguments}
    argv = ansible("ansible", "localhost", "-i", "localhost,", "-c", "local", "-vvv", *options)
    argv += ["-e", f"ansible_python_interpreter={PYTHON}"]
    argv += ["-m", "gpuops.inference.inference_canary", "-a", json.dumps(given)]
    _rc, output = run(argv, ANSIBLE_LOAD_CALLBACK_PLUGINS="1", ANSIBLE_STDOUT_CALLBACK="ansible.builtin.oneline")
    found = re.search(r"(?m)^localhost \| (SUCCESS|CHANGED|FAILED!?)[^{]*(\{.*\})$", output)
    assert found, output
    return {**json.loads(found[2]), "failed": found[1].startswith("FAILED")}, output


def test_no_key_is_in_any_output() -> None:
    with stand_in(key=KEY) as server:
        missing, output = module(server)
        assert missing["verdict"] == "unauthorized"
        wrong, more = module(server, api_key=WRONG_KEY)
        assert wrong["verdict"] == "unauthorized"
        right, most = module(
            server, "--check", "--diff", api_key=KEY, expect_speculation=KIMI, expect_accept_length=2.4
        )
        assert (right["verdict"], right["changed"]) == ("ok", False)
    for text in (output, more, most):
        assert KEY not in text
        assert WRONG_KEY not in text


def test_the_module_fails_unless_it_is_told_not_to() -> None:
    with stand_in(accept_length=1.0, algorithm="EAGLE") as server:
        failed, _output = module(server)
        told, _output = module(server, fail_on_verdict=False)
    assert (failed["failed"], failed["verdict"]) == (True, "eagle_instead_of_eagle3")
    assert failed["msg"] == failed["reason"]
    assert (told["failed"], told["changed"], told["verdict"]) == (False, False, "eagle_instead_of_eagle3")


def test_the_examples_run_as_they_stand(tmp_path: Path) -> None:
    with stand_in(speed=50_000.0) as server:
        play = {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "vars": {"ansible_python_interpreter": str(PYTHON)},
            "tasks": yaml.safe_load(inference_canary.EXAMPLES.replace("http://127.0.0.1:30000", server.url)),
        }
        (tmp_path / "examples.yml").write_text(json.dumps([play]), encoding="utf-8")
        rc, output = run(ansible("ansible-playbook", "-i", "localhost,", str(tmp_path / "examples.yml")))
        asked = len(server.asked)
    assert rc == 0, output
    assert "ok: The server generates" in output
    assert asked > 200
