# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's description of its types: read right, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._btf import KernelTypes, UnknownTypesError
from tests.unit.kernel_types import (
    ARRAY,
    ENUMERATION,
    ENUMERATION_64,
    FUNCTION,
    FUNCTION_TYPE,
    INTEGER,
    TYPEDEF,
    described,
    one,
    structure,
)

# What a kernel has of kinds, before what is looked for.
BEFORE = (
    one("", INTEGER, 4, further=[32]),
    one("", ARRAY, further=[1, 1, 8]),
    one("", ENUMERATION, 4, 2, [0, 0, 0, 1]),
    one("", FUNCTION_TYPE, 1, 2, [0, 1, 0, 1]),
    one("", ENUMERATION_64, 8, 1, [0, 7, 7]),
)


def test_members_and_functions_are_found_behind_types_of_every_length() -> None:
    types = KernelTypes(
        described(*BEFORE, structure("file", {"f_mode": 0, "f_inode": 256}), one("walk", FUNCTION, 4)), ("file", "walk")
    )
    assert (types.offset("file", "f_inode"), types.offset("file", "f_mode")) == (32, 0)
    assert types.function("walk") == len(BEFORE) + 2


def test_in_a_structure_with_fields_of_bits_the_upper_byte_is_no_place() -> None:
    packed = structure("file", {"f_mode": 3 << 24 | 8, "f_inode": 64}, flag=1)
    types = KernelTypes(described(packed), ("file",))
    assert (types.offset("file", "f_mode"), types.offset("file", "f_inode")) == (1, 8)


def test_a_type_of_another_kind_with_the_same_name_is_another_one() -> None:
    types = KernelTypes(described(one("file", TYPEDEF, 1), structure("file", {"f_inode": 64})), ("file",))
    assert types.offset("file", "f_inode") == 8
    with pytest.raises(UnknownTypesError):
        types.function("file")


def test_of_two_with_one_name_that_differ_neither_is_believed() -> None:
    first, second = structure("file", {"f_inode": 64, "f_mode": 0}), structure("file", {"f_inode": 128, "f_mode": 0})
    types = KernelTypes(described(first, second), ("file",))
    assert types.offset("file", "f_mode") == 0
    with pytest.raises(UnknownTypesError, match=r"file\.f_inode: 2 answers"):
        types.offset("file", "f_inode")
    with pytest.raises(UnknownTypesError, match="walk: 2 answers"):
        KernelTypes(described(one("walk", FUNCTION), one("walk", FUNCTION)), ("walk",)).function("walk")


@pytest.mark.parametrize(
    "description",
    [
        b"",
        described(magic=0x9FEB),
        described(structure("file", {"f_inode": 64}))[:40],
        # A kind that is not known, of unknown length.
        described(one("", 20), structure("file", {"f_inode": 64})),
        # No such name at all.
        described(structure("file", {"f_inode": 64})).replace(b"\0walk\0", b"\0talk\0"),
    ],
    ids=["nothing", "the other byte order", "cut off", "a new kind", "no such name"],
)
def test_what_cannot_be_read_is_refused(description: bytes) -> None:
    with pytest.raises(UnknownTypesError):
        KernelTypes(description, ("file", "walk"))


def test_a_structure_or_member_that_is_missing_is_refused() -> None:
    types = KernelTypes(described(structure("file", {"f_mode": 0})), ("file", "inode"))
    with pytest.raises(UnknownTypesError, match=r"file\.f_inode: 0 answers"):
        types.offset("file", "f_inode")
    with pytest.raises(UnknownTypesError, match=r"inode\.f_mode: 0 answers"):
        types.offset("inode", "f_mode")


@given(noise=st.binary(max_size=200), at=st.integers(0, 120))
def test_no_description_makes_another_error(noise: bytes, at: int) -> None:
    whole = described(*BEFORE, structure("file", {"f_mode": 0, "f_inode": 256}), one("walk", FUNCTION))
    for description in (noise, whole[:at] + noise, whole[:at] + noise + whole[at + len(noise) :]):
        try:
            types = KernelTypes(description, ("file", "walk"))
            types.offset("file", "f_inode")
            types.function("walk")
        except UnknownTypesError:
            pass


@pytest.mark.skipif(not Path("/sys/kernel/btf/vmlinux").exists(), reason="this kernel does not describe its types")
def test_this_kernel_s_own_description_is_read() -> None:
    types = KernelTypes(Path("/sys/kernel/btf/vmlinux").read_bytes(), ("file", "inode", "bpf_iter_task_file"))
    assert types.offset("file", "f_inode") % 8 == types.offset("inode", "i_ino") % 8 == 0
    assert types.function("bpf_iter_task_file") > 0
