# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules return, as far as the verdicts read it, and the remedies that they end in."""

from __future__ import annotations

from typing import Any, Optional

REMEDY = "The server was not started: "
FREE_IT = REMEDY + "free the card, then run this again."
RESET_IT = REMEDY + (
    "reset the card (verified_restart_allow_gpu_reset, or nvidia-smi --gpu-reset with nothing holding it), or reboot "
    "the node."
)
REBOOT_IT = REMEDY + "reboot the node."


def process(pid: Optional[int] = 4242, name: Optional[str] = "pt_main_thread", **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "pid": pid,
        "container_pid": None,
        "vmid": None,
        "name": name,
        "command": name,
        "state": "S",
        "visible": True,
    }
    return {**known, "uid": 0, "start_time": 1.0, "unit": None, "parent": None, **more}


def held(reason: str, pid: int = 4242, name: Optional[str] = "pt_main_thread", **more: Any) -> dict[str, Any]:
    """As nvidia_fuser_reclaim names one who is left on GPU 1."""
    return process(pid, name, **{"reason": reason, "wchan": None, "gpus": [1], "evidence": ["driver", "fd"], **more})


def card(index: Optional[int] = 1, used: Optional[int] = 76115, state: str = "busy", **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"index": index, "pci_bus_id": "0000:0f:00.0", "memory_used_mib": used, "state": state}
    return {**known, "error": None, "processes": [], **more}


def reading(*cards: dict[str, Any], all_idle: Optional[bool] = None) -> dict[str, Any]:
    gpus = [card(0, 3, "idle"), *cards]
    return {
        "gpus": gpus,
        "all_idle": all(one["state"] == "idle" for one in gpus) if all_idle is None else all_idle,
        "host_pid_namespace": True,
        "invalid_pids": 0,
    }


def looked(**found: Any) -> dict[str, Any]:
    """What nvidia_fuser_reclaim returns that looked at every process, as root on the machine itself."""
    return {"gpus": [0, 1, 2, 3], "scan_complete": True, **found}
