"""The scenarios, as data: what stands when `up` returns, and which variables the role gets for it."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.lab.cards import CARDS


@dataclasses.dataclass(frozen=True)
class Fault:
    """What the first start of the server gets wrong. Rank 1 is the worker on card 1."""

    rank1_title: str | None = None
    """Another title (command line and name) for rank 1."""
    rank1_detached: bool = False
    """Rank 1 sits in a session of its own, a child of the container's init."""
    rank1_mib: int | None = None
    """Rank 1 gets no further than this many MiB."""
    rank1_linger_s: float = 0
    """The memory of rank 1 stays so long after its end."""
    rank1_leak: bool = False
    """The memory of rank 1 stays for ever."""
    rank1_frozen: bool = False
    """Rank 1 ends in uninterruptible sleep, writing to a frozen file system."""


@dataclasses.dataclass(frozen=True)
class Bystander:
    """A process beside the server, started by hand. `mib` None: it only watches."""

    vmid: int
    title: str
    cards: tuple[int, ...]
    mib: int | None


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One state of the world."""

    name: str
    summary: str
    fault: Fault | None = None
    """None: the server is well; otherwise it is hung."""
    started: bool = True
    kill_mode: str = "process"
    bystander: Bystander | None = None
    api_key: str | None = None
    """What the server asks for. It stands on its command line, as operators do it."""
    role_variables: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def needs_root(self) -> bool:
        """Whether only root can build it."""
        return self.fault is not None and self.fault.rank1_frozen

    def expected_mib(self) -> list[int]:
        """What every card shows when the scenario stands."""
        expected = []
        for card in CARDS:
            mib = card.floor_mib
            if self.started:
                stuck = self.fault.rank1_mib if self.fault is not None and card.index == 1 else None
                mib += card.server_mib if stuck is None else stuck
            if self.bystander is not None and card.index in self.bystander.cards:
                mib += self.bystander.mib or 0
            expected.append(mib)
        return expected


_BARE_CONTEXT_MIB = 520
_ALL_CARDS = tuple(card.index for card in CARDS)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "incident",
            "hung; rank 1 left the tree under another name, and only the device it holds gives it away",
            fault=Fault(rank1_title="pt_main_thread", rank1_detached=True),
        ),
        Scenario(
            "renamed-worker",
            "hung; rank 1 left the tree, but is still called sglang::scheduler_TP1",
            fault=Fault(rank1_detached=True),
        ),
        Scenario("healthy", "the server answers"),
        Scenario("api-key", "the server answers whoever has its key", api_key="sk-of-the-lab-0129"),
        Scenario(
            "slow-release",
            "hung; the memory of card 1 goes 4 s later than its holder",
            fault=Fault(rank1_linger_s=4),
        ),
        Scenario("leak", "hung; the memory of card 1 never goes", fault=Fault(rank1_leak=True)),
        Scenario(
            "respawn",
            "hung; whoever kills it without stopping the unit gets it back",
            fault=Fault(),
            kill_mode="control-group",
        ),
        Scenario(
            "respawn-unknown-unit",
            "the same, and the role does not know the unit",
            fault=Fault(),
            kill_mode="control-group",
            role_variables={
                "verified_restart_service": "",
                "verified_restart_start_command": ["systemctl", "start", "sglang-kimi.service"],
            },
        ),
        Scenario(
            "d-state",
            "hung; rank 1 is in uninterruptible sleep (needs root)",
            fault=Fault(rank1_detached=True, rank1_frozen=True),
        ),
        Scenario(
            "neighbour",
            "hung; a process in container 130 holds card 1",
            # The neighbour has the card: rank 1 got its context, then waits for memory.
            fault=Fault(rank1_mib=_BARE_CONTEXT_MIB),
            bystander=Bystander(130, "python3 finetune.py --model llama", (1,), CARDS[1].server_mib),
        ),
        Scenario(
            "monitor",
            "hung; a monitor in container 129 holds every card's node",
            fault=Fault(),
            bystander=Bystander(129, "nvtop", _ALL_CARDS, None),
        ),
        Scenario("dead", "the unit is stopped, every card is idle", started=False),
    )
}
