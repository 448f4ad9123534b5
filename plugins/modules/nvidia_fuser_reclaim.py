#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_fuser_reclaim
short_description: End the processes that hold NVIDIA cards, and see that they let go
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Finds every process that holds a card, whatever its name, and ends those that may be ended. SIGTERM first, then
    SIGKILL, each with a limit. Then it looks again.
  - A holder is found by the device's number in file handles (of threads too) and mappings, so also through a node
    that a container made for itself, where C(fuser) and C(lsof) on the machine find nothing. The driver's own list of
    compute processes says who computes where.
  - As root on Linux 6.1.8 and later the kernel itself is asked who that is, by a BPF program that only reads and is
    gone after each look. Where it does not let itself be asked, every process is looked at. RV(scan_source) says which
    of the two it was.
  - What the holders fork meanwhile is ended as well, as M(gpuops.inference.pct_kill_processes) does it. What somebody
    else starts again is named and left alone.
  - The first process of a container, such as a server that Docker runs, is never ended, since the whole container
    would go down with it. It is spared, and a warning says to restart that container.
  - Processes that keep the machine or the driver running, processes that only watch, and everyone outside O(vmid),
    are spared and named.
  - That no process holds a card does not prove that its memory is free. Read the cards again with
    M(gpuops.inference.gpu_memory_facts).
  - Run it on the machine that has the cards, as root. With containers that is the node.
extends_documentation_fragment:
  - gpuops.inference.attributes
  - gpuops.inference.driver
attributes:
  check_mode:
    support: full
    details:
      - Says which processes would be signalled. Nothing is signalled.
  diff_mode:
    support: full
    details:
      - Shows the holders before and after.
  idempotent:
    support: full
options:
  gpus:
    description:
      - The cards to reclaim, by index, UUID or PCI bus id. All cards when this and O(devices) are left out.
      - An empty list means no card, so that a list of busy cards can be given as it is.
      - A process that computes on other cards and merely has these open as well is spared.
    type: list
    elements: str
  devices:
    description:
      - Paths or globs of device nodes, in place of those of O(gpus).
    type: list
    elements: str
  device_directory:
    description:
      - Where the machine's device nodes are. The card's node is C(nvidia) and its minor, which is not its index.
    type: path
    default: /dev
  vmid:
    description:
      - Only holders in this container are ended. Everyone else is spared and named.
    type: int
  protect:
    description:
      - Regular expressions, searched in the name and in the full command line. A holder that matches is never
        signalled.
      - The default names the persistence daemon, fabric manager, DCGM, display servers, container and system
        managers, and sshd.
        Setting this option replaces it.
    type: list
    elements: str
  spare_monitors:
    description:
      - Spare a process that only watches, that is one without a compute context. The driver lists it on no card, and
        it does not hold the
        node C(nvidia-uvm) that CUDA opens.
    type: bool
    default: true
  term_timeout:
    description:
      - Seconds to wait after SIGTERM. V(0) goes to SIGKILL at once.
      - A stopped holder gets SIGCONT after SIGTERM, since it could not act on that otherwise.
    type: float
    default: 5
  kill_timeout:
    description:
      - Seconds to wait after SIGKILL, all rounds together.
    type: float
    default: 10
  respawn_timeout:
    description:
      - Seconds to watch, after the last holder has gone, whether a new one takes the card. V(0) looks once.
    type: float
    default: 1
  fail_on_survivors:
    description:
      - Fail when a holder that should be gone is left at the end, or a new one came.
    type: bool
    default: true
  pct_path:
    description:
      - Name or path of Proxmox's C(pct), asked for O(vmid).
    type: path
    default: pct
seealso:
  - module: gpuops.inference.gpu_memory_facts
  - module: gpuops.inference.pct_kill_processes
"""

EXAMPLES = r"""
- name: See who holds card 1, and who of them would be ended
  gpuops.inference.nvidia_fuser_reclaim:
    gpus: [1]
  delegate_to: pve1.example.com
  check_mode: true
  diff: true

- name: Free the cards that are still busy, touching nobody outside container 129
  gpuops.inference.nvidia_fuser_reclaim:
    gpus: "{{ ansible_facts['gpu_memory'].busy }}"
    vmid: 129
  delegate_to: pve1.example.com

- name: Name the nodes where the minors cannot be read
  gpuops.inference.nvidia_fuser_reclaim:
    devices:
      - /dev/nvidia[0-9]
"""

RETURN = r"""
gpus:
  description: Indices of the cards that were looked at.
  returned: success, and on failure because of survivors
  type: list
  elements: int
  sample: [1]
devices:
  description: The device nodes that were looked for.
  returned: success, and on failure because of survivors
  type: list
  elements: str
  sample: [/dev/nvidia3]
holders:
  description: Every process that held one of the cards before anything was done, those that are spared included.
  returned: success, and on failure because of survivors
  type: list
  elements: dict
  contains:
    pid:
      description: Process id as this machine sees it.
      type: int
      sample: 24871
    container_pid:
      description: Process id as its container sees it, V(null) for a process of this machine itself.
      type: int
      sample: 312
    vmid:
      description: Number of its container by cgroup, or V(null).
      type: int
      sample: 129
    name:
      description: Name, cut at 15 characters by the kernel.
      type: str
      sample: pt_main_thread
    command:
      description: Full command line. Values of options and variables that look like a secret are replaced by asterisks.
      type: str
      sample: pt_main_thread
    state:
      description: State as C(ps) shows it, one letter.
      type: str
      sample: S
    uid:
      description: User id of the owner as this machine sees it.
      type: int
      sample: 0
    start_time:
      description: Seconds since the epoch.
      type: float
      sample: 1782864000.25
    unit:
      description: systemd unit by cgroup, or V(null).
      type: str
      sample: sglang-kimi.service
    parent:
      description: The parent's C(pid) and C(name), or V(null).
      type: dict
      sample: {pid: 1, name: systemd}
    gpus:
      description: Indices of the cards that it holds, of those that were looked at.
      type: list
      elements: int
      sample: [1]
    evidence:
      description: How it was found. V(driver) (listed as a compute process), V(fd), V(thread_fd) (its first thread
        has exited), V(mapping).
      type: list
      elements: str
      sample: [driver, fd]
spared:
  description:
    - Holders that are not signalled, as RV(holders), each with the C(reason).
    - The reasons are V(protected), V(monitor), V(computes_elsewhere), V(other_container), V(container_init), V(init),
      V(ourselves),
      V(kernel_thread), V(command_unknown) for one whose command line the kernel does not tell while O(protect) names
      more than the built-in patterns, and V(outside_namespace) for a pid that the driver names but that holds nothing
      here.
  returned: success, and on failure because of survivors
  type: list
  elements: dict
terminated:
  description: Holders that ended after SIGTERM (in check mode, would be sent it), as RV(holders).
  returned: success, and on failure because of survivors
  type: list
  elements: dict
killed:
  description: Holders that ended after SIGKILL, as RV(holders). Offspring that came meanwhile is among them.
  returned: success, and on failure because of survivors
  type: list
  elements: dict
survivors:
  description:
    - Holders that should be gone and are not, as RV(holders).
    - Each also has the C(reason) (V(uninterruptible), V(zombie), V(permission), V(timeout), V(frozen)) and C(wchan),
      the kernel function it sleeps in. One whose container is frozen is not signalled.
  returned: success, and on failure because of survivors
  type: list
  elements: dict
respawned:
  description: New holders that somebody else started while the module was at work, as RV(survivors).
  returned: success, and on failure because of survivors
  type: list
  elements: dict
  contains:
    started_by:
      description:
        - Who starts it again, V(null) when nobody is to be seen.
        - With the C(kind) V(unit), a service manager does, and C(unit) is what to stop. With V(process), its parent
          does, which is described by C(pid), C(container_pid), C(vmid), C(name), C(command), C(state) and C(unit).
      type: dict
      sample: {kind: unit, unit: sglang-kimi.service, pid: 24000, container_pid: 1, vmid: 129, name: systemd,
               command: /sbin/init, state: S}
scan_complete:
  description: Whether every process of the machine could be looked into, at the first look and at the last. It is not
    for an ordinary user.
  returned: success, and on failure because of survivors
  type: bool
  sample: true
scan_source:
  description:
    - Who said which processes have a card open. V(kernel), it was asked for all at once. V(proc), every process was
      looked at below C(/proc), at the first look or at the last. That takes longer, and misses what a thread has open
      for itself alone.
    - V(null) without any card to look for.
  returned: success, and on failure because of survivors
  type: str
  sample: kernel
cmd:
  description: The command that failed. Exit status and both streams stand beside it, as C(rc), C(stdout), C(stderr).
  returned: failure of a command
  type: list
  elements: str
  sample: [/usr/sbin/pct, status, "105", --verbose]
missing:
  description: Those of O(gpus) that this machine does not have.
  returned: failure with the reason C(no_such_gpu)
  type: list
  elements: str
  sample: ["9"]
reason:
  description: Stable code of a failure, such as V(no_device_nodes), V(minor_unknown), V(timeout), V(survivors) or
    V(respawned).
  returned: failure
  type: str
  sample: survivors
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._limits import require_seconds, require_vmid
from ansible_collections.gpuops.inference.plugins.module_utils._machine import this_machine
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_patterns
from ansible_collections.gpuops.inference.plugins.module_utils._reclaim import ReclaimRequest, reclaim
from ansible_collections.gpuops.inference.plugins.module_utils._results import refuse_survivors
from ansible_collections.gpuops.inference.plugins.module_utils._selection import (
    DEFAULT_PROTECT,
)


def main() -> None:
    """Parameters in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "gpus": {"type": "list", "elements": "str"},
            "devices": {"type": "list", "elements": "str"},
            "device_directory": {"type": "path", "default": "/dev"},
            "vmid": {"type": "int"},
            "protect": {"type": "list", "elements": "str"},
            "spare_monitors": {"type": "bool", "default": True},
            "term_timeout": {"type": "float", "default": 5},
            "kill_timeout": {"type": "float", "default": 10},
            "respawn_timeout": {"type": "float", "default": 1},
            "fail_on_survivors": {"type": "bool", "default": True},
            "pct_path": {"type": "path", "default": "pct"},
            "backend": {"type": "str", "choices": ["auto", "nvml", "nvidia_smi"], "default": "auto"},
            "nvidia_smi_path": {"type": "path", "default": "nvidia-smi"},
            "timeout": {"type": "float", "default": 20},
        },
        mutually_exclusive=[("gpus", "devices")],
        supports_check_mode=True,
    )
    params = module.params
    try:
        require_vmid(params["vmid"])
        require_seconds(params, "term_timeout", "kill_timeout", "respawn_timeout", "timeout")
        protect = DEFAULT_PROTECT if params["protect"] is None else params["protect"]
        request = ReclaimRequest(
            gpus=params["gpus"],
            devices=params["devices"],
            device_directory=params["device_directory"],
            vmid=params["vmid"],
            protect=compile_patterns(protect, "protect"),
            spare_monitors=params["spare_monitors"],
            term_timeout=params["term_timeout"],
            kill_timeout=params["kill_timeout"],
            respawn_timeout=params["respawn_timeout"],
            backend=params["backend"],
            nvidia_smi_path=params["nvidia_smi_path"],
            driver_timeout=params["timeout"],
            pct_path=params["pct_path"],
        )
        result = reclaim(request, this_machine(check_mode=module.check_mode))
        for warning in result.pop("warnings"):
            module.warn(warning)
        if not module._diff:
            del result["diff"]
        if params["fail_on_survivors"]:
            refuse_survivors(result, "on the cards")
    except GpuopsError as exc:
        module.fail_json(**exc.result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
