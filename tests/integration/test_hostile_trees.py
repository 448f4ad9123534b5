"""Process trees that do not want to end, made of real processes in a real pid namespace, and the modules against them.

The modules are run without a play, which makes each of these a few seconds. What is left is asked by another road: the
environment that all of a tree inherits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration import trees
from tests.integration.mini_container import SHIFT, MiniContainer, mini_container
from tests.integration.play import alive
from tests.integration.trees import run_module, tree
from tests.lab.lab import Lab
from tests.tooling.environment import COLLECTIONS, PYTHON

VIA = pytest.mark.parametrize("via", ["host", "pct"])


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two containers with nothing in them but their init. Namespaces do, and are quicker than LXC."""
    with tempfile.TemporaryDirectory(prefix="gpuops lab ") as directory, Lab(directory, "dead") as dead:
        yield dead


def enter(lab: Lab, vmid: int = 129) -> list[str]:
    return [str(lab.bin / "pct"), "exec", str(vmid), "--"]


def kill(lab: Lab, marker: str, **arguments: Any) -> dict[str, Any]:
    known = {"vmid": 129, "patterns": [marker], "pct_path": str(lab.bin / "pct"), "term_timeout": 1, "kill_timeout": 20}
    return run_module("pct_kill_processes", {**known, "fail_on_survivors": False, **arguments})


def reclaim(lab: Lab, before: tuple[str, ...] = (), **arguments: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "gpus": ["1"],
        "nvidia_smi_path": str(lab.bin / "nvidia-smi"),
        "backend": "nvidia_smi",
        "pct_path": str(lab.bin / "pct"),
        "device_directory": str(lab.state / "dev"),
        "fail_on_survivors": False,
        "respawn_timeout": 0,
    }
    return run_module("nvidia_fuser_reclaim", {**known, **arguments}, before)


def card_nodes(lab: Lab) -> list[str]:
    """What a CUDA process on card 1 holds open."""
    minor = lab.status()["cards"][1]["minor"]
    return [str(lab.state / "dev" / name) for name in (f"nvidia{minor}", "nvidia-uvm")]


def left(result: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    return result["survivors"], result["respawned"]


@VIA
def test_workers_that_replace_each_other_faster_than_they_are_killed_are_all_gone(lab: Lab, via: str) -> None:
    with tree(enter(lab), trees.STORM) as storm:
        before = len(storm.meant())
        assert before >= 4
        result = kill(lab, storm.marker, via=via)
        assert (left(result), storm.meant()) == (([], []), [])
        assert len(result["terminated"]) + len(result["killed"]) > len(result["matched"])


@VIA
def test_whoever_left_his_session_and_his_parent_is_ended(lab: Lab, via: str) -> None:
    with tree(enter(lab), trees.DAEMON) as daemon:
        result = kill(lab, daemon.marker, via=via)
        assert (left(result), daemon.meant()) == (([], []), [])
        assert len(result["terminated"]) == 2
        assert {one["parent"]["pid"] for one in result["terminated"] if one["parent"]} >= {1} or via == "host"


@VIA
def test_a_supervisor_is_named_as_who_starts_it_again_and_is_not_raced(lab: Lab, tmp_path: Path, via: str) -> None:
    title, count = "the-server-of-a-supervisor", lab.state / "tmp" / "starts"
    with tree(enter(lab), trees.SUPERVISOR, title[::-1], str(count)):
        result = kill(lab, title, via=via, respawn_timeout=20)
        [again] = result["respawned"]
        by = again["started_by"]
        assert (by["kind"], result["survivors"]) == ("process", [])
        assert title[::-1] in by["command"]
        assert by["container_pid"] == again["parent"]["pid"] or via == "host"
        assert len(result["terminated"]) == 1
        assert count.read_text() == "2", "killed once, and not again and again"


@VIA
def test_a_zombie_that_nobody_reaps_is_gone_and_its_parent_is_named(lab: Lab, via: str) -> None:
    title = "the-server-of-a-negligent-parent"
    with tree(enter(lab), trees.NEGLIGENT, title[::-1]) as negligent:
        result = kill(lab, title, via=via)
        [ended] = result["terminated"]
        assert (left(result), ended["parent"]["name"][:6]) == (([], []), "python")
        assert negligent.zombies(), "it is there, and holds nothing"
        assert kill(lab, title, via=via)["matched"] == []


@VIA
def test_a_process_whose_first_thread_is_dead_is_killed(lab: Lab, via: str) -> None:
    with tree(enter(lab), trees.DEAD_LEADER) as dead:
        result = kill(lab, dead.marker, via=via)
        assert [one["state"] for one in result["killed"]] == ["Z"], result
        assert (left(result), dead.meant()) == (([], []), [])


@VIA
def test_a_stopped_server_acts_on_sigterm_since_it_is_continued(lab: Lab, via: str) -> None:
    with tree(enter(lab), trees.STOPPED, "well-mannered") as stopped:
        began = time.monotonic()
        result = kill(lab, stopped.marker, via=via, term_timeout=40)
        assert time.monotonic() - began < 20, "nobody waited for the limit"
        assert sorted(one["state"] for one in result["terminated"]) == ["S", "T"]
        assert (result["killed"], stopped.meant()) == ([], [])


def test_a_stopped_server_that_is_deaf_is_killed(lab: Lab) -> None:
    with tree(enter(lab), trees.STOPPED, "deaf") as stopped:
        result = kill(lab, stopped.marker)
        assert sorted(one["state"] for one in result["matched"]) == ["S", "T"]
        assert (len(result["killed"]), stopped.meant()) == (1, [])


def test_a_server_in_a_debugger_is_killed(lab: Lab) -> None:
    with tree(enter(lab), trees.TRACED) as traced:
        result = kill(lab, traced.marker, exclude=["^nobody$"], term_timeout=0.3)
        assert "t" in {one["state"] for one in result["matched"]}
        assert (left(result), traced.meant()) == (([], []), [])


def test_a_pct_exec_that_hangs_is_given_up_and_ended(lab: Lab, tmp_path: Path) -> None:
    pct = tmp_path / "pct"
    pct.write_text(f'#!/bin/sh\n[ "$1" = exec ] && exec sleep 47\nexec \'{lab.bin}/pct\' "$@"\n')
    pct.chmod(0o755)
    began = time.monotonic()
    result = kill(lab, "nobody-is-called-so", via="pct", pct_path=str(pct), pct_timeout=1)
    assert (result["failed"], result["reason"]) == (True, "ct_exec_timeout")
    assert time.monotonic() - began < 20
    assert _running(b"sleep\x0047\0") == []


def test_the_shell_that_lists_the_container_is_never_a_target(lab: Lab) -> None:
    """Its own command line holds whatever the script holds."""
    result = kill(lab, r"gpuops-[0-9a-f]{24}", via="pct")
    assert [one["reason"] for one in result["spared"]] == ["ourselves"]
    assert (result["matched"], result["changed"]) == ([], False)


def test_an_ancestor_of_the_module_that_holds_the_card_is_spared_and_another_holder_is_not(lab: Lab) -> None:
    card, uvm = card_nodes(lab)
    shell = ("/bin/sh", "-c", 'exec 8<>"$0" 9<>"$1"; shift; "$@"; exit $?', card, uvm)
    with tree([], trees.HOLDS, card, uvm) as other:
        result = reclaim(lab, before=shell)
        assert {one["reason"] for one in result["spared"]} == {"ourselves"}
        assert "sh" in {one["name"] for one in result["spared"]}
        assert [other.marker in one["command"] for one in result["terminated"]] == [True]
        assert other.meant() == []


def test_of_two_containers_on_one_card_only_the_one_that_is_meant_is_reclaimed(lab: Lab) -> None:
    nodes = card_nodes(lab)
    with tree(enter(lab, 129), trees.HOLDS, *nodes) as ours, tree(enter(lab, 130), trees.HOLDS, *nodes) as theirs:
        neighbours = theirs.meant()
        result = reclaim(lab, vmid=129)
        assert (ours.meant(), theirs.meant()) == ([], neighbours)
        assert [(one["pid"], one["reason"]) for one in result["spared"]] == [(neighbours[0], "other_container")]
        assert [one["vmid"] for one in result["terminated"]] == [129]


def test_a_storm_on_a_card_is_ended_with_all_that_inherit_the_handle(lab: Lab) -> None:
    code = "files = [os.open(path, os.O_RDWR) for path in sys.argv[2:]]\n" + trees.STORM
    with tree(enter(lab), code, *card_nodes(lab)) as storm:
        result = reclaim(lab, vmid=129, term_timeout=1, kill_timeout=20)
        assert (left(result), storm.meant()) == (([], []), [])
        assert len(result["terminated"]) + len(result["killed"]) > len(result["holders"])


def test_a_server_that_is_the_first_process_of_its_container_is_spared_and_the_way_out_is_named(lab: Lab) -> None:
    """As Docker runs one on the machine itself: pid 1 of a namespace."""
    own = ["unshare", "--pid", "--fork", "--kill-child", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    with tree(own, trees.HOLDS, *card_nodes(lab)) as docker:
        [server] = [pid for pid in docker.meant() if "unshare" not in Path(f"/proc/{pid}/comm").read_text()]
        result = reclaim(lab)
        assert [(one["pid"], one["reason"]) for one in result["spared"]] == [(server, "container_init")]
        assert "Restart that container instead" in str(result["warnings"])
        assert alive(server)


@contextmanager
def victim(container: MiniContainer) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the container that is told from its init by its argument."""
    argv = [str(container.pct), "exec", "129", "--", "/bin/busybox", "sleep", "113"]
    with subprocess.Popen(argv) as started:
        try:
            deadline = time.monotonic() + 20
            while not _running(b"/bin/busybox\0sleep\x00113\0"):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield started
        finally:
            for pid in _running(b"/bin/busybox\0sleep\x00113\0"):
                os.kill(pid, signal.SIGKILL)


def _running(command: bytes) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == command:
                found.append(int(path.parent.name))
    return found


@pytest.mark.root
@VIA
@pytest.mark.parametrize("unprivileged", [False, True], ids=["bare", "unprivileged"])
def test_a_container_with_nothing_but_a_shell_is_cleaned_up(via: str, unprivileged: bool) -> None:
    """No ps, no pgrep, no Python. Unprivileged: its root is nobody's uid on the node, 100000."""
    with mini_container(unprivileged=unprivileged) as container, victim(container) as server:
        known = {"vmid": 129, "patterns": ["busybox.*sleep.*113"], "pct_path": str(container.pct), "term_timeout": 1}
        result = run_module("pct_kill_processes", {**known, "via": via})
        assert [one["container_pid"] for one in result["terminated"]] == [2], result
        # Through pct the owner is as the container sees it.
        assert result["terminated"][0]["uid"] == (SHIFT if unprivileged and via == "host" else 0)
        assert server.wait(20) != 0
        assert alive(container.init_pid)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze one process in a cgroup of its own, as a backup in suspend mode does with a container."""
    [root] = [
        one for one in map(Path, ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")) if (one / "cgroup.procs").exists()
    ][:1]
    home = root / unified_cgroup(pid).lstrip("/")
    cgroup = root / f"gpuops-test-{os.getpid()}-{pid}"
    cgroup.mkdir()
    try:
        (cgroup / "cgroup.procs").write_text(str(pid))
        (cgroup / "cgroup.freeze").write_text("1")
        try:
            deadline = time.monotonic() + 20
            while "frozen 1" not in (cgroup / "cgroup.events").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield
        finally:
            (cgroup / "cgroup.freeze").write_text("0")
    finally:
        (home / "cgroup.procs").write_text(str(pid))
        cgroup.rmdir()


def unified_cgroup(pid: int) -> str:
    """Path of its cgroup v2."""
    lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("0::"))[3:]


@pytest.mark.root
@VIA
def test_a_frozen_container_is_named_at_once_and_neither_entered_nor_signalled(via: str) -> None:
    with mini_container() as container, frozen(container.init_pid):
        known = {"vmid": 129, "patterns": ["busybox"], "pct_path": str(container.pct)}
        began = time.monotonic()
        result = run_module("pct_kill_processes", {**known, "via": via})
        assert (result["failed"], result["reason"]) == (True, "ct_frozen")
        assert time.monotonic() - began < 10
        assert "lxc-unfreeze" in result["msg"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="freezing needs root")
def test_a_frozen_holder_is_named_at_once_and_ended_once_it_is_thawed(lab: Lab) -> None:
    with tree(enter(lab), trees.HOLDS, *card_nodes(lab)) as holder:
        [pid] = holder.meant()
        with frozen(pid):
            result = reclaim(lab, term_timeout=100, kill_timeout=100)
            assert [(one["pid"], one["reason"]) for one in result["survivors"]] == [(pid, "frozen")]
            assert not result["changed"]
        assert alive(pid), "no signal waited for the thaw"
        assert [one["pid"] for one in reclaim(lab)["terminated"]] == [pid]


# In a pid namespace of its own the next pid can be chosen (proc(5), /proc/sys/kernel/ns_last_pid).
REUSE = """
import os, signal, sys, time
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from ansible_collections.gpuops.inference.plugins.module_utils._termination import (
    HostSignaller, SystemClock, Termination, terminate)
def sleeper():
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        signal.pause()
    return pid
first = sleeper()
seen = ProcFs().process(first)
os.kill(first, signal.SIGKILL)
os.waitpid(first, 0)
time.sleep(0.05)
with open("/proc/sys/kernel/ns_last_pid", "w") as stream:
    stream.write(str(first - 1))
heir = sleeper()
assert heir == first, (heir, first)
ended = terminate([seen], HostSignaller(ProcFs()), term_timeout=0, kill_timeout=1, clock=SystemClock())
assert ended == Termination(), ended
assert os.waitpid(heir, os.WNOHANG) == (0, 0), "the heir was signalled"
heir_seen = ProcFs().process(heir)
ended = terminate([heir_seen], HostSignaller(ProcFs()), term_timeout=0, kill_timeout=1, clock=SystemClock())
assert len(ended.killed) == 1, ended
print("the heir lived")
"""


def test_whoever_got_the_pid_of_a_process_that_was_looked_at_is_not_signalled() -> None:
    own = ["unshare", "--pid", "--fork", "--mount-proc", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    done = subprocess.run(
        [*own, str(PYTHON), "-c", REUSE],
        env={**os.environ, "PYTHONPATH": str(COLLECTIONS)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "the heir lived\n", done.stderr
