"""Jobs as AWX runs them: project sync, job templates with surveys, credentials, ansible-runner; against the lab."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.awx import data, job
from tests.awx.job import Credential, Job
from tests.awx.project import Project, sync
from tests.integration.conftest import standing_lab
from tests.integration.test_incident import server_pids
from tests.lab.lab import Lab
from tests.lab.proxmox_api import LabGuests, ProxmoxApi, Token, certificate
from tests.lab.scenarios import SCENARIOS
from tests.tooling.environment import ROOT

KEY = SCENARIOS["api-key"].api_key
WRONG_KEY = "sk-made-up-0002-never-to-be-seen"
TOKEN = "made-up-0003-never-to-be-seen"
LISTS = data.everything()

# The lab loads within seconds, and its driver gives memory back at once.
QUICK = {
    "verified_restart_health_timeout": 21,
    "verified_restart_hung_after": 1,
    "verified_restart_start_delay": 1,
    "verified_restart_verify_retries": 2,
    "verified_restart_verify_delay": 1,
    "verified_restart_driver_timeout": 60,
    "reclaim_gpus_verify_retries": 2,
    "reclaim_gpus_verify_delay": 1,
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A server that wants a key, so that it must come from a credential."""
    with standing_lab("api-key") as standing:
        yield standing


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return sync(tmp_path_factory.mktemp("projects"))


class Controller:
    """Presses the buttons."""

    def __init__(self, lab: Lab, project: Project, directory: Path) -> None:
        self._project = project
        self._directory = directory
        self.number = 0
        self._groups = yaml.safe_load(lab.inventory.read_text(encoding="utf-8"))

    def press(
        self,
        name: str,
        *,
        key: str | None = KEY,
        token: dict[str, str] | None = None,
        variables: dict[str, Any] | None = None,
        **more: Any,
    ) -> Job:
        """Start the job template of this name, as the job ``number``.

        ``variables``: those of the host, on top of the lab's.
        """
        self.number += 1
        template = data.named(LISTS["controller_templates"], name)
        credentials = [Credential(_injectors("gpuops inference API key"), {"api_key": key})]
        if token is not None:
            credentials.append(Credential(_injectors("gpuops Proxmox API token"), token))
        hosts = self._script({**QUICK, **(variables or {})})
        return job.run(
            self._directory, self._project, template, number=self.number, hosts=hosts, credentials=credentials, **more
        )

    def _script(self, variables: dict[str, Any]) -> dict[str, Any]:
        """What AWX's inventory script prints: groups with names, and the variables of all hosts below _meta."""
        hosts = {name: values for group in self._groups.values() for name, values in group["hosts"].items()}
        hosts["kimi"] = {**hosts["kimi"], **variables}
        # As ansible-inventory shows a text of the Proxmox API, and as AWX keeps it and hands it on.
        hosts["kimi"]["verified_restart_node"] = {"__ansible_unsafe": hosts["kimi"]["verified_restart_node"]}
        # The key comes from the credential alone.
        hosts["kimi"].pop("verified_restart_api_key", None)
        groups = {name: {"hosts": list(group["hosts"])} for name, group in self._groups.items()}
        return {**groups, "_meta": {"hostvars": hosts}}


@pytest.fixture
def controller(lab: Lab, project: Project, tmp_path: Path) -> Controller:
    return Controller(lab, project, tmp_path)


def _injectors(name: str) -> dict[str, Any]:
    injectors: dict[str, Any] = data.named(LISTS["controller_credential_types"], name)["injectors"]
    return injectors


def result(ended: Job) -> dict[str, Any]:
    """The artifact that a restart leaves, the same under both names."""
    found: dict[str, Any] = ended.artifacts["verified_restart_result"]
    assert ended.artifacts["verified_restart_results"]["kimi"] == found
    return found


def no_secret(ended: Job) -> bool:
    assert KEY is not None
    return not any(ended.shows(secret) for secret in (KEY, WRONG_KEY, TOKEN))


def test_the_sync_installs_this_very_collection_and_what_it_depends_on(project: Project) -> None:
    installed = project.collections / "ansible_collections" / "gpuops" / "inference"
    assert "gpuops.inference:0.1.0 was installed successfully" in project.said
    for name in ("plugins/modules/gpu_memory_facts.py", "roles/verified_restart/tasks/main.yml"):
        assert (installed / name).read_bytes() == (ROOT / name).read_bytes()
    required = {line.split(":")[0] for line in (ROOT / "galaxy.yml").read_text().splitlines() if ': ">=' in line}
    assert {name.strip() for name in required} == {"community.general", "community.proxmox"}
    for name in ("community.general", "community.proxmox"):
        assert name in project.said


def test_inspecting_a_healthy_server_finds_nothing_and_touches_nothing(lab: Lab, controller: Controller) -> None:
    """Also as a later step of a workflow, in which an earlier one has found something."""
    before = server_pids(lab)
    stale = {"inspect_gpus_result": {"findings": ["The server is hung."]}, "inspect_gpus_results": {}}
    seen = controller.press("Inspect GPUs", answers={"inspect_gpus_fail_on_findings": "true"}, earlier=stale)
    assert (seen.status, seen.rc) == ("successful", 0), seen.printed
    found = seen.artifacts["inspect_gpus_result"]
    assert (found["server"]["verdict"], found["findings"], found["busy"]) == ("healthy", [], list(range(8)))
    assert found["cards"][1]["memory_used_mib"] == 76115
    assert seen.artifacts["inspect_gpus_results"]["kimi"] == found
    assert server_pids(lab) == before
    assert no_secret(seen)


def test_a_healthy_server_needs_no_restart(lab: Lab, controller: Controller) -> None:
    before = server_pids(lab)
    ended = controller.press("Restart inference")
    assert (ended.status, ended.rc) == ("successful", 0), ended.printed
    assert (result(ended)["outcome"], result(ended)["changed"]) == ("not_needed", False)
    assert server_pids(lab) == before
    assert no_secret(ended)


def test_a_dry_run_says_the_plan_and_touches_nothing(lab: Lab, controller: Controller) -> None:
    """Also with a credential whose key nobody has put in."""
    before = server_pids(lab)
    ended = controller.press("Restart inference (dry run)", key="", answers={"verified_restart_force": "true"})
    assert (ended.status, ended.rc) == ("successful", 0), ended.printed
    assert (result(ended)["outcome"], result(ended)["check_mode"]) == (None, True)
    assert "Would stop sglang-kimi.service" in result(ended)["reason"]
    assert server_pids(lab) == before
    assert no_secret(ended)


def test_a_wrong_key_is_refused_and_shown_nowhere(lab: Lab, controller: Controller) -> None:
    """Also as a later step of a workflow: an earlier restart that went well does not make this one a success."""
    before = server_pids(lab)
    stale = {"verified_restart_result": {"outcome": "healthy", "needs": None, "reason": "stale"}}
    ended = controller.press("Restart inference", key=WRONG_KEY, verbosity=3, earlier=stale)
    assert (ended.status, ended.rc) == ("failed", 2), ended.printed
    assert (result(ended)["outcome"], result(ended)["needs"]) == ("refused", "operator")
    assert ended.failure == f"refused: {result(ended)['reason']}"
    assert server_pids(lab) == before
    assert no_secret(ended)


def test_the_token_of_proxmox_reaches_the_role_and_shows_nowhere(lab: Lab, controller: Controller) -> None:
    """Nobody answers where it leads. That matters only to a role that needs the API, and it says where it has asked."""
    before = server_pids(lab)
    token = {"host": "127.0.0.1", "user": "ansible@pve", "token_id": "awx", "token_secret": TOKEN}
    named = controller.press("Restart inference", token=token, verbosity=3)
    assert (named.status, result(named)["outcome"]) == ("successful", "not_needed"), named.printed
    needs_it = {"verified_restart_allow_container_restart": "true"}
    ended = controller.press("Restart inference", token=token, verbosity=3, answers=needs_it)
    assert (ended.status, ended.rc) == ("failed", 2), ended.printed
    assert result(ended)["outcome"] == "refused"
    assert "The Proxmox API at 127.0.0.1 gives no answer" in result(ended)["reason"]
    assert server_pids(lab) == before
    assert no_secret(named)
    assert no_secret(ended)


def test_the_authority_of_proxmox_reaches_whoever_asks_it(lab: Lab, controller: Controller, tmp_path: Path) -> None:
    """A cluster that was never given a certificate of another's. The operator has a name of his own for the node."""
    before = server_pids(lab)
    files = certificate(tmp_path)
    right = Token("ansible@pve", "awx", TOKEN)
    token = {"host": "127.0.0.1", "user": right.user, "token_id": right.name, "token_secret": right.secret}
    token["validate_certs"] = "True"
    guests = LabGuests(str(lab.state))
    with ProxmoxApi(guests, right, files).serving() as api:
        asks: dict[str, Any] = {
            "variables": {"verified_restart_proxmox_api": {"port": api.port}},
            "answers": {"verified_restart_allow_container_restart": "true"},
        }
        unknown = controller.press("Restart inference", token=token, **asks)
        trusted = {**token, "ca": files[0].read_text(encoding="ascii")}
        ended = controller.press("Restart inference", token=trusted, **asks)
    assert "shows a certificate that is not trusted here" in result(unknown)["reason"]
    assert (ended.status, result(ended)["outcome"]) == ("successful", "not_needed"), ended.printed
    assert result(ended)["located"]["node"] == guests.list()[0]["node"]
    assert server_pids(lab) == before
    assert no_secret(ended)


def test_the_cards_of_a_server_that_lives_are_not_taken(lab: Lab, controller: Controller) -> None:
    before = server_pids(lab)
    ended = controller.press("Reclaim GPUs", answers={"reclaim_gpus_gpus": "1"})
    assert (ended.status, ended.rc) == ("failed", 2), ended.printed
    assert ended.artifacts["reclaim_gpus_result"]["outcome"] == "refused"
    assert ended.failure.startswith("refused: The server is healthy.")
    assert server_pids(lab) == before
    assert list((lab.state / "leases").iterdir()) == []
    assert no_secret(ended)


def test_after_a_cancel_in_the_middle_the_next_job_recovers(lab: Lab, controller: Controller) -> None:
    """In one test, because each job begins with what the one before has left."""
    before = server_pids(lab)
    force = {"verified_restart_force": "true"}
    cancelled = controller.press("Restart inference", answers=force, cancel_at=begins("Begin rung kill"))
    assert (cancelled.status, cancelled.artifacts) == ("canceled", {}), cancelled.printed
    assert "Begin rung start" not in cancelled.tasks("playbook_on_task_start")
    assert not lab.status()["server"]["reachable"]
    assert no_secret(cancelled)

    found = controller.press("Inspect GPUs", answers={"inspect_gpus_fail_on_findings": "true"})
    assert (found.status, found.rc) == ("failed", 2), found.printed
    assert found.artifacts["inspect_gpus_result"]["server"]["verdict"] == "dead"
    assert found.failure.startswith("The server is dead.")

    # It could not give its lease back.
    kept_out = controller.press("Restart inference")
    assert (kept_out.status, result(kept_out)["outcome"]) == ("failed", "refused"), kept_out.printed
    assert 'Set verified_restart_break_lease to "1"' in result(kept_out)["reason"]

    with held_card(lab):
        # The two do not meet either.
        kept_out = controller.press("Reclaim GPUs", variables={"reclaim_gpus_vmid": None})
        assert (kept_out.status, kept_out.rc) == ("failed", 2), kept_out.printed
        assert kept_out.artifacts["reclaim_gpus_result"]["outcome"] == "refused"
        assert 'Set reclaim_gpus_break_lease to "1"' in kept_out.failure

        waiting = controller.press("Restart inference", answers={"verified_restart_break_lease": "1"})
        assert (waiting.status, waiting.rc) == ("failed", 2), waiting.printed
        assert (result(waiting)["outcome"], result(waiting)["needs"]) == ("gpus_not_free", "operator")
        [card] = result(waiting)["cards_not_free"]
        assert (card["index"], card["verdict"]) == (1, "held")
        assert waiting.failure == f"gpus_not_free: {result(waiting)['reason']}"

        # Without a container whoever holds the card may be ended.
        reclaimed = controller.press(
            "Reclaim GPUs", answers={"reclaim_gpus_gpus": ""}, variables={"reclaim_gpus_vmid": None}
        )
        assert (reclaimed.status, reclaimed.rc) == ("successful", 0), reclaimed.printed
        outcome = reclaimed.artifacts["reclaim_gpus_result"]
        assert (outcome["outcome"], outcome["changed"]) == ("free", True)
        assert [card["memory_used_mib"] for card in outcome["cards_before"]][1] == 76115
        assert [card["memory_used_mib"] for card in outcome["cards_after"]][1] == 39
        assert list((lab.state / "leases").iterdir()) == []

    recovered = controller.press("Restart inference", verbosity=3)
    assert (recovered.status, recovered.rc) == ("successful", 0), recovered.printed
    assert (result(recovered)["outcome"], result(recovered)["changed"]) == ("healthy", True)
    assert lab.status()["server"]["reachable"]
    # All but the containers' own processes are new.
    assert len(server_pids(lab) - before) >= 9
    assert no_secret(recovered)


def begins(task: str) -> Any:
    """True at the event with which a task of this name begins."""
    return lambda event: event["event"] == "playbook_on_task_start" and event["event_data"]["task"] == task


@contextlib.contextmanager
def held_card(lab: Lab) -> Iterator[None]:
    """Somebody outside of every container holds card 1."""
    hold = (
        "import signal, sys\nfrom tests.lab import claims\nfrom tests.lab.cards import CARDS\n"
        "claim = claims.HeldClaim(sys.argv[1], sys.argv[2], CARDS[1])\nclaim.set_mib(CARDS[1].server_mib)\n"
        "print('held', flush=True)\nsignal.pause()\n"
    )
    devices = yaml.safe_load(lab.inventory.read_text())["inference"]["hosts"]["kimi"][
        "verified_restart_device_directory"
    ]
    argv = [sys.executable, "-c", hold, str(lab.state), devices]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield
        finally:
            holder.kill()
