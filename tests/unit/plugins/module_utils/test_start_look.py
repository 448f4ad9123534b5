# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at a server that is starting."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._engines import SGLANG
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._http import Answer, Client, HttpError, Url
from ansible_collections.gpuops.inference.plugins.module_utils._start_look import LookRequest, look, require_position
from tests.unit.fake_proc import FakeProc
from tests.unit.recorded import Answer as Reply
from tests.unit.recorded import ScriptedRunner, completed

BASE = LookRequest(
    url=Url("http", "127.0.0.1", 30000),
    engine=SGLANG,
    key=None,
    validate_certs=True,
    timeout=25,
    unit="sglang-kimi.service",
    log_path=None,
    log_since=None,
    patterns=(re.compile("^sglang::"),),
    expect_process=False,
    nvidia_smi_path="nvidia-smi",
    driver_timeout=20,
)


def unit(**values: str) -> str:
    facts = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success"}
    facts = {**facts, "NRestarts": "0", "MainPID": "312", "ExecMainStatus": "0", **values}
    return "".join(f"{name}={value}\n" for name, value in facts.items())


class Looker:
    """Looks with a scripted machine. ``health`` is a status, or None for a port that is closed. Commands with a word of
    ``mute`` are not answered.
    """

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc = FakeProc(tmp_path)
        self.health: Optional[int] = None
        self.unit = unit()
        self.unit_file = "[Service]\nStandardOutput=journal\n"
        self.journal = completed("")
        self.mute: tuple[str, ...] = ()
        self.argv: list[list[str]] = []
        monkeypatch.setattr(Client, "get", lambda _client, path, *, timeout: self.answer(path))

    def answer(self, path: str) -> Answer:
        assert path == "/health"
        if self.health is None:
            raise HttpError("http://127.0.0.1:30000 refused the connection.", reason="refused")
        return Answer(self.health, "", {}, b"", False, 0.1)

    def look(self, **changes: Any) -> dict[str, Any]:
        answers: dict[str, list[Reply]] = {"--property": [completed(self.unit)], "--show-cursor": [self.journal]}
        answers["cat"] = [completed(self.unit_file)]
        answers["--query-gpu"] = [CommandError("no nvidia-smi", reason="not_installed")]
        answers.update({word: [CommandError("no answer within 5 s", reason="timeout")] for word in self.mute})
        runner = ScriptedRunner(answers)
        result = look(BASE._replace(**changes), runner, self.proc.procfs)
        self.argv = runner.calls
        return result


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    return Looker(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("health", "facts", "state"),
    [
        (200, {}, "ready"),
        (401, {}, "ready"),
        (403, {}, "ready"),
        (503, {}, "starting"),
        (502, {}, "starting"),
        (None, {}, "starting"),
        (None, {"ActiveState": "activating", "SubState": "start"}, "starting"),
        (None, {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "1"}, "exited"),
        (None, {"ActiveState": "inactive"}, "exited"),
        (None, {"ActiveState": "activating", "SubState": "auto-restart"}, "exited"),
        (503, {"NRestarts": "3"}, "exited"),
        # Whoever answers is there, whatever its unit says.
        (200, {"ActiveState": "failed"}, "ready"),
        (None, {"LoadState": "not-found", "ActiveState": "inactive"}, "starting"),
        (None, {"NRestarts": "many"}, "starting"),
    ],
)
def test_the_unit_and_the_health_check_tell_the_state(
    looker: Looker, health: Optional[int], facts: dict[str, str], state: str
) -> None:
    looker.health, looker.unit = health, unit(**facts)
    assert looker.look()["state"] == state


def test_an_end_comes_with_its_cause(looker: Looker) -> None:
    looker.unit = unit(ActiveState="failed", Result="signal", ExecMainStatus="7")
    result = looker.look()
    assert (result["state"], result["cause"], result["unit_result"]) == ("exited", "shm_full", "signal")
    assert "Result=signal, status 7" in result["said"]


def test_a_status_of_7_is_no_signal(looker: Looker) -> None:
    looker.unit = unit(ActiveState="failed", Result="exit-code", ExecMainStatus="7")
    assert looker.look()["cause"] is None


def test_no_cause_is_told_of_a_server_that_lives(looker: Looker) -> None:
    looker.journal = completed("a retry after CUDA out of memory\n")
    assert looker.look()["cause"] is None


def test_without_a_unit_the_processes_tell(looker: Looker) -> None:
    assert looker.look(unit=None)["state"] == "starting"
    assert looker.look(unit=None, expect_process=True)["state"] == "exited"
    looker.proc.add(312, "python3", "sglang::scheduler_TP0\0")
    result = looker.look(unit=None, expect_process=True)
    assert (result["state"], result["processes"], result["log_source"]) == ("starting", 1, None)


def test_the_journal_is_read_from_where_it_ended(looker: Looker) -> None:
    shards = "Loading safetensors checkpoint shards:  18% Completed | 12/64"
    looker.journal = completed(f"{shards}\napi_key='sk-secret' given\n-- cursor: s=1;i=2\n")
    result = looker.look(log_since="journal:s=1;i=1")
    assert "--after-cursor=s=1;i=1" in looker.argv[2]
    assert (result["shards_loaded"], result["shards_total"]) == (12, 64)
    assert result["log_position"] == "journal:s=1;i=2"
    assert result["log_tail"] == [shards, "api_key=******** given"]
    assert "sk-secret" not in str(result)


def test_a_journal_that_cannot_be_read_stops_nothing(looker: Looker) -> None:
    looker.journal = completed("No journal files were found.\n", rc=1)
    result = looker.look()
    assert (result["log_position"], result["log_last_line"]) == (None, None)


@pytest.mark.parametrize(
    ("mute", "unit_state", "source"),
    [
        (("--property",), None, None),
        (("cat",), "active", "journal of sglang-kimi.service"),
        (("--show-cursor",), "active", "journal of sglang-kimi.service"),
    ],
)
def test_a_systemd_that_does_not_answer_is_no_end(
    looker: Looker, mute: tuple[str, ...], unit_state: Optional[str], source: Optional[str]
) -> None:
    looker.mute = mute
    result = looker.look()
    assert (result["state"], result["unit_state"]) == ("starting", unit_state)
    assert (result["log_source"], result["log_position"], result["log_tail"]) == (source, None, [])


@pytest.mark.parametrize("kind", ["append", "file", "truncate"])
def test_the_unit_s_own_file_is_the_log(looker: Looker, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "server.log"
    path.write_text("old: CUDA out of memory\n")
    looker.unit_file = f"[Service]\nStandardOutput={kind}:{path}\n"
    before = looker.look()
    with path.open("a") as stream:
        stream.write("new: Address already in use\n")
    looker.unit = unit(ActiveState="failed")
    after = looker.look(log_since=before["log_position"])
    assert after["log_tail"] == ["new: Address already in use"]
    assert (after["log_source"], after["cause"]) == (str(path), "port_in_use")


@pytest.mark.parametrize(
    ("outputs", "source"),
    [
        (["append:/var/log/a b.log"], "/var/log/a b.log"),
        (["file:/var/log/100%%.log "], "/var/log/100%.log"),
        (["append:/var/log/a", "append:/var/log/b"], "/var/log/b"),
        (["append:/var/log/a", "journal"], "journal of sglang-kimi.service"),
        (["append:/var/log/%n.log"], "journal of sglang-kimi.service"),
        (["append:relative"], "journal of sglang-kimi.service"),
        ([], "journal of sglang-kimi.service"),
    ],
)
def test_a_unit_file_tells_where_the_output_goes(looker: Looker, outputs: list[str], source: str) -> None:
    looker.unit_file = "[Service]\n" + "".join(f"StandardOutput={one}\n" for one in outputs)
    assert looker.look()["log_source"] == source


def test_a_file_that_was_replaced_is_read_from_its_beginning(looker: Looker, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("the first file\n")
    before = looker.look(log_path=str(path))["log_position"]
    other = tmp_path / "other"
    other.write_text("the second, which is longer\n")
    other.rename(path)
    assert looker.look(log_path=str(path), log_since=before)["log_tail"] == ["the second, which is longer"]


def test_only_the_end_of_a_long_log_is_read(looker: Looker, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("first\n" + "x" * 80 + "\n" * 400_000 + "last\n")
    result = looker.look(log_path=str(path))
    assert result["log_tail"] == ["last"]


def test_a_pipe_or_a_directory_in_place_of_a_log_does_not_hang(looker: Looker, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none"):
        assert looker.look(log_path=str(path))["log_position"] is None


def test_cards_that_cannot_be_read_here_stop_nothing(looker: Looker) -> None:
    result = looker.look()
    assert (result["memory_used_mib"], result["cards_error"]) == (None, "no nvidia-smi")


@pytest.mark.parametrize("text", ["file:1:100", "journal:s=12ab;i=34;b=56", None])
def test_a_position_is_what_a_look_returns(text: Optional[str]) -> None:
    require_position(text)


@pytest.mark.parametrize("text", ["", "file:1", "journal:", "journal:a b", "file:1:2\n", "now", "journal:" + "x" * 500])
def test_anything_else_is_no_position(text: str) -> None:
    with pytest.raises(InputError, match="log_since"):
        require_position(text)
