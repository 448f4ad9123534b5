# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the attributes of the modules mean. Each module says for itself how far it supports them."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode, and then says what it would do without doing it.
  diff_mode:
    description: Says what has changed, or would change, when run with C(--diff).
  idempotent:
    description: A second run with the same options changes nothing, unless the machine has changed meanwhile.
  platform:
    description: Where the module can run.
    support: full
    platforms: linux
"""

    FACTS = r"""
options: {}
attributes:
  facts:
    description: Returns C(ansible_facts), which become facts of the host that the task is for.
"""
