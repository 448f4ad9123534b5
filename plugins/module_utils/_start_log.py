# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the log of a starting server says: how far it has loaded, and why it ended. Pure: text in, values out."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._engines import Engine

# A tqdm bar writes itself anew with carriage returns.
_LINE_ENDS = re.compile(r"[\r\n]+")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_LONGEST_LINE = 400


class Cause(NamedTuple):
    """Why a start failed: a stable code, and what to do about it."""

    code: str
    advice: str


# The first that is found counts: a worker that dies of one of these takes the others down, and they complain after it.
_CAUSES: Sequence[tuple[str, str, str]] = (
    (
        r"(?i)address already in use|\[errno 98\]|couldn't bind HTTP server socket",
        "port_in_use",
        "Another process listens on the server's port: end it, or give the server another port.",
    ),
    (
        r"(?i)\bbus error\b|\bSIGBUS\b|no space left on device.*\bshm|\bshm.*no space left on device",
        "shm_full",
        "/dev/shm is full or too small: remove stale segments (verified_restart_clean_shm), or make it larger.",
    ),
    (
        r"(?i)cuda out of memory|OutOfMemoryError|not enough memory\. please try|no available memory for the cache"
        r"|cudaMalloc failed: out of memory|CUDA error: out of memory",
        "gpu_out_of_memory",
        "A card has too little memory: see what else holds it, or lower the share that the server takes.",
    ),
    (
        r"(?i)No such file or directory.*(?:safetensors|\.gguf|config\.json|/models?/)"
        r"|cannot find any model weights|does not appear to have a file named|failed to (?:load|open) (?:the )?model"
        r"|is not a local folder and is not a valid model identifier|LocalEntryNotFoundError"
        r"|Incorrect path_or_model_id|Repo id must ",
        "weights_missing",
        "The weights are not where the server looks for them: check the path, and that its file system is mounted.",
    ),
    (
        r"(?i)NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError",
        "nccl",
        "The cards cannot talk to each other: look at NCCL's lines in the log, and at the fabric manager.",
    ),
    (
        r"(?i)CUDA error: system not yet initialized|CUDA driver version is insufficient|no CUDA-capable device"
        r"|CUDA unknown error|CUDA initialization",
        "cuda_unusable",
        "CUDA does not work where the server runs: compare its device nodes with the node's, and the driver's version.",
    ),
)
_COMPILED = tuple((re.compile(pattern), Cause(code, advice)) for pattern, code, advice in _CAUSES)

_KILLED = Cause(
    "killed_by_kernel", "The kernel killed it for want of main memory (see its log): give the container or unit more."
)
_SHM = next(cause for _pattern, cause in _COMPILED if cause.code == "shm_full")


class LogReading(NamedTuple):
    """``shards_loaded`` of ``shards_total``, None where the log does not say. ``last_line``: None for an empty log."""

    shards_loaded: Optional[int]
    shards_total: Optional[int]
    last_line: Optional[str]


def lines_of(text: str) -> list[str]:
    """The lines that say something, without terminal control, cut where they are longer than a person reads."""
    lines = (_CONTROL.sub("", line).strip()[:_LONGEST_LINE] for line in _LINE_ENDS.split(text))
    return [line for line in lines if line]


def read_log(lines: Sequence[str], engine: Engine) -> LogReading:
    """What the lines since the start say. The last count of shards is the one that counts."""
    loaded, total = None, None
    if engine.progress_line is not None:
        search = re.compile(engine.progress_line).search
        found = next((found for found in map(search, reversed(lines)) if found), None)
        loaded, total = _shards(found[1]) if found else (None, None)
    return LogReading(loaded, total, lines[-1] if lines else None)


def _shards(text: str) -> tuple[Optional[int], Optional[int]]:
    """``12/64``; nothing where that is no count of a whole."""
    loaded, _slash, total = text.partition("/")
    if len(text) > 12 or not 0 <= int(loaded) <= int(total):
        return None, None
    return int(loaded), int(total)


def likely_cause(lines: Sequence[str], *, result: str = "", signal: Optional[int] = None) -> Optional[Cause]:
    """Why the server ended. ``result`` is systemd's ``Result`` of the unit, ``signal`` what ended its process.

    What killed the process outright leaves no line of its own, so it comes first. None when nothing known was said.
    """
    if result == "oom-kill":
        return _KILLED
    if signal == 7:  # SIGBUS on every architecture that has CUDA
        return _SHM
    for line in lines:
        for pattern, cause in _COMPILED:
            if pattern.search(line):
                return cause
    return None
