# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instructions, byte by byte as RFC 9669 has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._bpf_program import R0, R1, R2, R6, R7, Program

END = "b700000000000000 9500000000000000"


def code_of(write: Callable[[Program], None]) -> str:
    program = Program()
    write(program)
    return program.code().hex(" ", 8)


@pytest.mark.parametrize(
    ("write", "code"),
    [
        (lambda it: it.end(), END),
        (lambda it: it.copy(R6, R1), "bf16000000000000"),
        (lambda it: it.load(R7, R6, 8), "7967080000000000"),
        (lambda it: it.load(R1, R7, 0x4F4, 4), "6171f40400000000"),
        (lambda it: it.load(R1, R7, 2, 2), "6971020000000000"),
        (lambda it: it.store(-24, R1, 4), "631ae8ff00000000"),
        (lambda it: it.store(-8, R1), "7b1af8ff00000000"),
        (lambda it: it.set(R2, 0x1_8000_0002), "1802000002000080 0000000001000000"),
        (
            lambda it: it.write_out(R1, -24),
            "bf11000000000000 bfa2000000000000 07020000e8ffffff b703000018000000 850000007f000000",
        ),
    ],
)
def test_instructions_are_those_of_the_standard(write: Callable[[Program], None], code: str) -> None:
    assert code_of(write) == code


@pytest.mark.parametrize(
    ("jump", "code"),
    [
        (lambda it: it.jump("there"), "0500010000000000"),
        (lambda it: it.jump_if_null(R7, "there"), "1507010000000000"),
        (lambda it: it.jump_if(R1, 0xC3000001, "there"), "16010100010000c3"),
        (lambda it: it.jump_if_same(R1, R2, "there"), "1d21010000000000"),
    ],
)
def test_a_jump_passes_over_what_lies_before_its_label(jump: Callable[[Program], None], code: str) -> None:
    def write(program: Program) -> None:
        jump(program)
        program.copy(R0, R1)
        program.label("there")
        program.end()

    assert code_of(write) == f"{code} bf10000000000000 {END}"
