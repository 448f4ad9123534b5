# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A filter of the role verified_restart: who still has the port of the server."""

from __future__ import annotations

DOCUMENTATION = r"""
name: port_verdict
short_description: Who still has the port of the server, in one sentence
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Judges the listeners that M(gpuops.inference.inference_leftovers) returned. An init that listens, as systemd does
    for a unit with a socket, is not in the way.
positional: _input
options:
  _input:
    description: Result of M(gpuops.inference.inference_leftovers).
    type: dict
    required: true
  going:
    description: A unit that is being stopped. Its processes are not in the way.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Say who has the port
  ansible.builtin.debug:
    msg: "{{ leftovers | gpuops.inference.port_verdict(going='sglang.service') }}"
"""

RETURN = r"""
_value:
  description:
    - V(null) when nobody is in the way, else a dictionary of C(outcome) (V(refused)), C(needs) (V(operator)) and
      C(reason), a sentence.
  type: dict
"""

from typing import Any, Callable, Mapping, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._leftover_verdict import port_verdict as judge


def port_verdict(leftovers: Mapping[str, Any], going: str = "") -> Optional[dict[str, str]]:
    """See DOCUMENTATION."""
    return judge(leftovers, going=going)


class FilterModule:
    """The filter, by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name and function."""
        return {"port_verdict": port_verdict}
