"""Writes STATE/inventory.yml: the lab as Ansible sees it, with the variables of the role."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.lab import state as lab_state
from tests.lab.cards import CARDS
from tests.lab.container import VMID


def write(state: str, *, port: int, device_directory: str, role_variables: dict[str, Any]) -> str:
    """Write the file and return its path. YAML is a superset of JSON, so values are JSON."""
    bin_directory = os.path.join(state, "bin")
    common = {
        "ansible_connection": "local",
        "ansible_pipelining": True,
        "ansible_remote_tmp": os.path.join(state, "tmp"),
    }
    node = {
        **common,
        # Not quoted, also where it holds a blank: Ansible quotes it.
        "ansible_python_interpreter": "{{ ansible_playbook_python }}",
    }
    kimi = {
        **common,
        "ansible_python_interpreter": os.path.join(bin_directory, "container-python"),
        "verified_restart_vmid": VMID,
        "verified_restart_node": "node",
        "verified_restart_engine": "sglang",
        "verified_restart_service": lab_state.UNIT,
        "verified_restart_url": "http://127.0.0.1:%d" % port,
        "verified_restart_expected_gpus": len(CARDS),
        "verified_restart_nvidia_smi_path": os.path.join(bin_directory, "nvidia-smi"),
        "verified_restart_pct_path": os.path.join(bin_directory, "pct"),
        "verified_restart_ha_manager_path": os.path.join(bin_directory, "ha-manager"),
        "verified_restart_device_directory": device_directory,
        # A lease of a lab's own: labs of one machine have no server in common.
        "verified_restart_lease_directory": os.path.join(state, "leases"),
        **role_variables,
    }
    path = os.path.join(state, "inventory.yml")
    lines = ["# Written by tests/lab for the lab in this directory.", "inference:", "  hosts:", "    kimi:"]
    lines += ["      %s: %s" % (name, json.dumps(value)) for name, value in kimi.items()]
    lines += ["nodes:", "  hosts:", "    node:"]
    lines += ["      %s: %s" % (name, json.dumps(value)) for name, value in node.items()]
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    return path
