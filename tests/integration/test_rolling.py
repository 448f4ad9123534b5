"""Many hosts: never more down than allowed, a stop at the first that does not come back, and the operator's hooks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.play import ansible, run
from tests.integration.replicas import PLAYBOOK, Replicas, hooks

# A replica that is drained is no longer up: so the test sees how many are away at a time.
DRAIN = [{"name": "Take it out", "ansible.builtin.command": {"argv": ["rm", "{{ replica_file }}"]}}]
GIVE_BACK = [
    {
        "name": "Put it in",
        "ansible.builtin.copy": {"content": "in", "dest": "{{ replica_given_back }}", "mode": "0644"},
        "delegate_to": "localhost",
    }
]
FAILS = [{"name": "Ask the balancer", "ansible.builtin.fail": {"msg": "The balancer says no."}}]


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    made = Replicas(tmp_path, 5, up=True)
    with made.living():
        yield made


def restart(replicas: Replicas, **variables: Any) -> tuple[int, str]:
    extra = {"verified_restart_force": True, "verified_restart_start_retries": 3, **variables}
    return run(ansible("ansible-playbook", "-i", str(replicas.inventory), "-e", json.dumps(extra), str(PLAYBOOK)))


def outcomes(replicas: Replicas) -> dict[str, str]:
    return {name: result["outcome"] for name, result in sorted(replicas.results().items())}


def rungs(result: dict[str, Any]) -> list[str]:
    return [rung["name"] for rung in result["rungs"]]


@pytest.mark.parametrize("serial", ["0", -1, "some", [], [1, 0], None])
def test_a_serial_that_would_take_all_down_or_says_nothing_is_refused(replicas: Replicas, serial: object) -> None:
    rc, output = restart(replicas, restart_inference_serial=serial)
    assert rc != 0
    said = f"restart_inference_serial is {json.dumps(serial)}. Give a number of hosts from 1 on, a share such as 25%"
    assert said in " ".join(output.split())
    assert replicas.results() == {}
    assert replicas.up() == set(replicas.names)


def test_no_more_are_down_than_allowed_and_it_stops_at_the_first_that_does_not_come_back(
    replicas: Replicas, tmp_path: Path
) -> None:
    first, second, third, fourth, fifth = replicas.names
    replicas.broken = {third}
    own = hooks(tmp_path, {"before": DRAIN, "after": GIVE_BACK})
    rc, output = restart(replicas, restart_inference_serial=2, **own)
    assert rc != 0
    # The fourth shares a batch with the broken one, and is brought to its end. The fifth has not even been looked at.
    healthy = dict.fromkeys((first, second, fourth), "healthy")
    assert outcomes(replicas) == {**healthy, third: "start_failed"}, output
    assert replicas.up() == {*healthy, fifth}
    assert replicas.most_down == 2
    results = replicas.results()
    climbed = ["detect", "before", "stop", "verify", "start", "prove", "after"]
    assert all(rungs(results[name]) == climbed for name in healthy)
    # Only a server that was proven is given back.
    assert rungs(results[third])[-1] == "start"
    assert {path.name for path in replicas.given_back.iterdir()} == set(healthy)
    assert list((tmp_path / "leases").iterdir()) == []


def test_it_stops_at_a_host_that_is_lost_on_the_way(replicas: Replicas, tmp_path: Path) -> None:
    """Ansible itself goes on: it counts who has failed, and who cannot be reached any more has not."""
    first, second, third = replicas.names[:3]
    lose = {
        "name": "Lose it",
        "ansible.builtin.set_fact": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9},
        "when": f"inventory_hostname == '{first}'",
    }
    own = hooks(tmp_path, {"before": [*DRAIN, lose], "after": GIVE_BACK})
    only = f"{first}:{second}:{third}"
    rc, output = restart(replicas, restart_inference_serial=2, verified_restart_hosts=only, **own)
    assert rc != 0
    assert outcomes(replicas) == {second: "healthy"}, output
    assert replicas.up() == set(replicas.names) - {first}
    words = (
        f"{first} cannot be reached any more, so nobody knows whether the server there came back. {third} and whoever"
    )
    assert words in " ".join(output.split())


def test_one_at_a_time_unless_told_otherwise_and_nothing_is_touched_when_a_hook_or_another_run_stands_in_the_way(
    replicas: Replicas, tmp_path: Path
) -> None:
    first = replicas.names[0]

    def refused(said: list[str], climbed: list[str], **variables: Any) -> None:
        rc, output = restart(replicas, **variables)
        assert rc != 0
        # The first one failed, so nobody else's turn came.
        assert outcomes(replicas) == {first: "refused"}, output
        result = replicas.results()[first]
        assert (result["needs"], result["changed"], rungs(result)) == ("operator", False, climbed)
        for words in said:
            assert words in result["reason"]
        assert replicas.up() == set(replicas.names)

    said = ["Ask the balancer of verified_restart_before failed: The balancer says no."]
    refused(said, ["detect", "before"], **hooks(tmp_path, {"before": FAILS}))
    leases = tmp_path / "leases"
    assert list(leases.iterdir()) == []
    said = ["there is no file", "no-such.yml (verified_restart_before)"]
    refused(said, ["detect"], verified_restart_before="no-such.yml")

    lease = {"owner": "alice@elsewhere", "job": "4711", "run": "other", "since": 1e9, "expires": 4e9}
    (leases / f"{first}.json").write_text(json.dumps(lease), encoding="utf-8")
    said = ["alice@elsewhere (job 4711)", "until 2096-10-02T07:06:40Z", 'verified_restart_break_lease to "4711"']
    refused(said, ["detect"], verified_restart_break_lease="4712")
    assert json.loads((leases / f"{first}.json").read_text(encoding="utf-8")) == lease

    own = hooks(tmp_path, {"before": DRAIN, "after": FAILS})
    rc, output = restart(replicas, verified_restart_break_lease="4711", **own)
    assert rc != 0
    assert f"The lease {first} of alice@elsewhere (job 4711) was ended" in " ".join(output.split())
    result = replicas.results()[first]
    assert (outcomes(replicas), rungs(result)[-1]) == ({first: "unhealthy"}, "after"), output
    assert "The server was restarted on free cards and proven." in result["reason"]
    assert (replicas.up(), replicas.most_down) == (set(replicas.names), 1)
    assert list(leases.iterdir()) == []
