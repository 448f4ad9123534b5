# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The documentation says what the code does, and both keep the contract of the design."""

from __future__ import annotations

import importlib
import re
from typing import Any, Optional

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.doc_fragments import attributes, driver
from ansible_collections.gpuops.inference.plugins.modules import (
    gpu_memory_facts,
    inference_canary,
    inference_evidence,
    inference_health_info,
    inference_lease,
    inference_leftovers,
    inference_start_wait,
    nvidia_fuser_reclaim,
    nvidia_gpu_reset,
    pct_kill_processes,
    proxmox_container_restart,
)

MODULES: dict[str, Any] = {
    "gpu_memory_facts": gpu_memory_facts,
    "pct_kill_processes": pct_kill_processes,
    "nvidia_fuser_reclaim": nvidia_fuser_reclaim,
    "nvidia_gpu_reset": nvidia_gpu_reset,
    "inference_leftovers": inference_leftovers,
    "inference_canary": inference_canary,
    "inference_evidence": inference_evidence,
    "inference_health_info": inference_health_info,
    "inference_start_wait": inference_start_wait,
    "inference_lease": inference_lease,
    "proxmox_container_restart": proxmox_container_restart,
}

# Those that change nothing.
READ_ONLY = (
    "gpu_memory_facts",
    "inference_canary",
    "inference_evidence",
    "inference_health_info",
    "inference_start_wait",
)

# Those that do it again each time.
REPEATING = ("proxmox_container_restart",)

FRAGMENTS: dict[str, str] = {
    "gpuops.inference.attributes": attributes.ModuleDocFragment.DOCUMENTATION,
    "gpuops.inference.attributes.facts": attributes.ModuleDocFragment.FACTS,
    "gpuops.inference.driver": driver.ModuleDocFragment.DOCUMENTATION,
}

# The tables of options in the design: name -> (default, required).
NONE: tuple[Any, bool] = (None, False)
DRIVER: dict[str, tuple[Any, bool]] = {
    "backend": ("auto", False),
    "timeout": (20, False),
    "nvidia_smi_path": ("nvidia-smi", False),
}
CONTRACT: dict[str, dict[str, tuple[Any, bool]]] = {
    "gpu_memory_facts": {
        "gpus": NONE,
        "idle_memory_mib": (100, False),
        "expected_gpus": NONE,
        "processes": (True, False),
        **DRIVER,
    },
    "pct_kill_processes": {
        "vmid": (None, True),
        "patterns": (None, True),
        "exclude": ([], False),
        "term_timeout": (10, False),
        "kill_timeout": (10, False),
        "via": ("auto", False),
        "fail_on_survivors": (True, False),
        "pct_path": ("pct", False),
    },
    "nvidia_fuser_reclaim": {
        "gpus": NONE,
        "devices": NONE,
        "vmid": NONE,
        "protect": NONE,
        "spare_monitors": (True, False),
        "term_timeout": (5, False),
        "kill_timeout": (10, False),
        "fail_on_survivors": (True, False),
        "pct_path": ("pct", False),
        **DRIVER,
    },
    "inference_leftovers": {
        "vmid": NONE,
        "ports": ([], False),
        "port_timeout": (0, False),
        "shm_min_age": (30, False),
        "clean_shm": (False, False),
        "pct_path": ("pct", False),
    },
    "inference_canary": {
        "url": (None, True),
        "api_key": NONE,
        "expect_tokens_per_second": NONE,
        "expect_accept_length": NONE,
        "tolerance": (0.1, False),
        "requests": (4, False),
        "concurrency": (1, False),
        "soak": (0, False),
    },
    "inference_evidence": {
        "vmid": NONE,
        "patterns": (None, True),
        "stacks": (10, False),
        "kernel_lines": (50, False),
        "pct_path": ("pct", False),
    },
    "inference_health_info": {
        "url": (None, True),
        "engine": ("auto", False),
        "api_key": NONE,
        "timeout": (30, False),
        "log_path": NONE,
        "unit": NONE,
        "vmid": NONE,
        "samples": (3, False),
        "interval": (1, False),
    },
    "inference_start_wait": {
        "url": (None, True),
        "engine": ("sglang", False),
        "api_key": NONE,
        "unit": NONE,
        "log_path": NONE,
        "log_since": NONE,
        "interval": (5, False),
        "stall_after": (600, False),
        "limit": (3600, False),
    },
    "inference_lease": {
        "name": (None, True),
        "state": ("held", False),
        "run": (None, True),
        "seconds": (600, False),
        "break_job": NONE,
        "directory": ("/run/gpuops.inference", False),
    },
    "proxmox_container_restart": {
        "vmid": (None, True),
        "shutdown_timeout": (90, False),
        "start_timeout": (120, False),
        "pct_path": ("pct", False),
        "api_host": NONE,
        "api_token_secret": NONE,
        "validate_certs": (True, False),
        "ca_path": NONE,
    },
    "nvidia_gpu_reset": {
        "gpus": (None, True),
        "idle_memory_mib": (100, False),
        "device_directory": ("/dev", False),
        **DRIVER,
    },
}

PROCESS = {"pid", "container_pid", "vmid", "name", "command", "state", "uid", "start_time", "unit", "parent"}
HOLDER = PROCESS | {"gpus", "evidence"}
SURVIVOR_REASONS = ("uninterruptible", "zombie", "permission", "timeout")
CARD = {"index", "uuid", "pci_bus_id", "minor", "name", "memory_total_mib", "memory_used_mib", "memory_free_mib"}

# What a failed result has beside the documented, from Ansible itself.
RETURNED: dict[str, set[str]] = {
    "gpu_memory_facts": {"ansible_facts"},
    "pct_kill_processes": {
        "vmid",
        "container_status",
        "via",
        "matched",
        "terminated",
        "killed",
        "survivors",
        "respawned",
    },
    "nvidia_fuser_reclaim": {"holders", "spared", "terminated", "killed", "survivors", "respawned"},
    "inference_canary": {"verdict", "requests", "tokens_per_second", "accept_length", "accept_rate", "sane"},
    "inference_evidence": {"processes", "kernel_messages", "stacks"},
    "inference_health_info": {"verdict", "reason", "signals", "served_models", "version", "speculation"},
    "inference_start_wait": {"state", "end", "shards_loaded", "shards_total", "memory_used_mib", "log_tail", "cause"},
    "inference_leftovers": {"listeners", "segments", "shm", "stale", "removed"},
    "inference_lease": {"lease", "ended", "holder"},
    "proxmox_container_restart": {"vmid", "forced", "ha_managed", "before", "after", "lock"},
    "nvidia_gpu_reset": {"gpus", "reset", "before", "after", "holders"},
}


class _Seen(Exception):
    """Ends a module's main as soon as it has said what its options are."""


def module_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the module gives to AnsibleModule."""
    seen: dict[str, Any] = {}

    def note(**arguments: Any) -> None:
        seen.update(arguments)
        raise _Seen

    monkeypatch.setattr(MODULES[name], "AnsibleModule", note)
    with patch_module_args({}), pytest.raises(_Seen):
        MODULES[name].main()
    return seen


def documentation(name: str) -> dict[str, Any]:
    """DOCUMENTATION with its fragments, as ansible-doc puts them together."""
    documented: dict[str, Any] = yaml.safe_load(MODULES[name].DOCUMENTATION)
    for fragment in documented["extends_documentation_fragment"]:
        shared = yaml.safe_load(FRAGMENTS[fragment])
        documented["options"] = {**shared["options"], **documented.get("options", {})}
        for attribute, fields in shared.get("attributes", {}).items():
            own = documented["attributes"].get(attribute, {})
            documented["attributes"][attribute] = {**fields, **own}
    return documented


def returned(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MODULES[name].RETURN)
    return found


def text_of(field: dict[str, Any]) -> str:
    description = field["description"]
    return description if isinstance(description, str) else " ".join(description)


@pytest.mark.parametrize("name", MODULES)
def test_every_option_is_documented_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = module_arguments(name, monkeypatch)["argument_spec"]
    options = documentation(name)["options"]
    assert set(options) == set(spec)
    for option, documented in options.items():
        for key in ("type", "elements", "default", "choices", "required"):
            assert documented.get(key) == spec[option].get(key), f"{option}: {key}"
        assert text_of(documented).strip()


@pytest.mark.parametrize("name", MODULES)
def test_every_secret_is_no_log(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = module_arguments(name, monkeypatch)["argument_spec"]
    for option in (one for one in spec if re.search(r"key$|secret|password|token$", one)):
        assert spec[option].get("no_log") is True, option


@pytest.mark.parametrize("name", MODULES)
def test_every_option_of_the_contract_is_there_with_its_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = module_arguments(name, monkeypatch)["argument_spec"]
    for option, (default, required) in CONTRACT[name].items():
        assert spec[option].get("default") == default, option
        assert spec[option].get("required", False) is required, option


def test_choices_are_those_of_the_contract() -> None:
    for name in ("gpu_memory_facts", "nvidia_fuser_reclaim", "nvidia_gpu_reset"):
        assert documentation(name)["options"]["backend"]["choices"] == ["auto", "nvml", "nvidia_smi"]
    assert documentation("pct_kill_processes")["options"]["via"]["choices"] == ["auto", "host", "pct"]


@pytest.mark.parametrize("name", MODULES)
def test_check_mode_is_supported_and_the_attributes_say_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module_arguments(name, monkeypatch)["supports_check_mode"] is True
    documented = documentation(name)
    assert "gpuops.inference.attributes" in documented["extends_documentation_fragment"]
    supported = {attribute: fields["support"] for attribute, fields in documented["attributes"].items()}
    diff = "N/A" if name in READ_ONLY else "full"
    idempotent = "none" if name in REPEATING else "full"
    assert (supported["check_mode"], supported["diff_mode"], supported["idempotent"]) == ("full", diff, idempotent)
    assert all(fields["description"] for fields in documented["attributes"].values())
    assert supported["platform"] == "full"


@pytest.mark.parametrize("name", MODULES)
def test_every_returned_field_of_the_contract_is_documented(name: str) -> None:
    documented = returned(name)
    assert RETURNED[name] | {"reason"} <= set(documented)
    for field, entry in documented.items():
        assert text_of(entry).strip(), field
        assert entry["returned"], field
        assert entry["type"], field


@pytest.mark.parametrize(
    ("name", "field", "keys"), [("pct_kill_processes", "matched", PROCESS), ("nvidia_fuser_reclaim", "holders", HOLDER)]
)
def test_a_process_is_documented_field_by_field(name: str, field: str, keys: set[str]) -> None:
    contains = returned(name)[field]["contains"]
    assert set(contains) == keys
    assert all(text_of(entry) and entry["type"] and "sample" in entry for entry in contains.values())


@pytest.mark.parametrize("name", ["pct_kill_processes", "nvidia_fuser_reclaim"])
def test_a_survivor_s_reason_and_place_are_documented(name: str) -> None:
    text = text_of(returned(name)["survivors"])
    assert "C(reason)" in text
    assert "C(wchan)" in text
    assert all(f"V({reason})" in text for reason in SURVIVOR_REASONS)


def test_cards_are_documented_field_by_field() -> None:
    facts = returned("gpu_memory_facts")["ansible_facts"]["contains"]["gpu_memory"]["contains"]
    assert {"backend", "driver_version", "count", "gpus", "idle", "busy", "unknown", "all_idle"} <= set(facts)
    card = facts["gpus"]["contains"]
    assert CARD | {"state", "error", "processes"} <= set(card)
    assert set(card["processes"]["contains"]) >= PROCESS


def test_the_reasons_and_kinds_of_evidence_that_the_code_has_are_documented() -> None:
    utils = "ansible_collections.gpuops.inference.plugins.module_utils"
    selection = importlib.import_module(f"{utils}._selection")
    handles = importlib.import_module(f"{utils}._device_handles")
    codes = (
        "INIT",
        "CONTAINER_INIT",
        "KERNEL_THREAD",
        "OURSELVES",
        "PROTECTED",
        "OTHER_CONTAINER",
        "OUTSIDE_NAMESPACE",
    )
    documented = returned("nvidia_fuser_reclaim")
    spared = text_of(documented["spared"])
    for code in (*codes, "MONITOR", "COMPUTES_ELSEWHERE"):
        assert f"V({getattr(selection, code)})" in spared
    evidence = text_of(documented["holders"]["contains"]["evidence"])
    for code in ("DRIVER", "FD", "THREAD_FD", "MAPPING"):
        assert f"V({getattr(handles, code)})" in evidence


def test_the_names_of_segments_and_the_reasons_to_keep_one_are_documented() -> None:
    memory = importlib.import_module("ansible_collections.gpuops.inference.plugins.module_utils._shared_memory")
    codes = ("NOT_A_FILE", "FOREIGN_OWNER", "IN_USE", "OWNER_ALIVE", "UNREADABLE", "TOO_YOUNG", "MAKER_MAY_LIVE")
    text = text_of(returned("inference_leftovers")["segments"]["contains"]["reason"])
    assert all(f"V({getattr(memory, code)})" in text for code in (*codes, "NOT_REMOVED"))
    default = documentation("inference_leftovers")["options"]["shm_patterns"]["default"]
    assert default == list(memory.DEFAULT_NAMES)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_use_only_options_that_there_are(name: str) -> None:
    options = documentation(name)["options"]
    tasks = yaml.safe_load(MODULES[name].EXAMPLES)
    used = [task[f"gpuops.inference.{name}"] for task in tasks if f"gpuops.inference.{name}" in task]
    assert used
    assert all(task.get("name") for task in tasks)
    for arguments in used:
        assert set(arguments) <= set(options)


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_is_called_is_what_it_says(name: str) -> None:
    documented = documentation(name)
    assert documented["module"] == name
    assert not documented["short_description"].endswith(".")
    assert documented["author"]
    version: Optional[str] = documented["version_added"]
    assert version
