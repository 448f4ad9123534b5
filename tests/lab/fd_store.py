"""Has the systemd of a container hold a card: a unit opens it and hands the descriptors to its service manager.

systemd keeps them in the unit's store (FileDescriptorStoreMax=) when the process has ended, as `RemainAfterExit=` has
it. So the first process of the container holds the card, and nobody else does. A unit that is not enabled is not there
after a boot, and neither are they.
"""

from __future__ import annotations

import array
import json
import os
import socket

from tests.lab import claims
from tests.lab.cards import CARDS

UNIT = "card-keeper.service"


def main(state: str, arguments: list[str]) -> int:
    """Open, hand over, end."""
    plan = json.loads(arguments[0])
    for index in plan["cards"]:
        claim = claims.HeldClaim(state, plan["devices"], CARDS[index])
        claim.set_mib(plan["mib"])
        _hand_over(claim.descriptors)
    return 0


def _hand_over(descriptors: list[int]) -> None:
    """sd_notify(3), FDSTORE=1; and a barrier, so that we do not end before they were taken."""
    address = os.environ["NOTIFY_SOCKET"].replace("@", "\0", 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect(address)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        notify.sendmsg([b"FDSTORE=1\nFDNAME=card"], rights)
        taken, ours = os.pipe()
        notify.sendmsg([b"BARRIER=1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ours]))])
        os.close(ours)
        os.read(taken, 1)
