"""Lets the real engine hold the lab's cards: Python reads this file by itself when its directory is on PYTHONPATH.

The engine's processes are spawned, so that none inherits what a wrapper around the server has open. Those that compute
are known by their command line; each opens the nodes of all cards and claims GPUOPS_CLAIM_MIB, as CUDA would.
"""

from __future__ import annotations

import os
import sys

from tests.lab import claims
from tests.lab.cards import CARDS

if "--multiprocessing-fork" in sys.orig_argv:
    HELD = [claims.HeldClaim(os.environ["GPUOPS_LAB_STATE"], os.environ["GPUOPS_LAB_DEVICES"], card) for card in CARDS]
    for one in HELD:
        one.set_mib(int(os.environ["GPUOPS_CLAIM_MIB"]))
