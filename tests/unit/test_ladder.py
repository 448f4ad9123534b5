"""The gates of the ladder, as truth tables: what each lets through, read from the role's own files.

What they decide with is made up here. That it comes to them as it should is what the lab's plays show.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

TASKS = Path(__file__).parents[2] / "roles" / "verified_restart" / "tasks"

ENVIRONMENT = jinja2.Environment(undefined=jinja2.StrictUndefined)
# Ansible's own, as far as the gates use it.
ENVIRONMENT.filters["bool"] = lambda value: value in (True, 1, "true", "True", "yes", "1")


def tasks(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every task, those of blocks too."""
    for entry in entries:
        yield entry
        for part in ("block", "rescue", "always"):
            yield from tasks(entry.get(part, []))


def expression(file: str, name: str, keyword: str) -> str:
    """What one keyword of one task says; a list is one condition, as for Ansible."""
    [task] = [one for one in tasks(yaml.safe_load((TASKS / file).read_text("utf-8"))) if one.get("name") == name]
    said = task[keyword]
    text = " and ".join(f"({one})" for one in said) if isinstance(said, list) else str(said)
    return text.removeprefix("{{").removesuffix("}}")


def value(file: str, name: str, keyword: str, **variables: Any) -> Any:
    """What it comes to. The variables are the role's, without their prefix."""
    known = {
        name if name.startswith("ansible_") else f"verified_restart_{name}": one for name, one in variables.items()
    }
    return ENVIRONMENT.compile_expression(expression(file, name, keyword), undefined_to_none=False)(**known)


VERDICT = {"outcome": "refused", "needs": "reboot", "reason": "A process of the old server cannot be ended."}


@pytest.mark.parametrize(
    ("verdict", "idle", "check"), list(itertools.product(({}, VERDICT), (False, True), (False, True)))
)
def test_no_start_but_on_idle_cards_with_nothing_in_the_way(verdict: dict[str, Any], idle: bool, check: bool) -> None:
    """Check mode has ended nobody, so its cards are busy yet. A verdict stops it, too."""
    stops = value(
        *("restart.yml", "Go no further unless every card is free", "when"),
        _verdict=verdict,
        _idle=idle,
        ansible_check_mode=check,
    )
    assert stops is not (verdict == {} and (idle or check))


@pytest.mark.parametrize(("looks", "again"), [(1, 0), (3, 2), ("3", 2), (0, 0)])
def test_a_server_is_looked_at_as_often_as_is_said(looks: Any, again: int) -> None:
    name = "Look whether the server lives and works"
    assert value("rungs/detect.yml", name, "retries", hung_after=looks) == again


@pytest.mark.parametrize(
    ("verdict", "last"),
    [
        *(("healthy", True), ("dead", True), ("orphaned", True)),
        *(("hung", False), ("busy", False), ("starting", False), ("unknown", False)),
    ],
)
def test_one_that_may_recover_is_looked_at_again(verdict: str, last: bool) -> None:
    name = "Look whether the server lives and works"
    assert value("rungs/detect.yml", name, "until", _server={"verdict": verdict}) is last


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize(
    ("server", "generates", "needed"),
    [
        *(({"verdict": one, "cause": ""}, False, True) for one in ("hung", "dead", "orphaned")),
        *(({"verdict": one, "cause": ""}, False, False) for one in ("busy", "starting", "unknown")),
        ({"verdict": "healthy", "cause": "generates"}, True, False),
        ({"verdict": "healthy", "cause": "generates"}, False, True),
        ({"verdict": "unknown", "cause": "generation_empty"}, False, True),
        ({"verdict": "unknown", "cause": "unauthorized"}, False, False),
    ],
)
def test_who_is_restarted(server: dict[str, Any], generates: bool, needed: bool, forced: bool) -> None:
    [task] = [
        one
        for one in tasks(yaml.safe_load((TASKS / "rungs" / "detect.yml").read_text("utf-8")))
        if one["name"] == "Note whether a restart is due"
    ]
    text = task["ansible.builtin.set_fact"]["verified_restart__needed"].strip().removeprefix("{{").removesuffix("}}")
    known = {"verified_restart_force": forced, "verified_restart__server": server}
    is_due = ENVIRONMENT.compile_expression(text)(**known, verified_restart__generates=generates)
    assert bool(is_due) is (needed or forced)


@pytest.mark.parametrize(
    ("canary", "refused"),
    [
        ({"verdict": "ok"}, False),
        ({"verdict": "slow"}, True),
        ({"verdict": None, "msg": "prompts is empty"}, True),
        ({"msg": "MODULE FAILURE"}, True),
        ({}, True),
    ],
)
def test_only_a_canary_that_says_ok_proves_anything(canary: dict[str, Any], refused: bool) -> None:
    name = "Refuse a server that does not do what is expected of it"
    assert value("canary.yml", name, "when", _canary=canary) is refused


@pytest.mark.parametrize(
    ("leased", "check", "renews"),
    [({"run": "mine"}, False, True), ({"run": "mine"}, True, False), ({}, False, False)],
)
def test_a_lease_that_was_taken_is_renewed_on_each_rung(leased: dict[str, str], check: bool, renews: bool) -> None:
    name = "Stay the only one at work"
    assert value("rung.yml", name, "when", _leased=leased, ansible_check_mode=check) is renews


@pytest.mark.parametrize(
    ("located", "node", "stops"),
    [
        ({}, "kimi", True),
        ({}, "my-pve", True),
        ({"node": "pve1", "host": ""}, "kimi", True),
        ({"node": "pve1", "host": ""}, "my-pve", False),
        ({"node": "pve1", "host": "my-pve"}, "my-pve", False),
    ],
)
def test_a_node_is_needed_that_proxmox_or_the_operator_names(located: dict[str, str], node: str, stops: bool) -> None:
    """Where Proxmox does not show the container, the operator's word for its node does not help."""
    condition = ENVIRONMENT.compile_expression(expression("locate.yml", "Go no further without the node", "when"))
    known = {"verified_restart__located": located, "verified_restart_node": node}
    stopped = condition(**known, inventory_hostname="kimi", groups={"all": ["kimi", "my-pve"]})
    assert stopped is stops


@pytest.mark.parametrize(
    ("done", "says"),
    [
        ([], "Nothing was touched."),
        (["stop"], "The server was not started, so it may be DOWN."),
        (["stop", "start"], "The server was started, and it is not proven that it answers."),
    ],
)
def test_a_run_that_loses_its_lease_says_how_it_leaves_the_server(done: list[str], says: str) -> None:
    [task] = [
        one
        for one in tasks(yaml.safe_load((TASKS / "lease.yml").read_text("utf-8")))
        if one["name"] == "Go no further without the lease"
    ]
    text = task["vars"]["verified_restart__refusal"]["reason"]
    known = {"verified_restart__lease": {"msg": "It was broken."}, "verified_restart__done": done}
    assert says in ENVIRONMENT.from_string(text).render(known)


@pytest.mark.parametrize("state", ["held", "renewed", "released"])
@pytest.mark.parametrize(
    "lease", [{"lease": {"run": "mine"}}, {"lease": {}}, {"msg": "leased", "reason": "leased"}, {}]
)
def test_without_a_lease_nothing_goes_on_but_giving_it_back(lease: dict[str, Any], state: str) -> None:
    stops = value(
        *("lease.yml", "Go no further without the lease", "when"), _lease=lease, _lease_state=state, _rungs=[]
    )
    assert stops is ("lease" not in lease and state != "released")


@pytest.mark.parametrize(
    ("outcome", "fails"),
    [
        *((one, False) for one in (None, "healthy", "not_needed")),
        *((one, True) for one in ("gpus_not_free", "refused", "start_failed", "unhealthy", "a word of tomorrow")),
    ],
)
def test_the_play_fails_but_for_a_good_end(outcome: str | None, fails: bool) -> None:
    good = yaml.safe_load((TASKS.parent / "vars" / "main.yml").read_text("utf-8"))["verified_restart__good_outcomes"]
    stale = {"outcome": "healthy" if fails else "refused"}
    known = {"_result": {"outcome": outcome}, "result": stale, "_good_outcomes": good}
    assert value("main.yml", "Fail with what is to be done", "when", **known) is fails


@pytest.mark.parametrize(
    ("lost", "allowed", "stops"),
    [(0, None, False), (1, None, True), (1, 10, False), (2, 10, True), (2, "20", False)],
)
def test_a_play_stops_when_more_hosts_are_lost_than_may_fail(lost: int, allowed: Any, stops: bool) -> None:
    """Lost is who cannot be reached any more. Who has failed has a result, and Ansible counts him."""
    [play] = yaml.safe_load((TASKS.parents[2] / "playbooks" / "restart_inference.yml").read_text("utf-8"))
    [task] = [one for one in play["pre_tasks"] if one["name"] == "Go no further after hosts that were lost on the way"]
    known: dict[str, Any] = {
        "restart_inference__lost": [f"kimi{number}" for number in range(lost)],
        "ansible_play_hosts_all": [f"kimi{number}" for number in range(10)],
    }
    if allowed is not None:
        known["restart_inference_max_fail_percentage"] = allowed
    assert ENVIRONMENT.compile_expression(task["when"])(**known) is stops
