# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What awx/ says fits the roles, the playbooks and itself."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from tests.awx import data, survey
from tests.awx.listing import could_be_playbook
from tests.awx.project import tracked_files
from tests.tooling.environment import ROOT

LISTS = data.everything()
TEMPLATES: list[dict[str, Any]] = LISTS["controller_templates"]
OFFERED = {
    "awx/configure.yml",
    *(f"playbooks/{name}.yml" for name in ("inspect_gpus", "reclaim_gpus", "restart_inference")),
}


def role_of(playbook: str) -> str:
    """The one role that a playbook runs."""
    [play] = yaml.safe_load((ROOT / playbook).read_text(encoding="utf-8"))
    [role] = play["roles"]
    name: str = role["role"].removeprefix("gpuops.inference.")
    return name


def options(role: str) -> dict[str, Any]:
    text = (ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)["argument_specs"]["main"]["options"]
    return found


def defaults(role: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(
        (ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8")
    )
    return found


def by_name(template: dict[str, Any]) -> str:
    return str(template["name"])


# Molecule wants its playbooks where it looks for them, under the names that it gives them.
MOLECULE = PurePosixPath("extensions/molecule")


def test_the_controller_offers_the_playbooks_and_nothing_else() -> None:
    offered = {
        name
        for name in tracked_files(ROOT)
        if could_be_playbook(PurePosixPath(name), (ROOT / name).read_text(errors="ignore").splitlines())
        and MOLECULE not in PurePosixPath(name).parents
    }
    assert offered == OFFERED


@pytest.mark.parametrize(
    ("path", "text", "offered"),
    [
        ("site.yml", "---\n- name: All\n  hosts: all\n", True),
        ("site.yml", "- hosts: all\n", True),
        ("hosts.yml", "web:\n  hosts:\n    a:\n", True),
        ("hosts", "web:\n  hosts:\n    a:\n", False),
        ("site.yaml", "- import_playbook: other.yml\n", True),
        ("roles/x/tests/test.yml", "- hosts: all\n", False),
        ("x/group_vars/all.yml", "hosts: 1\n", False),
        (".github/site.yml", "- hosts: all\n", False),
        ("secret.yml", "$ANSIBLE_VAULT;1.1;AES256\n", True),
        ("vars.yml", "hosts_file: x\n", False),
    ],
)
def test_the_rule_by_which_files_are_offered(path: str, text: str, offered: bool) -> None:
    assert could_be_playbook(PurePosixPath(path), text.splitlines()) is offered


@pytest.mark.parametrize("template", TEMPLATES, ids=by_name)
def test_a_survey_is_one_and_asks_for_variables_of_the_role(template: dict[str, Any]) -> None:
    assert template["survey_enabled"]
    assert survey.fault(template["survey_spec"]) is None
    known = options(role_of(template["playbook"]))
    playbook = (ROOT / template["playbook"]).read_text(encoding="utf-8")
    of_the_play = {name: {"type": "raw"} for name in re.findall(r"\{\{ (\w+) \| default", playbook)}
    for question in template["survey_spec"]["spec"]:
        option = {**of_the_play, **known}[question["variable"]]
        if option["type"] == "bool":
            assert question["choices"] == ["false", "true"]
            assert question["default"] == str(option["default"]).lower()
    assert set(template.get("extra_vars", {})) <= set(known)


@pytest.mark.parametrize("template", TEMPLATES, ids=by_name)
def test_a_job_template_stands_on_what_there_is(template: dict[str, Any]) -> None:
    assert template["playbook"] in OFFERED
    assert template["allow_simultaneous"] is False
    for key, name in (
        ("project", "projects"),
        ("inventory", "inventories"),
        ("execution_environment", "execution_environments"),
    ):
        data.named(LISTS[f"controller_{name}"], template[key])
    for name in template["credentials"]:
        data.named(LISTS["controller_credentials"], name)


def test_every_variable_of_a_restart_that_allows_something_is_asked_for() -> None:
    asked = {one["variable"] for one in data.named(TEMPLATES, "Restart inference")["survey_spec"]["spec"]}
    allowed = {name for name in options("verified_restart") if name.startswith("verified_restart_allow_")}
    assert allowed < asked


def test_a_job_may_take_longer_than_all_limits_of_the_role_together() -> None:
    """Every wait of the ladder at its limit, one after the other, each driver's answer as late as it may be."""
    role = {name.removeprefix("verified_restart_"): value for name, value in defaults("verified_restart").items()}
    # What the module for the health adds to its generation, and the canary to the proof.
    health, look, evidence = role["health_timeout"] + 10, role["driver_timeout"], 60
    verify = role["verify_retries"] * (role["verify_delay"] + look) + look
    ladder = {
        "detect": role["hung_after"] * (health + role["detect_delay"]) + role["prove_timeout"] + look,
        "stop": role["stop_retries"] * role["stop_delay"] + evidence + look,
        "kill": 10 + role["kill_timeout"] + look,
        "reclaim": role["reclaim_term_timeout"] + role["kill_timeout"] + 2 * look,
        "reset": role["gpu_reset_timeout"] + look,
        "container": role["container_shutdown_timeout"] + 2 * role["container_start_timeout"],
        "verify": 3 * verify,
        "start": role["start_retries"] * role["start_delay"] + look,
        "prove": 5 * role["prove_timeout"] + look,
    }
    assert sum(ladder.values()) < data.named(TEMPLATES, "Restart inference")["timeout"] < 2 * sum(ladder.values())


def test_a_credential_injects_what_somebody_reads() -> None:
    known = {*options("verified_restart"), *options("inspect_gpus"), *options("reclaim_gpus")}
    for kind in LISTS["controller_credential_types"]:
        fields = {field["id"] for field in kind["inputs"]["fields"]}
        for names in kind["injectors"].values():
            for text in names.values():
                assert set(re.findall(r"\{\{ (\w+) \}\}", text)) <= fields
        asked = {one.partition(".")[2] for one in kind["injectors"].get("file", {})}
        texts = " ".join(kind["injectors"].get("env", {}).values())
        assert set(re.findall(r"tower\.filename\.(\w+)", texts)) == asked
        assert set(kind["injectors"].get("extra_vars", {})) <= known
        credential = next(one for one in LISTS["controller_credentials"] if one["credential_type"] == kind["name"])
        assert set(credential["inputs"]) == fields
    token = data.named(LISTS["controller_credential_types"], "gpuops Proxmox API token")
    # Of these the inventory plugin and the modules of community.proxmox know, and requests, with which they ask.
    names = ("URL", "HOST", "USER", "TOKEN_ID", "TOKEN_SECRET", "VALIDATE_CERTS")
    assert set(token["injectors"]["env"]) == {"REQUESTS_CA_BUNDLE", *(f"PROXMOX_{name}" for name in names)}


def test_whatever_the_lists_say_is_handed_on() -> None:
    [play] = yaml.safe_load((data.AWX / "configure.yml").read_text())
    read: dict[str, set[str]] = {}
    for task in play["tasks"]:
        [found] = re.findall(r"controller_\w+", task["loop"])
        text = yaml.safe_dump(task)
        read.setdefault(found, set()).update(re.findall(r"item\.(?:0\.)?(\w+)", text))
        if "subelements" in task["loop"]:
            read.setdefault("nodes", set()).update(re.findall(r"item\.1\.(\w+)", text))
    for name, items in LISTS.items():
        for item in items if isinstance(items, list) else []:
            assert set(item) - {"simplified_workflow_nodes"} <= read[name], name
    for node in LISTS["controller_workflows"][0]["simplified_workflow_nodes"]:
        assert set(node) <= read["nodes"]


def test_the_site_names_every_value_that_the_lists_take_from_it() -> None:
    used = set(re.findall(r"gpuops_awx_\w+", "".join(path.read_text() for path in (data.AWX / "data").glob("*.yml"))))
    assert used == set(data.load("site.yml"))


def test_the_image_is_pinned_and_holds_nothing_but_what_is_needed() -> None:
    image = yaml.safe_load((ROOT / "execution-environment.yml").read_text(encoding="utf-8"))
    wanted = image["dependencies"]
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    packed = f"gpuops-inference-{galaxy['version']}.tar.gz"
    assert [one["name"] for one in wanted["galaxy"]["collections"]] == [
        f"collections/{packed}",
        *galaxy["dependencies"],
    ]
    assert image["additional_build_files"] == [{"src": f"build/image/{packed}", "dest": "collections"}]
    assert all(re.fullmatch(r"[\d.]+", one["version"]) for one in wanted["galaxy"]["collections"][1:])
    pins = [wanted["ansible_core"]["package_pip"], wanted["ansible_runner"]["package_pip"], *wanted["python"]]
    assert [re.fullmatch(r"([\w-]+)==[\d.]+", pin)[1] for pin in pins] == [  # type: ignore[index]
        "ansible-core",
        "ansible-runner",
        "jmespath",
        "paramiko",
        "proxmoxer",
        "requests",
    ]
    tested = "".join((ROOT / "tests" / "requirements" / f"{name}.txt").read_text() for name in ("runtime", "test"))
    for pin in pins[1:3]:
        assert pin in tested


def test_the_guide_speaks_of_what_there_is() -> None:
    guide = (ROOT / "docs" / "awx.md").read_text(encoding="utf-8")
    made = [*TEMPLATES, *LISTS["controller_workflows"], *LISTS["controller_schedules"]]
    assert all(f"*{one['name']}*" in guide for one in made)
    secrets = set(re.findall(r"GPUOPS_AWX_\w+", (data.AWX / "site.yml").read_text(encoding="utf-8")))
    assert set(re.findall(r"GPUOPS_AWX_\w+", guide)) == secrets
    assert set(re.findall(r"gpuops_awx_\w+", guide)) <= set(data.load("site.yml"))
    for path in re.findall(r"(?:awx|inventories|playbooks)/[\w./-]+\w", guide):
        assert (ROOT / path).exists(), path
    tested = (ROOT / "tests" / "requirements" / "test.txt").read_text(encoding="utf-8")
    [builder] = re.findall(r"ansible-builder==[\d.]+", guide)
    assert builder in tested
    # The image's own file and the guide name the same way to it.
    image = (ROOT / "execution-environment.yml").read_text(encoding="utf-8")
    for command in re.findall(r"(?m)^#     (ansible-\w+ .+)$", image):
        assert command in guide
