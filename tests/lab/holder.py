"""A process that holds cards and does nothing else: a neighbour's training job, or a monitor that only watches.

`run.py hold STATE '{"title": ..., "devices": DIR, "cards": [indices], "mib": N or null}'`
"""

from __future__ import annotations

import json
import os
import signal

from tests.lab import claims
from tests.lab.cards import CARDS, CONTROL_NODE
from tests.lab.titles import set_title


def main(state: str, arguments: list[str]) -> int:
    """Go to the background, leave the caller's session, then hold until killed.

    Returns in the caller's process only.
    """
    plan = json.loads(arguments[0])
    if os.fork():
        return 0
    os.setsid()
    if os.fork():
        os._exit(0)
    _let_go_of_the_terminal()
    set_title(plan["title"])
    cards = [CARDS[index] for index in plan["cards"]]
    if plan["mib"] is None:  # it watches: NVML opens every card, and no nvidia-uvm
        held: list[object] = [claims.open_nodes(plan["devices"], [CONTROL_NODE, *(card.node_name for card in cards)])]
    else:
        held = []
        for card in cards:
            claim = claims.HeldClaim(state, plan["devices"], card)
            claim.set_mib(plan["mib"])
            held.append(claim)
    while held:
        signal.pause()
    return 0


def _let_go_of_the_terminal() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
