# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands: real, short-lived processes, because what is tested is what the kernel does with them."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _commands
from ansible_collections.gpuops.inference.plugins.module_utils._commands import (
    SystemRunner,
    describe_exit,
    find_executable,
)
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError

# A limit that runs out at once in a test of limits, and one that never does in the others.
SHORT, LONG = 0.05, 30.0


def script(directory: Path, text: str, name: str = "tool") -> str:
    path = directory / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def run(directory: Path, text: str, *, timeout: float = LONG) -> _commands.Completed:
    return SystemRunner().run([script(directory, f"#!/bin/sh\n{text}\n")], timeout=timeout)


def test_streams_and_exit_status_come_back_apart(tmp_path: Path) -> None:
    answer = run(tmp_path, "echo out; echo err >&2; exit 9")
    assert (answer.rc, answer.stdout, answer.stderr) == (9, "out\n", "err\n")


def test_a_signal_is_a_negative_exit_status(tmp_path: Path) -> None:
    assert run(tmp_path, "kill -SEGV $$").rc == -signal.SIGSEGV


def test_what_became_of_a_command_is_known_where_the_end_of_a_child_is_ignored(tmp_path: Path) -> None:
    """Whoever started us may have set that, and subprocess then takes every command for one that succeeded."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run(tmp_path, "exit 9").rc == 9
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_arguments_are_never_given_to_a_shell(tmp_path: Path) -> None:
    tool = script(tmp_path, '#!/bin/sh\nprintf "%s|" "$@"\n')
    answer = SystemRunner().run([tool, f"a b; touch {tmp_path}/made", "$(id)", ""], timeout=LONG)
    assert answer.stdout == f"a b; touch {tmp_path}/made|$(id)||"
    assert not (tmp_path / "made").exists()


def test_text_that_is_not_utf_8_does_not_fail(tmp_path: Path) -> None:
    assert run(tmp_path, r"printf 'a\377b\0c'").stdout == "a�b\0c"


def test_messages_are_asked_for_untranslated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    assert run(tmp_path, "echo $LC_ALL $LANGUAGE").stdout == "C C\n"


def test_there_is_nothing_to_read_on_standard_input(tmp_path: Path) -> None:
    assert run(tmp_path, "read line; echo $?").stdout == "1\n"


def test_there_is_no_terminal_to_write_to(tmp_path: Path) -> None:
    assert run(tmp_path, "[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none").stdout == "none\n"


def test_a_command_that_takes_too_long_is_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    started: list[int] = []
    communicate = subprocess.Popen.communicate

    def wait_until_all_has_started(child: subprocess.Popen[bytes], timeout: float) -> Any:
        started.extend(os.pidfd_open(int(pid)) for pid in pids.read_text().split())
        return communicate(child, timeout=0)

    monkeypatch.setattr(subprocess.Popen, "communicate", wait_until_all_has_started)
    with pytest.raises(CommandError) as caught:
        # The shell's own child holds the pipes too.
        run(tmp_path, f"trap '' TERM; sleep 600 & echo $! $$ > {pids}; wait", timeout=0.5)
    assert caught.value.reason == "timeout"
    assert caught.value.fields["unkillable"] is False
    assert "gave no answer within 0.5 s. It was killed." in caught.value.message
    for process in started:
        # All were sent the signal; on a busy machine each takes its time to end by it.
        assert select.select([process], [], [], LONG)[0]
        os.close(process)
    assert len(started) == 2


def test_a_command_that_cannot_be_killed_is_left_behind_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: groups.append(group))
    monkeypatch.setattr(_commands, "REAP_SECONDS", 0.0)
    with pytest.raises(CommandError) as caught:
        run(tmp_path, "exec sleep 60", timeout=SHORT)
    monkeypatch.undo()
    os.killpg(groups[0], signal.SIGKILL)
    os.waitpid(groups[0], 0)
    assert caught.value.fields["unkillable"] is True
    assert "unkillable (uninterruptible sleep)" in caught.value.message


def test_a_command_with_other_rights_is_not_called_unkillable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []

    def refuse(group: int, number: int) -> None:
        groups.append(group)
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    monkeypatch.setattr(_commands, "REAP_SECONDS", 0.0)
    with pytest.raises(CommandError) as caught:
        run(tmp_path, "exec sleep 60", timeout=SHORT)
    monkeypatch.undo()
    os.killpg(groups[0], signal.SIGKILL)
    os.waitpid(groups[0], 0)
    assert caught.value.fields["unkillable"] is False
    assert "This account may not kill it" in caught.value.message


@pytest.mark.parametrize(
    ("text", "executable", "reason"),
    [
        ("#!/bin/sh\n", False, "not_executable"),
        ("#!/no/such/interpreter\n", True, "not_executable"),
        ("\x7fELF garbage", True, "not_executable"),
    ],
)
def test_what_cannot_be_started_is_named(tmp_path: Path, text: str, executable: bool, reason: str) -> None:
    tool = script(tmp_path, text)
    if not executable:
        Path(tool).chmod(0o600)
    with pytest.raises(CommandError) as caught:
        SystemRunner().run([tool], timeout=LONG)
    assert caught.value.reason == reason
    assert tool in caught.value.message


def test_a_missing_tool_names_the_option_that_gives_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CommandError) as caught:
        find_executable("gpuops-no-such-tool")
    assert caught.value.reason == "not_installed"
    assert "/nowhere" in caught.value.message
    assert "gpuops_no_such_tool_path" in caught.value.message


def test_a_path_that_is_not_there_is_not_looked_for_elsewhere() -> None:
    with pytest.raises(CommandError, match="Correct the path") as caught:
        find_executable("/nowhere/sh")
    assert caught.value.reason == "not_installed"


def test_a_tool_is_found_where_a_non_login_shell_does_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = script(tmp_path, "#!/bin/sh\n", "gpuops-tool")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(_commands, "EXTRA_DIRECTORIES", (str(tmp_path),))
    assert find_executable("gpuops-tool") == tool


def test_an_empty_path_does_not_mean_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "#!/bin/sh\n", "gpuops-tool")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ":/nowhere:")
    with pytest.raises(CommandError):
        find_executable("gpuops-tool")


@pytest.mark.parametrize(
    ("rc", "words"), [(9, "exit status 9"), (-11, "killed by signal 11"), (None, "no exit status")]
)
def test_an_exit_status_in_words(rc: int, words: str) -> None:
    assert describe_exit(rc) == words


def test_nothing_else_in_the_plugins_starts_a_process() -> None:
    plugins = Path(__file__).parents[4] / "plugins"
    found = subprocess.run(
        ["grep", "-rlE", r"subprocess|os\.(system|popen|exec|spawn)|run_command", "--include=*.py", plugins],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    assert [Path(path).name for path in found] == ["_commands.py"]
