# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wait itself, over looks that are made up: how often it looks, what it shows, and how it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase

from ansible_collections.gpuops.inference.plugins.action import inference_start_wait as plugin

WAIT = {"interval": 5.0, "stall_after": 20.0, "limit": 60.0}
# As the module returns it. There is no `invocation`: since ansible-core 2.21 results have none by themselves.
LOADING: dict[str, Any] = {
    "changed": False,
    "state": "starting",
    "end": None,
    "seconds": 0.0,
    "wait": WAIT,
    "said": "http://127.0.0.1:30000/health refuses connections.",
    "health_status": None,
    "unit_state": "active",
    "processes": 9,
    "shards_loaded": 1,
    "shards_total": 64,
    "memory_used_mib": [100, 100],
    "log_position": "7",
    "log_source": "journalctl -u sglang-kimi.service",
    "log_last_line": None,
    "log_tail": [],
    "main_pid": 4242,
    "cause": None,
    "advice": None,
}
READY = {**LOADING, "state": "ready", "health_status": 200, "shards_loaded": 64}
EXITED = {**LOADING, "state": "exited", "processes": 0, "unit_state": "failed"}


class Wait:
    """The action of a task, with a clock that only its own sleep moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: list[dict[str, Any]], *, check: bool = False) -> None:
        self.asked: list[dict[str, Any]] = []
        self.shown: list[str] = []
        self.now = 0.0
        monkeypatch.setattr(plugin, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))
        monkeypatch.setattr(plugin, "display", SimpleNamespace(display=self.shown.append))
        monkeypatch.setattr(ActionBase, "run", lambda *_arguments: {})
        task = SimpleNamespace(args={"url": "http://127.0.0.1:30000"}, check_mode=check, delegate_to=None)
        self.action = plugin.ActionModule(task, None, None, None, None, None)
        monkeypatch.setattr(self.action, "_execute_module", self._execute)
        self._looks = looks

    def run(self) -> dict[str, Any]:
        result: dict[str, Any] = self.action.run(None, {"inventory_hostname": "kimi"})
        return result

    def _execute(self, module_args: dict[str, Any], **_more: Any) -> dict[str, Any]:
        self.asked.append(module_args)
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def test_it_looks_until_the_server_is_ready_and_shows_what_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Wait(monkeypatch, [LOADING, {**LOADING, "shards_loaded": 30}, READY])
    result = wait.run()
    assert (result["end"], result["seconds"], result.get("failed", False)) == ("ready", 10.0, False)
    assert [line.split(",")[0] for line in wait.shown] == ["kimi: 0 s", "kimi: 5 s", "kimi: 10 s"]
    # Once its processes have been seen, none is a server that has ended.
    assert [one["expect_process"] for one in wait.asked] == [False, True, True]


def test_a_server_that_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Wait(monkeypatch, [LOADING, EXITED])
    result = wait.run()
    assert (result["end"], result["reason"], result["failed"], result["seconds"]) == ("exited", "exited", True, 5.0)


def test_one_in_which_nothing_moves_has_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Wait(monkeypatch, [LOADING])
    result = wait.run()
    assert (result["end"], result["failed"], result["seconds"]) == ("stalled", True, 20.0)


def test_one_that_moves_for_ever_is_waited_for_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Wait(monkeypatch, [{**LOADING, "log_position": str(number)} for number in range(99)])
    result = wait.run()
    assert (result["end"], result["failed"], result["seconds"]) == ("timeout", True, 60.0)


@pytest.mark.parametrize(("check", "limit"), [(True, 60.0), (False, 0)])
def test_check_mode_and_no_limit_are_a_single_look(monkeypatch: pytest.MonkeyPatch, check: bool, limit: float) -> None:
    wait = Wait(monkeypatch, [{**LOADING, "wait": {**WAIT, "limit": limit}}], check=check)
    result = wait.run()
    assert (len(wait.asked), wait.shown, result["end"], wait.now) == (1, [], None, 0.0)


@pytest.mark.parametrize("look", [{"failed": True, "msg": "url is no URL"}, {"msg": "MODULE FAILURE"}])
def test_a_look_that_failed_is_the_end(monkeypatch: pytest.MonkeyPatch, look: dict[str, Any]) -> None:
    wait = Wait(monkeypatch, [look])
    assert wait.run() == {**look, "failed": True}
