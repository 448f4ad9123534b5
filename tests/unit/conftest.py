# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many inputs the property-based tests make up: few, always the same; or as many new ones as HOSTILE_EXAMPLES."""

from __future__ import annotations

import os

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
