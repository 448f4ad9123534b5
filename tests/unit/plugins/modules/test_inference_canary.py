# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The door: options in, one JSON out. What it says is tested in test_canary_verdict.py and against real sockets."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.module_utils import _canary_verdict
from ansible_collections.gpuops.inference.plugins.module_utils._canary import (
    ANSWER,
    COUNTERS,
    NATIVE,
    STREAM,
    TIMINGS,
    CanaryRequest,
    Outcome,
    run_canary,
)
from ansible_collections.gpuops.inference.plugins.module_utils._http import Answer, Client, HttpError, Line, Stream
from ansible_collections.gpuops.inference.plugins.modules import inference_canary

KEY = "sk-made-up-5f20"
DOCUMENTED: dict[str, Any] = yaml.safe_load(inference_canary.RETURN)


def run_module(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, client: Any, **options: Any
) -> dict[str, Any]:
    """The module with a client that asks nobody."""

    def run(request: CanaryRequest, _client: Client) -> Outcome:
        return run_canary(request, client, iter(range(100)).__next__)

    monkeypatch.setattr(inference_canary, "run_canary", run)
    with patch_module_args({"url": "http://192.0.2.129:30000", **options}), pytest.raises(SystemExit):
        inference_canary.main()
    # Nothing but the one JSON: json.loads takes no second value.
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


class Answers:
    """A client whose server answers every chat with the same text, and nothing else but its models."""

    url = "http://192.0.2.129:30000"

    def __init__(self, text: str) -> None:
        self._text = text

    def get(self, path: str, *, timeout: float) -> Answer:
        models = {"data": [{"id": "kimi", "owned_by": "sglang"}]}
        status, body = (200, json.dumps(models).encode()) if path == "/v1/models" else (404, b"")
        return Answer(status, "", {}, body, False, 0.1)

    def post(self, path: str, document: Any, *, timeout: float) -> Answer:
        return Answer(404, "", {}, b"{}", False, 0.1)

    def stream(self, path: str, document: Any, *, timeout: float) -> Any:
        details = {"spec_accept_length": 2.6, "spec_accept_rate": 0.53, "spec_verify_ct": 39}
        events: list[dict[str, Any]] = [
            {"choices": [{"delta": {"content": word}}]} for word in (self._text[:9], self._text[9:], " 391 bottles")
        ]
        events += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}]
        events += [{"usage": {"completion_tokens": 101}, "sglext": {"spec_tokens_details": details}}]
        return _Opened([Line(f"data: {json.dumps(event)}", 0.5 * (n + 1)) for n, event in enumerate(events)])


class _Opened:
    def __init__(self, lines: list[Line]) -> None:
        self._lines = [*lines, Line("data: [DONE]", 9.0)]

    def __enter__(self) -> Stream:
        return Stream(200, "OK", {}, iter(self._lines))

    def __exit__(self, *_error: object) -> None:
        pass


class Nobody(Answers):
    def get(self, path: str, *, timeout: float) -> Answer:
        raise HttpError("http://192.0.2.129:30000 refused the connection.", reason="refused", phase="connect")


WELL = Answers("The keeper climbed the stair with the first gust, and trimmed the lamp.")


def test_every_returned_field_is_documented_and_the_other_way_round(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_module(capsys, monkeypatch, WELL, expect_accept_length=2.5, soak=0)
    own = {"changed", "invocation", "warnings"}
    assert (result["verdict"], result["changed"]) == ("ok", False), result
    assert set(result) - own == set(DOCUMENTED)
    assert set(result["requests"][0]) == set(DOCUMENTED["requests"]["contains"])
    assert (result["accept_length"], result["tokens_per_second"]) == (2.6, 100.0)


def test_every_verdict_and_every_source_is_documented() -> None:
    said = " ".join(DOCUMENTED["verdict"]["description"])
    assert all(f"V({verdict})" in said for verdict in _canary_verdict.VERDICTS)
    sources = " ".join(DOCUMENTED["accept_source"]["description"])
    assert all(f"V({source})" in sources for source in (STREAM, ANSWER, NATIVE, COUNTERS, TIMINGS))


@pytest.mark.parametrize("check_mode", [False, True])
def test_it_fails_with_all_that_it_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, check_mode: bool
) -> None:
    result = run_module(
        capsys, monkeypatch, WELL, expect_tokens_per_second=900, api_key=KEY, _ansible_check_mode=check_mode
    )
    assert (result["failed"], result["verdict"]) == (True, "slow")
    assert result["msg"] == result["reason"]
    assert set(DOCUMENTED) <= set(result)
    # From ansible-core 2.22 on a module tells the controller, and nobody else, what to mask.
    result.pop("_ansible_new_secrets", None)
    assert KEY not in json.dumps(result)


def test_it_only_tells_when_it_is_told_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_module(capsys, monkeypatch, WELL, expect_tokens_per_second=900, fail_on_verdict=False)
    assert (result.get("failed"), result["changed"], result["verdict"]) == (None, False, "slow")


def test_nobody_there_is_a_verdict(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_module(capsys, monkeypatch, Nobody(""))
    assert (result["failed"], result["verdict"], result["requests"]) == (True, "unreachable", [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "127.0.0.1:30000"}, "url is"),
        ({"url": "http://somebody:secret@192.0.2.129"}, "user or a password"),
        ({"api_key": "two\nlines"}, "api_key holds"),
        ({"timeout": 0}, "timeout is 0"),
        ({"tolerance": 1.5}, "tolerance is 1.5"),
        ({"prompts": []}, "empty list"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    result = run_module(capsys, monkeypatch, WELL, **options)
    assert (result["failed"], result["reason"]) == (True, "bad_input")
    assert words in result["msg"]
    assert "secret" not in json.dumps(result["msg"])


def test_only_what_is_expected_is_compared(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CanaryRequest] = []

    def run(request: CanaryRequest, _client: Client) -> Outcome:
        seen.append(request)
        return Outcome({"verdict": "ok", "reason": "."}, ("somebody else",))

    monkeypatch.setattr(inference_canary, "run_canary", run)
    options = {"url": "http://192.0.2.129", "expect_speculation": {"algorithm": "EAGLE3", "steps": 3}}
    with patch_module_args(options), pytest.raises(SystemExit):
        inference_canary.main()
    assert seen[0].expected.speculation == {"algorithm": "EAGLE3", "steps": 3}
    assert "somebody else" in capsys.readouterr().out
