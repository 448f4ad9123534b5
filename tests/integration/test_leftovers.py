"""inference_leftovers on a container with a real /dev/shm: real segments, real holders, and planted links."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import standing_lab
from tests.integration.play import module
from tests.lab.cards import CARDS
from tests.lab.container import open_container
from tests.lab.lab import Lab

# Reaches the segment by the path that it is given, maps it, and keeps neither the handle nor a name in its hand.
MAPS = "import mmap, sys; f = open(sys.argv[1], 'rb+'); m = mmap.mmap(f.fileno(), 1); f.close(); "
OPENS = "import sys; f = open(sys.argv[1], 'rb'); "
LISTENS = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
PRINTS_ITS_PID = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
# None has it: pids of the lab's containers are small.
DEAD_PID = 4_194_000


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One lab for the module: its server does not run."""
    with standing_lab("dead") as dead:
        yield dead


@pytest.fixture
def shm(lab: Lab) -> Iterator[Path]:
    """The container's /dev/shm, as the node reaches it; empty before and after."""
    [init] = [one["init_pid"] for one in lab.status()["containers"] if one["vmid"] == 129]
    path = Path(f"/proc/{init}/root/dev/shm")
    yield path
    for left in path.iterdir():
        left.unlink()


def segment(shm: Path, name: str) -> Path:
    path = shm / name
    path.write_bytes(b"\1" * 4096)
    return path


def leftovers(lab: Lab, *options: str, **arguments: Any) -> dict[str, Any]:
    known = {"vmid": 129, "shm_min_age": 0, "pct_path": str(lab.bin / "pct")}
    result = module(lab, "node", "inference_leftovers", {**known, **arguments}, *options)
    assert not result["failed"], result
    return result


def reasons(result: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one["reason"] for one in result["segments"]}


@contextmanager
def running(argv: list[str]) -> Iterator[int]:
    """A process, for as long as the block; yields the pid that it has to itself."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(timeout=10)


def inside(lab: Lab, code: str, *arguments: str) -> list[str]:
    """An argv that runs Python in container 129."""
    container = open_container(129, lab.state, CARDS, lxc=os.path.isdir(lab.state / "lxc"))
    return container.attach_argv([container.python, "-c", code + PRINTS_ITS_PID, *arguments])


def test_only_what_nobody_needs_is_removed_and_a_second_run_changes_nothing(lab: Lab, shm: Path) -> None:
    nameless = segment(shm, "psm_0a0b0c0d")
    dead = segment(shm, f"sgl_shm_mm_{DEAD_PID}_5d41402a")
    mapped = segment(shm, "nccl-Ewjreo")
    other = segment(shm, "other.db")
    with running(inside(lab, MAPS, "/dev/shm/nccl-Ewjreo")) as pid:
        named = segment(shm, f"multi_tokenizer_args_{pid}")
        dry = leftovers(lab, "--check", clean_shm=True)
        assert (dry["changed"], dry["removed"], dead.exists()) == (True, [dead.name], True)
        unasked = leftovers(lab)
        assert (unasked["changed"], unasked["stale"], dead.exists()) == (False, [dead.name], True)
        first = leftovers(lab, clean_shm=True)
        assert (first["changed"], first["removed"]) == (True, [dead.name])
        expected = {dead.name: None, mapped.name: "in_use", named.name: "owner_alive", nameless.name: "maker_may_live"}
        assert reasons(first) == expected
        [found] = [one for one in first["segments"] if one["name"] == mapped.name]
        assert [one["container_pid"] for one in found["in_use_by"]] == [pid]
        assert not dead.exists()
        assert all(path.exists() for path in (nameless, mapped, named, other))
    # Its owner is dead, and so is who may have made the others.
    second = leftovers(lab, clean_shm=True)
    assert sorted(second["removed"]) == sorted([nameless.name, mapped.name, named.name])
    third = leftovers(lab, clean_shm=True)
    assert (third["changed"], third["segments"]) == (False, [])
    assert [path.name for path in shm.iterdir()] == ["other.db"]


@pytest.mark.parametrize("code", [OPENS, MAPS])
def test_a_process_in_another_mount_namespace_is_seen_to_have_it(lab: Lab, shm: Path, code: str) -> None:
    held = segment(shm, f"torch_{DEAD_PID}_1_0")
    # It knows the segment under the node's path, and the node's pid is not in the container.
    with running([sys.executable, "-c", code + PRINTS_ITS_PID, str(held)]) as pid:
        result = leftovers(lab, clean_shm=True)
    [found] = result["segments"]
    assert (found["reason"], [one["pid"] for one in found["in_use_by"]]) == ("in_use", [pid])
    assert (result["changed"], held.exists()) == (False, True)


def test_planted_links_lead_nowhere(lab: Lab, shm: Path) -> None:
    precious = lab.state / "tmp" / f"sgl_shm_mm_{DEAD_PID}_0"
    precious.write_text("of the node", encoding="ascii")
    (shm / precious.name).symlink_to(precious)
    (shm / "psm_0a").symlink_to(precious.parent)
    result = leftovers(lab, clean_shm=True)
    assert reasons(result) == {precious.name: "not_a_file", "psm_0a": "not_a_file"}
    assert (result["changed"], precious.exists()) == (False, True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a mount in a container's namespace needs root")
def test_a_directory_of_the_node_that_is_mounted_there_is_left_alone(lab: Lab, shm: Path) -> None:
    precious = lab.state / "tmp" / f"sgl_shm_mm_{DEAD_PID}_0"
    precious.write_text("of the node", encoding="ascii")
    enter = ["nsenter", "-t", shm.parts[2], "-m", "--"]
    subprocess.run([*enter, "mount", "--bind", str(precious.parent), "/dev/shm"], check=True)
    try:
        assert (shm / precious.name).exists()
        result = leftovers(lab, clean_shm=True)
    finally:
        subprocess.run([*enter, "umount", "/dev/shm"], check=True)
    assert result["shm"]["reason"] == "shm_not_tmpfs"
    assert (result["changed"], result["segments"], precious.exists()) == (False, [], True)


def test_who_has_a_port_is_named_and_waited_for(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with running(inside(lab, LISTENS, str(port))) as pid:
        [found] = leftovers(lab, ports=[port], port_timeout=0.1)["listeners"]
        assert (found["port"], found["address"]) == (port, "127.0.0.1")
        assert (found["process"]["container_pid"], found["process"]["vmid"]) == (pid, 129)
    started = time.monotonic()
    assert leftovers(lab, ports=[port], port_timeout=60)["listeners"] == []
    assert time.monotonic() - started < 60


def test_a_container_that_does_not_run_has_nothing_left(lab: Lab) -> None:
    result = leftovers(lab, vmid=131, ports=[30000], clean_shm=True)
    assert (result["container_status"], result["changed"], result["shm"]) == ("stopped", False, None)


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="this machine has no /dev/shm")
def test_on_a_machine_of_its_own_what_is_mapped_is_kept(lab: Lab) -> None:
    """Nothing of this machine is removed: the pattern is the test's own, and its segment is in use."""
    name = f"gpuops_test_{os.getpid()}_{DEAD_PID}"
    path = Path("/dev/shm") / name
    path.write_bytes(b"\1")
    try:
        with running([sys.executable, "-c", MAPS + PRINTS_ITS_PID, str(path)]) as pid:
            patterns = [rf"gpuops_test_{os.getpid()}_(?P<pid>[0-9]+)"]
            result = leftovers(lab, vmid=None, shm_patterns=patterns, clean_shm=True)
        [found] = result["segments"]
        assert (found["reason"], [one["pid"] for one in found["in_use_by"]]) == ("in_use", [pid])
        assert (found["owner_pid"], found["owner_alive"], path.exists()) == (DEAD_PID, False, True)
    finally:
        path.unlink()
