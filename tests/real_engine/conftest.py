"""The engine, installed; a server of it that is well; and modules run by Ansible on the machine that it runs on."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.play import module_on
from tests.real_engine.server import Server
from tests.tooling import real_engine
from tests.tooling.real_engine import RealEngine

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def engine() -> RealEngine:
    """Where vLLM and the tiny model lie."""
    try:
        return real_engine.prepare()
    except real_engine.Unavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def start(engine: RealEngine) -> Iterator[Callable[[], Server]]:
    """Start a server, without a wait. All are ended with the session."""
    servers: list[Server] = []

    def begin() -> Server:
        servers.append(Server(engine, Path(tempfile.mkdtemp(prefix="gpuops-vllm-"))))
        return servers[-1]

    yield begin
    for one in servers:
        one.end()
        shutil.rmtree(one.home, ignore_errors=True)


@pytest.fixture(scope="session")
def last() -> list[Server]:
    """The server that the last test left, if it is well: a start is dear."""
    return []


@pytest.fixture
def server(start: Callable[[], Server], last: list[Server]) -> Server:
    """A server that generates."""
    if last and last[0].generates():
        return last[0]
    for one in last:
        one.end()
    last[:] = [start()]
    last[0].wait_until_ready()
    return last[0]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Run a module of the collection by Ansible on this machine. Its result, and under ``terminal`` what was shown."""
    inventory = tmp_path / "inventory.json"
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory.write_text(json.dumps({"all": {"hosts": {"here": variables}}}), encoding="utf-8")

    def run(name: str, **arguments: Any) -> dict[str, Any]:
        result, terminal = module_on(inventory, "here", name, arguments)
        return {**result, "terminal": terminal}

    return run
