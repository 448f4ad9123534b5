# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of a container seen and signalled through ``pct exec``, with nothing inside but a POSIX shell.

The shell only lists and signals; which processes match is decided here, so no pattern is ever given to a shell. What
the scripts say is taken only between lines that begin with a word made up for this one call: an exit status cannot be
trusted (1 is both 'could not attach' and 'nothing matched'), and neither can text that a process put into its own name.
"""

from __future__ import annotations

import os
import re
import signal
from typing import NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed, Runner, describe_exit
from ansible_collections.gpuops.inference.plugins.module_utils._containers import classify_pct_failure
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, ContainerError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import (
    Identity,
    Process,
    first_number,
    parse_cgroups,
    parse_command,
    parse_stat,
    parse_status,
)
from ansible_collections.gpuops.inference.plugins.module_utils._termination import (
    DENIED,
    GONE,
    SENT,
    Survivor,
    reason_of,
)

# $1: the call's own word. For each process: stat, the owner from status (a shell reads byte by byte, so no more than is
# needed), cgroup, then the command line, raw where `cat` is there. A shell's `read` drops the NULs, and with them the
# borders between arguments. Where the first thread has exited, only a living one shows the command line.
# Everyone inside can read $1 in this shell's command line and put it into his own, so what divides the listing (the
# mark) is made up inside.
LIST_SCRIPT = r"""
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
say() { printf '%s\n' "$*"; }
copy() { last=; while IFS= read -r line || [ -n "$line" ]; do say "$line"; last=$line; line=; done; }
uid() { while read -r line; do case $line in Uid:*) say "$line"; return;; esac; done; }
mark=
{ IFS= read -r mark < /proc/sys/kernel/random/uuid; } 2>/dev/null
mark=$1-$mark
if command -v cat >/dev/null 2>&1; then raw=raw; else raw=glued; fi
say "$1 begin $$ $raw $mark"
for directory in /proc/[0-9]*; do
  [ -r "$directory/stat" ] || continue
  say "$mark stat"
  { copy < "$directory/stat"; } 2>/dev/null
  state=${last##*) }
  say "$mark status"
  { uid < "$directory/status"; } 2>/dev/null
  say "$mark cgroup"
  { copy < "$directory/cgroup"; } 2>/dev/null
  say "$mark command"
  source=$directory
  case $state in Z*)
    for task in "$directory"/task/*; do
      line=
      { IFS= read -r line < "$task/cmdline"; } 2>/dev/null
      if [ -n "$line" ]; then source=$task; break; fi
    done
  esac
  if [ "$raw" = raw ]; then cat "$source/cmdline"; say; else copy < "$source/cmdline"; fi 2>/dev/null
done
say "$mark done"
say "$1 done"
"""

# $1: the call's own word, $2: the signal, then pid and start time in turn. The start time is field 22, the 20th after
# the last bracket. The name may hold newlines, but what is wanted is on the last line.
SIGNAL_SCRIPT = r"""
word=$1; signal=$2; shift 2
say() { printf '%s\n' "$*"; }
say "$word begin"
while [ $# -ge 2 ]; do
  pid=$1; start=$2; shift 2
  last=
  { while IFS= read -r line || [ -n "$line" ]; do last=$line; line=; done < "/proc/$pid/stat"; } 2>/dev/null
  now=$(rest=${last##*) }; set -- $rest; say "${20-}")
  if [ "$now" != "$start" ]; then say "$word gone $pid"
  elif kill -s "$signal" "$pid" 2>/dev/null; then say "$word sent $pid"
  elif [ -e "/proc/$pid/stat" ]; then say "$word denied $pid"
  else say "$word gone $pid"; fi
done
say "$word done"
"""

# Their numbers differ between architectures, their names do not.
_SIGNAL_NAMES = {signal.SIGTERM: "TERM", signal.SIGKILL: "KILL", signal.SIGSTOP: "STOP", signal.SIGCONT: "CONT"}


class Listing(NamedTuple):
    """What the shell inside saw. ``shell_pid`` is its own pid; ``glued``: the arguments of command lines ran
    together.
    """

    shell_pid: int
    glued: bool
    processes: tuple[Process, ...]


class PctContainer:
    """A running container, reached through ``pct exec``. Its processes have the container's own pids.

    It is a Signaller for them; each look costs a ``pct exec``, so it looks once a second.
    """

    interval = 1.0

    def __init__(self, vmid: int, *, runner: Runner, pct_path: str, timeout: float) -> None:
        self._vmid = vmid
        self._runner = runner
        self._pct_path = pct_path
        self._timeout = timeout

    def list_processes(self) -> Listing:
        """Every process inside but the listing shell's own children. Raises ContainerError, also for a listing of
        nobody: the shell itself should be in it.
        """
        word = _word()
        listing = parse_listing(self._run(LIST_SCRIPT, word), word)
        if not listing.processes:
            raise ContainerError(
                f"The shell in container {self._vmid} sees no process at all: /proc or /dev/null is missing there. "
                "Use via=host.",
                reason="attach_failed",
                vmid=self._vmid,
            )
        return listing

    def send(self, processes: Sequence[Process], number: int) -> dict[Identity, str]:
        """See Signaller.send."""
        word = _word()
        pairs = [text for process in processes for text in (str(process.pid), str(process.start_ticks))]
        output = self._run(SIGNAL_SCRIPT, word, _SIGNAL_NAMES[signal.Signals(number)], *pairs)
        answers = dict(parse_answers(output, word))
        return {process.identity: answers.get(process.pid, GONE) for process in processes}

    def living(self, processes: Sequence[Process]) -> list[Process]:
        """See Signaller.living."""
        if not processes:
            return []
        now = {process.identity: process for process in self.list_processes().processes if not process.gone}
        return [now[process.identity] for process in processes if process.identity in now]

    def explain(self, process: Process) -> Survivor:
        """See Signaller.explain. Where a process sleeps in the kernel is not asked from inside."""
        return Survivor(process, reason_of(process))

    def _run(self, script: str, word: str, *arguments: str) -> str:
        """Run a script inside. Whatever a user gave is a positional parameter, never part of the script."""
        argv = [self._pct_path, "exec", str(self._vmid), "--", "/bin/sh", "-c", script, "sh", word, *arguments]
        try:
            answer = self._runner.run(argv, timeout=self._timeout)
        except CommandError as exc:
            if exc.reason != "timeout":
                raise
            raise ContainerError(
                f"pct exec {self._vmid} gave no answer within {self._timeout:g} s. The container may be frozen or out "
                "of memory: look at it from the node, or use via=host.",
                reason="ct_exec_timeout",
                vmid=self._vmid,
            ) from exc
        # Carriage returns come in where pct found a terminal after all.
        output = answer.stdout.replace("\r\n", "\n")
        if not re.search(rf"(?m)^{word} done$", output):
            # Command lines hold secrets, and nothing of a listing that broke off is needed to say so.
            raise classify_exec_failure(self._vmid, answer._replace(stdout=output.partition(f"{word} begin")[0]))
        return output


def _word() -> str:
    return f"gpuops-{os.urandom(12).hex()}"


def parse_listing(output: str, word: str) -> Listing:
    """Parse what LIST_SCRIPT printed. Text before its first line (a login message, a warning) is passed over."""
    begin = re.search(rf"(?m)^{word} begin ([1-9][0-9]{{0,9}}) (raw|glued) (\S+)$", output)
    if begin is None:
        raise ContainerError("The listing from inside the container has no beginning.", reason="attach_failed")
    shell_pid, mark = int(begin[1]), re.escape(begin[3])
    body, *end = re.split(rf"(?m)^{mark} done$", output[begin.end() :])
    if not end:
        raise ContainerError("The listing from inside the container has no end.", reason="attach_failed")
    processes: list[Process] = []
    for block in re.split(rf"(?m)^{mark} stat\n", body)[1:]:
        process = _parse_block(re.split(rf"(?m)^{mark} (?:status|cgroup|command)\n", block))
        # The shell's children are the `cat`s of this very listing.
        if process is not None and process.parent_pid != shell_pid:
            processes.append(process)
    return Listing(shell_pid, begin[2] == "glued", tuple(processes))


def _parse_block(parts: list[str]) -> Optional[Process]:
    """One process: stat, status, cgroup, command. None for one that went away while it was listed."""
    stat = parse_stat(parts[0])
    if len(parts) != 4 or stat is None or stat.pid < 1:
        return None
    return Process(
        pid=stat.pid,
        start_ticks=stat.start_ticks,
        name=stat.name,
        command=parse_command(parts[3].rstrip("\n")),
        state=stat.state,
        parent_pid=stat.parent_pid,
        uid=first_number(parse_status(parts[1]).get("Uid", "")),
        threads=stat.threads,
        namespace_pids=(stat.pid,),
        cgroups=parse_cgroups(parts[2]),
        group=stat.group,
        session=stat.session,
    )


def parse_answers(output: str, word: str) -> list[tuple[int, str]]:
    """Parse what SIGNAL_SCRIPT printed: (pid, SENT | GONE | DENIED)."""
    return [
        (int(pid), {"sent": SENT, "gone": GONE, "denied": DENIED}[answer])
        for answer, pid in re.findall(rf"(?m)^{word} (sent|gone|denied) ([1-9][0-9]{{0,9}})$", output)
    ]


def classify_exec_failure(vmid: int, answer: Completed) -> ContainerError:
    """What it means that the script did not come to its end (src/lxc/attach.c and tools/lxc_attach.c of lxc)."""
    text = f"{answer.stdout}\n{answer.stderr}"
    fields = {
        "vmid": vmid,
        "cmd": list(answer.argv[:3]),
        "rc": answer.rc,
        "stdout": answer.stdout,
        "stderr": answer.stderr,
    }
    if "Failed to exec" in text or answer.rc in (126, 127):
        reason = "exec_denied" if answer.rc == 126 else "exec_not_found"
        return ContainerError(
            f"Container {vmid} has no usable /bin/sh ({describe_exit(answer.rc)}). Use via=host.",
            reason=reason,
            **fields,
        )
    if re.search(r"not running|does not exist|ipcc_send_rec|access control list", text):
        return classify_pct_failure(vmid, answer)
    last_line = text.strip().splitlines()[-1] if text.strip() else "no output"
    return ContainerError(
        f"Nothing is known about the processes of container {vmid}: pct exec broke off "
        f"({describe_exit(answer.rc)}): {last_line}",
        reason="attach_failed",
        **fields,
    )


def may_signal(processes: Sequence[Process]) -> bool:
    """Whether this account can signal them all from the node: root, or the owner of each."""
    me = os.geteuid()
    return me == 0 or all(process.uid == me for process in processes)
