"""Starting and stopping a container as Proxmox does it: locks, high availability, and Proxmox's own words.

`pct` and the API are two doors to this. A test writes STATE/locks.json (`{"129": "backup"}`) and STATE/ha.json
(`{"129": "started"}`, the state that high availability has a container in).
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

from tests.lab import state as lab_state
from tests.lab.cards import CARDS
from tests.lab.container import Container, open_container
from tests.lab.errors import LabError

VERBS = ("start", "stop", "shutdown")
PATIENCE_S = 60
# The real one's loops are 10 s each.
_HA_DELAY_S = 1.0


def lock(state: str, vmid: int) -> str | None:
    """What the container is locked for."""
    found = lab_state.read_json(os.path.join(state, "locks.json")).get(str(vmid))
    return None if found is None else str(found)


def ha_state(state: str, vmid: int) -> str | None:
    """What state high availability has it in; None when it is not managed."""
    found = lab_state.read_json(os.path.join(state, "ha.json")).get(str(vmid))
    return None if found is None else str(found)


def init_pid(state: str, vmid: int) -> int | None:
    """The first process of a container, None when it is stopped."""
    config = lab_state.config(state)
    return _open(state, vmid).init_pid() if config["containers"][str(vmid)]["exists"] else None


def order(state: str, verb: str, vmid: int, seconds: float = PATIENCE_S) -> None:
    """Do it, or hand it to high availability. Raises LabError with Proxmox's sentence."""
    running = init_pid(state, vmid) is not None
    if running == (verb == "start"):
        raise LabError("CT %d %s running" % (vmid, "already" if running else "not"))
    if ha_state(state, vmid) is not None:
        _request(state, verb, vmid)
        return
    held = lock(state, vmid)
    if held is not None:
        raise LabError("CT is locked (%s)" % held)
    _act(state, verb, vmid, seconds)


def _act(state: str, verb: str, vmid: int, seconds: float) -> None:
    container = _open(state, vmid)
    if verb == "start":
        container.start()
    elif not container.halt(None if verb == "stop" else seconds):
        raise LabError("container did not stop")


def _request(state: str, verb: str, vmid: int) -> None:
    print("Requesting HA %s for CT %d" % ("start" if verb == "start" else "stop", vmid), flush=True)
    argv = [sys.executable, "-S", "-E", lab_state.DOOR, "ha-request", state, verb, str(vmid)]
    subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, lab_state.MARK: state},
    )


def ha_request(state: str, arguments: list[str]) -> int:
    """What the managers of the cluster and of the node do about a request, some time later."""
    verb, vmid = arguments[0], int(arguments[1])
    time.sleep(_HA_DELAY_S)
    path = os.path.join(state, "ha.json")
    lab_state.write_json(path, {**lab_state.read_json(path), str(vmid): "started" if verb == "start" else "stopped"})
    _act(state, verb, vmid, PATIENCE_S)
    return 0


def ha_manager(state: str, arguments: list[str]) -> int:
    """`ha-manager status`."""
    if arguments != ["status"]:
        sys.stderr.write("ERROR: unknown command 'ha-manager %s'\n" % " ".join(arguments))
        return 255
    node = lab_state.config(state).get("node", "lab")
    print("quorum OK\nmaster %s (active, %s)\nlrm %s (active, %s)" % (node, time.ctime(), node, time.ctime()))
    for vmid, what in sorted(lab_state.read_json(os.path.join(state, "ha.json")).items()):
        print("service ct:%s (%s, %s)" % (vmid, node, what))
    return 0


def _open(state: str, vmid: int) -> Container:
    return open_container(vmid, pathlib.Path(state), CARDS, lxc=lab_state.config(state).get("lxc", False))
