# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Orders by the Proxmox API: what is asked, what the answers are taken for, and how failures end."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._proxmox_api import (
    ApiAccess,
    ApiError,
    ApiPower,
    Door,
    connect,
)
from tests.unit.doubles import FakeClock

UPID = "UPID:pve1:0001:vzshutdown:129:ops@pve:"
STATUS = "nodes/pve1/lxc/129/status"
TASK = f"nodes/pve1/tasks/{UPID}/status"
ACCESS = ApiAccess("pve1.example.com", 8006, "ops@pve", "restart", "made-up-secret", True, None)


class Api:
    """Speaks as proxmoxer does: each attribute or call adds to the path. Answers are the script's, in turn."""

    def __init__(self, script: dict[str, list[Any]], calls: list[tuple[Any, ...]], path: str = "") -> None:
        self._script, self._calls, self._path = script, calls, path

    def __getattr__(self, name: str) -> Api:
        return Api(self._script, self._calls, f"{self._path}/{name}".lstrip("/"))

    def __call__(self, part: object) -> Api:
        return Api(self._script, self._calls, f"{self._path}/{part}")

    def get(self, **parameters: int) -> Any:
        return self._said("GET", parameters)

    def post(self, **parameters: int) -> Any:
        return self._said("POST", parameters)

    def _said(self, verb: str, parameters: dict[str, int]) -> Any:
        self._calls.append((verb, self._path, parameters))
        answers = self._script[f"{verb} {self._path}"]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Proxmox:
    """A container's power switch over an API that answers as scripted."""

    def __init__(self, script: dict[str, list[Any]]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.clock = FakeClock()
        door = Door(Api(script, self.calls), (OSError, TypeError, ValueError))
        self.power = ApiPower(129, "pve1", door=door, host=ACCESS.host, clock=self.clock)


def ends(*ends: Optional[str]) -> list[dict[str, Any]]:
    """What the status of a task says in turn: None while it runs, else how it ended."""
    return [{"status": "running"} if end is None else {"status": "stopped", "exitstatus": end} for end in ends]


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        ({"status": "running", "pid": 4100, "ha": {"managed": 0}}, ("running", None, None, (4100,))),
        ({"status": "running", "pid": "4100", "lock": "backup"}, ("running", "backup", None, (4100,))),
        ({"status": "stopped", "ha": {"managed": 1, "state": "stopped"}}, ("stopped", None, "stopped", None)),
        ({"status": "running", "ha": {"managed": 1, "state": "ignored"}}, ("running", None, None, None)),
        ({"status": "running", "ha": {"managed": 1}}, ("running", None, "unknown", None)),
        ({"status": "running", "lock": "", "pid": 0, "ha": None}, ("running", None, None, None)),
    ],
    ids=["plain", "locked", "ha", "ha ignores it", "ha says nothing", "empty"],
)
def test_what_is_seen(answer: dict[str, Any], seen: tuple[Any, ...]) -> None:
    proxmox = Proxmox({f"GET {STATUS}/current": [answer]})
    assert tuple(proxmox.power.look()) == seen
    assert proxmox.calls == [("GET", f"{STATUS}/current", {})]


NO_ANSWERS: list[Any] = [
    *(None, [], "OK", 3, {}, {"errors": b"<html>"}),
    *({"status": ["running"]}, {"status": "running", "ha": "yes"}, {"status": "running", "lock": {"by": "backup"}}),
    *({"status": "running", "pid": "none"}, {"status": "running", "pid": -4100}, TypeError("'int' object is not...")),
]


@pytest.mark.parametrize("answer", NO_ANSWERS, ids=repr)
def test_what_no_api_says_is_not_taken_for_a_container(answer: Any) -> None:
    proxmox = Proxmox({f"GET {STATUS}/current": [answer]})
    with pytest.raises(ApiError, match=r"at pve1\.example\.com is not the Proxmox API") as caught:
        proxmox.power.look()
    assert caught.value.reason == "api_answer"


@pytest.mark.parametrize("answer", [None, [], {}, 3, "OK"], ids=repr)
def test_an_order_without_a_task_was_not_taken(answer: Any) -> None:
    proxmox = Proxmox({f"POST {STATUS}/stop": [answer]})
    with pytest.raises(ApiError, match="is not the Proxmox API"):
        proxmox.power.stop()


@pytest.mark.parametrize("exc", [TimeoutError("timed out"), TypeError("'NoneType' object..."), ValueError("502")])
def test_an_api_that_is_gone_for_a_moment_does_not_undo_an_order(exc: Exception) -> None:
    proxmox = Proxmox({f"POST {STATUS}/start": [UPID], f"GET {TASK}": [exc, None, exc, *ends(None, "OK")]})
    proxmox.power.start()
    assert proxmox.calls[0] == ("POST", f"{STATUS}/start", {})
    assert len(proxmox.calls) == 6


def test_a_shutdown_is_waited_for_and_judged_by_looking() -> None:
    proxmox = Proxmox({f"POST {STATUS}/shutdown": [UPID], f"GET {TASK}": ends(None, None, "got timeout")})
    proxmox.power.shutdown(60)
    assert proxmox.calls[0] == ("POST", f"{STATUS}/shutdown", {"timeout": 60})
    assert [call[1] for call in proxmox.calls[1:]] == [TASK] * 3


@pytest.mark.parametrize("verb", ["start", "stop"])
@pytest.mark.parametrize("end", ["OK", "WARNINGS: 1"])
def test_an_order_that_was_done(verb: str, end: str) -> None:
    proxmox = Proxmox({f"POST {STATUS}/{verb}": [UPID], f"GET {TASK}": ends(None, end)})
    getattr(proxmox.power, verb)()
    assert proxmox.calls[0] == ("POST", f"{STATUS}/{verb}", {})


@pytest.mark.parametrize("verb", ["start", "stop"])
@pytest.mark.parametrize(
    ("end", "words"),
    [("CT is locked (backup)", r"CT is locked \(backup\)"), ("", "no reason given")],
)
def test_an_order_that_failed_says_why(verb: str, end: str, words: str) -> None:
    proxmox = Proxmox({f"POST {STATUS}/{verb}": [UPID], f"GET {TASK}": ends(end)})
    with pytest.raises(ApiError, match=f"pve1.example.com did not {verb} container 129: {words}") as caught:
        getattr(proxmox.power, verb)()
    assert caught.value.reason == "task_failed"


def test_a_task_that_never_ends_is_not_waited_for_for_ever() -> None:
    proxmox = Proxmox({f"POST {STATUS}/start": [UPID], f"GET {TASK}": ends(None)})
    with pytest.raises(ApiError, match="did not start container 129: no end within 120 s"):
        proxmox.power.start()
    assert 120 <= proxmox.clock.now() <= 122


@pytest.mark.parametrize("exc", [ConnectionRefusedError("refused"), ValueError("no JSON")])
def test_an_api_that_goes_away_is_one_clear_error(exc: Exception) -> None:
    proxmox = Proxmox({f"POST {STATUS}/stop": [UPID], f"GET {TASK}": [exc]})
    with pytest.raises(ApiError, match=r"pve1\.example\.com"):
        proxmox.power.stop()


class Forbidden(Exception):
    """Stands for proxmoxer's AuthenticationError and ResourceException."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A proxmoxer of our own; with what it was opened."""
    seen: dict[str, Any] = {}

    def open_api(host: str, **how: Any) -> str:
        seen.update(how, host=host)
        if "throws" in seen:
            raise seen["throws"]
        return "api"

    proxmoxer = ModuleType("proxmoxer")
    for name, value in (
        ("ProxmoxAPI", open_api),
        ("AuthenticationError", Forbidden),
        ("ResourceException", Forbidden),
    ):
        setattr(proxmoxer, name, value)
    monkeypatch.setitem(sys.modules, "proxmoxer", proxmoxer)
    monkeypatch.setitem(sys.modules, "requests", ModuleType("requests"))
    return seen


def test_certificates_are_checked_and_the_token_is_handed_on(opened: dict[str, Any]) -> None:
    assert connect(ACCESS).api == "api"
    assert opened == {
        "host": "pve1.example.com",
        "port": 8006,
        "user": "ops@pve",
        "token_name": "restart",
        "token_value": "made-up-secret",
        "verify_ssl": True,
        "timeout": 30,
    }


def test_whom_to_trust_may_be_said(opened: dict[str, Any], tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    with pytest.raises(ApiError, match="there is no such file") as caught:
        connect(ACCESS._replace(ca_path=str(authority)))
    assert caught.value.reason == "api_certificate"
    assert opened == {}
    authority.touch()
    connect(ACCESS._replace(ca_path=str(authority)))
    assert opened["verify_ssl"] == str(authority)
    connect(ACCESS._replace(ca_path=str(authority), validate_certs=False))
    assert opened["verify_ssl"] is False


def test_a_token_that_is_not_accepted_is_not_shown(opened: dict[str, Any]) -> None:
    opened["throws"] = Forbidden("401 Unauthorized")
    with pytest.raises(ApiError, match=r"pve1\.example\.com") as caught:
        connect(ACCESS)
    assert ACCESS.token_secret not in caught.value.message


def test_without_proxmoxer_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "proxmoxer", None)
    with pytest.raises(ApiError, match="proxmoxer"):
        connect(ACCESS)
