# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process has mapped, by either road: by asking the kernel, and by reading its text."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _mapped_files
from ansible_collections.gpuops.inference.plugins.module_utils._mapped_files import (
    File,
    MappedFiles,
    Mapping,
    file_at,
)

OURS = "/proc/self/maps"


@pytest.fixture(params=["asked", "read"], autouse=True)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that answers, where this one does, and one that knows only the text."""

    def unknown(*_arguments: object) -> None:
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")

    if request.param == "read":
        monkeypatch.setattr(fcntl, "ioctl", unknown)


def spans() -> set[str]:
    """The names that the kernel itself gives to what we have mapped."""
    return set(os.listdir("/proc/self/map_files"))


def test_the_mappings_of_a_real_process_are_those_that_the_kernel_lists() -> None:
    found = MappedFiles().of(OURS)
    # Reading may map or unmap memory, but no file.
    assert {mapping.span for mapping in found} == spans()


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_WRITE, mmap.ACCESS_COPY])
def test_a_mapped_file_is_named_until_it_is_left_out(tmp_path: Path, access: int) -> None:
    path = tmp_path / "a name, with\nan end of line"
    path.write_bytes(b"\0" * 4096)
    wanted, files = file_at(path.stat().st_dev, path.stat().st_ino), MappedFiles()
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 4096, access=access):
        assert [mapping.file for mapping in files.of(OURS)].count(wanted) == 1
        assert [mapping.file for mapping in files.of(OURS)].count(wanted) == 1
        files.leave_out(wanted)
        assert wanted not in [mapping.file for mapping in files.of(OURS)]


def test_what_is_remembered_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mapped_files, "_MOST_REMEMBERED", 3)
    files = MappedFiles()
    everything = {mapping.file for mapping in files.of(OURS)}
    for file in everything:
        files.leave_out(file)
    assert {mapping.file for mapping in files.of(OURS)} < everything


def test_a_process_that_has_gone_has_nothing_mapped() -> None:
    assert MappedFiles().of("/proc/4194305/maps") == []


def test_the_name_of_a_mapping_at_a_low_address_has_no_leading_zeros(tmp_path: Path) -> None:
    """The text pads addresses, map_files does not."""
    maps = tmp_path / "maps"
    maps.write_text("00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon\n")
    assert MappedFiles().of(str(maps)) == [Mapping("400000-452000", File(173521, 8 | 2 << 32))]


def test_a_line_that_is_none_names_nothing(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("garbage\n\n7f00-7f10 rw-p 0 00:00 0 [heap]\n7f00-7f10 rw-p zz\n../../dev rw-p 0 08:01 5 /x\n")
    assert MappedFiles().of(str(maps)) == []
