"""The modules through the fixtures of pytest-ansible, whose end of life is announced: nothing else needs the plugin.

The name of this file keeps it out of every other run of pytest. `scripts/test lab` runs it with

    pytest -p pytest-ansible --ansible-unit-inject-only tests/integration/with_pytest_ansible.py

where the second option keeps the plugin from making links in collections/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import standing_lab
from tests.integration.test_incident import used
from tests.lab.lab import Lab

Module = Callable[..., Any]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with standing_lab("healthy") as healthy:
        yield healthy


@pytest.fixture
def run(lab: Lab, ansible_adhoc: Any) -> Module:
    """Run a module of this collection on the lab's node, which is this machine."""

    def module(name: str, **options: Any) -> Any:
        node = ansible_adhoc(inventory=str(lab.inventory), host_pattern="node").node
        return getattr(node, f"gpuops.inference.{name}")(**options)["node"]

    return module


def test_the_cards_are_read_as_the_lab_knows_them(lab: Lab, run: Module) -> None:
    result = run("gpu_memory_facts", nvidia_smi_path=str(lab.bin / "nvidia-smi"))
    assert result.is_ok
    facts = result["ansible_facts"]["gpu_memory"]
    assert [card["memory_used_mib"] for card in facts["gpus"]] == used(lab)


def test_what_is_not_there_is_not_killed(lab: Lab, run: Module) -> None:
    result = run("pct_kill_processes", vmid=129, patterns=["^no-such-server$"], pct_path=str(lab.bin / "pct"))
    assert result.is_ok
    assert result["matched"] == []
    assert lab.status()["server"]["reachable"]


def test_bad_input_is_one_clear_error(lab: Lab, run: Module) -> None:
    result = run("pct_kill_processes", vmid=129, patterns=["("], pct_path=str(lab.bin / "pct"))
    assert result.is_failed
    assert "invalid regular expression" in result["msg"]
