"""Every way in which a real process can hold a card, and that each is found: below /proc, with children that look and
without, and by the kernel itself.

The card is a character device with the number of /dev/zero, which nobody keeps open; and, as an ordinary user's lab has
it, a plain file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Device, Holder, Scan, find_holders
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import DeviceNumber, number_of
from ansible_collections.gpuops.inference.plugins.module_utils._kernel_census import Named, census
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from tests.integration.conftest import SEES_ALL

ZERO = os.makedev(1, 5)

# Each begins with what it holds, then says so, then stays until it is killed.
HOLD = "import os, signal, sys; card = os.open(sys.argv[1], os.O_RDWR);"
STAY = "os.write(1, str(os.getpid()).encode() + b'\\n'); signal.pause()"

MAP = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mmap(None, 4096, 3, 2, card, 0)  # MAP_PRIVATE
os.close(card)
"""

END_THE_LEADER = """
import ctypes, threading
def live():
    while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z':
        pass
    os.write(1, b'\\n')
    signal.pause()
threading.Thread(target=live).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)
"""

DROP_PRIVILEGES = "os.setgroups([]); os.setgid(65534); os.setuid(65534);"

MOVE_TO_A_HIGH_NUMBER = "os.dup2(card, 900); os.close(card);"

PROGRAMS = {
    "fd": HOLD + STAY,
    "a high number": HOLD + MOVE_TO_A_HIGH_NUMBER + STAY,
    "dropped privileges": HOLD + DROP_PRIVILEGES + STAY,
    "mapping": HOLD + MAP + STAY,
    "dead leader": HOLD + END_THE_LEADER,
    "dead leader, mapping": HOLD + MAP + END_THE_LEADER,
}
EVIDENCE = {
    "mapping": "mapping",
    "dead leader": "thread_fd",
    "dead leader, mapping": "mapping",
}

# Its first thread lives, and has nothing open. CLONE_FILES of linux/sched.h: from there on the table is its own.
OWN_TABLE = """
import ctypes, os, signal, sys, threading
def hold():
    assert ctypes.CDLL(None).unshare(0x400) == 0
    os.open(sys.argv[1], os.O_RDWR)
    os.write(1, b'\\n')
    signal.pause()
threading.Thread(target=hold, daemon=True).start()
signal.pause()
"""

# In a mount namespace of its own, at a place where the machine has nothing, with a node of its own.
OWN_NODE = 'mount -t tmpfs -o mode=755 none "$1" && mknod "$1/card" c 1 5 && exec "$2" -c "$3" "$1/card"'
NAMESPACES = {
    "another mount namespace": ["unshare", "--mount"],
    "a container": ["unshare", "--mount", "--pid", "--fork", "--kill-child"],
    "a container in a container": [
        *["unshare", "--mount", "--pid", "--fork", "--kill-child"],
        *["unshare", "--mount", "--pid", "--fork", "--kill-child"],
    ],
}


class Crowd(NamedTuple):
    """The card and its holders: pid by the kind of holder."""

    card: Path
    pids: dict[str, int]


def of_the_kernel(*values: object) -> list[Any]:
    """Parameters with which the kernel is asked. It tells root, and numbers processes as the machine does."""
    marks = [
        pytest.mark.root,
        pytest.mark.alone,
        pytest.mark.skipif(not SEES_ALL, reason="the kernel tells root only, in the machine's own pid namespace"),
    ]
    return [pytest.param(value, marks=marks) for value in values]


Look = Callable[[Path], dict[int, Holder]]


@pytest.fixture(params=["children", "no children", *of_the_kernel("the kernel")])
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Finds a card's holders, by pid: children ask process after process, or we do, or the kernel is asked once."""

    def no_more_processes() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def refuse(wanted: Set[DeviceNumber]) -> None:
        assert wanted

    def insist(wanted: Set[DeviceNumber]) -> set[Named]:
        named = census(wanted)
        assert named is not None
        return named

    if request.param == "no children":
        monkeypatch.setattr(os, "fork", no_more_processes)
    ask_kernel = insist if request.param == "the kernel" else refuse

    def holders(card: Path) -> dict[int, Holder]:
        device = Device(str(card), number_of(card.stat()), 1)
        found = find_holders([device], None, ProcFs(), ask_kernel=ask_kernel)
        assert found.unreadable == 0
        return {holder.process.pid: holder for holder in found.holders}

    return holders


@contextmanager
def holding(argv: list[str]) -> Iterator[int]:
    """The pid of a process that says a line when it holds what it should."""
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline(), argv
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def on_a_device(tmp_path: Path) -> Iterator[Crowd]:
    """Holders of every kind of a character device."""
    if os.geteuid() != 0:
        pytest.skip("only root can make device nodes and namespaces")
    card, away = tmp_path / "card", tmp_path / "away"
    deleted = tmp_path / "deleted"
    away.mkdir()
    for node in (card, deleted):
        os.mknod(node, stat.S_IFCHR | 0o666, ZERO)
    with ExitStack() as stack:
        pids = {
            kind: stack.enter_context(holding([sys.executable, "-c", program, str(card)]))
            for kind, program in PROGRAMS.items()
        }
        pids["a deleted node"] = stack.enter_context(holding([sys.executable, "-c", PROGRAMS["fd"], str(deleted)]))
        deleted.unlink()
        for kind, argv in NAMESPACES.items():
            shell = ["/bin/sh", "-c", OWN_NODE, "sh", str(away), sys.executable, PROGRAMS["fd"]]
            pids[kind] = _innermost(stack.enter_context(holding([*argv, *shell])))
        yield Crowd(card, pids)


def _innermost(pid: int) -> int:
    """The last of the chain of children that unshare makes."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        pid = int(children[0])
    return pid


def fuser(card: Path) -> set[int]:
    """Whom fuser finds. It tells the pids on its output, and all else, the letters behind them too, on the other."""
    if shutil.which("fuser") is None:
        pytest.skip("psmisc is not installed")
    argv = ["fuser", str(card)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return set(map(int, done.stdout.split()))


def test_every_holder_of_a_device_is_found_with_the_right_evidence(on_a_device: Crowd, look: Look) -> None:
    found = look(on_a_device.card)
    evidence = {kind: found[pid].evidence_list if pid in found else None for kind, pid in on_a_device.pids.items()}
    assert evidence == {kind: [EVIDENCE.get(kind, "fd")] for kind in on_a_device.pids}
    # The processes in between, unshare's, hold nothing.
    assert set(found) == set(on_a_device.pids.values())


def test_who_dropped_its_privileges_is_told_by_its_user(on_a_device: Crowd, look: Look) -> None:
    assert look(on_a_device.card)[on_a_device.pids["dropped privileges"]].process.uid == 65534


def test_fuser_finds_some_of_them_and_nobody_else(on_a_device: Crowd, look: Look) -> None:
    """It compares the inode of the node, and looks only at a process's first thread."""
    seen = fuser(on_a_device.card)
    assert seen < set(look(on_a_device.card))
    unseen = {kind for kind, pid in on_a_device.pids.items() if pid not in seen}
    assert unseen == {"dead leader", "dead leader, mapping", "a deleted node", *NAMESPACES}


@pytest.mark.parametrize("look", of_the_kernel("the kernel"), indirect=True)
def test_a_handle_in_a_thread_s_own_table_is_named_by_the_kernel(on_a_device: Crowd, look: Look) -> None:
    """Below /proc each thread of each process would have to be asked: that takes too long, and fuser does not, too."""
    with holding([sys.executable, "-c", OWN_TABLE, str(on_a_device.card)]) as pid:
        assert pid not in fuser(on_a_device.card)
        assert look(on_a_device.card)[pid].evidence_list == ["thread_fd"]


@pytest.mark.parametrize("user", of_the_kernel(0, 65534))
def test_the_kernel_tells_nobody_but_root(user: int) -> None:
    """Others look below /proc, and count those that they may not look into."""
    os.seteuid(user)
    try:
        assert (census({DeviceNumber("char", 1, 5)}) is not None) == (user == 0)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("computes", [False, True])
@pytest.mark.parametrize("hidden", of_the_kernel(False, True))
def test_whom_the_kernel_names_though_proc_hides_what_he_holds_counts(
    tmp_path: Path, hidden: bool, computes: bool
) -> None:
    """As root in a service without these capabilities (CapabilityBoundingSet=), which following a mapping takes."""
    card = tmp_path / "card"
    os.mknod(card, stat.S_IFCHR | 0o666, ZERO)
    device = Device(str(card), number_of(card.stat()), 1)
    # In the place of the node that CUDA opens.
    node = tmp_path / "node"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    program = f"import os; node = os.open({str(node)!r}, os.O_RDWR);" if computes else ""
    shell = ["/bin/sh", "-c", OWN_NODE, "sh", str(tmp_path / "away"), sys.executable, program + PROGRAMS["mapping"]]
    (tmp_path / "away").mkdir()

    def look() -> Scan:
        if hidden:
            give_up(CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE)
        return find_holders([device], number_of(node.stat()), ProcFs())

    # What a thread gives up, the others keep.
    with holding(["unshare", "--mount", *shell]) as pid, ThreadPoolExecutor(1) as thread:
        found = thread.submit(look).result()
    seen = [(holder.process.pid, holder.compute_context) for holder in found.holders]
    assert found.source == "kernel"
    assert (seen, found.unreadable) == (([], 1) if hidden else ([(pid, computes)], 0))


CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE = 21, 40


def give_up(*capabilities: int) -> None:
    """Take capabilities from the calling thread: capset(2), version 3, whose sets lie in two halves of 32 bits."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", 0x20080522, 0)
    halves = ctypes.create_string_buffer(24)
    assert libc.capget(header, halves) == 0
    words = list(struct.unpack("=6I", halves.raw))
    for capability in capabilities:
        for of in (0, 1):
            words[3 * (capability // 32) + of] &= ~(1 << capability % 32)
    assert libc.capset(header, struct.pack("=6I", *words)) == 0


@pytest.mark.parametrize("look", ["children", "no children"], indirect=True)
def test_every_holder_of_a_plain_file_is_found(tmp_path: Path, look: Look) -> None:
    """As in the lab of an ordinary user; fuser compares the inode here, and so do we."""
    card = tmp_path / "card"
    card.write_bytes(b"\0" * 4096)
    programs = {kind: program for kind, program in PROGRAMS.items() if kind != "dropped privileges"}
    with ExitStack() as stack:
        pids = {
            kind: stack.enter_context(holding([sys.executable, "-c", program, str(card)]))
            for kind, program in programs.items()
        }
        found = look(card)
        assert {kind: found[pid].evidence_list for kind, pid in pids.items() if pid in found} == {
            kind: [EVIDENCE.get(kind, "fd")] for kind in pids
        }
        assert fuser(card) < set(found)
