#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_gpu_reset
short_description: Reset NVIDIA cards that nobody has open, and see that their memory is free
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Resets cards that hold memory although no process holds them, or that ask for a reset, with
    C(nvidia-smi --gpu-reset). Then it looks again. A reset that is said to have succeeded and did not free the memory
    fails the module.
  - A card that is idle is left alone.
  - A reset takes a card away from whoever has it open. So everyone is looked for first, as
    M(gpuops.inference.nvidia_fuser_reclaim) does it, and while anyone is found, monitors and the driver's own daemons
    included, nothing is reset and they are named. The same holds where somebody may have been overlooked.
  - Persistence mode keeps a card open as well. Where it is on, it is switched off for the reset and on again
    afterwards, also when the reset fails. That makes a persistence daemon (C(nvidia-persistenced)) let go of the card
    without being stopped.
  - Cards behind a common NVSwitch or joined by NVLink may have to be reset together, depending on their generation.
    All cards of O(gpus) that are not idle are reset in one call. Where the tool wants others as well, or their fabric
    manager stopped, it refuses, and the module fails with its words.
  - Run it on the machine that has the cards, as root. With containers that is the node.
extends_documentation_fragment:
  - gpuops.inference.attributes
  - gpuops.inference.driver
attributes:
  check_mode:
    support: full
    details:
      - Says which cards would be reset. Nothing is reset, and persistence mode stays as it is.
  diff_mode:
    support: full
    details:
      - Shows the cards before and after.
  idempotent:
    support: full
options:
  gpus:
    description:
      - The cards to reset unless they are idle, by index, UUID or PCI bus id.
      - An empty list means no card, so that a list of cards can be given as it is.
    type: list
    elements: str
    required: true
  idle_memory_mib:
    description:
      - A card that holds no more than this many MiB is idle.
    type: int
    default: 100
  device_directory:
    description:
      - Where the machine's device nodes are. The card's node is C(nvidia) and its minor, which is not its index.
    type: path
    default: /dev
  reset_timeout:
    description:
      - Seconds that the reset itself may take, more than V(0).
    type: float
    default: 60
  settle_timeout:
    description:
      - Seconds to look again after the reset until the cards are idle, and before it until a persistence daemon has let
        go. V(0) looks once.
    type: float
    default: 10
seealso:
  - module: gpuops.inference.gpu_memory_facts
  - module: gpuops.inference.nvidia_fuser_reclaim
"""

EXAMPLES = r"""
- name: See whether card 1 would be reset
  gpuops.inference.nvidia_gpu_reset:
    gpus: [1]
  delegate_to: pve1.example.com
  check_mode: true
  diff: true

- name: Reset the cards that are still busy although nobody has them
  gpuops.inference.nvidia_gpu_reset:
    gpus: "{{ ansible_facts['gpu_memory'].busy }}"
  delegate_to: pve1.example.com
"""

RETURN = r"""
gpus:
  description: The cards that were looked at, by index, or by PCI bus id where the index is not known.
  returned: success, and on failure of the reset
  type: list
  elements: raw
  sample: [1]
reset:
  description:
    - Those of RV(gpus) that were reset (in check mode, would be). One whose reset gave no answer in time is among them.
  returned: success, and on failure of the reset
  type: list
  elements: raw
  sample: [1]
before:
  description: The cards before.
  returned: success, and on failure of the reset
  type: list
  elements: dict
  contains:
    index:
      description: Index that the driver gives the card.
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
    memory_used_mib:
      description: Memory in use in MiB, V(null) where it could not be read.
      type: int
      sample: 76115
    state:
      description: V(idle), V(busy) or V(unknown).
      type: str
      sample: busy
    error:
      description: Why the card is V(unknown), as M(gpuops.inference.gpu_memory_facts) says it.
      type: dict
      sample: null
after:
  description: The cards afterwards, as RV(before). V(null) when nothing was reset, and in check mode.
  returned: success, and on failure of the reset
  type: list
  elements: dict
persistence_mode_switched:
  description: Cards whose persistence mode was on, and was switched off for the reset and on again after it.
  returned: success, and on failure of the reset
  type: list
  elements: raw
  sample: [1]
holders:
  description:
    - Who has the cards open, as the C(holders) of M(gpuops.inference.nvidia_fuser_reclaim). Nothing was reset.
  returned: failure with RV(reason=held)
  type: list
  elements: dict
cmd:
  description: The command that failed. Exit status and both streams stand beside it, as C(rc), C(stdout), C(stderr).
  returned: failure of a command
  type: list
  elements: str
  sample: [/usr/bin/nvidia-smi, --gpu-reset, -i, "1"]
missing:
  description: Those of O(gpus) that this machine does not have.
  returned: failure with RV(reason=no_such_gpu)
  type: list
  elements: str
  sample: ["9"]
reason:
  description:
    - Stable code of a failure. V(held), V(holders_unknown), V(minor_unknown), V(no_device_nodes) and
      V(persistence_mode) (it cannot be switched off) come before the reset; V(reset_in_use), V(reset_not_supported),
      V(reset_failed), V(no_permission) and V(gpu_lost) are refusals of the tool; V(still_busy) is a reset that freed
      nothing. Those of a driver that gives no answer are as in M(gpuops.inference.gpu_memory_facts).
  returned: failure
  type: str
  sample: held
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._gpu_reset import ResetRequest, reset
from ansible_collections.gpuops.inference.plugins.module_utils._limits import require_seconds, require_time_to_answer
from ansible_collections.gpuops.inference.plugins.module_utils._machine import this_machine
from ansible_collections.gpuops.inference.plugins.module_utils._reset_report import card_diff


def main() -> None:
    """Parameters in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "gpus": {"type": "list", "elements": "str", "required": True},
            "idle_memory_mib": {"type": "int", "default": 100},
            "device_directory": {"type": "path", "default": "/dev"},
            "reset_timeout": {"type": "float", "default": 60},
            "settle_timeout": {"type": "float", "default": 10},
            "backend": {"type": "str", "choices": ["auto", "nvml", "nvidia_smi"], "default": "auto"},
            "nvidia_smi_path": {"type": "path", "default": "nvidia-smi"},
            "timeout": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        require_time_to_answer(params, "timeout")
        require_time_to_answer(params, "reset_timeout")
        require_seconds(params, "settle_timeout")
        request = ResetRequest(
            gpus=params["gpus"],
            idle_memory_mib=params["idle_memory_mib"],
            device_directory=params["device_directory"],
            backend=params["backend"],
            nvidia_smi_path=params["nvidia_smi_path"],
            driver_timeout=params["timeout"],
            reset_timeout=params["reset_timeout"],
            settle_timeout=params["settle_timeout"],
        )
        result = reset(request, this_machine(check_mode=module.check_mode))
    except GpuopsError as exc:
        module.fail_json(**exc.result())
    for warning in result.pop("warnings"):
        module.warn(warning)
    if module._diff:
        result["diff"] = card_diff(result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
