# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi as far as it changes cards: the reset and persistence mode, asked for and parsed.

The tool speaks on standard output, and its exit status is 255 for most refusals (NVIDIA/NVSentinel#1690,
NVIDIA/gpu-operator#118). What it says counts more than its status, and neither proves that memory is free.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed, Runner, describe_exit
from ansible_collections.gpuops.inference.plugins.module_utils._driver_reasons import failure
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, normal_bus_id

# `GPU 00000000:55:00.0 was successfully reset.`; older drivers print two blanks.
_DONE = re.compile(r"(?im)^GPU\s+([0-9a-f:.]+)\s+was successfully reset\b")

# What is in a refusal, and its reason code. The first that is found counts.
_REFUSALS = (
    ("in use by", "reset_in_use"),
    ("used by", "reset_in_use"),
    ("not supported", "reset_not_supported"),
    ("primary gpu", "reset_not_supported"),
    ("permission", "no_permission"),
    ("is lost", "gpu_lost"),
    ("could not be reset", "reset_failed"),
    ("unable to reset", "reset_failed"),
    ("reset couldn't", "reset_failed"),
)

_ROW = re.compile(r"(?m)^\s*(\d{1,6})\s*,\s*(\S.*?)\s*$")

# 14: the infoROM of a card is corrupted; all data are there.
_GOOD_EXITS = (0, 14)

# Enough to read, not enough to drown in.
_SAID_LIMIT = 600


class ResetAnswer(NamedTuple):
    """``done`` are the PCI bus ids that were reset, as the tool says. ``reason`` is None when it refused nothing;
    ``said`` are its own words.
    """

    done: frozenset[str]
    reason: Optional[str]
    said: str


class ResetTool(NamedTuple):
    """Asks nvidia-smi. Times in seconds, for each call. All cards go in one call: those behind a common switch must."""

    runner: Runner
    path: str
    driver_timeout: float
    reset_timeout: float

    def persistent(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """Those of the cards whose persistence mode is on. Raises DriverError and CommandError."""
        query = ["--query-gpu=index,persistence_mode", "--format=csv,noheader,nounits", "-i", names(gpus)]
        completed = self._run(query, self.driver_timeout)
        if completed.rc not in _GOOD_EXITS:
            raise failure("nvidia-smi", completed)
        modes = parse_persistence(completed.stdout)
        return [gpu for gpu in gpus if gpu.index is not None and modes.get(gpu.index)]

    def persist(self, gpus: Sequence[Gpu], *, on: bool) -> Completed:
        """Switch persistence mode. Raises CommandError."""
        return self._run(["-pm", "1" if on else "0", "-i", names(gpus)], self.driver_timeout)

    def reset(self, gpus: Sequence[Gpu]) -> Completed:
        """Reset the cards. Raises CommandError."""
        return self._run(["--gpu-reset", "-i", names(gpus)], self.reset_timeout)

    def _run(self, arguments: list[str], timeout: float) -> Completed:
        return self.runner.run([self.path, *arguments], timeout=timeout)


def parse_reset(completed: Completed) -> ResetAnswer:
    """The answer to ``nvidia-smi --gpu-reset``."""
    text = f"{completed.stdout}\n{completed.stderr}"
    done = frozenset(filter(None, map(normal_bus_id, _DONE.findall(text))))
    lowered = text.lower()
    reason = next((code for words, code in _REFUSALS if words in lowered), None)
    if reason is None and completed.rc != 0:
        reason = "reset_failed"
    return ResetAnswer(done, reason, said(completed))


def parse_persistence(stdout: str) -> dict[int, bool]:
    """Card index -> whether persistence mode is on. A card that does not tell is left out."""
    states = {"enabled": True, "disabled": False}
    return {int(index): states[word.lower()] for index, word in _ROW.findall(stdout) if word.lower() in states}


def said(completed: Completed) -> str:
    """All that a call printed, on one line, or its exit status when it printed nothing."""
    words = " ".join(f"{completed.stdout}\n{completed.stderr}".split())
    printable = "".join(one if one.isprintable() else "?" for one in words[:_SAID_LIMIT])
    return printable or f"nothing ({describe_exit(completed.rc)})"


def names(gpus: Sequence[Gpu]) -> str:
    """The cards as ``-i`` takes them. Some drivers do not find a card by its bus id, so that comes last."""
    return ",".join(str(gpu.index if gpu.index is not None else gpu.uuid or gpu.pci_bus_id) for gpu in gpus)
