# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Among whose processes a server is looked for: those of the container that is meant, or of the one we are in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._engines import OPENAI, SGLANG, VLLM, Engine
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._health import UNIT, Signal
from ansible_collections.gpuops.inference.plugins.module_utils._http import parse_url
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._server_witness import (
    Sources,
    Witness,
    first_look,
    is_this_machine,
    log_signals,
    process_signals,
    second_look,
    unit_signals,
)
from tests.unit.doubles import FakeClock, FakeKernel
from tests.unit.fake_proc import FakeProc, inside
from tests.unit.recorded import Answer, ScriptedRunner, completed

SOURCES = Sources(processes=True, vmid=129, log_path=None, unit=None, pct_path="pct")
HERE, THERE = "http://127.0.0.1:30000", "http://192.0.2.129:30000"
RUNNING = completed("status: running\npid: 4100\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """SGLang in container 129, vLLM in its neighbour, and SGLang on the node itself."""
    proc = FakeProc(tmp_path)
    proc.container(129, 4100)
    proc.add(4242, "sglang::schedul", "sglang::scheduler_TP1\0", cgroup=inside(129))
    proc.add(5242, "VLLM::Worker", "VLLM::Worker_TP1\0", cgroup=inside(130))
    proc.add(6242, "sglang::schedul", "sglang::scheduler_TP1\0")
    for pid in (4242, 5242, 6242):
        (proc.root / str(pid) / "statm").write_text("9000 8192 0 0 0 0 0\n")
    return proc


def machine(proc: FakeProc, **script: Answer) -> Machine:
    runner = ScriptedRunner({word: [answer] for word, answer in script.items()})
    return Machine(runner, proc.procfs, FakeClock(boot=10**6), FakeKernel(proc))


def looked(
    proc: FakeProc,
    *,
    sources: Sources = SOURCES,
    engine: Optional[Engine] = None,
    url: str = THERE,
    pct: Answer = RUNNING,
) -> Witness:
    return first_look(sources, engine, parse_url(url), machine(proc, status=pct))


def pids(witness: Witness) -> Optional[list[int]]:
    return [one.pid for one in witness.processes.all] if witness.processes is not None else None


def network(proc: FakeProc, **namespaces: str) -> None:
    """``init`` and ``self``: whose network namespace is which."""
    for who, namespace in namespaces.items():
        (proc.root / {"init": "4100"}.get(who, who) / "ns" / "net").symlink_to(namespace)


def test_only_the_container_that_is_meant_is_looked_into(proc: FakeProc) -> None:
    witness = looked(proc)
    assert (witness.engine, pids(witness)) == (SGLANG, [4242])
    assert witness.memory == 8192 * os.sysconf("SC_PAGE_SIZE") // (16 << 20)


def test_a_stopped_container_holds_no_server(proc: FakeProc) -> None:
    witness = looked(proc, pct=completed("status: stopped\n"))
    assert (witness.engine, pids(witness), witness.identity) == (None, [], "")


def test_without_a_container_those_who_are_where_we_are_are_looked_at(proc: FakeProc) -> None:
    proc.add(os.getpid())
    assert pids(looked(proc, sources=SOURCES._replace(vmid=None))) == [6242]
    proc.remove(os.getpid())
    proc.add(os.getpid(), cgroup=inside(129))
    assert pids(looked(proc, sources=SOURCES._replace(vmid=None))) == [4242]


def test_of_several_engines_none_is_guessed(proc: FakeProc) -> None:
    proc.add(4300, "VLLM::Worker", "VLLM::Worker_TP1\0", cgroup=inside(129))
    assert looked(proc) == Witness()
    assert pids(looked(proc, engine=VLLM)) == [4300]


def test_where_the_processes_are_elsewhere_or_have_no_name_nothing_is_known_of_them(proc: FakeProc) -> None:
    assert pids(looked(proc, sources=SOURCES._replace(processes=False))) is None
    assert looked(proc, engine=OPENAI) == Witness(OPENAI)
    assert list(process_signals(Witness(OPENAI), SOURCES, machine(proc))) == []


@pytest.mark.parametrize(
    ("below", "unit", "seen"),
    [
        ("/system.slice/sglang-b.service", "sglang-a.service", 0),
        ("/system.slice/sglang-b.service", "sglang-a", 0),
        ("/system.slice/sglang-a.service", "sglang-a.service", 1),
        ("/system.slice/sglang-a.service", "sglang-a", 1),
        ("/system.slice/docker-0123456789ab.scope", "sglang-a.service", 1),
        ("/system.slice/sglang-b.service", None, 1),
        ("", "sglang-a.service", 1),
    ],
    ids=["a neighbour", "a neighbour, short", "ours", "ours, short", "a scope", "no unit named", "no unit seen"],
)
def test_a_server_on_another_port_counts_unless_another_service_runs_it(
    proc: FakeProc, below: str, unit: Optional[str], seen: int
) -> None:
    proc.add(4300, "python3", "python3\0-m\0sglang.launch_server\0--port\0" + "30001\0", cgroup=inside(129, below))
    witness = looked(proc, engine=SGLANG)
    found = {one.name: one.value for one in process_signals(witness, SOURCES._replace(unit=unit), machine(proc))}
    assert (found["parents"], found["elsewhere"]) == (0, seen)


def test_this_node_s_port_is_not_asked_for_a_container_with_its_own_network(proc: FakeProc) -> None:
    network(proc, init="net:[129]", self="net:[1]")
    with pytest.raises(InputError, match=r"127\.0\.0\.1:30000, which is this node and not container 129"):
        looked(proc, url=HERE)
    assert pids(looked(proc, url=THERE)) == [4242], "its own address is no mistake"


def test_this_node_s_port_is_asked_for_a_container_that_shares_its_network(proc: FakeProc) -> None:
    network(proc, init="net:[1]", self="net:[1]")
    assert pids(looked(proc, url=HERE)) == [4242]


def test_a_network_that_cannot_be_seen_is_not_called_another(proc: FakeProc) -> None:
    network(proc, self="net:[1]")
    assert pids(looked(proc, url=HERE)) == [4242]


@pytest.mark.parametrize(
    ("url", "this"),
    [
        (HERE, True),
        ("http://127.1.2.3:1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        (THERE, False),
    ],
)
def test_which_address_is_this_machine(url: str, this: bool) -> None:
    assert is_this_machine(parse_url(url)) is this


def test_the_second_look_sees_what_has_become_of_memory_and_log(proc: FakeProc, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Loading safetensors checkpoint shards: 1/64\n")
    sources, edges = SOURCES._replace(log_path=str(log)), machine(proc, status=RUNNING)
    first = first_look(sources, SGLANG, parse_url(THERE), edges)
    log.write_text("Loading safetensors checkpoint shards: 2/64, and on\n")
    (proc.root / "4242" / "statm").write_text("9000 16384 0 0 0 0 0\n")
    second = second_look(first, sources, edges)
    assert first.memory is not None
    assert second.memory == 2 * first.memory
    assert list(log_signals(first, second, SGLANG)) == [Signal("log", "moves", 0.0), Signal("progress", "2/64")]
    (still,) = log_signals(second, second, None)
    assert still[:2] == ("log", "still")
    assert list(log_signals(first, second._replace(log=None), SGLANG)) == []


def test_a_unit_says_its_state_and_an_unknown_one_nothing(proc: FakeProc) -> None:
    sources = SOURCES._replace(unit="sglang.service")
    known = completed("LoadState=loaded\nActiveState=activating\nSubState=auto-restart\n")
    assert list(unit_signals(sources, machine(proc, show=known))) == [Signal(UNIT, "activating (auto-restart)")]
    assert list(unit_signals(sources, machine(proc, show=completed("LoadState=not-found\n")))) == []
    no_systemd = CommandError("systemctl was not found.", reason="not_installed")
    assert list(unit_signals(sources, machine(proc, show=no_systemd))) == []
    assert list(unit_signals(SOURCES, machine(proc))) == []
