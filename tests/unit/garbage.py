# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text as no tool should print it, made of pieces that real ones do print."""

from __future__ import annotations

from hypothesis import strategies as st

_LINES = (
    "0, GPU-00000000, 00000000:31:00.0, 97887, 3, 97264, 580.95.05, card",
    "1, GPU-00000001, 00000000:32:00.0, 97887, 3, 97264, 580.95.05, card",
    "1, [GPU is lost]",
    "Unable to determine the device handle for GPU3: 0000:34:00.0: GPU is lost.  Reboot the system.",
    "GPU 1: x (UUID: GPU-1)",
    "No devices were found",
    "GPU 00000000:0F:00.0",
    "    Minor Number    : 99999999999999999999",
)

NVIDIA_SMI_TEXT = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.one_of(st.sampled_from(_LINES), st.from_regex(r"[0-9\[\]GPU\-, NA/.]{0,40}", fullmatch=True)), max_size=6
    ).map("\n".join),
)
