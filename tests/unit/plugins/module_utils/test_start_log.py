# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the log of a starting server says."""

from __future__ import annotations

from typing import Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._engines import LLAMACPP, OPENAI, SGLANG, VLLM, Engine
from ansible_collections.gpuops.inference.plugins.module_utils._start_log import likely_cause, lines_of, read_log

BAR = "Loading safetensors checkpoint shards:  %3d%% Completed | %d/64 [00:35<02:31,  2.9s/it]"


def test_a_bar_that_writes_itself_anew_is_many_lines() -> None:
    text = "a\n" + "\r".join(BAR % (100 * one // 64, one) for one in (1, 2, 3)) + "\n\n"
    assert lines_of(text) == ["a", *(BAR % (100 * one // 64, one) for one in (1, 2, 3))]


@pytest.mark.parametrize("text", ["", "\n\r\n", " \t\n", "\x1b[0m\n\x00"])
def test_a_log_that_says_nothing_has_no_line(text: str) -> None:
    assert lines_of(text) == []
    assert read_log(lines_of(text), SGLANG) == (None, None, None)


def test_control_characters_and_endless_lines_do_not_reach_the_operator() -> None:
    (line,) = lines_of("\x1b[31mred\x1b[0m \x07" + "x" * 10_000)
    assert line.startswith("red x")
    assert len(line) == 400


@pytest.mark.parametrize("engine", [SGLANG, VLLM])
def test_the_last_count_of_shards_counts(engine: Engine) -> None:
    lines = [BAR % (0, 0), "Capturing batches 3/20", BAR % (18, 12), "something else"]
    assert read_log(lines, engine)[:3] == (12, 64, "something else")


@pytest.mark.parametrize("engine", [LLAMACPP, OPENAI])
def test_an_engine_without_shards_has_none(engine: Engine) -> None:
    assert read_log([BAR % (18, 12)], engine)[:2] == (None, None)


@pytest.mark.parametrize("count", ["65/64", "999999999999/999999999999", "1/" + "9" * 5000])
def test_a_count_that_cannot_be_is_none(count: str) -> None:
    lines = lines_of(f"Loading safetensors checkpoint shards: 100% Completed | {count} [")
    assert read_log(lines, SGLANG)[:2] == (None, None)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 76064 MiB.", "gpu_out_of_memory"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "gpu_out_of_memory"),
        ("ValueError: No available memory for the cache blocks.", "gpu_out_of_memory"),
        ("ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory", "gpu_out_of_memory"),
        ("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000)", "port_in_use"),
        ("OSError: [Errno 98] Address already in use", "port_in_use"),
        ("Fatal Python error: Bus error", "shm_full"),
        ("Child process 4242 exited with SIGBUS", "shm_full"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1a2b'", "shm_full"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/models/Kimi-K2.5/config.json'", "weights_missing"),
        ("RuntimeError: Cannot find any model weights with `/models/Kimi-K2.5`", "weights_missing"),
        ("gguf_init_from_file: failed to load model '/m.gguf'", "weights_missing"),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356", "nccl"),
        ("RuntimeError: CUDA error: system not yet initialized", "cuda_unusable"),
        ("Loading safetensors checkpoint shards:  18% Completed | 12/64", None),
        ("OSError: [Errno 28] No space left on device: '/var/log/x'", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/run/lock/x'", None),
        ("", None),
    ],
)
def test_a_line_gives_the_cause_away(line: str, cause: Optional[str]) -> None:
    found = likely_cause(["Starting", line, "Killing the tree."])
    assert (found.code if found else None) == cause


def test_the_first_cause_counts_because_the_others_follow_from_it() -> None:
    lines = ["CUDA out of memory", "NCCL error: remote process exited"]
    found = likely_cause(lines)
    assert found is not None
    assert found.code == "gpu_out_of_memory"


def test_what_kills_outright_leaves_no_line() -> None:
    codes = [likely_cause(["CUDA out of memory"], result="oom-kill"), likely_cause([], result="signal", signal=7)]
    assert [one.code for one in codes if one] == ["killed_by_kernel", "shm_full"]
    assert likely_cause([], result="signal", signal=9) is None
