# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes are a container's: by cgroup and pid namespace, seen from the node, never by name."""

from __future__ import annotations

import json
import re
from typing import Iterable, Iterator, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed, Runner, describe_exit
from ansible_collections.gpuops.inference.plugins.module_utils._errors import ContainerError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import (
    Process,
    ProcFs,
    first_number,
    parse_cgroups,
)

# Proxmox: /lxc/129/ns/...; plain LXC: /lxc.payload.129/...; the monitor (/lxc.monitor/129) is not in the container.
_CGROUP = re.compile(r"^/lxc(?:/|\.payload\.)([0-9]{1,9})(?:/|$)")

_CGROUP_ROOT = "/sys/fs/cgroup"

# pct is a Perl program that reads the whole cluster configuration: seconds, not minutes.
PCT_TIMEOUT = 30.0


class ContainerStatus(NamedTuple):
    """What ``pct status VMID --verbose`` says. ``init_pid`` is the container's init as the node sees it."""

    vmid: int
    status: str
    init_pid: Optional[int]
    lock: Optional[str]


def vmid_of(process: Process) -> Optional[int]:
    """The VMID in the process's cgroup path; the outermost one for a container within a container."""
    return _vmid_in(process.cgroups)


def _vmid_in(cgroups: Iterable[str]) -> Optional[int]:
    return next((int(found[1]) for found in map(_CGROUP.match, cgroups) if found), None)


def container_pid_of(process: Process) -> Optional[int]:
    """The pid as the container sees it, one namespace below ours; None for a process of our own namespace."""
    return process.namespace_pids[1] if len(process.namespace_pids) > 1 else None


def is_container_init(process: Process) -> bool:
    """Pid 1 of a container of this machine. Pid 1 of a container nested within one is an ordinary process to it."""
    return len(process.namespace_pids) == 2 and process.namespace_pids[1] == 1


def container_status(vmid: int, *, runner: Runner, pct_path: str) -> ContainerStatus:
    """Ask Proxmox for the container. Raises ContainerError when it is not on this node, or pct cannot say."""
    answer = runner.run([pct_path, "status", str(vmid), "--verbose"], timeout=PCT_TIMEOUT)
    values = dict(_KEY_VALUE.findall(answer.stdout))
    if answer.rc != 0 or "status" not in values:
        raise classify_pct_failure(vmid, answer)
    pid = first_number(values.get("pid", ""))
    return ContainerStatus(
        vmid=vmid,
        status=values["status"],
        init_pid=pid if pid is not None and pid > 1 else None,
        lock=values.get("lock"),
    )


_KEY_VALUE = re.compile(r"(?m)^([a-z_]+):[ \t]+(\S.*?)[ \t\r]*$")


def classify_pct_failure(vmid: int, answer: Completed) -> ContainerError:
    """What pct's own errors mean (src/PVE/CLI/pct.pm and PVE::LXC::Config of pve-container). The exit code says
    nothing.
    """
    text = f"{answer.stdout}\n{answer.stderr}".strip()
    fields = {"vmid": vmid, "cmd": list(answer.argv), "rc": answer.rc, "stdout": answer.stdout, "stderr": answer.stderr}
    if "ipcc_send_rec" in text or "Unable to load access control list" in text:
        return ContainerError(
            f"Proxmox's cluster file system does not answer, so nothing is known about container {vmid}. Check the "
            "service pve-cluster on the node, and that this task runs as root.",
            reason="pve_cluster_unavailable",
            **fields,
        )
    if re.search(r"Configuration file '.*' does not exist", text):
        node = _node_of(vmid)
        where = f"It is on node {node}: point the task (verified_restart_node) there." if node else "Check the VMID."
        return ContainerError(
            f"There is no container {vmid} on this node. {where}", reason="ct_not_on_node", node=node, **fields
        )
    if "not running" in text:
        return ContainerError(f"Container {vmid} is not running.", reason="ct_not_running", **fields)
    last_line = text.splitlines()[-1] if text else "no output"
    return ContainerError(
        f"pct could not tell about container {vmid} ({describe_exit(answer.rc)}): {last_line}",
        reason="pct_failed",
        **fields,
    )


def _node_of(vmid: int, path: str = "/etc/pve/.vmlist") -> Optional[str]:
    """The node that holds container ``vmid``, from the cluster's own list. None where there is no such list or entry,
    or where it is a virtual machine.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            guest = json.load(stream)["ids"][str(vmid)]
        return str(guest["node"]) if guest.get("type", "lxc") == "lxc" else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class _Place(NamedTuple):
    """Where a process stands. Two files tell it; a whole Process takes five, and a node has thousands of processes."""

    pid: int
    start_ticks: int
    parent_pid: int
    vmid: Optional[int]


def members(status: ContainerStatus, procfs: ProcFs) -> list[Process]:
    """The processes of a running container: in its cgroup, in its init's pid namespace, or below its init.

    The cgroup is Proxmox's own mark. The namespace also finds what came in without it, and is the only mark where the
    node has no cgroup for the container. Raises ContainerError when a running container shows no process at all: then
    our view is wrong.
    """
    places = list(_places(procfs))
    # Whoever has the init's pid but is nobody's init has got it anew: the container went down since pct was asked.
    init = procfs.process(status.init_pid) if status.init_pid is not None else None
    if init is not None and not is_container_init(init):
        init = None
    marked = init is None or vmid_of(init) == status.vmid
    namespace = procfs.pid_namespace(init.pid) if init is not None else None
    below = _descendants(init.pid, places) if init is not None else set()
    # An init in our own namespace would make every process of the machine a member.
    foreign = namespace is not None and namespace != procfs.pid_namespace_of_reader()

    def inside(place: _Place) -> bool:
        if place.vmid is not None:
            # Where the container's own init does not carry the mark, whoever does belongs to a namesake of it.
            return marked and place.vmid == status.vmid
        return place.pid in below or (foreign and procfs.pid_namespace(place.pid) == namespace)

    read = ((place, procfs.process(place.pid)) for place in places if inside(place))
    found = [process for place, process in read if process is not None and process.start_ticks == place.start_ticks]
    if not found:
        raise ContainerError(
            f"Container {status.vmid} runs, but none of its processes can be seen from here. "
            "Run the task on the node itself, as root.",
            reason="ct_not_visible",
            vmid=status.vmid,
        )
    return found


def _places(procfs: ProcFs) -> Iterator[_Place]:
    """Every process of the machine but the kernel's threads, which are no container's."""
    for pid in procfs.pids():
        stat = procfs.stat(pid)
        if stat is not None and not stat.kernel_thread:
            cgroups = parse_cgroups(procfs.read_text(pid, "cgroup") or "")
            yield _Place(pid, stat.start_ticks, stat.parent_pid, _vmid_in(cgroups))


def _descendants(root: int, places: list[_Place]) -> set[int]:
    """``root`` and everything below it by parent."""
    children: dict[int, list[int]] = {}
    for place in places:
        children.setdefault(place.parent_pid, []).append(place.pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, []))
    return found


def container_frozen(status: ContainerStatus, procfs: ProcFs) -> bool:
    """Whether the container as a whole is frozen, seen from the node: a command that enters it would hang."""
    init = procfs.process(status.init_pid) if status.init_pid is not None else None
    if init is not None and is_container_init(init):
        return frozen(init)
    vmid = status.vmid
    return any(_frozen_cgroup(path) for path in (f"/lxc/{vmid}", f"/lxc/{vmid}/ns", f"/lxc.payload.{vmid}"))


def frozen(process: Process, cgroup_root: str = _CGROUP_ROOT) -> bool:
    """Whether the cgroup of a process is frozen (a suspend-mode backup, a paused Docker container).

    It acts on no signal then, but for SIGKILL in cgroup v2 (Documentation/admin-guide/cgroup-v2.rst, cgroup.freeze).
    """
    return any(_frozen_cgroup(path, cgroup_root) for path in process.cgroups)


def _frozen_cgroup(path: str, root: str = _CGROUP_ROOT) -> bool:
    """Ask cgroup v2, alone or beside v1, and v1's freezer.

    One that is on its way counts, in v2 too: there it becomes frozen only with its last thread, and one that sleeps in
    a driver keeps the others, which are frozen, from counting as such.
    """
    files = ProcFs(root)
    parts = [part for part in path.split("/") if part]
    for tree in ([], ["unified"]):
        if re.search(r"(?m)^frozen 1$", files.read_text(*tree, *parts, "cgroup.events") or ""):
            return True
        # Whoever froze it may have done so from further up.
        for length in range(1, len(parts) + 1):
            if (files.read_text(*tree, *parts[:length], "cgroup.freeze") or "").strip() == "1":
                return True
    state = files.read_text("freezer", path.strip("/"), "freezer.state")
    return state is not None and state.strip() != "THAWED"
