# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A filter of the role verified_restart: the verdict on what stands in the way of a start."""

from __future__ import annotations

DOCUMENTATION = r"""
name: restart_verdict
short_description: What stands between the cards and a start, in one sentence
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Judges the last reading of the cards together with what the modules that kill returned.
positional: _input
options:
  _input:
    description:
      - What M(gpuops.inference.gpu_memory_facts) returned as C(ansible_facts.gpu_memory), or V(null) when it failed.
    type: dict
    required: true
  error:
    description: The message with which the reading failed.
    type: str
  kill:
    description: Result of M(gpuops.inference.pct_kill_processes).
    type: dict
  reclaim:
    description: Result of M(gpuops.inference.nvidia_fuser_reclaim).
    type: dict
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
      C(needs) (V(operator), V(gpu_reset), V(reboot)) and C(reason), a sentence.
  type: dict
"""

from typing import Any, Callable, Mapping, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._verdict import verdict


def restart_verdict(
    reading: Optional[Mapping[str, Any]],
    error: Optional[str] = None,
    kill: Optional[Mapping[str, Any]] = None,
    reclaim: Optional[Mapping[str, Any]] = None,
) -> Optional[dict[str, str]]:
    """See DOCUMENTATION."""
    return verdict(reading=reading or None, error=error, kill=kill, reclaim=reclaim)


class FilterModule:
    """The filter, by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name and function."""
        return {"restart_verdict": restart_verdict}
