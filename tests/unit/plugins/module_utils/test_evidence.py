# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a hung server can still tell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Optional, Union

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, ContainerError
from ansible_collections.gpuops.inference.plugins.module_utils._evidence import (
    EvidenceRequest,
    gather,
    kernel_lines,
    parse_record,
    telling,
    threads,
)
from tests.unit.fake_proc import FakeProc, inside
from tests.unit.recorded import ScriptedRunner, completed

XID = "NVRM: Xid (PCI:0000:21:00): 79, GPU has fallen off the bus."
BASE = EvidenceRequest(
    vmid=129,
    patterns=(re.compile("^sglang::"),),
    pct_path="pct",
    py_spy_path="py-spy",
    stacks=10,
    stack_timeout=10,
    kernel_lines=50,
)
NO_PY_SPY = CommandError("py-spy was not found.", reason="not_installed")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    proc = FakeProc(tmp_path)
    proc.container(129, 4100)
    proc.add(4242, "sglang::schedul", "sglang::scheduler_TP1 --api-key sk-x\0", inner=(312,), cgroup=inside(129))
    proc.add(4243, "bash", "bash\0", inner=(313,), cgroup=inside(129))
    proc.add(5000, "sglang::schedul", "sglang::scheduler_TP1\0", cgroup="0::/user.slice\n")
    return proc


def ask(
    proc: FakeProc,
    *,
    py_spy: Union[Completed, Exception] = NO_PY_SPY,
    status: str = "status: running\npid: 4100\n",
    kmsg: Optional[str] = None,
    **changes: Any,
) -> dict[str, Any]:
    runner = ScriptedRunner({"dump": [py_spy], "status": [completed(status)]})
    return gather(BASE._replace(**changes), runner, proc.procfs, kmsg or str(proc.root / "none"))


def test_every_process_of_the_container_is_in_the_table(proc: FakeProc) -> None:
    assert [one["pid"] for one in ask(proc)["processes"]] == [4100, 4242, 4243]


def test_without_a_container_those_that_match_are(proc: FakeProc) -> None:
    assert [one["pid"] for one in ask(proc, vmid=None)["processes"]] == [4242, 5000]


def test_a_stopped_container_has_no_witness(proc: FakeProc) -> None:
    assert ask(proc, status="status: stopped\n")["processes"] == []


def test_a_container_that_is_not_here_is_an_error(proc: FakeProc) -> None:
    runner = ScriptedRunner({"status": [completed("Configuration file 'x' does not exist\n", rc=2)]})
    with pytest.raises(ContainerError):
        gather(BASE, runner, proc.procfs)


def test_a_process_tells_where_it_sleeps_and_keeps_its_secrets(proc: FakeProc) -> None:
    proc.become(4242, "D", threads=3, wchan="uvm_va_space_destroy")
    proc.thread(4242, 4300, state="S")
    proc.thread(4242, 4301, state="S")
    (proc.root / "4242" / "task" / "4242" / "stack").write_text("[<0>] uvm_va_space_destroy+0x1/0x2 [nvidia_uvm]\n")
    found = next(one for one in ask(proc)["processes"] if one["pid"] == 4242)
    assert (found["state"], found["wchan"], found["threads"]) == ("D", "uvm_va_space_destroy", {"D": 1, "S": 2})
    assert "uvm_va_space_destroy" in found["kernel_stack"]
    assert "sk-x" not in str(found)


def test_a_process_that_sleeps_well_has_no_kernel_stack(proc: FakeProc) -> None:
    (proc.root / "4242" / "task" / "4242" / "stack").write_text("[<0>] do_wait\n")
    assert next(one for one in ask(proc)["processes"] if one["pid"] == 4242)["kernel_stack"] is None


def test_threads_of_a_process_that_is_gone_are_none(proc: FakeProc) -> None:
    assert threads(99999, proc.procfs) == ({}, None)


def test_stacks_are_asked_of_the_server_s_processes_only(proc: FakeProc) -> None:
    result = ask(proc, py_spy=completed("Thread 312 (idle): api_key=sk-y\n    forward (model.py:12)\n"))
    assert [one["pid"] for one in result["stacks"]] == [4242]
    assert "forward (model.py:12)" in result["stacks"][0]["stack"]
    assert "sk-y" not in str(result)


def test_a_stack_that_cannot_be_had_says_why(proc: FakeProc) -> None:
    denied = ask(proc, py_spy=completed("", rc=1, stderr="Permission Denied\n"))["stacks"]
    slow = ask(proc, py_spy=CommandError("no answer within 10 s", reason="timeout"))["stacks"]
    assert denied == [{"pid": 4242, "stack": None, "error": "Permission Denied"}]
    assert slow == [{"pid": 4242, "stack": None, "error": "no answer within 10 s"}]


def test_what_is_missing_is_said_once_and_hides_nothing(proc: FakeProc) -> None:
    proc.add(4250, "sglang::schedul", "sglang::scheduler_TP2\0", inner=(320,), cgroup=inside(129))
    result = ask(proc)
    assert len(result["processes"]) == 4
    assert [one.partition(" ")[0] for one in result["warnings"]] == ["The", "py-spy"]


def test_no_more_stacks_than_wanted(proc: FakeProc) -> None:
    assert ask(proc, py_spy=completed("x"), stacks=0)["stacks"] == []


@pytest.mark.parametrize(
    ("record", "lines"),
    [
        (f"3,512,812345120000,-;{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:21:00.0\n", [f"812345.120 {XID}"]),
        ("6,1,0,-;Linux version 6.8; built", ["0.000 Linux version 6.8; built"]),
        ("6,1,0,-,caller=T1;x", ["0.000 x"]),
        ("", []),
        ("no record", []),
        ("6,1;x", []),
        ("6,1,soon,-;x", []),
        ("6,1," + "9" * 50 + ",-;x", []),
    ],
)
def test_a_record_of_the_kernel_s_log(record: str, lines: list[str]) -> None:
    assert parse_record(record) == lines


def test_only_what_tells_something_is_kept_and_the_last_of_it() -> None:
    lines = ["1.0 usb 1-1: new device", f"2.0 {XID}", "3.0 INFO: task python3:4242 blocked for more than 120 seconds."]
    assert telling(lines, 50) == lines[1:]
    assert telling(lines, 1) == lines[2:]
    assert telling(lines, 0) == []


def test_the_kernel_s_log_is_read_to_its_end(tmp_path: Path, proc: FakeProc) -> None:
    path = tmp_path / "kmsg"
    path.write_text(f"3,512,2000000,-;{XID}\n")
    assert ask(proc, kmsg=str(path))["kernel_messages"] == [f"2.000 {XID}"]
    assert kernel_lines(str(tmp_path / "none")) is None
    # What opens and cannot be read holds nothing.
    assert kernel_lines(str(tmp_path)) == []
