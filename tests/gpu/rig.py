"""The card that is probed, the questions to nvidia-smi, and the record of what came back."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from tests.gpu.children import Child

_CARDS = "index,uuid,pci.bus_id,memory.total,memory.used,memory.free,driver_version,name"
_TABLE = "--format=csv,noheader,nounits"
CARDS = (f"--query-gpu={_CARDS}", _TABLE)
PROCESSES = ("--query-compute-apps=gpu_uuid,pid,used_memory", _TABLE)

_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SERIAL = re.compile(r"(?im)^(\s*(?:serial number|board part number|gpu part number|chassis serial number)\s*: ).*$")


class NoCardError(RuntimeError):
    """There is no card to probe: why."""


@dataclass(frozen=True)
class Card:
    """One card. ``used_mib``: what it showed when nobody used it."""

    index: int
    uuid: str
    pci_bus_id: str
    total_mib: int
    used_mib: int


@dataclass
class Rig:
    """Where things are, and the card. ``lab``: the state directory of a lab that stands in for driver and CUDA.

    ``repeats``: how often each thing is done whose time is taken.
    """

    nvidia_smi: str
    devices: str
    output: Path
    lab: Optional[str] = None
    repeats: int = 10
    chosen: Optional[Card] = None
    uuids: dict[str, str] = field(default_factory=dict)

    @property
    def card(self) -> Card:
        """The card. Raises NoCardError."""
        if self.chosen is None:
            raise NoCardError("no card")
        return self.chosen

    def cards(self) -> list[Card]:
        """All cards, by nvidia-smi. Raises NoCardError with what it said instead."""
        done, _seconds = self._run(CARDS)
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.split("\n") if line.count(",") >= 7]
        if done.returncode or not rows:
            said = done.stdout.strip()[:300] or "nothing"
            raise NoCardError(f"nvidia-smi ended with {done.returncode} and said: {said}")
        # The kernel's spelling of a bus id has a domain of four digits.
        return [Card(int(row[0]), row[1], row[2].lower()[-12:], int(row[3]), int(row[4])) for row in rows]

    def ask(self, arguments: Sequence[str], case: str) -> dict[str, Any]:
        """One question to nvidia-smi. The answer becomes a fixture, named ``case``."""
        done, seconds = self._run(arguments)
        said = {"rc": f"{done.returncode}\n", "stdout": self.scrub(done.stdout), "stderr": self.scrub(done.stderr)}
        directory = self.output / "fixtures" / "nvidia_smi" / case
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in said.items():
            (directory / name).write_text(text, encoding="utf-8")
        return {"arguments": list(arguments), **said, "rc": done.returncode, "seconds": seconds, "fixture": case}

    def computing_pids(self) -> list[int]:
        """Who computes on the card, by nvidia-smi."""
        done, _seconds = self._run([*PROCESSES, "-i", str(self.card.index)])
        cells = (line.split(",") for line in done.stdout.split("\n"))
        return [int(one[1]) for one in cells if len(one) >= 3 and one[1].strip().isdecimal()]

    def hold(self, mib: int, *, busy: bool = False, variables: Optional[dict[str, str]] = None) -> Child:
        """A process with a context and ``mib`` on the card."""
        if self.lab is not None:
            return Child("lab", state=self.lab, devices=self.devices, index=self.card.index, mib=mib)
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return Child("cuda", bus_id=self.card.pci_bus_id, mib=mib, busy=busy, variables={**order, **(variables or {})})

    def watch(self) -> Child:
        """A process that only watches, through NVML."""
        return Child("lab-watch", devices=self.devices) if self.lab is not None else Child("nvml")

    def used_mib(self, watcher: Child) -> float:
        """Memory in use on the card now: by the watcher where it can tell, else by nvidia-smi, which is slower."""
        if self.lab is None:
            return float(watcher.ask(str(self.card.index))["used_mib"])
        return float(next(one.used_mib for one in self.cards() if one.index == self.card.index))

    def scrub(self, text: str) -> str:
        """Without what tells one machine from another: UUIDs and serial numbers. The same UUID stays the same."""

        def stand_in(found: re.Match[str]) -> str:
            number = len(self.uuids)
            return self.uuids.setdefault(found[0], f"{found[1]}-00000000-0000-0000-0000-{number:012d}")

        return _SERIAL.sub(r"\g<1>0", _UUID.sub(stand_in, text))

    def _run(self, arguments: Sequence[str]) -> tuple[subprocess.CompletedProcess[str], float]:
        """The answer, and the seconds that it took."""
        began = time.monotonic()
        try:
            done = subprocess.run(
                [self.nvidia_smi, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=30,
                check=False,
            )
        except OSError as exc:
            raise NoCardError(f"{self.nvidia_smi} cannot be run: {exc.strerror}") from exc
        return done, round(time.monotonic() - began, 3)
