"""What the modules say of a real vLLM, run by Ansible beside it: loading, well, hung in three ways, orphaned, dead.

Whether that is so is read from /proc and from the server's own pages.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.play import alive
from tests.real_engine.conftest import Ask
from tests.real_engine.server import ENGINE, START_LIMIT_S, WORKER, Server

pytestmark = pytest.mark.real_engine

# Its pages answer at once while its engine hangs.
PAGES = ("/health", "/v1/models", "/version", "/metrics")


def health(ask: Ask, server: Server, **arguments: Any) -> dict[str, Any]:
    """One look with little patience, enough for four tokens of a tiny model on a machine that has other work."""
    known = {"url": server.url, "engine": "vllm", "log_path": str(server.log), "timeout": 10, "hung_after": 8}
    found = ask("inference_health_info", **{**known, **arguments})
    assert not found["failed"], found
    assert not found["changed"]
    return found


def verdict(found: dict[str, Any]) -> tuple[str, str]:
    return found["verdict"], found["cause"]


def signals(found: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one["value"] for one in found["signals"]}


def by_role(found: dict[str, Any], role: str) -> set[int]:
    return {one["pid"] for one in found["processes"] if one["role"] == role}


def test_while_it_loads_it_is_starting_and_the_wait_ends_when_it_is_ready(
    ask: Ask, start: Callable[[], Server], last: list[Server]
) -> None:
    for one in last:
        one.end()
    server = start()
    loading = health(ask, server)
    assert loading["verdict"] == "starting", loading
    assert server.status("/health") is None, "it was ready too early for this test"
    assert by_role(loading, "parent") == {server.parent}
    waited = ask(
        "inference_start_wait", url=server.url, engine="vllm", log_path=str(server.log), interval=2, limit=START_LIMIT_S
    )
    assert (waited["failed"], waited["end"], waited["health_status"]) == (False, "ready", 200), waited
    assert (waited["shards_loaded"], waited["shards_total"]) == (1, 1)
    assert server.status("/health") == 200
    shown = [line for line in waited["terminal"].splitlines() if line.startswith("here: ")]
    assert len(shown) > 2, waited["terminal"]
    print(*shown, sep="\n")
    server.wait_until_ready()
    last[:] = [server]


@pytest.mark.parametrize("named", ["vllm", "auto"])
def test_one_that_generates_is_healthy(ask: Ask, server: Server, named: str) -> None:
    found = health(ask, server, engine=named)
    assert verdict(found) == ("healthy", "generates"), found
    assert (found["engine"], found["served_models"]) == ("vllm", ["tiny"])
    assert (found["version"], found["speculation"]["enabled"]) == ("0.32.0", True)
    assert by_role(found, "parent") == {server.parent}
    assert by_role(found, "worker") == {server.pid(ENGINE), server.pid(WORKER)}
    assert found["seconds"] < 3


@pytest.mark.parametrize("title", [ENGINE, WORKER])
def test_one_whose_engine_or_worker_is_stopped_is_hung_and_well_again_when_it_goes_on(
    ask: Ask, server: Server, title: str
) -> None:
    with server.stopped(title):
        assert [server.status(page) for page in PAGES] == [200] * len(PAGES)
        found = health(ask, server)
        assert not server.generates(timeout=3)
        again = health(ask, server)
    assert verdict(found) == ("hung", "generation_timeout"), found
    assert (signals(found)["health"], signals(found)["counters"]) == (200, "still")
    assert verdict(again) == ("hung", "generation_timeout")
    assert again["seconds"] < 6, "it was asked again, although it was known to hang"
    assert server.generates()
    assert verdict(health(ask, server)) == ("healthy", "generates")


def test_one_whose_api_server_was_killed_is_orphaned_and_both_survivors_are_named(ask: Ask, server: Server) -> None:
    survivors = {server.pid(ENGINE), server.pid(WORKER)}
    server.kill(server.parent)
    found = health(ask, server)
    assert verdict(found) == ("orphaned", "parent_gone"), found
    assert by_role(found, "orphan") == survivors
    assert all(map(alive, survivors))
    assert server.status("/health") is None


def test_one_whose_engine_was_killed_is_dead(ask: Ask, server: Server) -> None:
    engine, worker = server.pid(ENGINE), server.pid(WORKER)
    os.kill(engine, signal.SIGKILL)
    server.wait_until_gone(server.parent, engine, worker)
    found = health(ask, server)
    assert verdict(found) == ("dead", "no_process"), found
    assert found["processes"] == []
