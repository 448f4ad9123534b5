"""A process that holds something and does nothing else: a neighbour's training job, a monitor that only watches, a
stranger who takes the server's port.

`run.py hold STATE '{"title": ..., "devices": DIR, "cards": [indices], "mib": N or null, "port": N or null,
"mapped": [names in /dev/shm], "named": [the same, not kept open]}'`; `{pid}` in a name is the process's own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time

from tests.lab import claims, segments
from tests.lab.background import to_the_background
from tests.lab.cards import CARDS, CONTROL_NODE
from tests.lab.titles import set_title

_SEGMENT_BYTES = 16384


def main(state: str, arguments: list[str]) -> int:
    """Go to the background, leave the caller's session, then hold until killed.

    Returns in the caller's process only.
    """
    plan = json.loads(arguments[0])
    if not to_the_background():
        return 0
    set_title(plan["title"])
    held: list[object] = []
    for name in (*plan["mapped"], *plan["named"]):
        segments.make(name.replace("{pid}", str(os.getpid())), _SEGMENT_BYTES, keep=name in plan["mapped"])
    cards = [CARDS[index] for index in plan["cards"]]
    if plan["mib"] is not None:
        for card in cards:
            claim = claims.HeldClaim(state, plan["devices"], card)
            claim.set_mib(plan["mib"])
            held.append(claim)
    elif cards:  # it watches: NVML opens every card, and no nvidia-uvm
        held.append(claims.open_nodes(plan["devices"], [CONTROL_NODE, *(card.node_name for card in cards)]))
    if plan["port"] is not None:
        held.append(_take(plan["port"]))
    while True:
        signal.pause()


def _take(port: int) -> socket.socket:
    """Listen on a port of 127.0.0.1 as soon as whoever has it lets go."""
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            time.sleep(0.02)
