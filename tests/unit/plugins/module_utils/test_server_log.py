# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a log, the unit behind it, and what earlier looks have noted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._engines import LLAMACPP, SGLANG
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._look_notes import Notes, notes, own_directory
from ansible_collections.gpuops.inference.plugins.module_utils._server_log import (
    LogTail,
    loading_progress,
    read_journal,
    read_tail,
    require_unit,
    unit_state,
)
from tests.unit.recorded import ScriptedRunner, completed

SHARD = "Loading safetensors checkpoint shards:  {}% Completed | {}/64 [00:0{}<00:01,  7.53it/s]\n"
READY = "[2026-12-01 22:20:41] The server is fired up and ready to roll!\n"


@pytest.mark.parametrize(
    ("text", "progress"),
    [
        (SHARD.format(1, 1, 1) + SHARD.format(98, 63, 9), "63/64"),
        (SHARD.format(100, 64, 9), "64/64"),
        (SHARD.format(100, 64, 9) + READY, None),
        # A second start in the same log.
        (SHARD.format(100, 64, 9) + READY + SHARD.format(5, 3, 1), "3/64"),
        ("nothing of the kind\n", None),
        ("", None),
    ],
)
def test_a_start_has_come_so_far_until_the_log_says_that_it_is_over(text: str, progress: str | None) -> None:
    assert loading_progress(LogTail(text, 0, ""), SGLANG) == progress
    assert loading_progress(LogTail(text, 0, ""), LLAMACPP) is None


def test_the_end_of_a_file_is_read_and_its_mark_changes_with_it(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"\xff" * 100_000 + READY.encode())
    first = read_tail(str(log))
    assert first is not None
    assert first.text.endswith(READY)
    assert len(first.text) == 65536
    assert read_tail(str(log)) == first
    log.write_bytes(log.read_bytes() + b"x")
    later = read_tail(str(log))
    assert later is not None
    assert later.mark != first.mark


def test_what_is_no_file_is_no_log_and_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("nothing", "pipe", ".", "a\0b"):
        assert read_tail(str(tmp_path / name)) is None


def test_the_journal_of_a_unit_is_read_with_the_time_of_its_last_line() -> None:
    text = "1764627000.123456 kimi python3[7]: loading\n1764627641.000001 kimi python3[7]: ready\n"
    runner = ScriptedRunner({"--unit": [completed(text)]})
    tail = read_journal("x.service", runner)
    assert tail is not None
    assert (tail.written, tail.mark) == (1764627641.000001, text.splitlines()[1])
    for answer in (completed(""), completed("-- No entries --\n"), completed(text, rc=1)):
        assert read_journal("x.service", ScriptedRunner({"--unit": [answer]})) is None
    missing = CommandError("journalctl was not found.", reason="not_installed")
    assert read_journal("x.service", ScriptedRunner({"--unit": [missing]})) is None


def test_the_state_of_a_unit_is_what_systemd_says() -> None:
    said = "LoadState=loaded\nActiveState=activating\nSubState=auto-restart\n"
    assert unit_state("x", ScriptedRunner({"show": [completed(said)]})) == "activating (auto-restart)"
    for text, rc in (("LoadState=not-found\nActiveState=inactive\n", 0), ("", 0), (said, 1), ("=\n\0", 0)):
        assert unit_state("x", ScriptedRunner({"show": [completed(text, rc=rc)]})) is None


@pytest.mark.parametrize("unit", ["", "-x", "--help", "a b", "x\ny", "x/y", "$(x)"])
def test_what_can_be_no_unit_is_refused(unit: str) -> None:
    with pytest.raises(InputError):
        require_unit(unit)


def test_units_have_names_such_as_these() -> None:
    for unit in (None, "x.service", "sglang@kimi-1.service", "dev-x\\x2dy.service"):
        require_unit(unit)


# -- notes ------------------------------------------------------------------------------------------------------------


def look(where: Path, now: float, **values: str) -> dict[str, float]:
    with notes("http://x", str(where), lambda: now) as kept:
        return {name: kept.since(name, value) for name, value in values.items()}


def test_what_stands_still_is_known_since_the_first_look_and_what_moved_since_the_last(tmp_path: Path) -> None:
    assert look(tmp_path, 1000, counters="7", memory="1") == {"counters": 1000, "memory": 1000}
    assert look(tmp_path, 1020, counters="7", memory="2") == {"counters": 1000, "memory": 1020}
    assert look(tmp_path, 1040, counters="7", memory="2") == {"counters": 1000, "memory": 1020}
    assert look(tmp_path, 1060, counters="8", memory="2") == {"counters": 1060, "memory": 1020}


@pytest.mark.parametrize("later", [1000 + 601, 999])
def test_a_look_long_ago_or_in_the_future_proves_nothing(tmp_path: Path, later: float) -> None:
    look(tmp_path, 1000, counters="7")
    assert look(tmp_path, later, counters="7") == {"counters": later}


def test_notes_on_another_server_are_others(tmp_path: Path) -> None:
    look(tmp_path, 1000, counters="7")
    with notes("http://y", str(tmp_path), lambda: 1001.0) as kept:
        assert kept.earlier("counters") is None


def test_whoever_comes_second_reads_the_notes_and_does_not_write_them(tmp_path: Path) -> None:
    look(tmp_path, 1000, counters="7")
    with notes("http://x", str(tmp_path), lambda: 1010.0) as first:
        with notes("http://x", str(tmp_path), lambda: 1011.0) as second:
            assert (first.free, second.free, second.earlier("counters")) == (True, False, "7")
            second.since("counters", "8")
        first.since("counters", "7")
    assert look(tmp_path, 1020, counters="7") == {"counters": 1000}


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "7", '{"written": "x", "counters": ["7", 1]}', '{"written": 1e400, "counters": ["7", 1]}']
    + ['{"written": 1000, "counters": %s}' % value for value in ("7", "[]", '["7"]', '["7", null]', '["7", 1e400]')],
)
def test_spoilt_notes_are_none(tmp_path: Path, content: str) -> None:
    look(tmp_path, 1000, counters="7")
    [note] = tmp_path.iterdir()
    note.write_text(content)
    assert look(tmp_path, 1001, counters="7") == {"counters": 1001}
    assert json.loads(note.read_text())["counters"] == ["7", 1001]


def test_a_note_is_no_link_and_without_a_directory_there_are_none(tmp_path: Path) -> None:
    look(tmp_path, 1000)
    [note] = tmp_path.iterdir()
    note.unlink()
    note.symlink_to(tmp_path / "elsewhere")
    look(tmp_path, 1000, counters="7")
    assert not (tmp_path / "elsewhere").exists()
    with notes("http://x", None, lambda: 1.0) as kept:
        assert kept.free
        assert isinstance(kept, Notes)


def test_a_directory_is_made_and_one_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    assert own_directory(str(tmp_path / "new")) == str(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "new").chmod(0o777)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("new", "file", "link", "not/there"):
        assert own_directory(str(tmp_path / name)) is None
