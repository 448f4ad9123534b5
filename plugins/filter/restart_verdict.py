# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A filter of the role verified_restart: the verdict on what stands in the way of a start."""

from __future__ import annotations

DOCUMENTATION = r"""
name: restart_verdict
short_description: What stands between the cards and a start, card by card
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Judges the last reading of the cards together with what the modules that kill and reset returned.
  - That a card holds memory without a holder is said only where every process of the machine was looked at.
positional: _input
options:
  _input:
    description:
      - What M(gpuops.inference.gpu_memory_facts) returned as C(ansible_facts.gpu_memory), or V(null) when it failed.
    type: dict
    required: true
  failure:
    description: The failed result of M(gpuops.inference.gpu_memory_facts). Leave it out when it did not fail.
    type: dict
  kill:
    description: Result of M(gpuops.inference.pct_kill_processes).
    type: dict
  reclaim:
    description: Result of M(gpuops.inference.nvidia_fuser_reclaim).
    type: dict
  reset:
    description: Result of M(gpuops.inference.nvidia_gpu_reset), also when it failed.
    type: dict
  container:
    description:
      - Result of M(gpuops.inference.proxmox_container_restart). What a restart did not cure needs something else.
    type: dict
  known:
    description: The cards as they were last seen, each with its C(index), for a driver that says nothing any more.
    type: list
    elements: dict
"""

EXAMPLES = r"""
- name: Say what is in the way
  ansible.builtin.debug:
    msg: "{{ reading.ansible_facts.gpu_memory | gpuops.inference.restart_verdict(kill=killed, reclaim=reclaimed) }}"
"""

RETURN = r"""
_value:
  description:
    - V(null) when nothing stands in the way, else a dictionary of C(outcome) (V(gpus_not_free) or V(refused)),
      C(needs) (V(operator), V(container_restart), V(gpu_reset), V(reboot)), C(reason), and C(cards_not_free).
    - Each card in C(cards_not_free) has C(index), C(pci_bus_id), C(memory_used_mib), C(verdict), C(needs), C(sentence),
      C(holders) (who may have the memory, each with the C(reason) why it is left) and C(bystanders) (who merely has it
      open).
    - The verdict is V(held) (by a process that may not be ended), V(unkillable) (by one that cannot be ended),
      V(no_holder), V(holder_unknown) (a holder may have been overlooked) or V(unknown) (the card could not be read).
  type: dict
"""

from typing import Any, Callable, Mapping, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._verdict import verdict


def restart_verdict(
    reading: Optional[Mapping[str, Any]],
    failure: Optional[Mapping[str, Any]] = None,
    kill: Optional[Mapping[str, Any]] = None,
    reclaim: Optional[Mapping[str, Any]] = None,
    reset: Optional[Mapping[str, Any]] = None,
    container: Optional[Mapping[str, Any]] = None,
    known: Optional[Sequence[Mapping[str, Any]]] = None,
) -> Optional[dict[str, Any]]:
    """See DOCUMENTATION."""
    return verdict(
        reading=reading or None,
        failure=failure or None,
        kill=kill,
        reclaim=reclaim,
        reset=reset,
        container=container,
        known=known or (),
    )


class FilterModule:
    """The filter, by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name and function."""
        return {"restart_verdict": restart_verdict}
