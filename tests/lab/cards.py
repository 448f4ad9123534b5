"""What the eight cards are, and the nodes that stand for them.

Index, minor, UUID and PCI bus id are four unrelated numbers on purpose: whoever takes one for another is caught.
"""

from __future__ import annotations

import os
import stat

MODEL = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
MEMORY_TOTAL_MIB = 97887
MEMORY_RESERVED_MIB = 640
DRIVER_VERSION = "580.95.05"
CUDA_VERSION = "13.0"

# Virtual terminals stand in for NVIDIA's character devices: the kernel lets them be opened, nobody uses those from 40
# on.
_CHARACTER_MAJOR = 4
_CHARACTER_FIRST_MINOR = 40


class Card:
    """One card.

    `minor` names its node (`nvidia<minor>`); `floor_mib` is what it shows when idle; `server_mib` is what the loaded
    server claims on it, so that `nvidia-smi` then shows floor + server.
    """

    # Written out, here and in claims.py and procfs.py: importing typing takes longer than all that nvidia-smi does.
    def __init__(self, index: int, minor: int, pci_bus_id: str, uuid: str, floor_mib: int, server_mib: int) -> None:
        self.index, self.minor, self.pci_bus_id, self.uuid = index, minor, pci_bus_id, uuid
        self.floor_mib, self.server_mib = floor_mib, server_mib

    @property
    def node_name(self) -> str:
        """File name of the card's node."""
        return "nvidia%d" % self.minor


CARDS: tuple[Card, ...] = (
    Card(0, 3, "00000000:01:00.0", "GPU-5d1a7c1e-0f2b-4c33-9a61-70c1b5e0a410", 51, 76064),
    # 39 + 76,076 is the 76,115 MiB of the incident.
    Card(1, 6, "00000000:21:00.0", "GPU-c94f3a02-6d7e-4b1f-8e05-1b9d2c7f4e21", 39, 76076),
    Card(2, 0, "00000000:41:00.0", "GPU-17be90d4-83a5-4f6c-b2d8-e4a6035c9f32", 51, 76064),
    Card(3, 5, "00000000:61:00.0", "GPU-a2c65f8b-19d0-47e4-8c3a-5f07d1e86b43", 3, 76064),
    Card(4, 1, "00000000:81:00.0", "GPU-6e83d7f1-b450-4a92-9f17-08c2e5b3a754", 3, 76064),
    Card(5, 7, "00000000:A1:00.0", "GPU-f05b2e96-47c8-4d3a-a6e1-93d4f7082c65", 3, 76064),
    Card(6, 2, "00000000:C1:00.0", "GPU-38d9a4c7-e216-4058-bd7f-c61e09b5f876", 3, 76064),
    Card(7, 4, "00000000:E1:00.0", "GPU-8bf4160d-5ae3-49c7-917b-2e0fd8c3a987", 3, 76064),
)

CONTROL_NODE = "nvidiactl"
UVM_NODE = "nvidia-uvm"


def character_numbers() -> dict[str, tuple[int, int]]:
    """(major, minor) of the character device behind every node name, cards and helpers: one number each."""
    names = [*sorted(card.node_name for card in CARDS), CONTROL_NODE, UVM_NODE]
    return {name: (_CHARACTER_MAJOR, _CHARACTER_FIRST_MINOR + place) for place, name in enumerate(names)}


def make_nodes(directory: str, *, character: bool) -> None:
    """Create every node in `directory` (which exists): character devices with mknod (root only), or plain files."""
    for name, (major, minor) in character_numbers().items():
        path = os.path.join(directory, name)
        if character:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            os.chmod(path, 0o666)  # mknod's mode goes through the umask
        else:
            with open(path, "w", encoding="ascii"):
                pass
