"""`nvidia-smi --gpu-reset` and `-pm`: what they do to a card, and the real one's words (driver 550 to 580)."""

from __future__ import annotations

from tests.lab import claims
from tests.lab import state as lab_state
from tests.lab.cards import Card

_OK, _BAD_ARGUMENT, _REFUSED = 0, 2, 255

_IN_USE = (
    "%s currently being used by one or more other processes (e.g. Fabric Manager, CUDA application, graphics "
    "application such as an X server, or a monitoring application such as another instance of nvidia-smi). "
    "Please first kill all processes using this device and all compute applications running in the system.\n"
)


def reset(state: str, cards: list[Card], fault: str) -> tuple[int, str]:
    """Exit code and text. Refused while a card is open, be it by a process or by persistence mode; else nothing is left
    on it, unless the fault is `reset_useless`. With `reset_refused` it is always refused.
    """
    off = lab_state.without_persistence(state)
    busy = [
        card for card in cards if fault == "reset_refused" or card.index not in off or claims.has_node_open(state, card)
    ]
    if busy:
        lines = "".join("  GPU %s: In use by another client\n" % card.pci_bus_id for card in busy)
        count = "1 device is" if len(busy) == 1 else "%d devices are" % len(busy)
        return _REFUSED, "The following GPUs could not be reset:\n%s\n%s" % (lines, _IN_USE % count)
    if fault != "reset_useless":
        for card in cards:
            claims.forget(state, card)
    return _OK, "".join("GPU %s was successfully reset.\n" % card.pci_bus_id for card in cards) + "All done.\n"


def persist(state: str, cards: list[Card], word: str) -> tuple[int, str]:
    """Switch persistence mode of cards, `1` or `0`. Exit code and text."""
    if word not in ("0", "1"):
        return _BAD_ARGUMENT, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"
    off = lab_state.without_persistence(state)
    name = "Enabled" if word == "1" else "Disabled"
    lines = []
    for card in cards:
        known = "persistence mode is already %s for GPU" if (card.index in off) == (word == "0") else ""
        lines.append("%s %s.\n" % (known % name if known else name + " persistence mode for GPU", card.pci_bus_id))
        (off.discard if word == "1" else off.add)(card.index)
    lab_state.write_json(lab_state.persistence(state), {"off": sorted(off)})
    return _OK, "".join(lines) + "All done.\n"
