"""What `lab status` says, read afresh from /proc, the claims and the server's health endpoint."""

from __future__ import annotations

import pathlib
import subprocess
from typing import Any

from tests.lab import claims, procfs
from tests.lab import state as lab_state
from tests.lab.cards import CARDS
from tests.lab.container import Container, open_container

_HEALTH_S = 2.0
_ASK_HEALTH = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=%g) as answer:
    sys.exit(0 if answer.status == 200 else 1)
"""


def read(state: str) -> dict[str, Any]:
    """Read all of it. `start_time`: clock ticks since boot; `expected_mib`: what the cards show once all is loaded."""
    config = lab_state.config(state)
    containers = {
        int(vmid): open_container(int(vmid), pathlib.Path(state), CARDS, lxc=config["lxc"])
        for vmid, facts in config.get("containers", {}).items()
        if facts["exists"]
    }
    inits = {vmid: container.init_pid() for vmid, container in containers.items()}
    processes = _processes(state, inits)
    return {
        "scenario": config.get("scenario"),
        "cards": _cards(state) if config else [],
        "containers": [
            {
                "vmid": int(vmid),
                "status": "running" if inits.get(int(vmid)) else "stopped",
                "init_pid": inits.get(int(vmid)),
            }
            for vmid in sorted(config.get("containers", {}))
        ],
        "server": {
            "reachable": bool(config) and healthy(containers[129], config["port"], _HEALTH_S),
            "pids": [
                process["pid"]
                for process in processes
                if procfs.environment_has(process["pid"], lab_state.SERVER_MARK, state)
            ],
            "expected_mib": [card.floor_mib + card.server_mib for card in CARDS],
        },
        "processes": processes,
    }


def healthy(container: Container, port: int, timeout_s: float) -> bool:
    """Whether /health answers 200 within the limit, asked from inside: the container may have a network of its own."""
    if container.init_pid() is None:
        return False
    argv = [container.python, "-S", "-E", "-c", _ASK_HEALTH % timeout_s, "http://127.0.0.1:%d/health" % port]
    done = subprocess.run(
        container.attach_argv(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0


def _cards(state: str) -> list[dict[str, Any]]:
    usage = claims.usage(state)
    return [
        {
            "index": card.index,
            "uuid": card.uuid,
            "pci_bus_id": card.pci_bus_id,
            "minor": card.minor,
            "memory_used_mib": usage[card.index].used_mib,
            "holders": [
                {"pid": holder.pid, "name": _name(holder.pid), "claimed_mib": holder.mib}
                for holder in usage[card.index].holders
            ],
        }
        for card in CARDS
    ]


def _processes(state: str, inits: dict[int, int | None]) -> list[dict[str, Any]]:
    """Everything in the lab's containers, and what belongs to the lab on the node (the containers' monitors)."""
    namespaces = {procfs.pid_namespace(pid): vmid for vmid, pid in inits.items() if pid is not None}
    namespaces.pop(None, None)
    found = []
    for pid in sorted(procfs.pids()):
        vmid = namespaces.get(procfs.pid_namespace(pid))
        if vmid is None and not procfs.environment_has(pid, lab_state.MARK, state):
            continue
        stat = procfs.read_stat(pid)
        if stat is not None:
            row = {"pid": pid, "start_time": stat.start_time, "name": stat.name, "command": procfs.command(pid)}
            found.append({**row, "state": stat.state, "container_vmid": vmid})
    return found


def _name(pid: int) -> str | None:
    stat = procfs.read_stat(pid)
    return stat.name if stat is not None else None
