# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the notes of one look lie for the next: never in a place that another account can write to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _look_notes
from ansible_collections.gpuops.inference.plugins.module_utils._look_notes import directory, own_directory


@pytest.mark.parametrize(
    ("user", "runtime", "expected"),
    [
        # What a login left in root's environment leads nowhere else.
        (0, "/run/user/1000", "/run/gpuops"),
        (1000, "/run/user/1000", "/run/user/1000/gpuops"),
        (1000, None, "/tmp/gpuops-1000"),
    ],
)
def test_each_account_has_a_place_of_its_own(
    user: int, runtime: Optional[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp")
    monkeypatch.setattr(_look_notes, "own_directory", str)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if runtime is not None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert directory() == expected


def test_a_place_that_is_not_ours_alone_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    assert own_directory(str(path)) == str(path)
    assert own_directory(str(path)) == str(path), "the second time it is there"
    path.chmod(0o770)
    assert own_directory(str(path)) is None
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert own_directory(str(link)) is None
    assert own_directory(str(tmp_path / "none" / "notes")) is None
