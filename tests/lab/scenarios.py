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
    rank1_deed: str | None = None
    """What rank 1 does to be hard to end, once it has loaded (hostile.py): 'stop', 'lose_leader' or 'storm'."""
    door: str = "silent"
    """The port: 'silent' (takes connections and answers none), 'closed', or 'answers' (all that asks no rank)."""


@dataclasses.dataclass(frozen=True)
class Bystander:
    """A process beside the server, started by hand. `mib` None: it only watches, if it has cards at all."""

    vmid: int
    title: str
    cards: tuple[int, ...]
    mib: int | None
    takes_port: bool = False
    """It listens on the server's port as soon as the server has let go of it."""
    mapped: tuple[str, ...] = ()
    """Segments in /dev/shm that it made and has mapped."""
    named: tuple[str, ...] = ()
    """Segments that it made and has neither open nor mapped; `{pid}` is its own."""
    late: bool = False
    """It comes when the server has loaded, and so has made nothing of what the server leaves behind."""


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One state of the world."""

    name: str
    summary: str
    fault: Fault | None = None
    """None: the server is well; otherwise it is hung."""
    started: bool = True
    kill_mode: str = "process"
    parent_gone: bool = False
    """systemd has killed the hung server's first process, and no other."""
    supervised: bool = False
    """A supervisor started by hand runs the server, and not the unit."""
    bystander: Bystander | None = None
    init_holds: tuple[int, ...] = ()
    """Cards that the first process of container 129 has a bare context on, until the container is restarted."""
    api_key: str | None = None
    """What the server asks for. It stands on its command line, as operators do it."""
    algorithm: str | None = "EAGLE3"
    """What the server is told to speculate with."""
    manner: dict[str, Any] = dataclasses.field(default_factory=dict)
    """How the server serves while it calls itself well (state.server_manner)."""
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
            mib += BARE_CONTEXT_MIB * (card.index in self.init_holds)
            expected.append(mib)
        return expected


BARE_CONTEXT_MIB = 520
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
            "wrong-algorithm",
            "the server answers, and was started with EAGLE in place of EAGLE3: no draft is ever accepted",
            algorithm="EAGLE",
        ),
        Scenario("no-speculation", "the server answers, without speculative decoding", algorithm=None),
        Scenario("hung-engine", "hung, behind a door that goes on answering", fault=Fault(door="answers")),
        Scenario("stalled", "hung; every shard is loaded, and its port was never opened", fault=Fault(door="closed")),
        Scenario(
            "orphaned",
            "its first process was killed, and its workers hold every card",
            fault=Fault(),
            parent_gone=True,
        ),
        Scenario("half-speed", "the server answers, at half its speed", manner={"speed": 0.5}),
        Scenario("degenerate", "the server answers, with one character again and again", manner={"says": "!"}),
        Scenario(
            "slow-release",
            "hung; the memory of card 1 goes 4 s later than its holder",
            fault=Fault(rank1_linger_s=4),
        ),
        Scenario("leak", "hung; the memory of card 1 never goes", fault=Fault(rank1_leak=True)),
        Scenario(
            "init-holds",
            "hung; the first process of container 129 holds card 1, and only a restart of the container helps",
            fault=Fault(),
            init_holds=(1,),
        ),
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
            "supervisor",
            "hung; a supervisor outside of systemd starts it again, and nobody told the role",
            fault=Fault(),
            supervised=True,
            role_variables={
                "verified_restart_service": "",
                "verified_restart_start_command": ["systemctl", "start", "sglang-kimi.service"],
            },
        ),
        Scenario(
            "fork-storm",
            "hung; rank 1 has children that have children, and whoever ends one gets another",
            fault=Fault(rank1_deed="storm"),
        ),
        Scenario(
            "zombie-leader",
            "hung; the first thread of rank 1 has exited, and another one keeps card 1",
            fault=Fault(rank1_deed="lose_leader"),
        ),
        Scenario("stopped", "hung, because rank 1 was stopped, as by Ctrl-Z", fault=Fault(rank1_deed="stop")),
        Scenario(
            "d-state",
            "hung; rank 1 is in uninterruptible sleep (needs root)",
            fault=Fault(rank1_detached=True, rank1_frozen=True),
        ),
        Scenario(
            "neighbour",
            "hung; a process in container 130 holds card 1",
            # The neighbour has the card: rank 1 got its context, then waits for memory.
            fault=Fault(rank1_mib=BARE_CONTEXT_MIB),
            bystander=Bystander(130, "python3 finetune.py --model llama", (1,), CARDS[1].server_mib),
        ),
        Scenario(
            "monitor",
            "hung; a monitor in container 129 holds every card's node",
            fault=Fault(),
            bystander=Bystander(129, "nvtop", _ALL_CARDS, None),
        ),
        Scenario(
            "port-taken",
            "hung; a stranger in container 129 takes the server's port as soon as it is free",
            fault=Fault(),
            bystander=Bystander(129, "python3 -m http.server", (), None, takes_port=True, late=True),
        ),
        Scenario(
            "stale-shm",
            "as the incident; the dead server's segments in /dev/shm are to be removed, a living process has others",
            fault=Fault(rank1_title="pt_main_thread", rank1_detached=True),
            bystander=Bystander(
                129,
                "python3 -m sglang_router.launch_router",
                (),
                None,
                mapped=("psm_11fe11fe",),
                named=("multi_tokenizer_args_{pid}",),
                late=True,
            ),
            role_variables={"verified_restart_clean_shm": True},
        ),
        Scenario("dead", "the unit is stopped, every card is idle", started=False),
        *(
            Scenario(
                "load-" + trouble, "stopped; when it is started, %s" % what, started=False, manner={"start": trouble}
            )
            for trouble, what in (
                ("oom", "a card has too little memory at shard 12"),
                ("sigbus", "a rank dies of SIGBUS at shard 12, as with a full /dev/shm"),
                ("weights", "the weights are not there"),
                ("port", "the port is in use after it has loaded"),
                ("stall", "it stands still at shard 64 of 64, and its log is silent"),
            )
        ),
    )
}
