# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has a file or socket open or mapped: real processes, and a /proc that refuses."""

from __future__ import annotations

import errno
import os
import signal
import socket
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _every_process, _side_by_side
from ansible_collections.gpuops.inference.plugins.module_utils._errors import MachineError
from ansible_collections.gpuops.inference.plugins.module_utils._file_holders import FileId, find_holders
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from tests.unit.doubles import DEAD_LEADER, WAITS, child
from tests.unit.fake_proc import FakeProc

OPENS = f"import os, sys; handle = os.open(sys.argv[1], os.O_RDWR); {WAITS[len('import sys; ') :]}"
# Maps it, closes it, and removes its name.
MAPS = f"""
import mmap, os, sys
with open(sys.argv[1], 'rb+') as stream:
    mapped = mmap.mmap(stream.fileno(), 4096)
os.unlink(sys.argv[1])
{WAITS}
"""


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "psm_0a0b0c0d"
    path.write_bytes(b"\1" * 4096)
    return path


def procfs_of(directory: Path, *pids: int) -> ProcFs:
    """The real /proc of a few processes: a machine may have thousands of others."""
    for pid in pids:
        (directory / str(pid)).symlink_to(f"/proc/{pid}")
    return ProcFs(str(directory))


def file_id(path: Path) -> FileId:
    status = path.stat()
    return FileId(status.st_dev, status.st_ino)


@pytest.mark.parametrize("code", [OPENS, MAPS, DEAD_LEADER])
def test_a_process_that_has_it_open_or_only_mapped_or_in_a_thread_of_a_dead_leader_is_found(
    segment: Path, tmp_path: Path, code: str
) -> None:
    file = file_id(segment)
    with child(code, str(segment)) as process:
        procfs = procfs_of(tmp_path, process.pid, os.getpid())
        holders = find_holders({file}, (), procfs)
        assert [one.pid for one in holders.files[file]] == [process.pid]
        assert holders.unreadable == ()
    assert find_holders({file}, (), procfs).files == {file: []}


def test_everybody_who_shares_a_socket_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        inode = os.fstat(server.fileno()).st_ino
        other = os.fork()
        if other == 0:
            signal.alarm(60)
            while True:
                signal.pause()
        try:
            found = find_holders((), {inode}, procfs_of(tmp_path, os.getpid(), other)).sockets[inode]
            assert sorted(one.pid for one in found) == sorted([os.getpid(), other])
        finally:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)


def test_nobody_is_asked_when_nothing_is_looked_for(tmp_path: Path) -> None:
    assert find_holders((), (), ProcFs(str(tmp_path / "nowhere"))).files == {}


def test_who_does_not_let_himself_be_looked_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = FakeProc(tmp_path)
    proc.add(10)
    proc.add(11, flags=0x00200000)
    real = os.open

    def refuse(path: str, *arguments: int, **options: int) -> int:
        if str(path).endswith("/10/fd"):
            raise PermissionError
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    assert find_holders({FileId(1, 1)}, (), proc.procfs).unreadable == (10,)


def test_a_file_that_its_file_system_hides_from_all_others_is_none_of_ours(
    tmp_path: Path, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUSE does so, also with root."""
    proc = FakeProc(tmp_path)
    hidden = tmp_path / "fuse"
    proc.add(10, fds=[hidden, segment])
    real = os.stat

    def hide(path: object, **options: object) -> os.stat_result:
        if path == b"0":
            raise PermissionError
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", hide)
    found = find_holders({file_id(segment)}, (), proc.procfs)
    assert [one.pid for one in found.files[file_id(segment)]] == [10]
    assert found.unreadable == ()


def test_a_process_at_which_the_kernel_never_answers_is_not_waited_for(
    tmp_path: Path, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = FakeProc(tmp_path)
    for pid in range(100, 148):
        proc.add(pid, fds=[segment])
    os.mkfifo(proc.root / "120" / "maps")
    monkeypatch.setattr(_side_by_side, "STALL_SECONDS", 0.7)
    monkeypatch.setattr(_every_process, "ONE_SECONDS", 0.5)
    found = find_holders({file_id(segment)}, (), proc.procfs)
    assert found.unreadable == (120,)
    # What it has mapped is not known, what it has open is.
    assert [one.pid for one in found.files[file_id(segment)]] == list(range(100, 148))


@pytest.mark.parametrize(
    ("error", "unreadable"), [(errno.ENOENT, ()), (errno.ESRCH, ()), (errno.EACCES, (10,)), (errno.ENOMEM, (10,))]
)
def test_mappings_that_cannot_be_read_are_no_empty_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, unreadable: tuple[int, ...]
) -> None:
    proc = FakeProc(tmp_path)
    proc.add(10)
    monkeypatch.setattr(os, "open", _failing_at_maps(os.open, error))
    assert find_holders({FileId(1, 1)}, (), proc.procfs).unreadable == unreadable


def test_of_one_whose_mappings_cannot_be_read_what_it_has_open_is_known(
    tmp_path: Path, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have another one mapped, which is not stale then."""
    proc = FakeProc(tmp_path)
    proc.add(10, fds=[segment])
    monkeypatch.setattr(os, "open", _failing_at_maps(os.open, errno.EACCES))
    found = find_holders({file_id(segment)}, (), proc.procfs)
    assert [one.pid for one in found.files[file_id(segment)]] == [10]
    assert found.unreadable == (10,)


def test_without_a_handle_of_our_own_it_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socket", full)
    with pytest.raises(MachineError, match="No socket can be had: Too many open files"):
        find_holders((), {12}, FakeProc(tmp_path).procfs)


def test_one_that_is_listed_and_shows_nothing_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of others, an ordinary user sees no more where /proc is mounted with hidepid=1 (proc_pid_permission)."""
    proc = FakeProc(tmp_path)
    proc.add(10)
    real = os.open

    def refuse(path: str, *arguments: int, **options: int) -> int:
        if "/10/" in str(path):
            raise PermissionError
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    assert find_holders({FileId(1, 1)}, (), proc.procfs).unreadable == (10,)


def _failing_at_maps(real: object, error: int) -> object:
    def opens(path: object, *arguments: object, **options: object) -> object:
        if str(path).endswith("/maps"):
            raise OSError(error, os.strerror(error))
        return real(path, *arguments, **options)  # type: ignore[operator]

    return opens


def test_a_pid_that_is_given_again_while_it_is_looked_at_holds_nothing(
    tmp_path: Path, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = FakeProc(tmp_path)
    proc.add(10, fds=[segment])
    real = os.stat

    def reuse(path: object, **options: object) -> os.stat_result:
        if path == b"0":
            answer = real(path, **options)  # type: ignore[arg-type]
            proc.remove(10)
            proc.add(10, start=777)
            return answer
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", reuse)
    assert find_holders({file_id(segment)}, (), proc.procfs).files == {file_id(segment): []}
