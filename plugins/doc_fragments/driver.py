# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of every module that asks the GPU driver."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  backend:
    description:
      - How the driver is asked.
      - With V(auto) it is NVML where the Python library C(nvidia-ml-py) is importable on the machine and works, and
        C(nvidia-smi) everywhere else.
    type: str
    choices: [auto, nvml, nvidia_smi]
    default: auto
  nvidia_smi_path:
    description:
      - Name or path of C(nvidia-smi). A name is looked for in E(PATH) and in the usual system directories.
    type: path
    default: nvidia-smi
  timeout:
    description:
      - Seconds that all questions to the driver may take together, more than V(0). The limit also holds for a driver
        that hangs and cannot be killed. After it nothing more is asked.
    type: float
    default: 20
"""
