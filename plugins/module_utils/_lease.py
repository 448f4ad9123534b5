# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is at work on a server just now: one small file for each server, in a directory that only root may write.

Every decision is taken under a lock on the directory, which the kernel gives back when its holder dies. So no two can
take the same lease, and nobody sees half a file. The lock lasts as long as one decision; the lease lasts until it is
given back, or until it expires because its owner died.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time
from typing import Any, Callable, Iterator, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._termination import Clock

# A decision takes milliseconds. Whoever has the directory locked for longer hangs.
_LOCK_SECONDS = 10.0
_LOCK_INTERVAL = 0.02

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TEXTS = ("owner", "job", "run")
_TIMES = ("since", "expires")
# Longer than any name of an account, a job or a run; and what is printed of them must not break a line.
_LONGEST_TEXT = 200
# No lease with such texts is larger, and what is read is no more than this.
_LARGEST_BYTES = 4096


class LeaseError(GpuopsError):
    """The lease cannot be had: ``leased``, ``lease_lost``, ``lease_unreadable``, ``lease_directory``."""


class Lease(NamedTuple):
    """One lease. Times are seconds since the epoch by the clock of the machine that has the file.

    ``owner`` and ``job`` are for people; ``run`` is a word of the holder's own that no other run has.
    """

    owner: str
    job: str
    run: str
    since: float
    expires: float

    def described(self) -> str:
        """``alice@control (job 4711) since ... until ...``."""
        return f"{self.owner} (job {self.job}) since {iso(self.since)}, until {iso(self.expires)}"

    def result(self) -> dict[str, Any]:
        """As a module returns it."""
        return {**self._asdict(), "since": iso(self.since), "expires": iso(self.expires)}


class Request(NamedTuple):
    """Who wants which lease, and for how many seconds from now. ``break_job``: the job whose lease may be ended."""

    directory: str
    name: str
    owner: str
    job: str
    run: str
    seconds: float
    break_job: Optional[str] = None
    renew: bool = False


class Outcome(NamedTuple):
    """``lease`` is what holds afterwards; ``ended`` the lease of another run that was ended for it."""

    changed: bool
    lease: Optional[Lease]
    ended: Optional[Lease] = None


def iso(seconds: float) -> str:
    """UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def parse_lease(text: str) -> Optional[Lease]:
    """The lease in a file; None for text that is none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not all(_is_text(values.get(name)) for name in _TEXTS):
        return None
    times: list[Any] = [values.get(name) for name in _TIMES]
    # A bool is an int, and a number beyond the year 9999 cannot be shown.
    if not all(type(one) in (int, float) and 0 <= one < 253_402_300_800 for one in times):  # pylint: disable=C0123
        return None
    return Lease(*(values[name] for name in _TEXTS), *map(float, times))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and value.isprintable()


def decide(found: Optional[Lease], request: Request, now: float) -> Outcome:
    """What taking or renewing comes to. Pure. Raises LeaseError ``leased`` or ``lease_lost``, with the ``holder``."""
    ours = found is not None and found.run == request.run
    if request.renew and not ours:
        raise LeaseError(
            f"The lease {request.name} is no longer ours: {_says(found)}. Nothing more is touched.",
            reason="lease_lost",
            holder=found.result() if found is not None else None,
        )
    wanted = Lease(request.owner, request.job, request.run, now, now + request.seconds)
    if found is None:
        return Outcome(changed=True, lease=wanted)
    if ours:
        return Outcome(changed=False, lease=wanted._replace(since=found.since))
    if found.expires > now and found.job != request.break_job:
        raise LeaseError(
            f"Another run is at work: {found.described()} (lease {request.name}). Wait until it has ended. If it is "
            f"dead, its lease ends then by itself, or at once by break_job.",
            reason="leased",
            holder=found.result(),
        )
    return Outcome(changed=True, lease=wanted, ended=found)


def take(request: Request, clock: Clock, now: Callable[[], float] = time.time, *, dry_run: bool = False) -> Outcome:
    """Take the lease, or make it last longer where it is ours. Raises LeaseError and InputError."""
    _require(request)
    with _locked(request.directory, clock, make=not dry_run) as directory:
        outcome = decide(_read(directory, request), request, now())
        if directory is not None and not dry_run and outcome.lease is not None:
            _write(directory, request, outcome.lease)
        return outcome


def give_back(request: Request, clock: Clock, *, dry_run: bool = False) -> Outcome:
    """End the lease where it is ours. That of another run stays, and is no failure."""
    _require(request)
    with _locked(request.directory, clock, make=False) as directory:
        found = _read(directory, request)
        if directory is None or found is None or found.run != request.run:
            return Outcome(changed=False, lease=found)
        if not dry_run:
            os.unlink(_file(request), dir_fd=directory)
        return Outcome(changed=True, lease=None)


def _says(found: Optional[Lease]) -> str:
    return f"{found.described()} has it" if found is not None else "it has expired or was removed, and nobody has it"


def _require(request: Request) -> None:
    if not _NAME.fullmatch(request.name):
        raise InputError(
            f"name is {request.name!r}. A lease is called by letters, digits, dots, hyphens and underscores."
        )
    if not request.run:
        raise InputError("run is empty. Give a word that no other run has.")
    for option in _TEXTS:
        if not _is_text(getattr(request, option)):
            raise InputError(f"{option} has more than {_LONGEST_TEXT} characters, or some that cannot be printed.")
    if not os.path.isabs(request.directory):
        raise InputError(f"directory is {request.directory!r}. Give a path that begins with a slash.")


def _file(request: Request) -> str:
    return f"{request.name}.json"


@contextlib.contextmanager
def _locked(path: str, clock: Clock, *, make: bool) -> Iterator[Optional[int]]:
    """A descriptor of the directory, for ourselves. None where it is not there and is not to be made."""
    descriptor = _open(path, make=make)
    if descriptor is None:
        yield None
        return
    try:
        deadline = clock.now() + _LOCK_SECONDS
        while not _lock(descriptor):
            if clock.now() > deadline:
                raise LeaseError(
                    f"Somebody has {path} locked for more than {_LOCK_SECONDS:g} s. See who (fuser {path}).",
                    reason="lease_directory",
                )
            clock.sleep(_LOCK_INTERVAL)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: str, *, make: bool) -> Optional[int]:
    try:
        if make:
            os.makedirs(path, mode=0o755, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and not make:
            return None
        raise _directory_error(path, exc.strerror or str(exc)) from exc
    found = os.fstat(descriptor)
    # In a directory that others may write, anybody could forge or remove a lease.
    if found.st_uid not in (0, os.geteuid()) or stat.S_IMODE(found.st_mode) & 0o022:
        os.close(descriptor)
        raise _directory_error(path, "others than root and this account may write there")
    return descriptor


def _directory_error(path: str, said: str) -> LeaseError:
    return LeaseError(
        f"The directory for leases {path} cannot be used: {said}. Run this as root, or name a directory that only this "
        "account may write.",
        reason="lease_directory",
    )


def _read(directory: Optional[int], request: Request) -> Optional[Lease]:
    """The lease as it stands. Raises LeaseError ``lease_unreadable`` for a file that is none: unknown is not free."""
    if directory is None:
        return None
    try:
        descriptor = os.open(_file(request), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _unreadable(request, exc.strerror or str(exc)) from exc
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        data = os.read(descriptor, _LARGEST_BYTES + 1) if regular else b""
    except OSError as exc:
        raise _unreadable(request, exc.strerror or str(exc)) from exc
    finally:
        os.close(descriptor)
    lease = parse_lease(data.decode("utf-8", "replace")) if len(data) <= _LARGEST_BYTES else None
    if lease is None:
        raise _unreadable(request, "it holds no lease")
    return lease


def _unreadable(request: Request, said: str) -> LeaseError:
    path = f"{request.directory}/{_file(request)}"
    return LeaseError(
        f"{path} cannot be read ({said}), so another run may be at work. See that none is, then remove the file.",
        reason="lease_unreadable",
    )


def _write(directory: int, request: Request, lease: Lease) -> None:
    """In one step, so that whoever reads without the lock sees the old or the new."""
    new = f".{request.name}.new"
    try:
        # Only one of us is here; what lies there is of one that was killed.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=directory)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(lease._asdict(), stream, ensure_ascii=False)
        os.rename(new, _file(request), src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as exc:
        said = os.strerror(exc.errno or errno.EIO)
        raise _directory_error(request.directory, said) from exc
