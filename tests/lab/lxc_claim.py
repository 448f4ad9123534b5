"""Which lab has a VMID on this machine. The cgroup `lxc/129` exists once: one container 129 at a time.

A claim is the file /run/gpuops-lab/VMID. It is written before the container starts and removed when it is destroyed, so
that `down` of one lab never kills the container of another, nor a real container of a real Proxmox node.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
from typing import TYPE_CHECKING

from tests.lab import cgroup2, procfs
from tests.lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIRECTORY = pathlib.Path("/run/gpuops-lab")


def cgroups(vmid: int) -> tuple[str, str]:
    """The container's and its monitor's cgroup, as Proxmox names them, relative to the hierarchy."""
    return f"lxc/{vmid}", f"lxc.monitor/{vmid}"


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Hold all claims of the machine while the block runs."""
    while True:
        _DIRECTORY.mkdir(exist_ok=True)
        try:
            descriptor = os.open(_DIRECTORY, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another lab removed it just now
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # locked a directory that was removed meanwhile
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # another claim is in it
            _DIRECTORY.rmdir()
        os.close(descriptor)


def _read(vmid: int) -> dict[str, str]:
    """The claim, empty when there is none or it was cut off while being written."""
    try:
        claim = json.loads((_DIRECTORY / str(vmid)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in claim.items()}


def is_mine(vmid: int, state: pathlib.Path) -> bool:
    """Whether the lab in `state` has the VMID."""
    return _read(vmid).get("state") == str(state)


def take(vmid: int, state: pathlib.Path) -> None:
    """Claim the VMID for the lab in `state`. Raises LabError when it runs already, here or elsewhere."""
    with _locked(), cgroup2.hierarchy() as top:
        claim = _read(vmid)
        pids = [pid for name in cgroups(vmid) for pid in cgroup2.members(top / name)]
        elsewhere = bool(claim) and claim["state"] != str(state)
        starting = elsewhere and procfs.is_alive(int(claim["pid"]), int(claim["start_time"]))
        if pids or starting:
            raise LabError(_conflict(vmid, state, claim, pids))
        for name in cgroups(vmid):  # empty leftovers, which LXC would refuse to start in
            cgroup2.remove(top / name)
        me = procfs.read_stat(os.getpid())
        record = {"state": str(state), "pid": os.getpid(), "start_time": me.start_time if me else 0}
        (_DIRECTORY / str(vmid)).write_text(json.dumps(record), encoding="utf-8")


def _conflict(vmid: int, state: pathlib.Path, claim: dict[str, str], pids: list[int]) -> str:
    """One sentence: who has the VMID, and how to get it."""
    if not claim:
        return (
            f"Container {vmid} runs on this machine already (processes {', '.join(map(str, pids[:5]))} in cgroup "
            f"lxc/{vmid}), and the lab did not start it: stop that container, or use another machine."
        )
    if claim["state"] == str(state):
        return f"Container {vmid} of this lab runs already: 'python3 -m tests.lab down --state {state}' ends it."
    return (
        f"Container {vmid} belongs to the lab in {claim['state']} now, and a machine can have one container of that "
        f"number: run 'python3 -m tests.lab down --state {claim['state']}' first."
    )


def give_back(vmid: int, state: pathlib.Path) -> None:
    """Drop the claim, if it is ours, and the empty cgroups that LXC leaves. Idempotent."""
    with _locked(), cgroup2.hierarchy() as top:
        if not is_mine(vmid, state):
            return
        for name in cgroups(vmid):
            cgroup2.remove(top / name)
        (_DIRECTORY / str(vmid)).unlink(missing_ok=True)
        # Shared with every other LXC container of the machine: they go only when the last one has gone.
        for name in ("lxc", "lxc.monitor", "lxc.pivot"):
            with contextlib.suppress(OSError):
                (top / name).rmdir()
