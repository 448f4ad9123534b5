# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What earlier looks at a server saw, so that this one can tell since when something stands still; and a lock, so that
no two looks at one server ask it at the same time.

One small file for each server in a directory that only this account can write. Without such a directory there are no
notes and no lock, and each look stands for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import stat
import tempfile
from typing import IO, Any, Callable, Iterator, Optional

# What stood still before that may have moved meanwhile.
_OLDEST = 600.0


class Notes:
    """``free`` says that nobody else looks at this server now. ``now`` is in seconds since the epoch."""

    def __init__(self, earlier: dict[str, Any], now: float, *, free: bool = True) -> None:
        self.free = free
        self._earlier = earlier
        self._now = now
        self._seen: dict[str, list[Any]] = {}

    def since(self, name: str, value: str, began: Optional[float] = None) -> float:
        """Note the value, and since when it has been the same: ``began`` (default: now), or what earlier looks say."""
        began = self._now if began is None else began
        noted = self._noted(name)
        if noted is not None and noted[0] == value:
            began = min(began, noted[1])
        self._seen[name] = [value, began]
        return began

    def earlier(self, name: str) -> Optional[str]:
        """What an earlier look saw, if it was not long ago."""
        noted = self._noted(name)
        return noted[0] if noted is not None else None

    def document(self, written: float) -> dict[str, Any]:
        """What the next look is to know."""
        return {"written": written, **self._seen}

    def _noted(self, name: str) -> Optional[tuple[str, float]]:
        """Value and beginning. A look long ago proves nothing, nor does one in the future: the clock was set."""
        noted = self._earlier.get(name)
        if not isinstance(noted, list) or len(noted) != 2:
            return None
        began, written = _moment(noted[1]), _moment(self._earlier.get("written"))
        if began is None or written is None or began > self._now or not 0 <= self._now - written <= _OLDEST:
            return None
        return str(noted[0]), began


def _moment(value: Any) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def directory() -> Optional[str]:
    """Where the notes lie: below /run for root, in the account's own runtime directory, or in one of its own in /tmp.

    None where there is no such place.
    """
    user = os.geteuid()
    base = "/run" if user == 0 else os.environ.get("XDG_RUNTIME_DIR")
    return own_directory(os.path.join(base, "gpuops") if base else f"{tempfile.gettempdir()}/gpuops-{user}")


def own_directory(path: str) -> Optional[str]:
    """Make the directory where it is not there; None where it cannot be made, or others may write to it."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
    except OSError:
        return None
    safe = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return path if safe else None


@contextlib.contextmanager
def notes(server: str, where: Optional[str], clock: Callable[[], float]) -> Iterator[Notes]:
    """The notes on one server (a text that names it), locked until the block ends, and then written."""
    stream = _open(server, where) if where is not None else None
    if stream is None:
        yield Notes({}, clock())
        return
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield Notes(_read(stream), clock(), free=False)
            return
        kept = Notes(_read(stream), clock())
        yield kept
        with contextlib.suppress(OSError):
            text = json.dumps(kept.document(clock()))
            stream.seek(0)
            stream.truncate()
            stream.write(text)


def _open(server: str, where: str) -> Optional[IO[str]]:
    name = f"health-{hashlib.sha256(server.encode('utf-8', 'replace')).hexdigest()[:16]}.json"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return open(os.open(os.path.join(where, name), flags, 0o600), "r+", encoding="utf-8")
    except OSError:
        return None


def _read(stream: IO[str]) -> dict[str, Any]:
    try:
        document = json.loads(stream.read(1 << 16))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
