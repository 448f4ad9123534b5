"""inference_health_info against servers that a test writes: each way to be well, ill and strange has its verdict.

No lab is needed. The limits are some tenths of a second where a real server gets half a minute.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.gpuops.inference.plugins.module_utils._health import Limits
from ansible_collections.gpuops.inference.plugins.module_utils._health_look import HealthRequest, look
from ansible_collections.gpuops.inference.plugins.module_utils._http import Client, parse_url
from ansible_collections.gpuops.inference.plugins.module_utils._machine import this_machine
from ansible_collections.gpuops.inference.plugins.module_utils._server_witness import Sources
from tests.integration.scripted import Conversation, Script, closed_port, scripted
from tests.tooling.environment import ROOT

KEY = "sk-made-up-0001-never-to-be-seen"
HEAD = b"HTTP/1.1 200 OK\r\n"

Page = Callable[[Conversation], object]
Pages = Mapping[str, Any]


def pages(answers: Pages) -> Script:
    """Serve by path. A page is a function, a status, or a body; a path that is not there is answered with 404."""

    def script(one: Conversation) -> None:
        page = answers.get(one.path, 404)
        if callable(page):
            page(one)
        elif isinstance(page, int):
            one.answer(page)
        else:
            one.answer(200, page)

    return script


def silence(one: Conversation) -> None:
    one.stay_silent()


def models(owner: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "kimi", "object": "model", "owned_by": owner}]}


def text(words: str = " 9, 10,") -> dict[str, Any]:
    return {"choices": [{"text": words, "finish_reason": "length"}], "usage": {"completion_tokens": 8}}


def metrics(values: Mapping[str, Any]) -> str:
    return "".join(f'# TYPE {name} counter\n{name}{{model="kimi"}} {value}\n' for name, value in values.items())


def moving(*names: str, **still: float) -> Page:
    """Metrics that grow with every look."""
    steps = itertools.count(1)

    def page(one: Conversation) -> None:
        step = next(steps)
        one.answer(200, metrics({**dict.fromkeys(names, 100 * step), **still}))

    return page


def loads(running: int = 0, waiting: int = 0, **more: Any) -> dict[str, Any]:
    """SGLang's /v1/loads. Its own timestamp moves whatever the schedulers do."""
    rank = {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting, "num_used_tokens": 512, **more}
    return {"timestamp": str(time.time_ns()), "version": "0.5.6", "loads": [rank]}


def fresh_loads(one: Conversation) -> None:
    one.answer(200, loads())


SGLANG: Pages = {
    "/v1/models": models("sglang"),
    "/v1/loads": fresh_loads,
    "/metrics": metrics({"sglang:num_running_reqs": 0, "sglang:realtime_tokens_total": 4096}),
    "/v1/completions": text(),
    "/server_info": {
        "version": "0.5.6",
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "api_key": KEY,
    },
}
VLLM_METRICS = {
    "vllm:num_requests_running": 0,
    "vllm:num_requests_waiting": 0,
    "vllm:iteration_tokens_total_count": 77,
    "vllm:generation_tokens_total": 700,
}
VLLM: Pages = {
    "/v1/models": models("vllm"),
    "/health": 200,
    "/version": {"version": "0.32.0"},
    "/metrics": metrics(VLLM_METRICS),
    "/v1/completions": text(),
}
LLAMACPP: Pages = {
    "/v1/models": models("llamacpp"),
    "/health": {"status": "ok"},
    "/props": {"build_info": "b6000-abc"},
    "/slots": [{"id": 0, "is_processing": False, "n_decoded": 12}],
    "/v1/completions": {
        **text(),
        "timings": {"predicted_n": 8, "draft_n": 6, "draft_n_accepted": 4},
    },
}


def ask(url: str, directory: Path | None = None, key: str | None = None, **options: Any) -> dict[str, Any]:
    """One look in this process. It never takes more than its limits."""
    sources: dict[str, Any] = {"processes": False, "vmid": None, "log_path": None, "unit": None, "pct_path": "pct"}
    sources.update({name: options.pop(name) for name in list(options) if name in sources})
    settings: dict[str, Any] = {
        "engine": None,
        "model": None,
        "timeout": 0.6,
        "deep": True,
        "samples": 2,
        "interval": 0.1,
        "limits": Limits(hung_after=0.5, stall_after=600),
        "notes_directory": None if directory is None else str(directory),
        **options,
    }
    settings["engine"] = ENGINES.get(settings["engine"])
    request = HealthRequest(**settings, sources=Sources(**sources))
    began = time.monotonic()
    found = look(request, Client(parse_url(url), key=key), this_machine(check_mode=True))
    assert time.monotonic() - began < settings["timeout"] + 10 + settings["samples"] * settings["interval"] + 2
    json.dumps(found)
    return found


def signals(found: Mapping[str, Any]) -> dict[str, Any]:
    return {signal["name"]: signal["value"] for signal in found["signals"]}


def verdict(found: Mapping[str, Any]) -> tuple[str, str]:
    assert found["reason"].endswith("."), found["reason"]
    return found["verdict"], found["cause"]


# -- servers that are well --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "engine", "version", "enabled", "quick"),
    [
        (SGLANG, "sglang", "0.5.6", True, ["/v1/models", "/v1/loads", "/metrics", "/server_info"]),
        (VLLM, "vllm", "0.32.0", False, ["/v1/models", "/metrics", "/health", "/version"]),
        (LLAMACPP, "llamacpp", "b6000-abc", True, ["/v1/models", "/slots", "/metrics", "/health", "/props"]),
    ],
)
def test_a_healthy_server_is_known_by_its_text_and_asked_for_one_only(
    server: Pages, engine: str, version: str, enabled: bool, quick: list[str]
) -> None:
    with scripted(pages(server)) as there:
        found = ask(there.url, timeout=10)
        assert verdict(found) == ("healthy", "generates")
        assert (found["engine"], found["version"], found["served_models"]) == (engine, version, ["kimi"])
        assert found["speculation"]["enabled"] is enabled
        # Each page once, one after the other.
        assert sorted(there.asked) == sorted({*(f"GET {path}" for path in quick), "POST /v1/completions"})
        assert there.most_at_once() == 1
    assert found["seconds"] < 2


def test_what_sglang_reports_of_its_speculation_is_returned_and_its_key_is_not() -> None:
    with scripted(pages(SGLANG)) as there:
        found = ask(there.url, timeout=10)
    assert found["speculation"] == {"enabled": True, "algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4}
    assert KEY not in str(found)


def test_any_other_server_is_asked_over_the_chat_interface() -> None:
    chat = {"choices": [{"message": {"content": None, "reasoning_content": "9"}, "finish_reason": "length"}]}
    server = {"/v1/models": models("somebody"), "/v1/chat/completions": chat}
    with scripted(pages(server)) as there:
        found = ask(there.url, timeout=10)
    assert (verdict(found), found["engine"]) == (("healthy", "generates"), "openai")


def test_without_a_generation_only_a_heartbeat_makes_an_idle_server_healthy() -> None:
    beats = itertools.count(1)
    server = {**SGLANG, "/v1/loads": lambda one: one.answer(200, loads(timestamp=next(beats)))}
    with scripted(pages(server)) as there:
        assert verdict(ask(there.url, deep=False)) == ("healthy", "heartbeat")
        assert not [one for one in there.asked if one.startswith("POST")]
    with scripted(pages(VLLM)) as there:
        assert verdict(ask(there.url, deep=False)) == ("unknown", "not_asked")


# -- servers at work: at most one request is added to what they have to do ---------------------------------------------


def waited_for(server: Pages, asked: Sequence[str]) -> list[str]:
    """What was asked that the schedulers themselves must answer."""
    answered_at_once = {"/v1/models", "/metrics", "/v1/loads", "/version", *(["/health"] if server is VLLM else [])}
    return [one for one in asked if one.partition(" ")[2] not in answered_at_once]


def test_a_long_prefill_is_busy_whatever_does_not_answer() -> None:
    for server, counter in ((SGLANG, "sglang:realtime_tokens_total"), (VLLM, "vllm:prompt_tokens_total")):
        with scripted(pages({**server, "/metrics": moving(counter), "/v1/completions": silence})) as there:
            found = ask(there.url)
            assert verdict(found) == ("busy", "counters_move"), found
            assert waited_for(server, there.asked) == ["POST /v1/completions"]


def test_sglang_with_requests_waiting_is_asked_how_it_speculates_and_nothing_else() -> None:
    work = moving("sglang:realtime_tokens_total")
    queue = {"/metrics": work, "/v1/loads": lambda one: one.answer(200, loads(running=4, waiting=3))}
    with scripted(pages({**SGLANG, **queue})) as there:
        assert verdict(ask(there.url)) == ("busy", "counters_move")
        assert waited_for(SGLANG, there.asked) == ["GET /server_info"]


def test_who_has_requests_waiting_and_works_them_off_is_given_none() -> None:
    work = moving("vllm:generation_tokens_total", **{"vllm:num_requests_running": 4, "vllm:num_requests_waiting": 3})
    with scripted(pages({**VLLM, "/metrics": work})) as there:
        found = ask(there.url)
        assert waited_for(VLLM, there.asked) == []
    assert verdict(found) == ("busy", "counters_move")
    assert "4 requests run and 3 requests wait" in found["reason"]


# -- servers that hang ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [SGLANG, VLLM, LLAMACPP], ids=["sglang", "vllm", "llamacpp"])
def test_models_and_health_that_answer_hide_no_hung_engine(server: Pages) -> None:
    hung = {**server, "/v1/completions": silence, "/server_info": silence}
    with scripted(pages(hung)) as there:
        found = ask(there.url)
        assert verdict(found) == ("hung", "generation_timeout"), found
        assert there.asked.count("POST /v1/completions") == 1
    assert signals(found)["counters"] == "still"


def test_headers_without_a_body_are_no_answer() -> None:
    def begin(one: Conversation) -> None:
        one.send(HEAD + b"Content-Type: application/json\r\nContent-Length: 300\r\n\r\n")
        one.stay_silent()

    with scripted(pages({**VLLM, "/v1/completions": begin})) as there:
        assert verdict(ask(there.url)) == ("hung", "generation_timeout")


def test_a_generation_that_does_not_come_is_no_hang_by_itself() -> None:
    mute = {"/v1/models": models("vllm"), "/v1/completions": silence}
    with scripted(pages(mute)) as there:
        assert verdict(ask(there.url)) == ("unknown", "generation_timeout")
        assert verdict(ask(there.url, timeout=1.1)) == ("hung", "generation_timeout")


def test_a_short_patience_cannot_tell_hung_from_slow() -> None:
    with scripted(pages({**VLLM, "/v1/completions": silence})) as there:
        assert verdict(ask(there.url, limits=Limits(20, 600))) == ("unknown", "generation_timeout")


def test_who_takes_connections_and_answers_nothing_hangs() -> None:
    with scripted(silence) as there:
        found = ask(there.url)
        assert verdict(found) == ("hung", "silent")
        assert len(there.asked) <= 2
    assert signals(found)["models"] == "timeout"


def test_an_engine_that_calls_itself_dead_hangs() -> None:
    with scripted(pages({**VLLM, "/health": 503, "/v1/completions": 500})) as there:
        assert verdict(ask(there.url)) == ("hung", "engine_dead")


def test_a_hung_server_is_not_asked_twice_until_something_moves(tmp_path: Path) -> None:
    hung = {**VLLM, "/v1/completions": silence}
    with scripted(pages(hung)) as there:
        first, second = (ask(there.url, tmp_path) for _look in range(2))
        assert there.asked.count("POST /v1/completions") == 1
        assert verdict(first) == verdict(second) == ("hung", "generation_timeout")
        ages = [
            next(one["age_s"] for one in found["signals"] if one["name"] == "counters") for found in (first, second)
        ]
        assert ages[1] >= ages[0] >= 0.5
        assert second["seconds"] < first["seconds"]
        hung["/metrics"] = metrics({**VLLM_METRICS, "vllm:generation_tokens_total": 701})
        ask(there.url, tmp_path)
        assert there.asked.count("POST /v1/completions") == 2


def test_two_looks_at_once_ask_for_one_generation(tmp_path: Path) -> None:
    code = """
import fcntl, sys
held = open(sys.argv[1], 'r+')
fcntl.flock(held, fcntl.LOCK_EX)
print(flush=True)
input()
"""
    with scripted(pages(VLLM)) as there:
        ask(there.url, tmp_path)
        [note] = tmp_path.iterdir()
        with subprocess.Popen(
            [sys.executable, "-c", code, note], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            found = ask(there.url, tmp_path)
            other.communicate(b"\n")
        assert there.asked.count("POST /v1/completions") == 1
    assert verdict(found) == ("unknown", "not_asked")
    assert "another task" in found["reason"]


# -- servers that start -----------------------------------------------------------------------------------------------


def test_a_server_that_says_it_loads_is_starting() -> None:
    loading = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    with scripted(lambda one: one.answer(503, loading, Server="llama.cpp")) as there:
        found = ask(there.url)
    assert (verdict(found), found["engine"]) == (("starting", "says_so"), "llamacpp")


def test_sglang_that_warms_up_is_starting_and_not_hung() -> None:
    with scripted(pages({**SGLANG, "/v1/completions": silence, "/health": 503})) as there:
        assert verdict(ask(there.url)) == ("starting", "says_so")


# -- what is not the server's doing -----------------------------------------------------------------------------------


def with_key(answers: Pages) -> Script:
    inside = pages(answers)
    return lambda one: inside(one) if one.key == KEY else one.answer(401, {"error": "Unauthorized"})


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (KEY, ("healthy", "generates")),
        ("sk-another", ("unknown", "unauthorized")),
        (None, ("unknown", "unauthorized")),
    ],
    ids=["right", "wrong", "missing"],
)
def test_a_key_that_is_wrong_or_missing_says_nothing_of_the_server(key: str | None, expected: tuple[str, str]) -> None:
    with scripted(with_key(SGLANG)) as there:
        found = ask(there.url, key=key)
    assert verdict(found) == expected
    assert KEY not in str(found)


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (lambda one: one.answer(502, "<html>Bad Gateway</html>"), "gateway"),
        (lambda one: one.answer(504), "gateway"),
        (lambda one: one.answer(503, "<html>Service Unavailable</html>"), "unavailable"),
        (lambda one: one.answer(301, Location="https://192.0.2.1/"), "models_301"),
        (lambda one: one.answer(429), "too_many_requests"),
        (lambda one: one.send(HEAD + b"Content-Length: 100\r\n\r\n{"), "closed_early"),
        (lambda one: None, "closed_early"),
        (lambda one: one.send(b"220 mail.example ESMTP\r\n"), "bad_answer"),
    ],
)
def test_what_a_proxy_or_a_stranger_says_is_unknown_and_told_apart(script: Script, cause: str) -> None:
    with scripted(script) as there:
        assert verdict(ask(there.url)) == ("unknown", cause)


def test_a_closed_port_without_any_view_of_the_processes_is_unknown() -> None:
    assert verdict(ask(f"http://127.0.0.1:{closed_port()}")) == ("unknown", "refused")


@pytest.mark.parametrize(
    ("page", "cause"),
    [
        (404, "generation_404"),
        (500, "generation_500"),
        (502, "gateway"),
        (429, "too_many_requests"),
        (lambda one: one.send(HEAD + b"Content-Length: 100\r\n\r\n{"), "closed_early"),
        (text("  "), "generation_empty"),
        ({"choices": []}, "generation_empty"),
        ("<html>", "bad_answer"),
        ({"error": {"message": "no"}}, "bad_answer"),
        ({"choices": [{"text": "", "finish_reason": "abort"}]}, "bad_answer"),
        ("x" * (2 << 20), "too_big"),
    ],
)
def test_a_generation_that_is_none_is_unknown_and_told_apart(page: Any, cause: str) -> None:
    with scripted(pages({"/v1/models": models("vllm"), "/v1/completions": page})) as there:
        assert verdict(ask(there.url, timeout=5)) == ("unknown", cause)


def flood(one: Conversation) -> None:
    one.send(HEAD + b"Content-Length: 104857600\r\n\r\n")
    for _piece in range(100):
        one.send(b"x" * (1 << 20))


def pour(one: Conversation) -> None:
    one.send(HEAD + b"\r\n")
    while True:
        one.send(b"{" * 65536)


def drip(one: Conversation) -> None:
    one.send(HEAD + b"\r\n")
    while not one.stay_silent(0.02):
        one.send(b" ")


@pytest.mark.parametrize("page", [flood, pour, drip])
def test_answers_without_end_hold_nobody_up(page: Page) -> None:
    with scripted(page) as there:
        found = ask(there.url)
        assert found["verdict"] == "unknown", found
    with scripted(pages({**VLLM, "/metrics": page, "/health": page, "/version": page})) as there:
        assert verdict(ask(there.url, timeout=5)) == ("healthy", "generates")


@pytest.mark.parametrize(
    "body",
    [*("", "[]", "null", '{"data": 7}', '{"data": [7, null, {"id": 7, "owned_by": []}]}', "[" * 100_000), "9" * 10_000],
)
def test_strange_documents_on_every_page_break_nothing(body: str) -> None:
    everywhere = dict.fromkeys((*SGLANG, *VLLM, *LLAMACPP), body)
    with scripted(pages(everywhere)) as there:
        for engine in (None, *ENGINES):
            assert ask(there.url, engine=engine, timeout=5)["verdict"] == "unknown"


# -- with processes in view -------------------------------------------------------------------------------------------


@pytest.fixture
def standing_process() -> Iterator[Callable[..., int]]:
    """Start processes under a command line of an engine's; they end with the test."""
    with contextlib.ExitStack() as stack:

        def start(title: str, *arguments: str) -> int:
            code = "import sys; print(flush=True); sys.stdin.read()"
            child = subprocess.Popen(
                [title, "-c", code, *arguments],
                executable=sys.executable,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(child)
            stack.callback(child.kill)
            assert child.stdout is not None
            child.stdout.readline()
            return child.pid

        yield start


def test_workers_without_the_process_that_served_are_orphans_and_named(standing_process: Callable[..., int]) -> None:
    engine, worker = standing_process("VLLM::EngineCore"), standing_process("VLLM::Worker")
    found = ask(f"http://127.0.0.1:{closed_port()}", processes=True, engine="vllm")
    assert verdict(found) == ("orphaned", "parent_gone")
    orphans = {one["pid"]: one["command"].split()[0] for one in found["processes"] if one["role"] == "orphan"}
    assert orphans.items() >= {engine: "VLLM::EngineCore", worker: "VLLM::Worker"}.items()
    with scripted(lambda one: one.answer(502)) as there:
        assert verdict(ask(there.url, processes=True, engine="vllm")) == ("orphaned", "parent_gone")
    with scripted(pages(VLLM)) as there:
        beside = ask(there.url, timeout=10, processes=True, engine="vllm")
    assert verdict(beside) == ("healthy", "generates")
    assert "of an older server" in beside["reason"]


def test_no_process_and_a_closed_port_are_dead_and_a_living_process_is_not(
    standing_process: Callable[..., int],
) -> None:
    port = closed_port()
    server = f"http://127.0.0.1:{port}"
    assert verdict(ask(server, engine="llamacpp", processes=True)) == ("dead", "no_process")
    pid = standing_process("/opt/llama-server", "--port", str(port))
    young = ask(server, engine="llamacpp", processes=True)
    assert (verdict(young), [one["pid"] for one in young["processes"]]) == (("starting", "young"), [pid])
    assert young["processes"][0]["role"] == "parent"
    stalled = ask(server, engine="llamacpp", processes=True, limits=Limits(0.1, 0.01), interval=0.2)
    assert verdict(stalled) == ("hung", "stalled")
    other = ask(f"http://127.0.0.1:{closed_port()}", engine="llamacpp", processes=True)
    # The port may be mistaken, and the one that lives the one that is meant.
    assert verdict(other) == ("unknown", "refused")
    assert "on another port" in other["reason"]


def test_a_log_that_grows_is_a_start_and_one_that_is_silent_is_none(
    standing_process: Callable[..., int], tmp_path: Path
) -> None:
    log, port = tmp_path / "server.log", closed_port()
    standing_process("vllm serve", "--port", str(port))
    log.write_text("Loading safetensors checkpoint shards:  98% Completed | 63/64 [00:09<00:01]\n")
    writer = subprocess.Popen(["/bin/sh", "-c", f"while :; do echo compiling >> '{log}'; sleep 0.05; done"])
    try:
        growing = ask(f"http://127.0.0.1:{port}", engine="vllm", processes=True, log_path=str(log), interval=0.3)
    finally:
        writer.kill()
        writer.wait()
    assert verdict(growing) == ("starting", "progress")
    assert "63/64 loaded" in growing["reason"]
    hours_ago = time.time() - 8 * 3600
    os.utime(log, (hours_ago, hours_ago))
    limits = Limits(20, 0.01)
    silent = ask(f"http://127.0.0.1:{port}", engine="vllm", processes=True, log_path=str(log), limits=limits)
    assert verdict(silent) == ("hung", "stalled")
    assert "63/64 loaded" in silent["reason"]


def test_a_silent_server_whose_log_grows_is_not_called_hung(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with scripted(silence) as there:
        writer = subprocess.Popen(["/bin/sh", "-c", f"while :; do echo prefill >> '{log}'; sleep 0.05; done"])
        try:
            while not log.exists():
                time.sleep(0.01)
            assert verdict(ask(there.url, log_path=str(log))) == ("unknown", "timeout")
        finally:
            writer.kill()
            writer.wait()


# -- the module itself ------------------------------------------------------------------------------------------------


def run_module(**arguments: Any) -> tuple[dict[str, Any], str]:
    """The module as Ansible starts it, with warnings as errors; its result and all its output."""
    module = ROOT / "plugins" / "modules" / "inference_health_info.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "collections")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(module)],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=60,
    )
    return json.loads(done.stdout), done.stdout + done.stderr


def test_the_module_never_shows_the_key_and_never_changes_anything() -> None:
    def echo(one: Conversation) -> None:
        one.answer(200 if one.key == KEY else 401, {"data": [{"id": f"echo-{one.key}"}], "error": f"Bearer {one.key}"})

    with scripted(echo) as there:
        for key in (KEY, f"{KEY}-but-wrong"):
            for check in (False, True):
                found, output = run_module(url=there.url, api_key=key, timeout=5, _ansible_check_mode=check)
                assert found["changed"] is False
                assert found["verdict"] == "unknown"
                assert KEY not in output.replace(json.dumps({"api_key": key}), "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": "127.0.0.1:30000"}, "url"),
        ({"url": "http://me:sk-1@127.0.0.1"}, "url holds a user"),
        ({"api_key": "sk 1"}, "api_key holds a blank"),
        ({"timeout": 0}, "timeout is 0"),
        ({"samples": 0}, "samples is 0"),
        ({"interval": -1}, "interval is -1"),
        ({"vmid": 7}, "vmid is 7"),
        ({"unit": "--help"}, "unit is '--help'"),
        ({"unit": "x.service", "vmid": 129}, "mutually exclusive"),
        ({"engine": "tgi"}, "engine"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_asked(arguments: dict[str, Any], said: str) -> None:
    with scripted(pages(VLLM)) as there:
        found, output = run_module(**{"url": there.url, **arguments})
        assert found["failed"]
        assert said in found["msg"]
        assert "sk-1" not in output.replace('"url": "http://me:sk-1@127.0.0.1"', "")
        assert there.asked == []
