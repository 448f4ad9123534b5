# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values that cannot be meant."""

from __future__ import annotations

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._limits import require_seconds, require_vmid


@pytest.mark.parametrize("vmid", [None, 100, 129, 999999999])
def test_a_number_that_a_container_can_have(vmid: int) -> None:
    require_vmid(vmid)


@pytest.mark.parametrize("vmid", [-1, 0, 1, 99, 1000000000])
def test_a_number_that_no_container_can_have_is_refused(vmid: int) -> None:
    with pytest.raises(InputError, match=f"vmid is {vmid}") as caught:
        require_vmid(vmid)
    assert caught.value.reason == "bad_input"


@pytest.mark.parametrize("seconds", [0, 0.5, 86400])
def test_a_wait_with_an_end(seconds: float) -> None:
    require_seconds({"a": seconds, "b": seconds}, "a", "b")


@pytest.mark.parametrize("seconds", [-1, -0.1, float("inf"), float("-inf"), float("nan"), 86401, 1e300])
def test_a_wait_without_end_or_into_the_past_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="kill_timeout is ") as caught:
        require_seconds({"term_timeout": 1, "kill_timeout": seconds}, "term_timeout", "kill_timeout")
    assert caught.value.reason == "bad_input"
