# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a device: by number, in every place where the kernel shows a handle."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import (
    Device,
    Holder,
    Scan,
    card_device,
    card_devices,
    compute_node,
    find_holders,
    named_devices,
)
from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import (
    DeviceNumber,
    HandleReader,
    number_of,
)
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from tests.unit.doubles import DEAD_LEADER, WAITS, child
from tests.unit.fake_proc import FakeProc, make_process
from tests.unit.recorded import recorded

# What every Linux machine has, and anyone may open: (1, 3) and (1, 5).
NULL, ZERO = Path("/dev/null"), Path("/dev/zero")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


@pytest.fixture(params=["children", "alone"], autouse=True)
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is played twice: with children that look, and where none may be started."""
    if request.param == "alone":
        monkeypatch.setattr(os, "fork", no_more_processes)


def no_more_processes() -> int:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def status(mode: int, *, rdev: int = 0, inode: int = 1, device: int = 1) -> os.stat_result:
    # st_rdev is beyond the ten fields that a sequence must give.
    return os.stat_result((mode, inode, device, 1, 0, 0, 0, 0, 0, 0), {"st_rdev": rdev})


def test_two_nodes_of_one_device_are_one_thing() -> None:
    number = os.makedev(195, 3)
    on_the_node = status(0o020666, rdev=number, inode=17, device=6)
    in_the_container = status(0o020666, rdev=number, inode=4, device=99)
    assert number_of(on_the_node) == number_of(in_the_container) == DeviceNumber("char", 195, 3)


def test_a_block_device_of_the_same_number_is_another_thing() -> None:
    assert number_of(status(0o060666, rdev=os.makedev(195, 3))) == DeviceNumber("block", 195, 3)


def test_what_is_no_device_is_known_by_its_inode() -> None:
    assert number_of(status(0o100644, inode=17, device=6)) == DeviceNumber("inode", 6, 17)
    assert number_of(os.stat(NULL)) == DeviceNumber("char", 1, 3)


def test_a_card_s_node_has_its_minor_not_its_index(proc: FakeProc) -> None:
    path = proc.card(3)
    device = card_device(str(proc.devices), 3, 1)
    assert (device.path, device.gpu) == (str(path), 1)


def test_a_card_without_a_node_is_an_error_that_names_it(proc: FakeProc) -> None:
    with pytest.raises(
        InputError, match=r"GPU 1 should be .*/nvidia3, but that cannot be read: No such file"
    ) as caught:
        card_device(str(proc.devices), 3, 1)
    assert caught.value.reason == "no_device_nodes"


def test_only_the_cards_that_have_a_node_are_known(proc: FakeProc) -> None:
    proc.card(3)
    assert [device.gpu for device in card_devices(str(proc.devices), [(3, 1), (4, 2)])] == [1]


def test_named_nodes_are_joined_with_their_cards(proc: FakeProc) -> None:
    path, other = proc.card(3), proc.card(4)
    proc.uvm()
    card = card_device(str(proc.devices), 3, 1)
    found = named_devices([f"{proc.devices}/nvidia[0-9]", str(path)], [card])
    assert [(device.path, device.gpu) for device in found] == [(str(path), 1), (str(other), None)]


def test_a_link_that_leads_nowhere_is_refused(proc: FakeProc) -> None:
    link = proc.devices / "nvidia7"
    link.symlink_to(proc.devices / "gone")
    with pytest.raises(InputError, match="nvidia7 cannot be read: No such file") as raised:
        named_devices([f"{proc.devices}/nvidia*"], [])
    assert raised.value.reason == "no_device_nodes"


@pytest.mark.parametrize("pattern", ["nvidia9", "nvidia[5-9]", ""])
def test_a_name_or_glob_of_nothing_is_refused(proc: FakeProc, pattern: str) -> None:
    text = f"{proc.devices}/{pattern}" if pattern else ""
    with pytest.raises(InputError, match="names no file"):
        named_devices([text], [])


def test_directories_are_no_nodes(proc: FakeProc) -> None:
    with pytest.raises(InputError, match="only directories"):
        named_devices([str(proc.devices)], [])


def test_a_directory_among_the_nodes_hides_none_of_them(proc: FakeProc) -> None:
    """/dev/nvidia* names /dev/nvidia-caps, too, and before the cards."""
    (proc.devices / "nvidia-caps").mkdir()
    path = proc.card(3)
    assert [device.path for device in named_devices([f"{proc.devices}/nvidia*"], [])] == [str(path)]


def test_a_machine_without_cuda_s_node_has_none(proc: FakeProc) -> None:
    assert compute_node(str(proc.devices)) is None
    proc.uvm()
    assert compute_node(str(proc.devices)) is not None


def scan(proc: FakeProc) -> Scan:
    devices = [
        card_device(str(proc.devices), minor, minor - 2)
        for minor in (3, 4)
        if (proc.devices / f"nvidia{minor}").exists()
    ]
    return find_holders(devices, compute_node(str(proc.devices)), proc.procfs)


def only(found: Scan) -> Holder:
    assert len(found.holders) == 1
    return found.holders[0]


def test_a_holder_has_its_cards_and_whether_it_computes(proc: FakeProc) -> None:
    one, two, uvm = proc.card(3), proc.card(4), proc.uvm()
    proc.add(4242, "pt_main_thread", fds=[NULL, one, one, two, uvm])
    proc.add(4243, fds=[NULL])
    proc.add(4244, fds=[uvm])
    holder = only(scan(proc))
    assert holder.process.pid == 4242
    assert (holder.gpus, holder.evidence_list) == ({1, 2}, ["fd"])
    assert holder.compute_context
    assert holder.devices == {str(one), str(two)}


def test_who_only_watches_has_no_compute_context(proc: FakeProc) -> None:
    one = proc.card(3)
    proc.uvm()
    proc.add(4242, "nvtop", fds=[one])
    assert not only(scan(proc)).compute_context


def test_where_cuda_s_node_is_not_known_nobody_is_said_to_compute(proc: FakeProc) -> None:
    one = proc.card(3)
    proc.add(4242, fds=[one])
    assert not only(scan(proc)).compute_context


def test_every_card_that_one_process_opens_is_one_holder(proc: FakeProc) -> None:
    """B23: fuser names it once for each card, and the listing on its stderr holds no pid at all."""
    said = recorded("fuser", "B23")
    assert set(said.stdout.split()) == {"45208"}
    cards = [proc.card(minor) for minor in range(4)]
    proc.add(45208, "python", fds=cards)
    devices = [card_device(str(proc.devices), minor, minor) for minor in range(4)]
    assert only(find_holders(devices, None, proc.procfs)).gpus == {0, 1, 2, 3}


def test_a_dead_leader_s_threads_still_show_the_handle(proc: FakeProc) -> None:
    one, uvm = proc.card(3), proc.uvm()
    proc.add(4242, state="Z", threads=2)
    proc.thread(4242, 4243, fds=[one, uvm], command="python3\0-m\0sglang\0")
    holder = only(scan(proc))
    assert holder.evidence_list == ["thread_fd"]
    assert holder.compute_context
    assert holder.process.command == "python3 -m sglang"
    assert not holder.process.gone


def test_a_mapping_is_a_handle_too(proc: FakeProc) -> None:
    one = proc.card(3)
    proc.add(4242, fds=[NULL])
    proc.mapping(4242, one)
    assert only(scan(proc)).evidence_list == ["mapping"]


def test_nobody_is_said_to_compute_of_whom_that_was_not_seen() -> None:
    assert not Holder(make_process()).compute_context


def test_all_evidence_is_named_best_first() -> None:
    holder = Holder(make_process(), evidence={"mapping", "driver", "thread_fd", "fd"})
    assert holder.evidence_list == ["driver", "fd", "thread_fd", "mapping"]


def test_a_mapping_that_one_process_let_go_of_does_not_hide_the_others(proc: FakeProc) -> None:
    one = proc.card(3)
    proc.add(4242)
    proc.mapping(4242, one, broken=True)
    proc.add(4243)
    proc.mapping(4243, one)
    assert only(scan(proc)).process.pid == 4243


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_a_mapped_file_named_to_look_like_a_mapping_makes_nobody_a_holder(proc: FakeProc, separator: str) -> None:
    """Forged, the line would say that the C library, which everyone has mapped, is the card."""
    one = proc.card(3)
    proc.add(4242)
    (proc.root / "4242" / "fd" / "9").symlink_to(one.parent)
    (proc.root / "4242" / "maps").write_text(
        f"7f00-7f10 r--p 0 08:01 5    /tmp/x{separator}../../../dev/nvidia3 r--p 0 08:01 17 /lib/libc.so\n", newline=""
    )
    proc.add(4243, "sshd")
    proc.mapping(4243, NULL, device="08:01", inode=17)
    assert scan(proc).holders == ()


def test_a_pid_that_is_given_away_during_the_look_does_not_make_its_heir_a_holder(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = proc.card(3)
    proc.add(4242, "python3", start=1, fds=[one])
    read = ProcFs.process

    def heir(self: ProcFs, pid: int) -> object:
        proc.remove(pid)
        monkeypatch.undo()
        proc.add(pid, "sshd", start=2)
        return read(self, pid)

    monkeypatch.setattr(ProcFs, "process", heir)
    assert scan(proc).holders == ()


def test_one_that_closes_itself_or_goes_during_the_look_hides_no_other(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = proc.card(3)
    for pid in (4240, 4241, 4242):
        proc.add(pid, fds=[one])
    stat = ProcFs.stat

    def change(self: ProcFs, pid: int) -> object:
        """Only who was seen to hold something is asked when it was started."""
        if pid == 4240:
            raise PermissionError(errno.EACCES, "Permission denied")
        return None if pid == 4241 else stat(self, pid)

    monkeypatch.setattr(ProcFs, "stat", change)
    found = scan(proc)
    assert (only(found).process.pid, found.unreadable) == (4242, 1)


def test_a_dead_process_holds_nothing(proc: FakeProc) -> None:
    one = proc.card(3)
    proc.add(4242, state="Z", fds=[one])
    assert scan(proc).holders == ()


def test_who_may_not_be_looked_into_is_counted_and_not_guessed(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """B17: fuser's complaints hold numbers, none of which is a holder. The one on stdout is."""
    said = recorded("fuser", "B17")
    holder = int(said.stdout)
    one = proc.card(3)
    proc.add(1, parent=0)
    proc.add(274)
    proc.add(holder, fds=[one])
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forbidding(os.open, ("/1/fd", "/274/fd")))
        found = scan(proc)
    assert [one.process.pid for one in found.holders] == [holder]
    # The machine's init does not count.
    assert found.unreadable == 1


def test_who_shows_a_table_but_no_handle_could_not_be_looked_into(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root without all capabilities meets this at processes that have more of them."""
    one = proc.card(3)
    proc.add(5, fds=[NULL])
    proc.add(4242, fds=[one])
    table = proc.root / "5" / "fd"
    with monkeypatch.context() as patch:
        for name in ("stat", "readlink"):
            patch.setattr(os, name, forbidding_in(getattr(os, name), table))
        found = scan(proc)
    assert only(found).process.pid == 4242
    assert found.unreadable == 1


def test_a_file_that_its_file_system_hides_hides_no_other_handle(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUSE refuses root, too: the file cannot be looked at, but the link to it can."""
    one = proc.card(3)
    proc.add(4242, fds=[NULL, one])
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", forbidding_in(os.stat, proc.root / "4242" / "fd", names=(b"0",)))
        found = scan(proc)
    assert only(found).process.pid == 4242
    assert found.unreadable == 0


def forbidding_in(function: Callable[..., Any], table: Path, names: Sequence[bytes] = ()) -> Callable[..., Any]:
    """``function``, but for the handles of one table (only for ``names``, where there are any)."""
    inode = table.stat().st_ino

    def forbid(path: Any, *arguments: Any, dir_fd: Optional[int] = None, **options: Any) -> Any:
        if dir_fd is not None and os.fstat(dir_fd).st_ino == inode and (not names or path in names):
            raise PermissionError(errno.EACCES, "Permission denied")
        return function(path, *arguments, dir_fd=dir_fd, **options)

    return forbid


def test_a_dead_leader_s_table_is_closed_to_its_user_but_its_threads_are_open(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = proc.card(3)
    proc.add(4242, state="Z", threads=2)
    proc.thread(4242, 4243, fds=[one])
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forbidding(os.open, ("/4242/fd",)))
        found = scan(proc)
    assert only(found).evidence_list == ["thread_fd"]
    assert found.unreadable == 0


def test_who_has_closed_threads_could_not_be_looked_into(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    one = proc.card(3)
    proc.add(4242, threads=2, fds=[one])
    proc.thread(4242, 4243, fds=[one])
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forbidding(os.open, ("/4242/fd", "/4243/fd")))
        assert scan(proc) == Scan((), 1, "proc")


def test_closed_mappings_do_not_hide_a_handle_and_are_counted_without_one(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = proc.card(3)
    for pid, handle in ((4242, one), (4243, NULL)):
        proc.add(pid, fds=[handle])
        proc.mapping(pid, NULL)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forbidding(os.open, ("/maps",)))
        found = scan(proc)
    assert only(found).process.pid == 4242
    assert found.unreadable == 1


@pytest.mark.parametrize(
    "numbers",
    [[0, 1, 2], *([0, number] for number in range(8, 13)), [5], [0, 1, 1023], [70000], list(range(1, 200, 3))],
)
def test_a_handle_is_found_whatever_its_number(proc: FakeProc, numbers: list[int]) -> None:
    one = proc.card(3)
    proc.add(4242)
    for number in numbers:
        (proc.root / "4242" / "fd" / str(number)).symlink_to(one if number == numbers[-1] else NULL)
    assert only(scan(proc)).evidence_list == ["fd"]


@pytest.mark.parametrize("number", [0, 1, 4, *range(10, 16), 255, 1023, 1024, 3000])
def test_a_real_handle_is_found_whatever_its_number(tmp_path: Path, number: int) -> None:
    """The kernel tells how many handles there are, so a table without many holes is not listed."""
    path = tmp_path / "card"
    path.touch()
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if number >= limit:
        pytest.skip(f"the limit on handles is {limit}")
    holds = (
        "import os, signal, sys; say = os.dup(1); os.dup2(os.open(sys.argv[1], 0), int(sys.argv[2]));"
        "os.write(say, b'\\n'); signal.pause()"
    )
    with child(holds, str(path), str(number)) as process:
        assert holders_of(path)[process.pid].evidence_list == ["fd"]


def test_handles_that_are_closed_during_the_look_hide_no_other(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    one = proc.card(3)
    proc.add(4242)
    (proc.root / "4242" / "fd" / "3000").symlink_to(one)
    list_names, closed = os.listdir, [str(number) for number in range(2000, 2100)]
    monkeypatch.setattr(
        os, "listdir", lambda path: [*closed, *list_names(path)] if isinstance(path, int) else list_names(path)
    )
    assert only(scan(proc)).evidence_list == ["fd"]


def test_an_ordinary_user_recognises_the_node_itself_among_mappings(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only root may follow map_files; maps has the file system and the inode of the node, as fuser compares them."""
    one = proc.card(3)
    file_system, inode = one.stat().st_dev, one.stat().st_ino
    proc.add(4242)
    proc.mapping(4242, one, device=f"{os.major(file_system):02x}:{os.minor(file_system):02x}", inode=inode)
    proc.add(4243)
    proc.mapping(4243, NULL, inode=5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", forbidding(os.stat, ("map_files",)))
        found = scan(proc)
    assert (only(found).process.pid, only(found).evidence_list) == (4242, ["mapping"])


@pytest.mark.parametrize("step", [-1, 1])
def test_a_path_that_leads_to_another_file_by_now_names_no_holder(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    one = proc.card(3)
    device = card_device(str(proc.devices), 3, 1)
    file_system, inode = one.stat().st_dev, one.stat().st_ino
    proc.add(4242)
    proc.mapping(4242, one, device=f"{os.major(file_system):02x}:{os.minor(file_system):02x}", inode=inode)
    former = device._replace(number=device.number._replace(minor=inode + step))
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", forbidding(os.stat, ("map_files",)))
        assert find_holders([former], None, proc.procfs).holders == ()
        assert only(find_holders([device], None, proc.procfs)).process.pid == 4242


def test_among_many_each_holder_is_found_once(proc: FakeProc) -> None:
    one = proc.card(3)
    for pid in range(100, 160):
        proc.add(pid, fds=[one] if pid % 7 == 0 else [NULL])
    assert [holder.process.pid for holder in scan(proc).holders] == [pid for pid in range(100, 160) if pid % 7 == 0]


def test_only_the_named_are_looked_at(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    one = proc.card(3)
    for pid in (4242, 4243):
        proc.add(pid, fds=[one])
    monkeypatch.setattr(ProcFs, "pids", lambda self: pytest.fail("it looked at all"))
    device = card_device(str(proc.devices), 3, 1)
    assert only(find_holders([device], None, proc.procfs, pids=[4243, 4244])).process.pid == 4243


def forbidding(function: Callable[..., Any], places: Sequence[str]) -> Callable[..., Any]:
    """``function``, but for these places: root, too, may then not look."""

    def forbid(path: Any, *arguments: Any, **options: Any) -> Any:
        if any(place in str(path) for place in places):
            raise PermissionError(errno.EACCES, "Permission denied")
        return function(path, *arguments, **options)

    return forbid


def test_mappings_that_may_not_be_read_do_not_fail(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    one = proc.card(3)
    proc.add(4242, fds=[one])
    proc.mapping(4242, one)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", forbidding(os.stat, ("map_files",)))
        found = scan(proc)
    assert only(found).evidence_list == ["fd"]


def test_nothing_to_look_for_is_not_looked_for(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcFs, "pids", lambda self: pytest.fail("it looked"))
    assert find_holders([], None, proc.procfs) == Scan((), 0)


# From here on the kernel itself is the subject.

HOLDS = """
import ctypes, os, sys
path, how = sys.argv[1:]
fd = os.open(path, os.O_RDWR)
if how == 'mapping':
    # Python's own mmap keeps a handle as well.
    mmap = ctypes.CDLL(None).mmap
    mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    mmap(None, 4096, 3, 1, fd, 0)
    os.close(fd)
print(flush=True)
sys.stdin.read()
"""


def holders_of(path: Path) -> dict[int, Holder]:
    device = Device(str(path), number_of(os.stat(path)), 1)
    return {holder.process.pid: holder for holder in find_holders([device], None, ProcFs()).holders}


@pytest.mark.parametrize("how", ["fd", "mapping"])
def test_a_real_holder_of_a_file_is_found(tmp_path: Path, how: str) -> None:
    path = tmp_path / "card"
    path.write_bytes(b"\0" * 4096)
    with child(HOLDS, str(path), how) as process:
        assert holders_of(path)[process.pid].evidence_list == [how]
    process.wait()
    assert process.pid not in holders_of(path)


def test_a_real_holder_of_a_device_is_found_by_its_number(tmp_path: Path) -> None:
    node = tmp_path / "nvidia3"
    node.symlink_to("/dev/full")
    with child(HOLDS, "/dev/full", "fd") as process:
        holder = holders_of(node).get(process.pid)
    assert holder is not None
    assert holder.gpus == {1}


# Each time it hears something it swaps one handle: 1, which was seen, is closed, and 4, a hole to come, is opened.
SWAPS = """
import os, sys
os.dup2(os.open(sys.argv[1], 0), 9)
os.closerange(3, 9)
os.write(1, b"\\n")
sys.stdin.read(1)
os.dup2(0, 4)
os.close(1)
os.write(2, b"\\n")
sys.stdin.read()
"""


def test_a_swap_of_handles_during_the_look_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are seen as there were at first, and as there are in the end; the last of them is not among those."""
    path = tmp_path / "card"
    path.touch()
    argv = [sys.executable, "-S", "-I", "-c", SWAPS, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        say, hear, stat, asked = process.stdin, process.stderr, os.stat, [False]

        def swap(name: Any, **options: Any) -> os.stat_result:
            if name == b"3" and not asked[0]:
                asked[0] = True
                say.write(b".")
                say.flush()
                hear.readline()
            return stat(name, **options)

        wanted = number_of(path.stat())
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", swap)
            held = HandleReader({wanted}, ProcFs()).open_handles(process.pid)
        process.kill()
    assert asked == [True]
    assert [handle.number for handle in held] == [wanted]


# The leader maps the file, lets go of the handle, and exits.
DEAD_LEADER_WITH_A_MAPPING = f"""
import ctypes, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
mmap = ctypes.CDLL(None).mmap
mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
mmap(None, 4096, 3, 1, fd, 0)
os.close(fd)
del sys.argv[1:]
{DEAD_LEADER}
"""


@pytest.mark.parametrize(
    ("code", "evidence"), [(DEAD_LEADER, "thread_fd"), (DEAD_LEADER_WITH_A_MAPPING, "mapping")], ids=["fd", "mapping"]
)
def test_a_real_dead_leader_with_a_living_thread_is_a_holder(tmp_path: Path, code: str, evidence: str) -> None:
    """B27: /proc/PID/fd, maps and cmdline are empty, and fuser finds nothing."""
    path = tmp_path / "card"
    path.write_bytes(b"\0" * 4096)
    with child(code, str(path)) as process:
        holder = holders_of(path)[process.pid]
        seen = ProcFs().process(process.pid)
    assert seen is not None
    assert (seen.state, seen.gone) == ("Z", False)
    assert holder.evidence_list == [evidence]
    assert str(path) in holder.process.command


def test_real_processes_that_hold_nothing_are_no_holders(tmp_path: Path) -> None:
    path = tmp_path / "card"
    path.touch()
    with child(WAITS):
        assert holders_of(path) == {}


def test_a_device_that_is_not_nvidias_is_refused_since_everyone_holds_it() -> None:
    with pytest.raises(InputError, match="/dev/null, which is no NVIDIA device node"):
        named_devices(["/dev/nul[l]"], ())
