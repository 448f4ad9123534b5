# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many inputs the property-based tests make up, and which marks there are.

Few inputs, always the same; or as many new ones as the variable HOSTILE_EXAMPLES says.
"""

from __future__ import annotations

import os

import pytest
from ansible.module_utils.common import warnings
from hypothesis import HealthCheck, settings

_WANTED = os.environ.get("HOSTILE_EXAMPLES")

settings.register_profile(
    "hostile",
    max_examples=int(_WANTED or 60),
    derandomize=_WANTED is None,
    # Nothing is kept beside the checkout, and a slow machine is no fault of the code.
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hostile")


def pytest_configure(config: pytest.Config) -> None:
    """`ansible-test units` brings settings of its own, in which the marks of pyproject.toml are unknown."""
    for mark in ("root", "alone", "lxc"):
        config.addinivalue_line("markers", f"{mark}: see pyproject.toml")


@pytest.fixture(autouse=True)
def no_warnings_of_others() -> None:
    """A process runs one module, and Ansible keeps its warnings for as long as it runs. Here many run in one."""
    warnings._global_warnings.clear()
