# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a failed read says of a file: that it is not there, that it never answers, or nothing at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._bounded_read import (
    StalledError,
    read_file,
    read_within,
)
from ansible_collections.gpuops.inference.plugins.module_utils._errors import MachineError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs, says_gone
from tests.unit.fake_proc import FakeProc


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert read_file(str(tmp_path / "gone")) is None
    assert read_within(str(tmp_path / "gone"), 5) is None


def test_who_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StalledError):
        read_within(str(tmp_path / "pipe"), 0.01)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_machine_that_is_short_of_something_does_not_make_anyone_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A process of which nothing can be read would else be taken for one that has ended."""
    proc = FakeProc(tmp_path)
    proc.add(4242)
    process = proc.procfs.process(4242)
    assert process is not None

    def short(*_arguments: object, **_options: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("builtins.open", short)
    reads = (
        lambda: read_within("/proc/1/cmdline", 5),
        lambda: proc.procfs.stat(4242),
        lambda: ProcFs().process(os.getpid()),
        lambda: proc.procfs.look_again(process),
    )
    for read in reads:
        with pytest.raises(MachineError, match=os.strerror(error)) as raised:
            read()
        assert raised.value.reason == "shortage"
    assert not says_gone(OSError(error, ""))
