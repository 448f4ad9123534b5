# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who counts as one that could not be looked into. What is found is tested in test_device_handles.py."""

from __future__ import annotations

from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import (
    Handle,
    HandleReader,
    find_suspects,
)
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs


def test_that_the_machine_s_init_cannot_be_looked_into_does_not_count() -> None:
    class Closed(HandleReader):
        def handles(self, pid: int) -> list[Handle]:
            raise PermissionError

    reader = Closed(frozenset(), ProcFs())
    assert find_suspects([1], reader) == ([], 0)
    assert find_suspects([1, 2, 3], reader) == ([], 2)
