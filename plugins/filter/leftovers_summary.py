# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A filter of the role verified_restart: the leftovers of a dead server, as the role's result shows them."""

from __future__ import annotations

DOCUMENTATION = r"""
name: leftovers_summary
short_description: The leftovers of a dead server, and what is to be said of them
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Keeps what matters of the result of M(gpuops.inference.inference_leftovers), and adds it in sentences.
positional: _input
options:
  _input:
    description: Result of M(gpuops.inference.inference_leftovers), of a failed one too. Empty when nobody looked.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Say what is left over
  ansible.builtin.debug:
    msg: "{{ (leftovers | gpuops.inference.leftovers_summary).said }}"
"""

RETURN = r"""
_value:
  description:
    - V(null) when nobody looked, else a dictionary of C(listeners), C(shm), C(stale), C(stale_mib), C(removed),
      C(removed_mib) as the module returns them, C(kept), the segments that are not stale and why, and C(said),
      sentences that are empty when all is clean.
  type: dict
"""

from typing import Any, Callable

from ansible_collections.gpuops.inference.plugins.module_utils._leftover_verdict import leftovers_summary


class FilterModule:
    """The filter, by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name and function."""
        return {"leftovers_summary": leftovers_summary}
