#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: inference_evidence
short_description: Keep what a hung inference server can still tell
version_added: 0.1.0
description:
  - Returns the process table of a server with the state of every thread and where in the kernel each process sleeps,
    what the kernel's log says of the driver, and Python stacks where C(py-spy) is installed.
  - Ending a zombie destroys the only witness, so this is what to ask before. Nothing is signalled, stopped or changed.
  - It runs where the processes can be seen, so on Proxmox on the node. Command lines are returned without secrets.
options:
  vmid:
    description:
      - The container. Every process in it is in the table. Without it those are that match O(patterns).
    type: int
  patterns:
    description:
      - Regular expressions that find the server's processes, in name and command line. Their stacks are kept.
    type: list
    elements: str
    required: true
  stacks:
    description:
      - Of how many processes at most the Python stack is kept.
    type: int
    default: 10
  stack_timeout:
    description:
      - Seconds that each of them may take, more than V(0).
    type: float
    default: 10
  kernel_lines:
    description:
      - How many lines of the kernel's log about the driver, hung tasks and want of memory are kept.
    type: int
    default: 50
  pct_path:
    description:
      - Name or path of Proxmox's C(pct).
    type: path
    default: pct
  py_spy_path:
    description:
      - Name or path of C(py-spy).
    type: path
    default: py-spy
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - Changes nothing.
  diff_mode:
    support: N/A
    details:
      - Changes nothing.
  idempotent:
    support: full
author:
  - the gpuops.inference founders (@gpuops)
"""

EXAMPLES = r"""
- name: Ask the hung server what it can still tell
  gpuops.inference.inference_evidence:
    vmid: 129
    patterns:
      - '^sglang::'
      - 'sglang\.launch_server'
  delegate_to: pve1.example.com
  register: evidence
"""

RETURN = r"""
processes:
  description: The processes, as the other modules of this collection return them, and where they sleep.
  returned: success
  type: list
  elements: dict
  contains:
    pid:
      description: As the machine sees it that the module ran on.
      type: int
      sample: 41007
    container_pid:
      description: As the container sees it.
      type: int
      sample: 312
    vmid:
      description: Its container.
      type: int
      sample: 129
    name:
      description: Name, cut at 15 characters by the kernel.
      type: str
      sample: "sglang::schedul"
    command:
      description: Command line, without secrets.
      type: str
      sample: "sglang::scheduler_TP1"
    state:
      description: State of its first thread, one letter.
      type: str
      sample: D
    uid:
      description: Its owner.
      type: int
      sample: 0
    start_time:
      description: Seconds since the epoch.
      type: float
      sample: 1767225600.25
    unit:
      description: The systemd unit in its cgroup.
      type: str
      sample: sglang-kimi.service
    parent:
      description: C(pid) and C(name) of its parent.
      type: dict
      sample: {pid: 41001, name: python3}
    wchan:
      description: The kernel function in which its first thread sleeps.
      type: str
      sample: uvm_va_space_destroy
    threads:
      description: How many threads are in which state.
      type: dict
      sample: {S: 71, D: 1}
    kernel_stack:
      description: The kernel's stack of a thread in state D, where it may be read.
      type: str
      sample: null
kernel_messages:
  description: The last lines of the kernel's log that tell something, with the seconds since boot.
  returned: success
  type: list
  elements: str
  sample: ["812345.120 NVRM: Xid (PCI:0000:21:00): 79, GPU has fallen off the bus."]
stacks:
  description: Python stacks. C(stack) is V(null) where C(error) says why.
  returned: success
  type: list
  elements: dict
  sample: []
warnings:
  description: What could not be read.
  returned: when there is something
  type: list
  elements: str
  sample: ["py-spy is not installed, so no Python stacks were kept."]
reason:
  description:
    - Stable code of a failure. V(bad_input), V(empty_pattern), V(invalid_pattern), V(match_all_pattern),
      V(not_installed), V(timeout), V(ct_not_on_node), V(ct_not_visible), V(pve_cluster_unavailable) or V(pct_failed).
  returned: failure
  type: str
  sample: ct_not_on_node
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._commands import SystemRunner
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._evidence import EvidenceRequest, gather
from ansible_collections.gpuops.inference.plugins.module_utils._limits import require_time_to_answer, require_vmid
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_killers
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs


def main() -> None:
    """Parameters in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "vmid": {"type": "int"},
            "patterns": {"type": "list", "elements": "str", "required": True},
            "stacks": {"type": "int", "default": 10},
            "stack_timeout": {"type": "float", "default": 10},
            "kernel_lines": {"type": "int", "default": 50},
            "pct_path": {"type": "path", "default": "pct"},
            "py_spy_path": {"type": "path", "default": "py-spy"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        require_vmid(params["vmid"])
        require_time_to_answer(params, "stack_timeout")
        for option in ("stacks", "kernel_lines"):
            if not 0 <= params[option] <= 1000:
                raise InputError(f"{option} is {params[option]}. Give a number from 0 to 1000.")
        request = EvidenceRequest(
            vmid=params["vmid"],
            patterns=compile_killers(params["patterns"], "patterns"),
            pct_path=params["pct_path"],
            py_spy_path=params["py_spy_path"],
            stacks=params["stacks"],
            stack_timeout=params["stack_timeout"],
            kernel_lines=params["kernel_lines"],
        )
        result = gather(request, SystemRunner(), ProcFs())
    except GpuopsError as exc:
        module.fail_json(**exc.result())
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
