# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on the values of options that several modules share."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError

# A wait without end is what this collection is there to prevent, and a day is as good as none.
LONGEST_SECONDS = 86_400

# Proxmox: pve-vmid is at least 100 and at most 999999999.
VMIDS = range(100, 1_000_000_000)


def require_vmid(vmid: Optional[int]) -> None:
    """Raise InputError for a number that no Proxmox container can have. None is none."""
    if vmid is not None and vmid not in VMIDS:
        raise InputError(
            f"vmid is {vmid}. Proxmox numbers its containers from {VMIDS.start} on: give the container's number."
        )


def require_seconds(params: Mapping[str, Any], *options: str) -> None:
    """Raise InputError for a negative or endless time."""
    for option in options:
        seconds = params[option]
        if not 0 <= seconds <= LONGEST_SECONDS:
            raise InputError(f"{option} is {seconds:g}. Give a number of seconds from 0 to {LONGEST_SECONDS}.")


def require_time_to_answer(params: Mapping[str, Any], option: str) -> None:
    """Raise InputError for a limit within which nothing can answer."""
    require_seconds(params, option)
    if params[option] == 0:
        raise InputError(f"{option} is 0, within which nothing can answer. Give more than 0 seconds.")
