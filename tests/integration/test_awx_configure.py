"""awx/configure.yml against a controller's API, with the real modules of awx.awx."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from tests.awx import data
from tests.awx.collection import collections_with_awx
from tests.awx.controller.server import TOKEN, Controller, running
from tests.awx.controller.store import Store
from tests.awx.listing import could_be_playbook
from tests.awx.project import tracked_files
from tests.integration.play import ansible, run
from tests.tooling.environment import ROOT

SECRETS = {
    "GPUOPS_AWX_SSH_PRIVATE_KEY": "key-0005",
    "GPUOPS_AWX_API_KEY": "sk-0006",
    "GPUOPS_AWX_PROXMOX_TOKEN_SECRET": "t-7",
}
# No secret.
AUTHORITY = "-----BEGIN CERTIFICATE-----\nMIIBdjCCAR2gAwIBAgIUmadeup\n-----END CERTIFICATE-----\n"
NOTIFY = {
    "name": "Inference on call",
    "organization": "Default",
    "notification_type": "webhook",
    "notification_configuration": {"url": "https://alerts.example.com/awx", "http_method": "POST", "headers": {}},
}
LISTS = data.everything()
# Lists that are called otherwise than what is in them.
KINDS = {
    "controller_templates": "job_templates",
    "controller_workflows": "workflow_job_templates",
    "controller_notifications": "notification_templates",
}


@pytest.fixture
def controller() -> Iterator[Controller]:
    playbooks = [
        name
        for name in tracked_files(ROOT)
        if could_be_playbook(PurePosixPath(name), (ROOT / name).read_text(errors="ignore").splitlines())
    ]
    with running(Store(playbooks)) as answering:
        yield answering


def configure(controller: Controller, *arguments: str) -> list[str]:
    """Run it. Returns what changed, as ``task: item``."""
    variables = json.dumps({"gpuops_awx_notifications": [NOTIFY]})
    argv = ansible("ansible-playbook", "-e", variables, *arguments, str(ROOT / "awx" / "configure.yml"))
    settings = {"CONTROLLER_HOST": controller.url, "CONTROLLER_OAUTH_TOKEN": TOKEN, **SECRETS}
    settings["GPUOPS_AWX_PROXMOX_CA"] = AUTHORITY
    settings["ANSIBLE_COLLECTIONS_PATH"] = str(collections_with_awx())
    rc, output = run(argv, **settings, ANSIBLE_NOCOLOR="1", ANSIBLE_PIPELINING="1")
    assert rc == 0, output
    for secret in SECRETS.values():
        assert secret not in output
    found, task = [], ""
    for line in output.splitlines():
        if began := re.match(r"TASK \[(.*)\] \*", line):
            task = began[1]
        elif changed := re.match(r"changed: \[localhost\] => \(item=(.*)\)", line):
            found.append(f"{task}: {changed[1]}")
    return found


def test_it_makes_everything_once_and_shows_a_difference_without_making_it(controller: Controller) -> None:
    # Also where nothing is there yet that they could stand on. Nothing but what takes time is left out.
    late = configure(controller, "--check", "--tags", "workflow_job_templates,schedules")
    assert controller.writes() == []

    made = configure(controller)
    assert controller.writes()
    assert set(late) <= set(made) | {"Have the steps in their order: Restart inference, approved: restart"}
    for name, items in LISTS.items():
        for item in items if isinstance(items, list) else []:
            assert controller.store.search(KINDS.get(name, name.removeprefix("controller_")), {"name": item["name"]})
    [proxmox] = controller.store.search("credentials", {"name": "Proxmox API of the inference cluster"})
    assert proxmox["inputs"]["ca"] == AUTHORITY
    [template] = controller.store.search("job_templates", {"name": "Restart inference"})
    assert (template["allow_simultaneous"], template["timeout"]) == (False, 10800)
    linked = controller.store.linked("job_templates", template["id"], "credentials")
    wanted = data.named(LISTS["controller_templates"], "Restart inference")["credentials"]
    assert {one["name"] for one in linked} == set(wanted)
    assert walk(controller.store) == [
        ("inspect", "Inspect GPUs", {"failure_nodes": ["approve"]}),
        ("approve", "Restart the inference server?", {"success_nodes": ["restart"]}),
        ("restart", "Restart inference", {}),
    ]

    # Nothing but what somebody has changed by hand differs at the second run, neither in check mode nor without.
    controller.store.change("job_templates", template["id"], {"timeout": 60, "allow_simultaneous": True})
    difference = ["Have the job templates: Restart inference"]
    assert configure(controller, "--check", "--tags", "job_templates") == difference
    assert controller.writes() == []
    assert configure(controller) == difference
    assert [(one.method, one.path) for one in controller.writes()] == [("PATCH", template["url"])]


def walk(store: Store) -> list[tuple[str, str, dict[str, list[str]]]]:
    """The steps of the one workflow: identifier, what runs there, and who follows."""
    steps = []
    for node in store.search("workflow_job_template_nodes", {}):
        [runs] = [
            one["name"]
            for one in store.search("unified_job_templates", {})
            if one["id"] == node["unified_job_template"]
        ]
        links = {
            name: [one["identifier"] for one in store.linked("workflow_job_template_nodes", node["id"], name)]
            for name in ("success_nodes", "failure_nodes", "always_nodes")
        }
        steps.append((node["identifier"], runs, {name: to for name, to in links.items() if to}))
    return steps
