# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only place where a process is started: an argv, a time limit that always holds, and what came back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from typing import NamedTuple, Optional, Protocol, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.inference.plugins.module_utils._own_children import children_wait_for_us

# After SIGKILL a child gets this long to be reaped. One in uninterruptible sleep never is, and is left behind.
REAP_SECONDS = 1.0

# Where tools live that a non-login shell's PATH may lack (pct and lxc-attach in /usr/sbin, nvidia-smi under WSL).
EXTRA_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/lib/wsl/lib")


class Completed(NamedTuple):
    """A command that ran to its end. ``rc`` is negative when a signal ended it. Text is decoded as UTF-8, never
    failing.
    """

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """Runs a command. Handed in, so that a test can answer from a recording."""

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """Run ``argv`` without a shell and without standard input, for at most ``timeout`` seconds.

        Raises CommandError: ``not_installed``, ``not_executable``, or ``timeout`` (the child was killed, or could not
        be).
        """


class SystemRunner:
    """The Runner that starts real processes."""

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """See Runner.run. Returns or raises within ``timeout`` + REAP_SECONDS even where the child cannot be killed."""
        with children_wait_for_us():
            return self._run([find_executable(argv[0]), *argv[1:]], timeout)

    def _run(self, command: list[str], timeout: float) -> Completed:
        # LC_ALL=C, because every parser here is written against the untranslated text.
        environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}
        try:
            child = subprocess.Popen(  # pylint: disable=consider-using-with,ansible-bad-function
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except OSError as exc:
            raise CommandError(
                f"{command[0]} cannot be started: {exc.strerror}. Make it executable, or name another path.",
                reason="not_executable",
                cmd=command,
            ) from exc
        try:
            stdout, stderr = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as exc:
            raise _timed_out(child, command, timeout) from exc
        return Completed(
            argv=tuple(command),
            rc=child.returncode,
            stdout=stdout.decode("utf-8", "replace"),
            stderr=stderr.decode("utf-8", "replace"),
        )


def find_executable(name: str) -> str:
    """Full path of ``name``: as it is when it holds a slash, else from PATH and the usual system directories.

    Raises CommandError ``not_installed`` with the directories that were searched.
    """
    if "/" in name:
        if os.path.exists(name):
            return name
        raise CommandError(
            f"{name} does not exist, or this account may not reach it. Correct the path.",
            reason="not_installed",
            cmd=[name],
        )
    # An empty entry would mean the current directory.
    path = [one for one in os.environ.get("PATH", os.defpath).split(os.pathsep) if one]
    searched = os.pathsep.join([*path, *(one for one in EXTRA_DIRECTORIES if one not in path)])
    found = shutil.which(name, path=searched)
    if found is None:
        option = name.replace("-", "_") + "_path"
        raise CommandError(
            f"{name} was not found in {searched}. Install it, or name its place with the option {option}.",
            reason="not_installed",
            cmd=[name],
        )
    return found


def _timed_out(child: subprocess.Popen[bytes], command: list[str], timeout: float) -> CommandError:
    """Kill the child and its group, do not wait for a corpse that never comes, and say which of the two it was."""
    denied = False
    try:
        # The child is ours and not reaped, so its process group number cannot have been given to anyone else.
        os.killpg(child.pid, signal.SIGKILL)
    except PermissionError:
        # It took another user's rights (setuid).
        denied = True
    reaped = _reaped_within(child, REAP_SECONDS)
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    ending = "It is unkillable (uninterruptible sleep), and was left behind."
    if reaped:
        ending = "It was killed."
    elif denied:
        ending = "This account may not kill it, and it was left behind."
    return CommandError(
        f"{' '.join(command)} gave no answer within {timeout:g} s. {ending}",
        reason="timeout",
        cmd=command,
        unkillable=not reaped and not denied,
    )


def _reaped_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while child.poll() is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def describe_exit(rc: Optional[int]) -> str:
    """``exit status 9`` or ``killed by signal 11``."""
    if rc is None:
        return "no exit status"
    return f"killed by signal {-rc}" if rc < 0 else f"exit status {rc}"
