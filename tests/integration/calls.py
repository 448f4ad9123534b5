"""One call, at least, of every module, against a lab: by each backend where it has several.

In check mode none of them changes anything. Without it, those of ``LOOKS`` do not either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.lab.cards import CARDS
from tests.lab.lab import Lab
from tests.tooling.environment import ROOT

LOOKS = frozenset(
    {"gpu_memory_facts", "inference_canary", "inference_evidence", "inference_health_info", "inference_start_wait"}
)
SERVER = "sglang"


@dataclass(frozen=True)
class Call:
    """``module`` with ``arguments``. ``backend`` tells calls of one module apart."""

    module: str
    arguments: dict[str, Any]
    backend: str = ""

    @property
    def name(self) -> str:
        return f"{self.module}-{self.backend}" if self.backend else self.module


def wait_for_commands(lab: Lab, wanted: set[str]) -> None:
    """Until each of these command lines is one of the lab's processes."""
    for _look in range(300):
        if wanted <= {one["command"] for one in lab.status()["processes"]}:
            return
    raise AssertionError(f"not all of {wanted} came")


def modules() -> list[str]:
    """The names of all modules of the collection."""
    return sorted(one.stem for one in (ROOT / "plugins" / "modules").glob("[a-z]*.py"))


def calls(lab: Lab) -> Iterator[Call]:
    """Each with what it needs of the lab, on the node. The server need not answer."""
    pct = {"pct_path": str(lab.bin / "pct")}
    smi = {"nvidia_smi_path": str(lab.bin / "nvidia-smi"), "backend": "nvidia_smi"}
    devices = {"device_directory": str(lab.state / "dev")}
    nobody_there = {"url": "http://127.0.0.1:9", "engine": SERVER}
    yield Call("gpu_memory_facts", smi)
    for via in ("host", "pct"):
        yield Call("pct_kill_processes", {"vmid": 129, "patterns": ["^sglang::"], "via": via, **pct}, via)
    yield Call("nvidia_fuser_reclaim", {"gpus": ["1"], "vmid": 129, **smi, **pct, **devices}, "by_card")
    nodes = [str(lab.state / "dev" / CARDS[1].node_name)]
    yield Call("nvidia_fuser_reclaim", {"devices": nodes, **smi, **pct}, "by_device")
    yield Call("nvidia_gpu_reset", {"gpus": ["1"], **smi, **devices})
    for vmid in (129, None):
        arguments = {"vmid": vmid, "ports": [30000], "clean_shm": True, "shm_min_age": 0, **pct}
        yield Call("inference_leftovers", arguments, "container" if vmid else "machine")
    yield Call("inference_evidence", {"vmid": 129, "patterns": ["^sglang::"], "stacks": 0, **pct})
    yield Call("inference_health_info", {**nobody_there, "vmid": 129, "timeout": 1, "samples": 1, **pct})
    yield Call("inference_canary", {**nobody_there, "timeout": 1})
    yield Call(
        "inference_start_wait", {**nobody_there, "limit": 1, "interval": 1, "nvidia_smi_path": smi["nvidia_smi_path"]}
    )
    yield Call("proxmox_container_restart", {"vmid": 129, "ha_manager_path": str(lab.bin / "ha-manager"), **pct})
    for state in ("held", "renewed", "released"):
        yield Call("inference_lease", {"name": "kimi", "run": "a", "state": state, "directory": str(lab.state)}, state)
