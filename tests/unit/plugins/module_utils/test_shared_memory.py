# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Segments of shared memory: what is one, which are stale, and that nothing else is ever touched."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given

from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._file_holders import FileId
from ansible_collections.gpuops.inference.plugins.module_utils._shared_memory import (
    DEFAULT_NAMES,
    Evidence,
    Mount,
    Segment,
    SharedMemory,
    compile_names,
    owner_in_name,
    parse_mounts,
    parse_uid_map,
    why_kept,
)
from tests.unit.fake_shm import FakeShm
from tests.unit.garbage import hostile


@pytest.fixture
def shm(tmp_path: Path) -> FakeShm:
    return FakeShm(tmp_path)


NAMED = Segment("sgl_shm_mm_312_5d41", FileId(1, 2), True, 4096, 1000.0, 0, 312)
NAMELESS = NAMED._replace(name="psm_5d41402a", owner_pid=None)
NOBODY = Evidence(False, False, False, False, False, age=100.0, min_age=30.0)


@pytest.mark.parametrize(
    ("segment", "evidence", "reason"),
    [
        (NAMED, NOBODY, None),
        (NAMELESS, NOBODY, None),
        (NAMED._replace(regular=False), NOBODY, "not_a_file"),
        (NAMED, NOBODY._replace(foreign_owner=True), "foreign_owner"),
        (NAMED, NOBODY._replace(in_use=True), "in_use"),
        (NAMELESS, NOBODY._replace(in_use=True), "in_use"),
        (NAMED, NOBODY._replace(owner_alive=True), "owner_alive"),
        # One who could not be looked into may have anything.
        (NAMED, NOBODY._replace(unreadable=True), "unreadable"),
        (NAMELESS, NOBODY._replace(unreadable=True), "unreadable"),
        # A dead owner is proof, whatever the age and whoever else lives.
        (NAMED, NOBODY._replace(age=0.0), None),
        (NAMED, NOBODY._replace(maker_may_live=True), None),
        (NAMELESS, NOBODY._replace(age=29.9), "too_young"),
        (NAMELESS, NOBODY._replace(age=30.0), None),
        # The clock was set back: younger than nothing.
        (NAMELESS, NOBODY._replace(age=-5.0, min_age=0.0), "too_young"),
        (NAMELESS, NOBODY._replace(age=0.0, min_age=0.0), None),
        (NAMELESS, NOBODY._replace(maker_may_live=True), "maker_may_live"),
    ],
)
def test_a_segment_is_stale_only_when_nobody_can_need_it(
    segment: Segment, evidence: Evidence, reason: str | None
) -> None:
    assert why_kept(segment, evidence) == reason


@pytest.mark.parametrize(
    ("name", "pid"),
    [
        ("sgl_shm_mm_312_5d41402a", 312),
        ("sgl_shm_mq_1_0", 1),
        ("sgl_shm_a_b_77_deadbeef", 77),
        ("multi_tokenizer_args_1044", 1044),
        ("cuda.shm.3e9.52f2.1", 0x52F2),
        ("torch_1044_3180526913_7", 1044),
        ("sem.loky-1044-x_9a", 1044),
        ("sglang_loads_tcp_127.0.0.1_1234_0a1b2c3d.shm", None),
        ("vllm_offload_0a1b.mmap", None),
        ("nccl-Ewjreo", None),
        ("psm_0a1b2c3d", None),
        ("sem.mp-x_9abcde", None),
        ("sem.loky-0-x", None),
        (f"multi_tokenizer_args_{'9' * 5000}", None),
    ],
)
def test_the_names_that_servers_give_are_known_with_their_owner(name: str, pid: int | None) -> None:
    [found] = [match for match in (pattern.fullmatch(name) for pattern in compile_names(DEFAULT_NAMES)) if match]
    assert owner_in_name(found) == pid


@pytest.mark.parametrize(
    "name",
    [
        *("other.db", "psm_", "psm_x", "xpsm_0a", "psm_0a.bak", "psm_0a\n", "sem.other", "sem.mpx", "nccl", "nccl-"),
        *("sgl_shm_garbage", "sgl_shm_mm_x_5d", "multi_tokenizer_args_", "multi_tokenizer_args_3x", "cuda.shm.nothex"),
        *("torch_12", "my_multi_tokenizer_args_3", "PostgreSQL.1804289383", "pulse-shm-1", "lttng-ust-wait-8"),
    ],
)
def test_other_names_are_never_looked_at(name: str) -> None:
    assert not any(pattern.fullmatch(name) for pattern in compile_names(DEFAULT_NAMES))


@pytest.mark.parametrize("text", ["", " ", ".*", ".+", r"[\s\S]*", "(", "(?P<pid>x)|.*"])
def test_a_pattern_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="shm_patterns"):
        compile_names(["psm_.+", text])


MOUNTINFO = (
    "25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24683584k\n"
    r"61 24 0:44 /sub /mnt/with\040blank rw shared:7 master:1 - ext4 /dev/sda1 rw" + "\n"
)


def test_mounts_are_read_with_and_without_optional_fields() -> None:
    assert parse_mounts(MOUNTINFO) == {25: Mount("0:23", "/", "tmpfs"), 61: Mount("0:44", "/sub", "ext4")}


@given(hostile([MOUNTINFO]))
def test_no_mount_table_is_an_error(text: str) -> None:
    parse_mounts(text)


def test_user_ids_of_a_namespace_are_those_that_this_machine_counts() -> None:
    assert parse_uid_map("         0          0 4294967295\n") == [range(4294967295)]
    assert parse_uid_map("0 100000 65536\n70000 5 1\n") == [range(100000, 165536), range(5, 6)]
    assert parse_uid_map("") == parse_uid_map("0 0\nx y z\n0 -1 5\n") == []


PATTERNS = (re.compile(r"psm_[0-9a-f]+"), re.compile(r"owned_(?P<pid>\d+)"))


def test_what_matches_is_listed_and_nothing_else(shm: FakeShm) -> None:
    shm.make("psm_0a", 4096)
    shm.make("owned_77", 1)
    shm.make("database", 4096)
    (shm.directory / "psm_11").symlink_to("/etc/passwd")
    (shm.directory / "psm_12").mkdir()
    with SharedMemory(shm.pid, shm.procfs) as memory:
        found = memory.segments(PATTERNS)
    assert [(one.name, one.regular, one.owner_pid) for one in found] == [
        ("owned_77", True, 77),
        ("psm_0a", True, None),
        ("psm_11", False, None),
        ("psm_12", False, None),
    ]
    assert found[1].size == 4096


def test_a_name_that_is_no_text_can_be_shown(shm: FakeShm) -> None:
    name = os.fsdecode(b"psm_\xff")
    shm.make(name, 1)
    with SharedMemory(shm.pid, shm.procfs) as memory:
        [found] = memory.segments([re.compile(".*psm_.*")])
        assert found.shown_name == r"psm_\xff"
        assert memory.remove(found)


def test_a_segment_is_removed_only_while_it_is_the_one_that_was_looked_at(shm: FakeShm) -> None:
    path = shm.make("psm_0a", 4096)
    with SharedMemory(shm.pid, shm.procfs) as memory:
        [seen] = memory.segments(PATTERNS)
        path.unlink()
        assert not memory.remove(seen)
        other = shm.make("psm_0b", 4096)
        other.rename(path)
        assert not memory.remove(seen)
        assert path.exists()
        path.unlink()
        path.symlink_to("/etc/passwd")
        assert not memory.remove(seen)
        assert path.is_symlink()
        path.unlink()
        shm.make("psm_0a", 4096)
        [seen] = memory.segments(PATTERNS)
        assert memory.remove(seen)
        assert not path.exists()


@pytest.mark.parametrize("step", ["dev", "dev/shm"])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_that_the_container_planted_is_not_followed(shm: FakeShm, step: str, absolute: bool) -> None:
    precious = shm.root.parent / "precious"
    (precious / "shm").mkdir(parents=True)
    (precious / "shm" / "psm_0a").write_text("of the node", encoding="ascii")
    planted = shm.root / step
    planted.rename(shm.root / "away")
    target = precious / "shm" if step == "dev/shm" else precious
    planted.symlink_to(target if absolute else os.path.relpath(target, planted.parent))
    with pytest.raises(GpuopsError, match="links are not followed") as caught:
        SharedMemory(shm.pid, shm.procfs)
    assert caught.value.reason == "shm_not_a_directory"
    assert (precious / "shm" / "psm_0a").exists()


def test_a_machine_without_it_says_so(shm: FakeShm) -> None:
    shm.directory.rmdir()
    with pytest.raises(GpuopsError) as caught:
        SharedMemory(shm.pid, shm.procfs)
    assert caught.value.reason == "shm_missing"


@pytest.mark.parametrize(
    ("root", "file_system"), [("/", "ext4"), ("/", "overlay"), ("/run", "tmpfs"), ("/", ""), ("/..", "tmpfs")]
)
def test_a_mount_that_is_no_whole_tmpfs_is_left_alone(shm: FakeShm, root: str, file_system: str) -> None:
    shm.mount(root=root, file_system=file_system)
    before = _open_handles()
    with pytest.raises(GpuopsError, match="no tmpfs of its own") as caught:
        SharedMemory(shm.pid, shm.procfs)
    assert caught.value.reason == "shm_not_tmpfs"
    assert _open_handles() == before


def test_a_mount_that_the_process_does_not_have_is_left_alone(shm: FakeShm) -> None:
    shm.mount(number=1)
    with pytest.raises(GpuopsError, match="not a mount of its own"):
        SharedMemory(shm.pid, shm.procfs)


def _open_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
