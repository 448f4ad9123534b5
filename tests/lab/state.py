"""The state directory: where everything of one lab lies, and how its processes are marked.

What lies there:

    lab.json          what `up` decided (scenario, interpreter, port, ...)
    bin/  dev/        stand-ins for nvidia-smi, pct, systemctl; the card nodes
    claims/           who holds how much on which card (claims.py)
    shown.json        directories of the node that LXC's containers see, too
    faults.json       what nvidia-smi gets wrong now
    persistence.json  the cards whose persistence mode is off
    server-fault.json what the next start of the server gets wrong, once
    server-manner.json how the server serves while it calls itself well, and how it starts
    containers/VMID/  what a container must remember
    log/  tmp/        output of the server and of the containers; Ansible's remote_tmp
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, which nvidia-smi has no time to import
if TYPE_CHECKING:
    from typing import Any

MARK = "GPUOPS_LAB_STATE"
"""Environment variable of every long-lived process of a lab; its value is the real path of the state directory."""

SERVER_MARK = "GPUOPS_LAB_SERVER"
"""Environment variable that the processes of the server carry."""

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOOR = os.path.join(REPOSITORY, "tests", "lab", "run.py")
UNIT = "sglang-kimi.service"

_KEPT_AFTER_DOWN = ("log", "lab.lock")


def config(state: str) -> dict[str, Any]:
    """What `up` wrote; empty when no lab was set up here."""
    return read_json(os.path.join(state, "lab.json"))


def read_json(path: str) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file, or half of one."""
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except FileNotFoundError:
        return {}
    if text.strip() in ("", "{}"):
        return {}
    import json  # only here and below: it costs a call of nvidia-smi a fifth of its time

    try:
        value: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return value


def write_json(path: str, value: object) -> None:
    """Replace a file in one step, so that nobody reads half of it."""
    import json

    partial = "%s.%d" % (path, os.getpid())
    with open(partial, "w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=1)
        stream.write("\n")
    os.replace(partial, path)


def persistence(state: str) -> str:
    """Path of the file that names the cards whose persistence mode is off."""
    return os.path.join(state, "persistence.json")


def without_persistence(state: str) -> set[int]:
    """Indices of those cards. At first it is on everywhere, without a daemon."""
    return set(read_json(persistence(state)).get("off", ()))


def server_log(state: str) -> str:
    """Path of the server's log."""
    return os.path.join(state, "log", "sglang-kimi.log")


def server_fault(state: str) -> str:
    """Path of the file that the next start of the server reads and removes."""
    return os.path.join(state, "server-fault.json")


def server_manner(state: str) -> str:
    """Path of the file that says how the server serves. It is read at every request, and a test may write it."""
    return os.path.join(state, "server-manner.json")


def container_directory(state: str, vmid: int) -> str:
    """Where a container keeps what a later process must know."""
    return os.path.join(state, "containers", str(vmid))


def shown(state: str) -> str:
    """Path of the file that names what else is to be seen in LXC's containers."""
    return os.path.join(state, "shown.json")


def inside_path(state: str, *, lxc: bool) -> str:
    """PATH of a command in a container: Proxmox's; where there is no systemd, the stand-ins come first."""
    return ("" if lxc else config(state)["tools_inside"] + ":") + "/sbin:/bin:/usr/sbin:/usr/bin"


def tools_inside(state: str) -> str:
    """Where the rootless container sees STATE/bin: a path without blanks, because Ansible splits systemctl's.

    It is bound there in the container's own mount namespace; the node's directory stays as it is.
    """
    needed = (state, REPOSITORY, sys.executable, os.path.realpath(sys.executable))
    for directory in ("/usr/local/sbin", "/media", "/mnt", "/srv"):
        usable = os.path.isdir(directory) and os.path.realpath(directory) == directory
        if usable and not any(path.startswith(directory + "/") for path in needed):
            return directory
    return os.path.join(state, "bin")


def rootless_environment(state: str) -> dict[str, str]:
    """What a process in the rootless container starts with."""
    return {"PATH": inside_path(state, lxc=False), "HOME": "/root", "LANG": "C.UTF-8", "container": "lxc", MARK: state}


def clear(state: str) -> None:
    """Remove what a lab left in the directory; logs stay, for whoever must find out why something failed."""
    import shutil

    for name in os.listdir(state) if os.path.isdir(state) else ():
        path = os.path.join(state, name)
        if name in _KEPT_AFTER_DOWN:
            continue
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
