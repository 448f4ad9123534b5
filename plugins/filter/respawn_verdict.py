# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A filter of the role verified_restart: who starts again what was killed."""

from __future__ import annotations

DOCUMENTATION = r"""
name: respawn_verdict
short_description: Who starts again what was killed, in one sentence
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Judges what M(gpuops.inference.pct_kill_processes) returned as started again.
positional: _input
options:
  _input:
    description: Result of M(gpuops.inference.pct_kill_processes).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Say who starts it again
  ansible.builtin.debug:
    msg: "{{ killed | gpuops.inference.respawn_verdict }}"
"""

RETURN = r"""
_value:
  description:
    - V(null) when nothing was started again, else a dictionary of C(outcome) (V(refused)), C(needs) (V(operator))
      and C(reason), a sentence.
  type: dict
"""

from typing import Any, Callable

from ansible_collections.gpuops.inference.plugins.module_utils._verdict import respawn_verdict


class FilterModule:
    """The filter, by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name and function."""
        return {"respawn_verdict": respawn_verdict}
