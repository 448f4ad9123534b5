"""A job as AWX starts one: BaseTask and RunJob in awx/main/tasks/jobs.py, awx/main/models/credential (24.6).

A private directory with the inventory as a script, extra variables and command line in files, credentials by what their
types inject, the project as a copy; then ansible-runner. Only the container around it is missing, so the paths that AWX
calls /runner are those of the private directory.
"""

from __future__ import annotations

import json
import os
import shutil
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ansible_runner
import jinja2.sandbox
import yaml

from tests.awx import survey
from tests.awx.project import Project
from tests.tooling.environment import PYTHON

Event = dict[str, Any]
Injectors = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Credential:
    """``injectors`` are those of its type, ``inputs`` what a person has put in."""

    injectors: Injectors
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """How a job ended. ``artifacts`` is what ``set_stats`` handed on, ``printed`` what it printed."""

    status: str
    rc: int | None
    events: Sequence[Event]
    artifacts: Mapping[str, Any]
    printed: str

    def tasks(self, kind: str = "runner_on_ok") -> list[str]:
        """Names of the tasks with such an event, in order."""
        return [one["event_data"]["task"] for one in self.events if one["event"] == kind]

    @property
    def failure(self) -> str:
        """Message of the task that failed last."""
        [*_problem, last] = [
            one["event_data"]["res"]["msg"] for one in self.events if one["event"] == "runner_on_failed"
        ]
        return str(last)

    def shows(self, secret: str) -> bool:
        """Whether a secret is in any event, in the output or in an artifact."""
        return any(secret in text for text in (json.dumps(list(self.events)), json.dumps(self.artifacts), self.printed))


def run(
    directory: Path,
    project: Project,
    template: Mapping[str, Any],
    *,
    hosts: Mapping[str, Any],
    number: int = 1,
    answers: Mapping[str, str] | None = None,
    credentials: Sequence[Credential] = (),
    earlier: Mapping[str, Any] = types.MappingProxyType({}),
    job_type: str | None = None,
    verbosity: int = 0,
    cancel_at: Callable[[Event], bool] | None = None,
) -> Job:
    """Start a job from a job template and wait for its end. ``hosts`` is what the inventory script prints.

    ``earlier``: artifacts of the jobs that came before it in a workflow, which AWX hands on as extra variables.
    ``cancel_at``: a person presses cancel at the first event for which this is true.
    """
    private = directory / f"awx_{number}"
    shutil.rmtree(private, ignore_errors=True)
    for name in ("inventory", "env", "cp"):
        (private / name).mkdir(parents=True)
    shutil.copytree(project.files, private / "project")
    (private / "requirements_collections").symlink_to(project.collections)
    _write(private / "inventory" / "hosts", f"#! /usr/bin/env python3\nprint({json.dumps(hosts)!r})\n", mode=0o700)
    variables = {"awx_job_id": number, "awx_job_template_name": template["name"], "awx_user_name": "operator"}
    asked = survey.extra_vars(template, answers or {})
    _write(
        private / "env" / "extravars", _yaml({**variables, **earlier, **asked}, trusted=template.get("extra_vars", {}))
    )
    arguments = ["--check"] if (job_type or template["job_type"]) == "check" else []
    arguments += ["-u", "root", *(["-" + "v" * verbosity] if verbosity else [])]
    environment = {**_environment(private), "JOB_ID": str(number)}
    for place, credential in enumerate(credentials):
        injected = _injected(credential, private / "env")
        environment |= injected["env"]
        if injected["extra_vars"]:
            path = private / "env" / f"credential{place}"
            _write(path, _yaml(injected["extra_vars"]))
            arguments += ["-e", f"@{path}"]
    _write(private / "env" / "cmdline", ansible_runner.utils.args2cmdline(*arguments))
    settings = {
        "job_timeout": template["timeout"],
        "suppress_ansible_output": True,
        "suppress_output_file": False,
        # Seconds between two looks whether it was cancelled. By default 5, in which a job of the lab gets far.
        "pexpect_timeout": 1,
    }
    _write(private / "env" / "settings", json.dumps(settings))
    return _launch(private, template["playbook"], environment, cancel_at)


def _launch(
    private: Path, playbook: str, environment: Mapping[str, str], cancel_at: Callable[[Event], bool] | None
) -> Job:
    events: list[Event] = []
    cancelled = [False]

    def handle(event: Event) -> bool:
        events.append(event)
        cancelled[0] = cancelled[0] or (cancel_at is not None and cancel_at(event))
        return True

    ended = ansible_runner.run(
        private_data_dir=str(private),
        ident="1",
        playbook=playbook,
        inventory=str(private / "inventory" / "hosts"),
        envvars=environment,
        suppress_env_files=True,
        quiet=True,
        event_handler=handle,
        cancel_callback=lambda: cancelled[0],
    )
    stats = [one["event_data"].get("artifact_data", {}) for one in events if one["event"] == "playbook_on_stats"]
    printed = (private / "artifacts" / "1" / "stdout").read_text(encoding="utf-8")
    return Job(ended.status, ended.rc, events, stats[-1] if stats else {}, printed)


def _environment(private: Path) -> dict[str, str]:
    """What AWX sets for every job, and the HOME and PATH of the image it runs in."""
    return {
        "PATH": os.pathsep.join([str(PYTHON.parent), os.environ.get("PATH", os.defpath)]),
        "HOME": str(private / "home"),
        "LC_ALL": "C.UTF-8",
        "AWX_PRIVATE_DATA_DIR": str(private),
        "INVENTORY_ID": "1",
        "PROJECT_REVISION": "0" * 40,
        "MAX_EVENT_RES": "700000",
        "ANSIBLE_FORCE_COLOR": "True",
        "ANSIBLE_HOST_KEY_CHECKING": "False",
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(private / "cp"),
        # The collections that the sync installed come first, then those that ansible.cfg names, which are not there.
        "ANSIBLE_COLLECTIONS_PATH": f"{private}/requirements_collections:~/.ansible/collections:build/collections",
    }


def _injected(credential: Credential, directory: Path) -> dict[str, dict[str, str]]:
    """Environment and extra variables of a credential, rendered as AWX renders them: what was not put in is empty.

    Its files are written to ``directory``, each with a path that the others can name.
    """
    jinja = jinja2.sandbox.ImmutableSandboxedEnvironment()
    tower = types.SimpleNamespace(filename=types.SimpleNamespace())
    known = {**credential.inputs, "tower": tower}
    for label, text in credential.injectors.get("file", {}).items():
        path = directory / f"credential-{label}"
        _write(path, jinja.from_string(text).render(**known))
        setattr(tower.filename, label.partition(".")[2], str(path))
    return {
        kind: {
            name: jinja.from_string(text).render(**known) for name, text in credential.injectors.get(kind, {}).items()
        }
        for kind in ("env", "extra_vars")
    }


class _UnsafeDumper(yaml.SafeDumper):
    """Writes every text so that Ansible does not render it, as AWX does with what a person has put in.

    Ansible then resolves such a text once more: an empty one becomes null, one of digits a number (core 2.19).
    """


_UnsafeDumper.add_representer(str, lambda dumper, text: dumper.represent_scalar("!unsafe", text))


def _yaml(variables: Mapping[str, Any], trusted: Mapping[str, Any] = types.MappingProxyType({})) -> str:
    """Only what a template itself says, unchanged, is left as it is: safe_dump in awx/main/utils/safe_yaml.py."""
    return "".join(
        yaml.dump({name: value}, Dumper=yaml.SafeDumper if trusted.get(name, ...) == value else _UnsafeDumper)
        for name, value in variables.items()
    )


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
