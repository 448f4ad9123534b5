# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A filter of the role verified_restart: whether the cards can all be read."""

from __future__ import annotations

DOCUMENTATION = r"""
name: reading_verdict
short_description: Which cards cannot be read, and what would help
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Judges one reading of the cards. A busy card is no trouble here, an unreadable one is.
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
"""

EXAMPLES = r"""
- name: Say which cards cannot be read
  ansible.builtin.debug:
    msg: "{{ reading.ansible_facts.gpu_memory | gpuops.inference.reading_verdict }}"
"""

RETURN = r"""
_value:
  description:
    - V(null) when every card was read, else a dictionary of C(outcome) (V(refused)), C(needs) (V(operator),
      V(gpu_reset), V(reboot)), C(reason), and C(cards_not_free) as of P(gpuops.inference.restart_verdict#filter).
  type: dict
"""

from typing import Any, Callable, Mapping, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._verdict import reading_verdict as judge


def reading_verdict(
    reading: Optional[Mapping[str, Any]], failure: Optional[Mapping[str, Any]] = None
) -> Optional[dict[str, Any]]:
    """See DOCUMENTATION."""
    return judge(reading or None, failure or None)


class FilterModule:
    """The filter, by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name and function."""
        return {"reading_verdict": reading_verdict}
