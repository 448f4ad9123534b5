# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the driver's words and numbers mean: a stable reason code for each, and what an operator can do about it."""

from __future__ import annotations

from typing import Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed, describe_exit
from ansible_collections.gpuops.inference.plugins.module_utils._errors import DriverError

# nvmlReturn_t of nvml.h; nvidia-smi exits with the same numbers, and with 255 where NVML says 999.
CODE_REASONS = {
    2: "bad_query",
    3: "not_supported",
    4: "no_permission",
    6: "no_devices",
    9: "driver_not_loaded",
    12: "library_not_found",
    15: "gpu_lost",
    16: "requires_reset",
    17: "access_blocked",
    18: "version_mismatch",
    126: "not_executable",
    127: "not_installed",
    255: "unknown_error",
    999: "unknown_error",
}

# What a sentence means when the whole call failed. The first that is in it counts.
_SENTENCES = (
    ("is not a valid field", "bad_query"),
    ("communicate with the nvidia driver", "driver_not_loaded"),
    ("driver not loaded", "driver_not_loaded"),
    ("version mismatch", "version_mismatch"),
    ("libnvidia-ml", "library_not_found"),
    ("access blocked", "access_blocked"),
    ("no devices", "no_devices"),
    ("is lost", "gpu_lost"),
    ("insufficient permissions", "no_permission"),
    ("permission denied", "no_permission"),
    ("failed to initialize nvml", "nvml_init_failed"),
    ("device handle", "device_handle_error"),
    ("command not found", "not_installed"),
)

# What the words in place of a value mean, and those that end a sentence about one card.
_VALUES = (
    ("is lost", "gpu_lost"),
    ("requires reset", "requires_reset"),
    ("requires restart", "requires_reset"),
    ("reset required", "requires_reset"),
    ("permission", "no_permission"),
    ("not supported", "not_supported"),
    ("n/a", "not_available"),
    ("not found", "not_available"),
    ("unknown error", "unknown_error"),
)

# A card that says one of these of any value is not to be believed in the others.
FATAL_REASONS = ("gpu_lost", "requires_reset")

_ADVICE = {
    "access_blocked": "Ask on the machine that owns the cards, not inside a container or guest.",
    "bad_query": "Check that nvidia_smi_path names NVIDIA's own tool.",
    "bad_output": "Run the command by hand on this machine, and check what nvidia_smi_path names.",
    "crashed": "Run the command by hand on this machine; reinstall the driver's tools if it crashes again.",
    "device_handle_error": "Look for Xid messages in the kernel log; the card needs a reset or a reboot.",
    "driver_not_loaded": "Load the NVIDIA driver (modprobe nvidia); the kernel log says why it does not load.",
    "empty_output": "Run the command by hand on this machine, and check what nvidia_smi_path names.",
    "gpu_lost": "A card fell off the bus: look for Xid 79 in the kernel log, and reboot the machine.",
    "library_not_found": "Install the driver's library (libnvidia-ml.so.1) where this task runs.",
    "no_devices": "Check lspci and the kernel log on the machine, and that this task runs where the cards are.",
    "no_permission": "Run the task as root (become).",
    "not_installed": "Install it where this task runs, or choose the other backend.",
    "nvml_init_failed": "A container that lost its devices says this too: ask on the host, and restart the container.",
    "requires_reset": "The card needs a reset, which needs it free of all processes, or a reboot.",
    "unknown_error": "Look for Xid messages in the kernel log of the machine.",
    "version_mismatch": "The driver was updated under the running kernel module: reload the module, or reboot.",
}

# Enough to read, not enough to drown in.
_OUTPUT_LIMIT = 4000


def value_reason(words: str) -> Optional[str]:
    """The reason code for the words in place of a value (``[GPU is lost]``); None for words that are not known."""
    return _first_in(_VALUES, words)


def reason_of(completed: Completed) -> str:
    """Why a call as a whole gave nothing: by what it said, else by its exit code."""
    if completed.rc < 0:
        return "crashed"
    text = f"{completed.stdout}\n{completed.stderr}"
    said = _first_in(_SENTENCES, text)
    if said is None and completed.rc == 0:
        return "bad_output" if text.strip() else "empty_output"
    return said or CODE_REASONS.get(completed.rc, "unknown_error")


def failure(
    what: str, completed: Completed, *, reason: Optional[str] = None, text: Optional[str] = None
) -> DriverError:
    """The error for a call that gave no answer to rely on: ``what`` was asked, what it said, and what to do."""
    code = reason or reason_of(completed)
    said = (text or first_line(completed) or "nothing was printed").rstrip(".")
    return DriverError(
        f"{what} gave no usable answer ({describe_exit(completed.rc)}): {said}. {_ADVICE.get(code, '')}".rstrip(),
        reason=code,
        cmd=list(completed.argv),
        rc=completed.rc,
        stdout=completed.stdout[:_OUTPUT_LIMIT],
        stderr=completed.stderr[:_OUTPUT_LIMIT],
    )


def first_line(completed: Completed) -> str:
    """The first line that says something, on stdout (where nvidia-smi puts its messages) or stderr."""
    lines = [line.strip() for line in f"{completed.stdout}\n{completed.stderr}".splitlines() if line.strip()]
    return "".join(one if one.isprintable() else "?" for one in lines[0][:300]) if lines else ""


def _first_in(table: Sequence[tuple[str, str]], text: str) -> Optional[str]:
    lowered = text.lower()
    return next((reason for words, reason in table if words in lowered), None)
