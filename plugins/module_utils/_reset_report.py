# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia_gpu_reset returns: the cards before and after."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, memory_state


def reset_result(
    before: Sequence[Gpu],
    sent: Sequence[Gpu] = (),
    after: Optional[Sequence[Gpu]] = None,
    persistent: Sequence[Gpu] = (),
    warnings: Sequence[str] = (),
    *,
    idle_memory_mib: int,
) -> dict[str, Any]:
    """The module's result. ``after`` None: nobody has looked again."""
    return {
        # A warning tells of a persistence mode that is off now, and was on.
        "changed": bool(sent or warnings),
        "gpus": [_handle(gpu) for gpu in before],
        "reset": [_handle(gpu) for gpu in sent],
        "before": [_card(gpu, idle_memory_mib) for gpu in before],
        "after": None if after is None else [_card(gpu, idle_memory_mib) for gpu in after],
        "persistence_mode_switched": [_handle(gpu) for gpu in persistent],
        "warnings": list(warnings),
    }


def card_diff(result: dict[str, Any]) -> dict[str, str]:
    """What ``--diff`` shows, a card a line. Without a second look, the cards that would be reset are marked so."""
    before, after = result["before"], result["after"]
    if after is None:
        after = [{**card, "state": "reset"} if card["index"] in result["reset"] else card for card in before]
    return {"before": _lines(before), "after": _lines(after)}


def _lines(cards: Sequence[dict[str, Any]]) -> str:
    named = [(card["pci_bus_id"] if card["index"] is None else card["index"], card) for card in cards]
    return "".join(f"GPU {name}: {card['state']}, {card['memory_used_mib']} MiB\n" for name, card in named)


def _card(gpu: Gpu, idle_memory_mib: int) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "memory_used_mib": gpu.memory_used_mib,
        "state": memory_state(gpu, idle_memory_mib),
        "error": None if gpu.error is None else {"reason": gpu.error.reason, "text": gpu.error.text},
    }


def _handle(gpu: Gpu) -> Any:
    """What the option ``gpus`` takes for this card."""
    return gpu.pci_bus_id if gpu.index is None else gpu.index
