"""The table of ``docs/holders.md``, run: what fuser, lsof and pkill answer about a process, and what we do beside it.

Each row stands in ``ROWS`` in one word a tool; a unit test holds them and the guide together. SGLang's own script finds
by name with ``pgrep -f`` and, with ``all``, by ``lsof``: these two are asked as it asks them.

No tool is asked to kill by a name that anything but the test's own processes can have.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _selection as selection
from ansible_collections.gpuops.inference.plugins.module_utils._card_verdict import Evidence, judge_card
from ansible_collections.gpuops.inference.plugins.module_utils._containers import frozen as is_frozen
from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Device, Holder, find_holders
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import number_of
from ansible_collections.gpuops.inference.plugins.module_utils._offspring import starter_of
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_killers, compile_patterns
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from ansible_collections.gpuops.inference.plugins.module_utils._results import process_result
from ansible_collections.gpuops.inference.plugins.module_utils._termination import (
    HostSignaller,
    SystemClock,
    Termination,
    terminate,
)
from tests.integration.test_every_holder import (
    DROP_PRIVILEGES,
    END_THE_LEADER,
    HOLD,
    MAP,
    NAMESPACES,
    OWN_NODE,
    OWN_TABLE,
    STAY,
    ZERO,
    _innermost,
    fuser,
    holding,
    of_the_kernel,
)
from tests.integration.test_hostile_trees import frozen
from tests.lab import dstate

# Rows that no test puts to the other tools, and why; each names the test of what we do.
NOT_RUN = {
    "storm": "whom one pass of SIGKILL misses is a race; ours: test_hostile_trees.py",
    "pid_reuse": "the moment between list and signal cannot be forced on them; ours: test_hostile_trees.py",
    "hung_driver": "they would wait for ever; ours: test_refusals.py",
}


class Row(NamedTuple):
    """One word for each tool: ``found`` (so its kill ends it), ``missed``, ``all`` (only with that argument), ``left``
    (signalled with success and still there), ``again`` (another took its place), ``gone``. For us: the evidence, the
    reason why it is spared or left, or the list it is returned in.
    """

    fuser: str
    lsof: str
    pkill: str
    script: str
    ours: str


ROWS = {
    "plain": Row("found", "found", "found", "found", "fd"),
    "own_node": Row("missed", "missed", "found", "found", "fd"),
    "nested": Row("missed", "missed", "found", "found", "fd"),
    "mount_namespace": Row("missed", "missed", "found", "found", "fd"),
    "deleted_node": Row("missed", "missed", "found", "found", "fd"),
    "mapping": Row("found", "found", "found", "found", "mapping"),
    "dead_leader": Row("missed", "missed", "missed", "missed", "thread_fd"),
    "own_table": Row("missed", "missed", "found", "found", "thread_fd"),
    "dropped_privileges": Row("found", "found", "found", "found", "fd"),
    "renamed": Row("found", "found", "missed", "found", "fd"),
    "foreign_name": Row("found", "found", "missed", "all", "fd"),
    "detached": Row("found", "found", "found", "found", "fd"),
    "neighbour": Row("found", "found", "found", "found", "other_container"),
    "monitor": Row("found", "found", "missed", "all", "monitor"),
    "protected": Row("found", "found", "missed", "all", "protected"),
    "ourselves": Row("found", "found", "missed", "all", "ourselves"),
    "own_shell": Row("missed", "missed", "found", "missed", "ourselves"),
    "deaf": Row("left", "left", "left", "gone", "killed"),
    "stopped": Row("left", "left", "left", "gone", "terminated"),
    "frozen": Row("left", "left", "left", "gone", "frozen"),
    "d_state": Row("left", "left", "left", "left", "uninterruptible"),
    "respawned": Row("again", "again", "again", "again", "respawned"),
    "zombie": Row("missed", "missed", "missed", "found", "gone"),
    "no_holder": Row("missed", "missed", "missed", "missed", "no_holder"),
}

# What operators type, and the titles that SGLang gives its processes.
LAUNCHED = "sglang.launch_server"
TITLES = r"sglang::|sglang\.launch_server"
TITLE = "sglang::scheduler_TP0"

DETACH = "os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0);"
IN_A_NAME = "open('/proc/self/comm', 'w').write({name!r});"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
HANDLER = "signal.signal(signal.SIGTERM, lambda *_: os._exit(0));"
WRITE = "os.write(1, b'\\n'); open({path!r}, 'w'); signal.pause()"
STOP = "os.write(1, b'\\n'); os.kill(os.getpid(), signal.SIGSTOP); signal.pause()"
NEVER_REAPED = """
import os, signal
pid = os.fork()
if pid == 0:
    open('/proc/self/comm', 'w').write('sglang::schedul')
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
os.write(1, b'\\n')
signal.pause()
"""

# Its own command line does not name what it starts, as that of a service manager does not.
AGAIN = 'while :; do "$PYTHON" -c "$CODE" "$CARD" "$MARK"; done'


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """A device node of its own; the tools that are asked about it are there."""
    if os.geteuid() != 0:
        pytest.skip("only root can make device nodes and namespaces")
    for tool, package in {"fuser": "psmisc", "lsof": "lsof", "pkill": "procps"}.items():
        if shutil.which(tool) is None:
            pytest.skip(f"{package} is not installed")
    node = tmp_path / "card"
    os.mknod(node, stat.S_IFCHR | 0o666, ZERO)
    return node


def lsof(card: Path) -> set[int]:
    return _pids("lsof", "-t", str(card))


def pgrep(pattern: str, *options: str) -> set[int]:
    """Whom pkill would signal: both are one program."""
    return _pids("pgrep", *options, "-f", "--", pattern)


def _pids(*argv: str) -> set[int]:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return set(map(int, done.stdout.split()))


def asked(card: Path, pid: int) -> tuple[str, str, str, str]:
    """What the four say about the process."""
    by_fuser, by_lsof, by_name = pid in fuser(card), pid in lsof(card), pid in pgrep(LAUNCHED)
    script = "found" if pid in pgrep(TITLES) else "all" if by_lsof else "missed"
    return said(by_fuser), said(by_lsof), said(by_name), script


def said(found: bool) -> str:
    return "found" if found else "missed"


def holders_of(card: Path) -> dict[int, Holder]:
    device = Device(str(card), number_of(card.stat()), 1)
    return {holder.process.pid: holder for holder in find_holders([device], None, ProcFs()).holders}


Maker = Callable[[Path], AbstractContextManager[int]]


def program(code: str, word: str = LAUNCHED) -> Maker:
    """A holder that runs ``code``, with ``word`` in its command line."""
    return lambda card: holding([sys.executable, "-c", code, str(card), word])


def namespace(kind: str) -> Maker:
    @contextmanager
    def make(card: Path) -> Iterator[int]:
        away = card.parent / "away"
        away.mkdir()
        shell = ["/bin/sh", "-c", f"{OWN_NODE} {LAUNCHED}", "sh", str(away), sys.executable, HOLD + STAY]
        with holding([*NAMESPACES[kind], *shell]) as pid:
            yield _innermost(pid)

    return make


@contextmanager
def deleted_node(card: Path) -> Iterator[int]:
    node = card.with_name("deleted")
    os.mknod(node, stat.S_IFCHR | 0o666, ZERO)
    with program(HOLD + STAY)(node) as pid:
        node.unlink()
        yield pid


@contextmanager
def detached(card: Path) -> Iterator[int]:
    argv = [sys.executable, "-c", HOLD + DETACH + STAY, str(card), LAUNCHED]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)


HOLDERS: dict[str, Maker] = {
    "plain": program(HOLD + STAY),
    "own_node": namespace("a container"),
    "nested": namespace("a container in a container"),
    "mount_namespace": namespace("another mount namespace"),
    "deleted_node": deleted_node,
    "mapping": program(HOLD + MAP + STAY),
    "dead_leader": program(HOLD + END_THE_LEADER),
    "own_table": program(OWN_TABLE),
    "dropped_privileges": program(HOLD + DROP_PRIVILEGES + STAY),
    "renamed": program(HOLD + STAY, TITLE),
    "foreign_name": program(HOLD + STAY, "ray::worker"),
    "detached": detached,
}


@pytest.mark.root
@pytest.mark.parametrize(
    "row", [one for row in HOLDERS for one in (of_the_kernel(row) if row == "own_table" else [row])]
)
def test_holder(card: Path, row: str) -> None:
    with HOLDERS[row](card) as pid:
        [evidence] = holders_of(card)[pid].evidence_list
        assert Row(*asked(card, pid), evidence) == ROWS[row]


@pytest.mark.root
def test_a_dead_leader_is_found_by_name_where_its_kernel_name_says_enough(card: Path) -> None:
    """Pgrep falls back to it where the command line is empty: 15 characters, which SGLang's titles fit into."""
    with program(HOLD + IN_A_NAME.format(name="sglang::schedul") + END_THE_LEADER)(card) as pid:
        assert asked(card, pid) == ("missed", "missed", "missed", "found")


SPARED: dict[str, Maker] = {
    "neighbour": program(HOLD + STAY),
    "monitor": program(HOLD + STAY, "nvtop"),
    "protected": program(HOLD + IN_A_NAME.format(name="nvidia-persiste") + STAY, "--verbose"),
}


@pytest.mark.root
@pytest.mark.parametrize("row", SPARED)
def test_spared(card: Path, row: str) -> None:
    with program(HOLD + STAY)(card) as ours, SPARED[row](card) as pid:
        members = [ours] if row == "neighbour" else None
        assert Row(*asked(card, pid), why_spared(card, computing=ours, members=members)[pid]) == ROWS[row]


@pytest.mark.root
def test_ourselves(card: Path) -> None:
    descriptor = os.open(card, os.O_RDWR)
    try:
        why = why_spared(card, computing=os.getpid())[os.getpid()]
        assert Row(*asked(card, os.getpid()), why) == ROWS["ourselves"]
    finally:
        os.close(descriptor)


def why_spared(card: Path, *, computing: int, members: Sequence[int] | None = None) -> dict[int, str]:
    """Why we spare whom we spare, by pid. Never ``computing``, which has memory on the card, unless it is ourselves."""
    holders, procfs = holders_of(card), ProcFs()
    rules = selection.HolderRules(
        ourselves=procfs.ancestors(os.getpid()),
        protect=compile_patterns(selection.DEFAULT_PROTECT, "protect"),
        spare_monitors=True,
        cards={1},
        computing={computing: frozenset({1})},
        members=None if members is None else [holders[pid].process.identity for pid in members],
    )
    chosen = selection.select_holders(holders.values(), rules)
    assert [one.pid for one in chosen.targets] == [pid for pid in [computing] if pid != os.getpid()]
    return {one.process.pid: one.reason for one in chosen.spared}


@pytest.mark.root
def test_own_shell(card: Path) -> None:
    """``pkill -f`` in a shell whose command line holds the pattern ends that shell, and Ansible sees -15."""
    mark = f"served-{uuid.uuid4().hex}"
    done = subprocess.run(["/bin/sh", "-c", f"pkill -f {mark}; exit 0"], check=False)
    pkill = "found" if done.returncode == -signal.SIGTERM else "missed"
    with subprocess.Popen(["/bin/sh", "-c", f"read line; exit 0 # {mark}"], stdin=subprocess.PIPE) as shell:
        words = asked(card, shell.pid)
        why = why_not(mark, ourselves=[shell.pid])
    assert Row(words[0], words[1], pkill, words[3], why) == ROWS["own_shell"]


def why_not(pattern: str, ourselves: Collection[int]) -> str:
    """Why we spare the one process that matches."""
    patterns = compile_killers([pattern], "patterns")
    chosen = selection.select_matching(ProcFs().processes(), patterns=patterns, exclude=(), ourselves=ourselves)
    [spared] = chosen.spared
    assert chosen.targets == ()
    return spared.reason


def polite(card: Path, mark: str, pid: int) -> tuple[str, str, str]:
    """SIGTERM as each of the three sends it: each says that it has done its work."""
    return (
        after(pid, ["fuser", "-k", "-TERM", str(card)]),
        after(pid, ["/bin/sh", "-c", 'lsof -t "$1" | xargs kill', "sh", str(card)]),
        after(pid, ["pkill", "-TERM", "-f", "--", mark]),
    )


def after(pid: int, argv: Sequence[str], seconds: float = 0.1) -> str:
    """What is there a moment after a tool that reports success."""
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if state(pid) in (None, "Z"):
            return "gone"
        time.sleep(0.01)
    return "left"


def state(pid: int) -> str | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    return None


def end(pid: int, *, term_timeout: float, kill_timeout: float = 10) -> Termination:
    """End it as we do."""
    process = ProcFs().process(pid)
    assert process is not None
    signaller, clock = HostSignaller(ProcFs()), SystemClock()
    return terminate([process], signaller, term_timeout=term_timeout, kill_timeout=kill_timeout, clock=clock)


def ended_by_us(pid: int, term_timeout: float) -> str:
    done = end(pid, term_timeout=term_timeout)
    [field] = [name for name in ("terminated", "killed", "survivors") if getattr(done, name)]
    return field


@contextmanager
def stubborn(card: Path, code: str, expected: str) -> Iterator[tuple[int, str]]:
    """A holder in the state that is expected, and a mark in its command line that no other process has."""
    mark = f"served-{uuid.uuid4().hex}"
    with program(HOLD + code, mark)(card) as pid:
        deadline = time.monotonic() + 10
        while state(pid) != expected:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        yield pid, mark


# How each takes SIGTERM, its state, and how long we wait after it.
STUBBORN = {"deaf": (DEAF + STAY, "S", 0.1), "stopped": (STOP, "T", 10.0)}


@pytest.mark.root
@pytest.mark.parametrize("row", STUBBORN)
def test_stubborn(card: Path, row: str) -> None:
    code, expected, term_timeout = STUBBORN[row]
    with stubborn(card, code, expected) as (pid, mark):
        words, ours = polite(card, mark, pid), ended_by_us(pid, term_timeout)
    with stubborn(card, code, expected) as (pid, mark):
        script = after(pid, ["pkill", "-KILL", "-f", "--", mark], seconds=10)
    assert Row(*words, script, ours) == ROWS[row]


@pytest.mark.root
def test_frozen(card: Path) -> None:
    """A server that has a handler for SIGTERM, in a cgroup v2, which SIGKILL gets through; v1 holds that back too."""
    with stubborn(card, HANDLER + STAY, "S") as server, frozen(server[0]):
        pid, mark = server
        process = ProcFs().process(pid)
        ours = "frozen" if process is not None and is_frozen(process) else "signalled"
        words = polite(card, mark, pid)
        script = after(pid, ["pkill", "-KILL", "-f", "--", mark], seconds=10)
        assert Row(*words, script, ours) == ROWS["frozen"]


@pytest.mark.root
def test_d_state(card: Path) -> None:
    """A server that sleeps in the kernel, here in a frozen file system's: no signal wakes it."""
    try:
        disk = dstate.freeze(card.parent)
        with stubborn(card, WRITE.format(path=str(disk / "file")), "D") as (pid, mark):
            try:
                words = polite(card, mark, pid)
                script = after(pid, ["pkill", "-KILL", "-f", "--", mark], seconds=0.5)
                [survivor] = end(pid, term_timeout=0.1, kill_timeout=0.5).survivors
                assert survivor.wchan
                assert Row(*words, script, survivor.reason) == ROWS["d_state"]
            finally:
                dstate.thaw(card.parent)
    finally:
        dstate.release(card.parent)


@pytest.mark.root
def test_respawned(card: Path) -> None:
    mark = f"served-{uuid.uuid4().hex}"
    environ = {**os.environ, "PYTHON": sys.executable, "CODE": HOLD + STAY, "CARD": str(card), "MARK": mark}
    argv = ["/bin/sh", "-c", AGAIN]
    with subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as supervisor:
        try:
            assert supervisor.stdout is not None
            pid, words = int(supervisor.stdout.readline()), []
            for kill in (
                ["fuser", "-k", str(card)],
                ["/bin/sh", "-c", 'lsof -t "$1" | xargs kill -9', "sh", str(card)],
                ["pkill", "-KILL", "-f", "--", mark],
            ):
                assert after(pid, kill, seconds=10) == "gone"
                ended, pid = pid, int(supervisor.stdout.readline())
                words.append("again" if pid in holders_of(card) and pid != ended else "gone")
            [fuser_says, lsof_says, pkill_says] = words
            process = ProcFs().process(pid)
            assert process is not None
            by = starter_of(process, ProcFs().lineage(process), lambda one: process_result(one, ProcFs()))
            ours = "respawned" if (by["pid"], by["kind"]) == (supervisor.pid, "process") else "gone"
            # The script signals as pkill does, once.
            assert Row(fuser_says, lsof_says, pkill_says, pkill_says, ours) == ROWS["respawned"]
        finally:
            supervisor.kill()
            supervisor.wait()
            for pid in pgrep(mark):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.root
def test_zombie(card: Path) -> None:
    """Whoever waits until pgrep shows nobody waits for ever."""
    with holding([sys.executable, "-c", NEVER_REAPED]) as parent:
        [pid] = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split())
        patterns = compile_killers([TITLES], "patterns")
        found = [process for process in ProcFs().processes() if process.pid == pid]
        chosen = selection.select_matching(found, patterns=patterns, exclude=(), ourselves=())
        ours = "gone" if found and chosen == selection.Selection((), ()) else "signalled"
        assert Row(*asked(card, pid), ours) == ROWS["zombie"]


@pytest.mark.root
def test_no_holder(card: Path) -> None:
    """Nobody is found, which fuser and lsof tell as they tell that all is well."""
    busy: dict[str, Any] = {
        "index": 1,
        "pci_bus_id": None,
        "memory_used_mib": 76115,
        "state": "busy",
        "error": None,
        "processes": [],
    }
    looked = {"gpus": [1], "scan_complete": not holders_of(card)}
    verdict = judge_card(busy, Evidence({}, looked, {}, None, True, 0)).verdict
    by_fuser, by_lsof = said(bool(fuser(card))), said(bool(lsof(card)))
    assert Row(by_fuser, by_lsof, "missed", by_lsof, verdict) == ROWS["no_holder"]
