#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: pct_kill_processes
short_description: Kill the processes of a Proxmox container that match, and see that they are gone
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Ends every process of an LXC container whose name or command line matches a pattern. SIGTERM first, then SIGKILL,
    each with a limit.
  - Then it looks again, and says which processes survived and why, and which were started anew meanwhile and by whom.
  - What the processes fork meanwhile is ended as well, in rounds and within O(kill_timeout). As soon as such offspring
    shows, all of it is stopped (SIGSTOP) before it is killed, so that it cannot fork faster than it is killed. What
    somebody else starts again is named in RV(respawned) and left alone.
  - Run it on the Proxmox node that holds the container (C(delegate_to)).
  - A process is signalled only when it is proven to be the one that was looked at, by its pid and start time. The
    container's init, the
    module itself and its ancestors are never signalled.
  - Names lie. A process that is called otherwise than expected is found by the card it holds, see
    M(gpuops.inference.nvidia_fuser_reclaim).
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - Says which processes would be signalled. Nothing is signalled.
  diff_mode:
    support: full
    details:
      - Shows the matching processes before and after.
  idempotent:
    support: full
options:
  vmid:
    description:
      - Number of the container.
    type: int
    required: true
  patterns:
    description:
      - Regular expressions (Python's), searched in the name and in the full command line of each process in the
        container.
      - The name is cut at 15 characters by the kernel. Zombies that merely wait for their parent are not matched.
      - A pattern that is empty, or that finds the empty text or programs that have nothing in common, is refused, since
        it would match every process.
    type: list
    elements: str
    required: true
  exclude:
    description:
      - Regular expressions. A process that matches one of them is never signalled; it is returned in RV(spared).
    type: list
    elements: str
    default: []
  term_timeout:
    description:
      - Seconds to wait after SIGTERM. V(0) goes to SIGKILL at once.
      - A stopped process gets SIGCONT after SIGTERM, since it could not act on that otherwise.
    type: float
    default: 10
  kill_timeout:
    description:
      - Seconds to wait after SIGKILL, all rounds together.
    type: float
    default: 10
  respawn_timeout:
    description:
      - Seconds to watch, after the last process has gone, whether somebody starts a matching one again. V(0) looks
        once.
      - systemd's default is to start a service again after 0.1 seconds.
    type: float
    default: 1
  via:
    description:
      - V(host) finds the processes on the node by cgroup and pid namespace, and signals through pidfds. It needs no
        tool inside.
      - V(pct) lists and signals with a POSIX shell through C(pct exec), for accounts that may run nothing but C(pct).
      - V(auto) takes V(host) where the account may signal what it found there, as root may, else V(pct).
    type: str
    choices: [auto, host, pct]
    default: auto
  fail_on_survivors:
    description:
      - Fail when a matching process is left at the end, be it a survivor or a new one.
    type: bool
    default: true
  pct_path:
    description:
      - Name or path of Proxmox's C(pct).
    type: path
    default: pct
  pct_timeout:
    description:
      - Seconds that one C(pct exec) may take with O(via=pct).
    type: float
    default: 30
seealso:
  - module: gpuops.inference.nvidia_fuser_reclaim
  - module: gpuops.inference.gpu_memory_facts
"""

EXAMPLES = r"""
- name: End what is left of SGLang in container 129
  gpuops.inference.pct_kill_processes:
    vmid: 129
    patterns:
      - '^sglang::'
      - 'sglang\.launch_server'
  delegate_to: pve1.example.com

- name: Show what would be killed, from an account that may only run pct
  gpuops.inference.pct_kill_processes:
    vmid: 129
    patterns: ['^VLLM::', '\bvllm serve\b']
    exclude: ['--port 8001']
    via: pct
  delegate_to: pve1.example.com
  check_mode: true
  diff: true
"""

RETURN = r"""
vmid:
  description: The container.
  returned: success, and on failure because of survivors
  type: int
  sample: 129
container_status:
  description: What Proxmox says of the container. When it is not V(running), there is nothing to kill.
  returned: success, and on failure because of survivors
  type: str
  sample: running
via:
  description: How the processes were found, V(host) or V(pct). V(null) when the container does not run.
  returned: success, and on failure because of survivors
  type: str
  sample: host
matched:
  description: The processes that matched and may be signalled, before anything was done.
  returned: success, and on failure because of survivors
  type: list
  elements: dict
  contains:
    pid:
      description: Process id as the node sees it. V(null) with O(via=pct).
      type: int
      sample: 24871
    container_pid:
      description: Process id as the container sees it.
      type: int
      sample: 312
    vmid:
      description: The container.
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
      description: User id of the owner, as the machine sees it that was asked.
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
      description: The parent's C(pid) and C(name), or V(null) when there is none to be seen.
      type: dict
      sample: {pid: 1, name: systemd}
spared:
  description:
    - Processes that matched but are not signalled, as RV(matched), each with the C(reason).
    - V(command_unknown) is one whose command line the kernel does not tell, since a thread of it sleeps in a driver. It
      may match as well as not.
  returned: success, and on failure because of survivors
  type: list
  elements: dict
terminated:
  description: Processes that ended after SIGTERM (in check mode, would be sent it), as RV(matched).
  returned: success, and on failure because of survivors
  type: list
  elements: dict
killed:
  description: Processes that ended after SIGKILL, as RV(matched). Offspring that came meanwhile is among them.
  returned: success, and on failure because of survivors
  type: list
  elements: dict
survivors:
  description:
    - Processes that are still there, as RV(matched).
    - Each also has the C(reason) (V(uninterruptible), V(zombie), V(permission), V(timeout), V(frozen)) and C(wchan),
      the kernel function it sleeps in.
    - A dead process that its parent does not reap holds nothing and is no survivor. RV(terminated) and RV(killed) name
      the C(parent).
  returned: success, and on failure because of survivors
  type: list
  elements: dict
respawned:
  description: Matching processes that somebody else started while the module was at work, as RV(survivors).
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
reason:
  description: Stable code of a failure, such as V(ct_not_on_node), V(ct_frozen), V(attach_failed), V(survivors) or
    V(respawned).
  returned: failure
  type: str
  sample: ct_not_on_node
cmd:
  description: The command that failed. Exit status and both streams stand beside it, as C(rc), C(stdout), C(stderr).
  returned: failure of a command
  type: list
  elements: str
  sample: [/usr/sbin/pct, status, "105", --verbose]
node:
  description: The node that holds the container, where the cluster's list names one.
  returned: failure because the container is not on this node
  type: str
  sample: pve2
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._container_kill import KillRequest, kill_processes
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._limits import (
    require_seconds,
    require_time_to_answer,
    require_vmid,
)
from ansible_collections.gpuops.inference.plugins.module_utils._machine import this_machine
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_killers, compile_patterns
from ansible_collections.gpuops.inference.plugins.module_utils._results import refuse_survivors


def main() -> None:
    """Parameters in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "vmid": {"type": "int", "required": True},
            "patterns": {"type": "list", "elements": "str", "required": True},
            "exclude": {"type": "list", "elements": "str", "default": []},
            "term_timeout": {"type": "float", "default": 10},
            "kill_timeout": {"type": "float", "default": 10},
            "respawn_timeout": {"type": "float", "default": 1},
            "via": {"type": "str", "choices": ["auto", "host", "pct"], "default": "auto"},
            "fail_on_survivors": {"type": "bool", "default": True},
            "pct_path": {"type": "path", "default": "pct"},
            "pct_timeout": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        require_vmid(params["vmid"])
        require_seconds(params, "term_timeout", "kill_timeout", "respawn_timeout")
        require_time_to_answer(params, "pct_timeout")
        request = KillRequest(
            vmid=params["vmid"],
            patterns=compile_killers(params["patterns"], "patterns"),
            exclude=compile_patterns(params["exclude"], "exclude"),
            term_timeout=params["term_timeout"],
            kill_timeout=params["kill_timeout"],
            respawn_timeout=params["respawn_timeout"],
            via=params["via"],
            pct_path=params["pct_path"],
            pct_timeout=params["pct_timeout"],
        )
        result = kill_processes(request, this_machine(check_mode=module.check_mode))
        if not module._diff:
            del result["diff"]
        if params["fail_on_survivors"]:
            refuse_survivors(result, f"in container {params['vmid']}")
    except GpuopsError as exc:
        module.fail_json(**exc.result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
