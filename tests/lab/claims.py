"""Memory on a card: a process holds the card's node open, and a claim file that names the card and the MiB.

Whether a claim counts is read from the world: from the descriptors in /proc, and for holders in a namespace that
cannot be seen from here, from the lock that they hold on the file. Two faults bend the rule: `linger_s` and `leak`.
"""

from __future__ import annotations

import fcntl
import os
import time

from tests.lab import procfs
from tests.lab.cards import CARDS, CONTROL_NODE, UVM_NODE, Card

_WIDTH = 120
_UNFINISHED = "new-"
_GONE = ".gone"


class Holder:
    """A process that claims `mib` on a card."""

    def __init__(self, pid: int, mib: int) -> None:
        self.pid, self.mib = pid, mib


class Usage:
    """What one card shows, its idle floor included, and who holds it, by rising pid."""

    def __init__(self, used_mib: int, holders: list[Holder]) -> None:
        self.used_mib, self.holders = used_mib, holders


class _Claim:
    """A claim file, read: one line of minor, MiB, seconds for which it lingers, 1 for a leak."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, encoding="ascii") as stream:
            minor, mib, linger_s, leak = stream.read().split()
            self.file = _file_id(os.fstat(stream.fileno()))
        self.minor, self.mib, self.linger_s, self.leak = int(minor), int(mib), float(linger_s), leak == "1"


class HeldClaim:
    """A CUDA context of this process on one card: `nvidiactl`, `nvidia-uvm`, the card, the claim.

    Held until it exits.
    """

    def __init__(self, state: str, devices: str, card: Card, *, linger_s: float = 0, leak: bool = False) -> None:
        self._card, self._linger_s, self._leak = card, linger_s, leak
        self._nodes = open_nodes(devices, [CONTROL_NODE, UVM_NODE, card.node_name])
        # Locked under a name that no reader looks at: a claim is never seen without its lock.
        directory = os.path.join(state, "claims")
        name = "%d-%d-%d" % (card.minor, os.getpid(), time.monotonic_ns())
        unfinished = os.path.join(directory, _UNFINISHED + name)
        self._file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self.set_mib(0)
        os.rename(unfinished, os.path.join(directory, name))

    @property
    def descriptors(self) -> list[int]:
        """All that is held."""
        return [*self._nodes, self._file]

    def set_mib(self, mib: int) -> None:
        """Claim so much from now on. One write of fixed width: a reader sees the old text or the new."""
        fields = "%d %d %g %d" % (self._card.minor, mib, self._linger_s, self._leak)
        os.pwrite(self._file, fields.ljust(_WIDTH).encode("ascii"), 0)


def open_nodes(devices: str, names: list[str]) -> list[int]:
    """Open card nodes as the driver's library does; O_NOCTTY because a terminal may stand behind them."""
    return [os.open(os.path.join(devices, name), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC) for name in names]


def usage(state: str) -> dict[int, Usage]:
    """What each card shows now, by index."""
    claims = _read_claims(state)
    open_files = {pid: procfs.open_files(pid) for pid in procfs.pids()} if claims else {}
    answer = {}
    for card in CARDS:
        used, holders = card.floor_mib, []
        node = _node_id(state, card)
        for claim in claims:
            if claim.minor != card.minor:
                continue
            with_file = [pid for pid, files in open_files.items() if claim.file in files]
            with_both = [pid for pid in with_file if _holds_node(open_files[pid], node)]
            if with_both or (not with_file and _stays_without_visible_holder(claim)):
                used += claim.mib
                holders += [Holder(pid, claim.mib) for pid in with_both]
        answer[card.index] = Usage(used, sorted(holders, key=lambda holder: holder.pid))
    return answer


def has_node_open(state: str, card: Card) -> bool:
    """Whether any process that can be seen from here has the card open, with a claim or without."""
    node = _node_id(state, card)
    return any(_holds_node(procfs.open_files(pid), node) for pid in procfs.pids())


def forget(state: str, card: Card) -> None:
    """A reset: what was claimed on the card is gone."""
    for claim in _read_claims(state):
        if claim.minor == card.minor:
            os.unlink(claim.path)


def _read_claims(state: str) -> list[_Claim]:
    directory = os.path.join(state, "claims")
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    return [
        _Claim(os.path.join(directory, name))
        for name in names
        if not name.startswith(_UNFINISHED) and not name.endswith(_GONE)
    ]


def _node_id(state: str, card: Card) -> procfs.FileId:
    return _file_id(os.stat(os.path.join(state, "dev", card.node_name)))


def _file_id(info: os.stat_result) -> procfs.FileId:
    return info.st_dev, info.st_ino, info.st_rdev


def _holds_node(files: set[procfs.FileId], node: procfs.FileId) -> bool:
    number = node[2]
    if number:  # a container has a node of its own, with another inode: the device number tells
        return any(file[2] == number for file in files)
    return node in files


def _stays_without_visible_holder(claim: _Claim) -> bool:
    if _is_locked(claim.path) or claim.leak:
        return True
    return claim.linger_s > 0 and time.time() - _gone_since(claim.path) < claim.linger_s


def _is_locked(path: str) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _gone_since(path: str) -> float:
    """When somebody first saw the claim without a holder (seconds since the epoch): now, if nobody did before."""
    marker = path + _GONE
    if not os.path.exists(marker):
        os.close(os.open(marker, os.O_RDONLY | os.O_CREAT, 0o666))
    return os.stat(marker).st_mtime
