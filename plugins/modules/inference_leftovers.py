#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: inference_leftovers
short_description: Find what a dead inference server left behind, and remove its stale shared memory
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Looks for two leftovers of a killed server that break the next start. A port that somebody still listens on, and
    segments of shared memory in C(/dev/shm) that fill it, so that the next server dies with SIGBUS.
  - Names who listens on each port. It ends nobody.
  - Says of each segment whether it is stale, and if not, why it is kept. With O(clean_shm) it removes the stale ones.
  - A segment that names its owner's process id is stale when no living process that can reach this C(/dev/shm) has that
    id there (ids are those of the container), and no process of the machine has it open or mapped.
  - A segment that names nobody is stale when no process of the machine has it open or mapped, it is older than
    O(shm_min_age), and no living process that has another segment open or mapped began before it was made. Such a
    process may have made it and keep only its name in mind, as a server does between two requests. So while a second
    server shares the C(/dev/shm), nameless leftovers that are younger than that server are kept.
  - Unknown is not stale. As long as a single process that can reach this C(/dev/shm) does not let itself be looked
    into, no segment is stale. Run it as root.
  - Whoever has a segment is found by device and inode in the handles and mappings of all processes of the machine, in
    whatever container and mount namespace they are. Only a handle that is on its way through a socket at that very
    moment is seen by nobody.
  - With O(vmid), run it on the Proxmox node that holds the container (C(delegate_to)). It reaches the container's
    C(/dev/shm) through its init, follows no symbolic link there, and looks only into a tmpfs that is mounted as a
    whole.
  - Without O(vmid), inside a container, not all users of the memory are to be seen. Then no segment is stale.
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - Says which segments would be removed. Nothing is removed.
  diff_mode:
    support: full
    details:
      - Shows the matching segments before and after.
  idempotent:
    support: full
options:
  vmid:
    description:
      - Number of the container in which the server runs. Without it, this machine is meant.
    type: int
  ports:
    description:
      - TCP ports that the server wants to bind. Whoever listens on one of them, on whatever address, is named.
    type: list
    elements: int
    default: []
  port_timeout:
    description:
      - Seconds to wait until nobody listens on O(ports) any more. A process that was just ended may still be going.
        V(0) looks once.
    type: float
    default: 0
  shm_patterns:
    description:
      - Regular expressions (Python's). A file in C(/dev/shm) is a segment when one of them matches its whole name;
        nothing else is ever looked at.
      - A group called C(pid) holds the owner's process id, or C(pid_hex) in hexadecimal.
      - By default the names of SGLang, vLLM, NCCL, CUDA's and PyTorch's sharing of tensors, and of Python's
        C(multiprocessing) and C(loky), on which they are built.
      - A pattern that is empty or matches every name is refused.
    type: list
    elements: str
    default:
      - 'sgl_shm_.+_(?P<pid>[0-9]+)_[0-9A-Za-z]+'
      - 'multi_tokenizer_args_(?P<pid>[0-9]+)'
      - 'sglang_loads_.+\.shm'
      - 'vllm_offload_.+'
      - 'nccl-[0-9A-Za-z_-]+'
      - 'cuda\.shm\.[0-9a-f]+\.(?P<pid_hex>[0-9a-f]+)\.[0-9a-f]+'
      - 'torch_(?P<pid>[0-9]+)_[0-9]+_[0-9]+'
      - 'psm_[0-9a-f]+'
      - 'sem\.mp-[0-9A-Za-z_]+'
      - 'sem\.loky-(?P<pid>[0-9]+)-[0-9A-Za-z_]+'
  shm_min_age:
    description:
      - Seconds since a segment was made or resized before it can be stale, if its name holds no process id. A name may
        be on its way from the process that made it to the one that will open it.
    type: float
    default: 30
  clean_shm:
    description:
      - Remove the stale segments. Otherwise they are only reported.
    type: bool
    default: false
  pct_path:
    description:
      - Name or path of Proxmox's C(pct).
    type: path
    default: pct
seealso:
  - module: gpuops.inference.pct_kill_processes
  - module: gpuops.inference.nvidia_fuser_reclaim
"""

EXAMPLES = r"""
- name: Say who still has the port of the server in container 129, and what it left in /dev/shm
  gpuops.inference.inference_leftovers:
    vmid: 129
    ports: [30000]
    port_timeout: 2
  delegate_to: pve1.example.com
  register: leftovers

- name: Remove what nobody needs any more
  gpuops.inference.inference_leftovers:
    vmid: 129
    clean_shm: true
  delegate_to: pve1.example.com
  when: leftovers.stale | length > 0

- name: Show what would be removed on a machine of its own, of one kind only
  gpuops.inference.inference_leftovers:
    shm_patterns: ['my_server_(?P<pid>[0-9]+)_cache']
    clean_shm: true
  check_mode: true
  diff: true
"""

RETURN = r"""
vmid:
  description: The container, V(null) for this machine.
  returned: success
  type: int
  sample: 129
container_status:
  description: What Proxmox says of the container. When it is not V(running), there is nothing left over. V(null) for
    this machine.
  returned: success
  type: str
  sample: running
listeners:
  description: Who listens on one of O(ports), one entry for each process that has the socket.
  returned: success
  type: list
  elements: dict
  contains:
    port:
      description: The port.
      type: int
      sample: 30000
    address:
      description: The address that is listened on.
      type: str
      sample: 0.0.0.0
    process:
      description: The process. V(null) when no process is seen to have the socket.
      type: dict
      contains:
        pid:
          description: Process id as the machine sees it that the module ran on.
          type: int
          sample: 24871
        container_pid:
          description: Process id as the container sees it.
          type: int
          sample: 312
        vmid:
          description: The container it is in.
          type: int
          sample: 129
        name:
          description: Name, cut at 15 characters by the kernel.
          type: str
          sample: python3
        command:
          description: Full command line. Values of options and variables that look like a secret are replaced by
            asterisks.
          type: str
          sample: python3 -m http.server 30000
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
          sample: files.service
        parent:
          description: The parent's C(pid) and C(name), or V(null) when there is none to be seen.
          type: dict
          sample: {pid: 1, name: systemd}
segments:
  description: What in C(/dev/shm) matches O(shm_patterns), before anything was removed.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the file.
      type: str
      sample: sgl_shm_mm_312_5d41402a
    path:
      description: Path as the server sees it.
      type: str
      sample: /dev/shm/sgl_shm_mm_312_5d41402a
    size_mib:
      description: Memory that it takes, in MiB.
      type: float
      sample: 31.5
    age_s:
      description: Seconds since it was made or resized.
      type: float
      sample: 86400.5
    owner_pid:
      description: Process id that the name holds, as its maker saw it, or V(null).
      type: int
      sample: 312
    owner_alive:
      description: Whether a living process that can reach this memory has that id. V(null) when the name holds none.
      type: bool
      sample: false
    in_use_by:
      description: The processes that have it open or mapped, as RV(listeners[].process).
      type: list
      elements: dict
      sample: []
    stale:
      description: Whether nobody needs it any more.
      type: bool
      sample: true
    removed:
      description: Whether it was removed (in check mode, would be).
      type: bool
      sample: false
    reason:
      description:
        - Why it is kept, V(null) when it is stale.
        - V(in_use), somebody has it open or mapped. V(owner_alive), a living process has the id in its name.
        - V(unreadable), not every process that can reach it could be looked into. V(too_young), see O(shm_min_age).
        - V(maker_may_live), a living process that has others began before it was made.
        - V(not_a_file), it is a link, a directory or a device. V(foreign_owner), its owner is no user of the container.
        - V(not_removed), it is stale, but was changed meanwhile or could not be removed.
      type: str
      sample: in_use
shm:
  description: The file system. V(null) when the container does not run.
  returned: success
  type: dict
  contains:
    path:
      description: Where it is mounted.
      type: str
      sample: /dev/shm
    size_mib:
      description: How much it can hold, in MiB.
      type: float
      sample: 65536.0
    free_mib:
      description: What is free at the end, in MiB. A server that needs more dies with SIGBUS.
      type: float
      sample: 1024.0
    reason:
      description:
        - Why it could not be looked into, else V(null).
        - V(shm_missing), V(shm_not_a_directory), V(shm_not_tmpfs) or V(shm_unreadable).
      type: str
      sample: shm_missing
    message:
      description: The same in a sentence.
      type: str
      sample: "/dev/shm cannot be looked into: No such file or directory."
stale:
  description: Names of the segments that nobody needs any more, before any was removed.
  returned: success
  type: list
  elements: str
  sample: [sgl_shm_mm_312_5d41402a]
stale_mib:
  description: Memory that they take, in MiB.
  returned: success
  type: float
  sample: 31.5
removed:
  description: Names of those that were removed (in check mode, would be).
  returned: success, and on failure where some were removed by then
  type: list
  elements: str
  sample: [sgl_shm_mm_312_5d41402a]
removed_mib:
  description: Memory that was won, in MiB.
  returned: success
  type: float
  sample: 31.5
scan_complete:
  description: Whether every process that can reach the memory could be looked into. If not, no segment is stale.
  returned: success
  type: bool
  sample: true
reason:
  description: Stable code of a failure, such as V(ct_not_on_node), V(ct_not_visible) or V(bad_input).
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

from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._leftovers import LeftoversRequest, find_leftovers
from ansible_collections.gpuops.inference.plugins.module_utils._limits import require_seconds, require_vmid
from ansible_collections.gpuops.inference.plugins.module_utils._machine import this_machine
from ansible_collections.gpuops.inference.plugins.module_utils._shared_memory import DEFAULT_NAMES, compile_names
from ansible_collections.gpuops.inference.plugins.module_utils._sockets import require_ports


def main() -> None:
    """Parameters in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "vmid": {"type": "int"},
            "ports": {"type": "list", "elements": "int", "default": []},
            "port_timeout": {"type": "float", "default": 0},
            "shm_patterns": {"type": "list", "elements": "str", "default": list(DEFAULT_NAMES)},
            "shm_min_age": {"type": "float", "default": 30},
            "clean_shm": {"type": "bool", "default": False},
            "pct_path": {"type": "path", "default": "pct"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        require_vmid(params["vmid"])
        require_ports(params["ports"], "ports")
        require_seconds(params, "port_timeout", "shm_min_age")
        request = LeftoversRequest(
            vmid=params["vmid"],
            ports=tuple(params["ports"]),
            port_timeout=params["port_timeout"],
            patterns=compile_names(params["shm_patterns"]),
            min_age=params["shm_min_age"],
            clean_shm=params["clean_shm"],
            pct_path=params["pct_path"],
        )
        result = find_leftovers(request, this_machine(check_mode=module.check_mode))
        if not module._diff:
            del result["diff"]
    except GpuopsError as exc:
        module.fail_json(**exc.result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
