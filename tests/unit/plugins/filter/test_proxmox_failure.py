# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role says when a module of community.proxmox failed."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.filter.proxmox_failure import FilterModule


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"msg": "401 Unauthorized: no such token"}, "does not accept the token"),
        ({"module_stderr": "requests.exceptions.ConnectTimeout: timed out", "msg": ""}, "gives no answer"),
        # ansible-core 2.19 hands on neither words nor traceback of a module that fell over what it was told.
        ({"failed": False, "failed_when_result": False}, "is not the Proxmox API"),
        ({"msg": "list indices must be integers or slices, not str"}, "is not the Proxmox API"),
    ],
)
def test_a_failed_result_is_one_sentence(result: dict[str, Any], words: str) -> None:
    said = FilterModule().filters()["proxmox_failure"](result, host="pve1.example.com")
    assert words in said
    assert "pve1.example.com" in said
