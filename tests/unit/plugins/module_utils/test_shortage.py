# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the module itself is allowed too few handles: whatever it cannot open, it says so or finds everybody."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Device
from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import find_holders as holders_of_devices
from ansible_collections.gpuops.inference.plugins.module_utils._errors import MachineError
from ansible_collections.gpuops.inference.plugins.module_utils._file_holders import FileId
from ansible_collections.gpuops.inference.plugins.module_utils._file_holders import find_holders as holders_of_files
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import number_of
from tests.unit.fake_proc import FakeProc

PIDS = list(range(100, 130))
FOUND, SHORT, UNREADABLE, WRONG = 0, 1, 2, 3


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    proc = FakeProc(tmp_path)
    card = proc.card(1)
    for pid in PIDS:
        proc.add(pid, fds=[card])
    return proc


def devices(proc: FakeProc) -> int:
    """How a look for the holders of a card ends."""
    card = proc.devices / "nvidia1"
    found = holders_of_devices([Device(str(card), number_of(card.stat()), 1)], None, proc.procfs)
    if found.unreadable:
        return UNREADABLE
    return FOUND if [one.process.pid for one in found.holders] == PIDS else WRONG


def files(proc: FakeProc) -> int:
    """How a look for the holders of a file ends."""
    status = (proc.devices / "nvidia1").stat()
    file = FileId(status.st_dev, status.st_ino)
    found = holders_of_files({file}, {12}, proc.procfs)
    if found.unreadable:
        return UNREADABLE
    return FOUND if [one.pid for one in found.files[file]] == PIDS else WRONG


def with_handles(spare: int, look: Callable[[FakeProc], int], proc: FakeProc) -> int:
    """How ``look`` ends in a process that may open so many handles more."""
    child = os.fork()
    if child == 0:
        ending = WRONG
        try:
            top = max(map(int, os.listdir("/proc/self/fd")))
            for unused in set(range(top)) - set(map(int, os.listdir("/proc/self/fd"))):
                os.dup2(2, unused)
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + spare, top + spare))
            ending = look(proc)
        except MachineError:
            ending = SHORT
        except OSError:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(ending)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("look", [devices, files])
def test_with_few_handles_everybody_is_found_or_it_is_said_what_was_not(
    look: Callable[[FakeProc], int], proc: FakeProc
) -> None:
    endings = [with_handles(spare, look, proc) for spare in range(1, 16)]
    assert WRONG not in endings
    assert (endings[0], endings[-1]) == (SHORT, FOUND)
