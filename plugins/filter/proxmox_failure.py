# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A filter of the role verified_restart: what a failed call of the Proxmox API means."""

from __future__ import annotations

DOCUMENTATION = r"""
name: proxmox_failure
short_description: What a failed call of the Proxmox API means, in one sentence
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Reads the message of a failed module of community.proxmox.
positional: _input
options:
  _input:
    description:
      - The failed result, such as one of M(community.proxmox.proxmox_vm_info).
    type: dict
    required: true
  host:
    description: The API that was asked.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Say why the cluster did not answer
  ansible.builtin.debug:
    msg: "{{ asked | gpuops.inference.proxmox_failure(host='pve1.example.com') }}"
"""

RETURN = r"""
_value:
  description: What went wrong, and what to do.
  type: str
"""

from typing import Any, Callable, Mapping

from ansible_collections.gpuops.inference.plugins.module_utils._proxmox_failure import api_failure, no_answer


def proxmox_failure(result: Mapping[str, Any], host: str) -> str:
    """See DOCUMENTATION."""
    text = "\n".join(str(result.get(field) or "") for field in ("module_stderr", "module_stdout", "msg")).strip()
    # A module that fell over the answer leaves no word behind.
    return (api_failure(text, host) if text else no_answer(host)).sentence


class FilterModule:
    """The filter, by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name and function."""
        return {"proxmox_failure": proxmox_failure}
