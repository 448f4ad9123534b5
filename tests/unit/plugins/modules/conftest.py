# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules believe that they run on a target, also beside tests of what runs on the control machine."""

from __future__ import annotations

import pytest
from ansible.module_utils import _internal


@pytest.fixture(autouse=True)
def on_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible takes a process that has imported its controller for one: there, warnings go to the terminal at once."""
    monkeypatch.setattr(_internal, "is_controller", False)
