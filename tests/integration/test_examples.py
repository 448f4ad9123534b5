"""The EXAMPLES in each module's documentation run as they stand, on a lab whose cards are all idle."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import yaml

from tests.integration.conftest import MakeLab
from tests.integration.play import ansible, run
from tests.lab.lab import Lab

MODULES = (
    "gpu_memory_facts",
    "pct_kill_processes",
    "nvidia_fuser_reclaim",
    "nvidia_gpu_reset",
    "inference_leftovers",
    "inference_health_info",
    "inference_evidence",
    "inference_lease",
    "proxmox_container_restart",
)


def examples(module: str) -> list[dict[str, Any]]:
    """The tasks under EXAMPLES."""
    name = f"ansible_collections.gpuops.inference.plugins.modules.{module}"
    tasks: list[dict[str, Any]] = yaml.safe_load(importlib.import_module(name).EXAMPLES)
    return tasks


def inventory(lab: Lab) -> dict[str, Any]:
    """The lab's node under the name that the examples call it by."""
    node = yaml.safe_load(lab.inventory.read_text(encoding="utf-8"))["nodes"]["hosts"]["node"]
    return {"all": {"hosts": {"pve1.example.com": node, "kimi": node}}}


def test_the_examples_run(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab("dead")
    devices = str(lab.state / "dev")
    tasks = [task for module in MODULES for task in examples(module)]
    assert len(tasks) >= 6
    play = {
        "hosts": "kimi",
        "gather_facts": False,
        "tasks": json.loads(json.dumps(tasks).replace("/dev/nvidia", f"{devices}/nvidia")),
        "vars": {"kimi_api_key": "sk-made-up-0001"},
        # What differs from real nodes: where the device nodes are, and that nobody is at the addresses.
        "module_defaults": {
            "gpuops.inference.nvidia_fuser_reclaim": {"device_directory": devices},
            "gpuops.inference.nvidia_gpu_reset": {"device_directory": devices},
            "gpuops.inference.inference_health_info": {"timeout": 1},
            "gpuops.inference.inference_lease": {"directory": str(lab.state / "leases")},
        },
    }
    (tmp_path / "examples.yml").write_text(json.dumps([play]), encoding="utf-8")
    (tmp_path / "inventory.yml").write_text(json.dumps(inventory(lab)), encoding="utf-8")
    rc, output = run(
        ansible("ansible-playbook", "-i", str(tmp_path / "inventory.yml"), str(tmp_path / "examples.yml")),
        PATH=f"{lab.bin}:{os.environ['PATH']}",
    )
    assert rc == 0, output
    assert "failed=0" in output
