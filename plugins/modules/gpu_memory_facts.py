#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_memory_facts
short_description: Read what NVIDIA cards hold, and tell idle, busy and unknown apart
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Reads the memory of every card and who computes on it, and says which cards are idle.
  - What cannot be read is V(null), and the card is V(unknown). It is never taken for V(0), nor for free.
  - A driver that fails or hangs fails the module, with a reason code, the exit status and the driver's own text.
  - One lost card does not hide the others.
  - Run it on the machine that owns the cards. With containers that is the node, because inside a container the driver
    shows no processes, or pids that mean something else there.
extends_documentation_fragment:
  - gpuops.inference.attributes
  - gpuops.inference.attributes.facts
  - gpuops.inference.driver
attributes:
  check_mode:
    support: full
    details:
      - Only reads.
  diff_mode:
    support: N/A
    details:
      - Changes nothing.
  idempotent:
    support: full
  facts:
    support: full
options:
  gpus:
    description:
      - The cards to look at, each by index, UUID or PCI bus id in any spelling. All cards when left out.
      - A card that is not there fails the module, and so does an empty list.
    type: list
    elements: str
  idle_memory_mib:
    description:
      - A card that holds no more than this many MiB is idle. Idle cards hold 3 to 51 MiB with recent drivers, and up to
        about 600 MiB with older ones.
    type: int
    default: 100
  expected_gpus:
    description:
      - How many cards of the machine must have been read, whatever O(gpus) says. With fewer the module fails and names
        what is missing.
    type: int
  processes:
    description:
      - Also list the compute processes of every card.
    type: bool
    default: true
seealso:
  - module: gpuops.inference.nvidia_fuser_reclaim
  - module: gpuops.inference.pct_kill_processes
"""

EXAMPLES = r"""
- name: Read all cards of the node that holds this host's container
  gpuops.inference.gpu_memory_facts:
    expected_gpus: 8
  delegate_to: pve1.example.com
  register: cards

- name: Show who holds what
  ansible.builtin.debug:
    msg: "{{ cards.ansible_facts.gpu_memory.gpus | community.general.json_query(holders) }}"
  vars:
    holders: "[?state != 'idle'].{gpu: index, mib: memory_used_mib, held_by: processes[].name}"

- name: Wait until every card is free
  gpuops.inference.gpu_memory_facts:
    expected_gpus: 8
  delegate_to: pve1.example.com
  register: cards
  until: cards | community.general.json_query('ansible_facts.gpu_memory.all_idle') | default(false, true)
  retries: 20
  delay: 3

- name: Wait for two cards only, on a driver whose idle cards hold some 400 MiB
  gpuops.inference.gpu_memory_facts:
    gpus: [1, "0000:41:00.0"]
    idle_memory_mib: 450
  delegate_to: pve1.example.com
  register: two_cards
  until: two_cards | community.general.json_query('ansible_facts.gpu_memory.all_idle') | default(false, true)
  retries: 20
  delay: 3
"""

RETURN = r"""
ansible_facts:
  description: Facts of the host that the task is for, also when the task is delegated.
  returned: success
  type: dict
  contains:
    gpu_memory:
      description: The cards at this moment.
      type: dict
      contains:
        backend:
          description: How the driver was asked, V(nvml) or V(nvidia_smi).
          type: str
          sample: nvidia_smi
        driver_version:
          description: Version of the driver, or V(null).
          type: str
          sample: 580.95.05
        count:
          description: Number of cards in RV(ansible_facts.gpu_memory.gpus), unreadable ones included.
          type: int
          sample: 8
        gpus:
          description: The cards, or those chosen with O(gpus), by index. Cards whose index is not known are at the end.
          type: list
          elements: dict
          contains:
            index:
              description: Index that the driver gives the card. Not the N of C(/dev/nvidiaN).
              type: int
              sample: 1
            uuid:
              description: UUID of the card.
              type: str
              sample: GPU-6f1d2c3b-0000-4000-8000-000000000001
            pci_bus_id:
              description: PCI bus id, spelled as the kernel does.
              type: str
              sample: "0000:0f:00.0"
            minor:
              description: The N of C(/dev/nvidiaN), or V(null) where nothing says it.
              type: int
              sample: 3
            name:
              description: Model of the card.
              type: str
              sample: NVIDIA RTX PRO 6000 Blackwell Server Edition
            memory_total_mib:
              description: Memory of the card in MiB.
              type: int
              sample: 97887
            memory_used_mib:
              description: Memory in use in MiB, without what the driver reserves for itself.
              type: int
              sample: 76115
            memory_free_mib:
              description: Free memory in MiB.
              type: int
              sample: 21132
            state:
              description: V(idle), V(busy), or V(unknown) when the memory could not be read or not be believed.
              type: str
              sample: busy
            error:
              description:
                - Why the card is V(unknown), with the code in C(reason) and the driver's words in C(text). V(null) for
                  a card that was read.
                - The codes are V(gpu_lost), V(requires_reset), V(not_available), V(not_supported), V(no_permission),
                  V(unknown_error), V(device_handle_error), V(access_blocked), V(not_listed) and V(bad_output).
              type: dict
              sample: null
            processes:
              description: Who computes on the card. V(null) when that was not asked or is not known.
              type: list
              elements: dict
              contains:
                pid:
                  description: Process id as the driver gives it.
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
                  description: Full command line, secrets replaced by asterisks.
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
                used_memory_mib:
                  description: Memory that the driver counts for it in MiB, or V(null).
                  type: int
                  sample: 76064
                visible:
                  description:
                    - Whether this machine's C(/proc) has the process. If not, it is in another pid namespace or has
                      ended, be it reaped or not, and everything but C(pid) and C(used_memory_mib) is V(null).
                  type: bool
                  sample: true
        idle:
          description: Indices of the idle cards.
          type: list
          elements: int
          sample: [0, 2, 3, 4, 5, 6, 7]
        busy:
          description: Indices of the busy cards.
          type: list
          elements: int
          sample: [1]
        unknown:
          description:
            - Indices of the cards that could not be read. A card whose index is not known either has its PCI bus id
              here, or V(null).
          type: list
          elements: raw
          sample: []
        all_idle:
          description: Whether every card that was looked at was read and is idle. Never true without cards.
          type: bool
          sample: false
        floor_hint:
          description:
            - Names cards that are busy without any process and hold less than 1024 MiB. That may be what an idle card
              of this driver holds, and then O(idle_memory_mib) is too low. V(null) when there are none.
          type: str
          sample: null
        invalid_pids:
          description: Entries of the driver's list that cannot be a process or name no card. They are left out.
          type: int
          sample: 0
        host_pid_namespace:
          description:
            - Whether the module ran in the machine's own pid namespace. From a container's the holder of a card may not
              be seen.
          type: bool
          sample: true
gpu_memory:
  description: What could be read, as RV(ansible_facts.gpu_memory). Not a fact of the host, because it is incomplete.
  returned: failure because of O(expected_gpus)
  type: dict
missing_indices:
  description: Indices below O(expected_gpus) of which the driver says nothing.
  returned: failure because of O(expected_gpus)
  type: list
  elements: int
  sample: [3]
unreadable_gpus:
  description: Index and PCI bus id of the cards that are there and could not be read.
  returned: failure because of O(expected_gpus)
  type: list
  elements: str
  sample: ["3 (0000:34:00.0)"]
readable_gpus:
  description: Number of cards that were read.
  returned: failure because of O(expected_gpus)
  type: int
  sample: 7
reason:
  description:
    - Stable code of a failure. V(timeout), V(not_installed), V(not_executable), V(driver_not_loaded), V(no_devices),
      V(version_mismatch), V(library_not_found), V(nvml_init_failed), V(no_permission), V(access_blocked), V(gpu_lost),
      V(device_handle_error), V(bad_query), V(empty_output), V(bad_output), V(crashed), V(unknown_error),
      V(gpus_missing), V(no_such_gpu) or V(bad_input).
  returned: failure
  type: str
  sample: timeout
cmd:
  description: The command that failed.
  returned: failure of a command, but not with RV(reason=timeout)
  type: list
  elements: str
  sample: [/usr/bin/nvidia-smi, -L]
unkillable:
  description: Whether the question to the driver is left behind in uninterruptible sleep.
  returned: failure with RV(reason=timeout)
  type: bool
  sample: true
rc:
  description: Exit status of the command that failed, negative when a signal ended it.
  returned: failure because of what the driver answered
  type: int
  sample: 9
stdout:
  description: What it printed. C(nvidia-smi) puts its messages here.
  returned: failure because of what the driver answered
  type: str
  sample: No devices were found
stderr:
  description: What it printed as errors.
  returned: failure because of what the driver answered
  type: str
  sample: ""
nvml_error:
  description: Why NVML gave no answer, where V(backend=auto) had tried it before.
  returned: failure of C(nvidia-smi) after NVML had failed
  type: str
  sample: "NVML (nvidia-ml-py) gave no usable answer (exit status 0): NVML Shared Library Not Found."
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._commands import SystemRunner
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._memory_facts import FactsRequest, gather
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs


def main() -> None:
    """Parameters in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "gpus": {"type": "list", "elements": "str"},
            "idle_memory_mib": {"type": "int", "default": 100},
            "expected_gpus": {"type": "int"},
            "processes": {"type": "bool", "default": True},
            "backend": {"type": "str", "choices": ["auto", "nvml", "nvidia_smi"], "default": "auto"},
            "nvidia_smi_path": {"type": "path", "default": "nvidia-smi"},
            "timeout": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    params = module.params
    request = FactsRequest(
        gpus=tuple(params["gpus"]) if params["gpus"] is not None else None,
        idle_memory_mib=params["idle_memory_mib"],
        expected_gpus=params["expected_gpus"],
        backend=params["backend"],
        nvidia_smi_path=params["nvidia_smi_path"],
        processes=params["processes"],
        timeout=params["timeout"],
    )
    try:
        found = gather(request, runner=SystemRunner(), procfs=ProcFs())
    except GpuopsError as exc:
        module.fail_json(**exc.result())
    for warning in found.warnings:
        module.warn(warning)
    module.exit_json(changed=False, ansible_facts={"gpu_memory": found.facts})


if __name__ == "__main__":
    main()
