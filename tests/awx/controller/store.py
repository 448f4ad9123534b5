"""The objects of the controller, and what it makes of a request: no network here."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import jinja2.meta

from tests.awx import survey
from tests.awx.controller.fields import KINDS, UNIFIED

Object = dict[str, Any]

ENCRYPTED = "$encrypted$"
# A schedule as RFC 5545 writes it; AWX wants the interval said, and no seconds (awx/main/models/schedules.py).
_RRULE = re.compile(r"DTSTART:\d{8}T\d{6}Z RRULE:FREQ=(MINUTELY|HOURLY|DAILY|WEEKLY|MONTHLY);INTERVAL=[1-9]\d*(;\S+)?")
# What a template calls the path of a file that the credential brings (awx/main/models/credential.py).
_FILE = re.compile(r"\btower\.filename\.(\w+)")

# What a new controller has.
_MACHINE = {
    "name": "Machine",
    "kind": "ssh",
    "inputs": {
        "fields": [
            {"id": "username", "type": "string"},
            {"id": "password", "type": "string", "secret": True},
            {"id": "ssh_key_data", "type": "string", "secret": True},
        ]
    },
    "injectors": {},
}


class Refusal(Exception):
    """The request is not accepted. ``status`` is that of HTTP, the message goes into the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Store:
    """Objects by kind and number. ``playbooks``: those that AWX would find in any project."""

    def __init__(self, playbooks: Collection[str]) -> None:
        self._playbooks = frozenset(playbooks)
        self._objects: dict[str, dict[int, Object]] = {kind: {} for kind in KINDS}
        self._links: dict[tuple[str, int, str], list[int]] = {}
        self._surveys: dict[int, Object] = {}
        self._number = 0
        self._add("organizations", {"name": "Default"})
        self._add("credential_types", _MACHINE)

    def search(self, kind: str, wanted: Mapping[str, str]) -> list[Object]:
        """Objects that have all values, or any of those whose names begin with ``or__``."""
        alternatives = {name.removeprefix("or__"): value for name, value in wanted.items() if name.startswith("or__")}
        needed = {name: value for name, value in wanted.items() if not name.startswith("or__")}
        known = (KINDS[kind].writable if kind in KINDS else {"name"}) | {"id", "organization"}
        if unknown := {*alternatives, *needed} - known:
            raise Refusal(400, f"{kind} has no field named {sorted(unknown)}")
        found = [self.show(one, number) for one, number in self._all(kind)]
        return [
            one
            for one in found
            if all(str(one.get(name)) == value for name, value in needed.items())
            and (not alternatives or any(str(one.get(name)) == value for name, value in alternatives.items()))
        ]

    def show(self, kind: str, number: int) -> Object:
        """An object as the API shows it, secrets hidden."""
        stored = self._get(kind, number)
        url = f"/api/v2/{kind}/{number}/"
        shown: Object = {"id": number, "url": url, "type": kind[:-1], "summary_fields": {}, **stored}
        shown["related"] = {name: f"{url}{name}/" for name in KINDS[kind].associations}
        if kind in ("job_templates", "workflow_job_templates"):
            shown["related"]["survey_spec"] = f"{url}survey_spec/"
        if kind == "job_templates":
            shown["organization"] = self._get("projects", stored["project"]).get("organization")
        if kind == "inventory_sources":
            shown["organization"] = self._get("inventories", stored["inventory"])["organization"]
        if kind == "credentials":
            shown["inputs"] = self._hidden(stored)
        if kind == "credential_types":
            shown["managed"] = stored["name"] == _MACHINE["name"]
        if kind == "projects":
            shown |= {"scm_revision": "0" * 40, "status": "successful"}
        if stored.get("unified_job_template") is not None:
            unified = self._unified(stored["unified_job_template"])
            shown["related"]["unified_job_template"] = f"/api/v2/{unified}/{stored['unified_job_template']}/"
        return shown

    def create(self, kind: str, fields: Mapping[str, Any]) -> Object:
        """Make an object, or raise Refusal."""
        if missing := KINDS[kind].required - set(fields):
            raise Refusal(400, f"{kind}: {sorted(missing)} required")
        number = self._add(kind, self._checked(kind, fields))
        shown = self.show(kind, number)
        if kind == "projects":
            shown["summary_fields"] = {"current_update": {"id": number}}
        return shown

    def change(self, kind: str, number: int, fields: Mapping[str, Any]) -> Object:
        """Change an object, or raise Refusal. A hidden secret that comes back is left as it is."""
        stored = self._get(kind, number)
        changed = self._checked(kind, fields)
        if kind == "credentials":
            kept = {name: stored["inputs"].get(name) for name, value in changed["inputs"].items() if value == ENCRYPTED}
            changed["inputs"] |= kept
        stored |= changed
        return self.show(kind, number)

    def linked(self, kind: str, number: int, name: str) -> list[Object]:
        """The objects of one association."""
        if name not in KINDS[kind].associations:
            raise Refusal(404, f"{kind} have no {name}")
        to = KINDS[kind].associations[name]
        return [self.show(to, one) for one in self._links.get((kind, number, name), [])]

    def link(self, kind: str, number: int, name: str, request: Mapping[str, Any]) -> None:
        """Associate, or with ``disassociate`` part, two objects."""
        links = self._links.setdefault((kind, number, name), [])
        self._get(KINDS[kind].associations[name], request["id"])
        if request.get("disassociate"):
            links.remove(request["id"])
        elif name == "credentials" and self._type_of(request["id"]) in map(self._type_of, links):
            raise Refusal(400, "Cannot assign multiple credentials of one type.")
        else:
            links.append(request["id"])

    def survey(self, number: int) -> Object:
        return self._surveys.get(number, {})

    def set_survey(self, number: int, spec: Object) -> None:
        """Give a job template a survey, or raise Refusal."""
        if found := survey.fault(spec):
            raise Refusal(400, found)
        self._surveys[number] = spec

    def approval(self, node: int, fields: Mapping[str, Any]) -> Object:
        """Make a node one that waits for a person."""
        made = self.create("workflow_approval_templates", fields)
        self._get("workflow_job_template_nodes", node)["unified_job_template"] = made["id"]
        return made

    def _all(self, kind: str) -> list[tuple[str, int]]:
        kinds = UNIFIED if kind == "unified_job_templates" else (kind,)
        return [(one, number) for one in kinds for number in self._objects[one]]

    def _add(self, kind: str, fields: Mapping[str, Any]) -> int:
        self._number += 1
        self._objects[kind][self._number] = dict(fields)
        return self._number

    def _get(self, kind: str, number: int) -> Object:
        kind = self._unified(number) if kind == "unified_job_templates" else kind
        if number not in self._objects.get(kind, {}):
            raise Refusal(404, f"no {kind} {number}")
        return self._objects[kind][number]

    def _unified(self, number: int) -> str:
        return next((kind for kind in UNIFIED if number in self._objects[kind]), "unified_job_templates")

    def _type_of(self, credential: int) -> Any:
        return self._get("credentials", credential)["credential_type"]

    def _secrets(self, credential_type: int) -> set[str]:
        fields = self._get("credential_types", credential_type)["inputs"]["fields"]
        return {field["id"] for field in fields if field.get("secret")}

    def _hidden(self, credential: Object) -> Object:
        secret = self._secrets(credential["credential_type"])
        return {name: ENCRYPTED if name in secret and value else value for name, value in credential["inputs"].items()}

    def _checked(self, kind: str, fields: Mapping[str, Any]) -> Object:
        """The fields that are to be set. Raises Refusal for those that the real API would not take, or not know."""
        known = KINDS[kind]
        fields = {name: value for name, value in fields.items() if name not in known.passed_over}
        if unknown := set(fields) - known.writable:
            raise Refusal(400, f"{kind} have no fields {sorted(unknown)}")
        for name, choices in known.choices.items():
            if fields.get(name, next(iter(choices))) not in choices:
                raise Refusal(400, f'{name}: "{fields[name]}" is not a valid choice.')
        for name, to in known.references.items():
            if fields.get(name) is not None:
                self._get(to, fields[name])
        self._check_values(kind, fields)
        return fields

    def _check_values(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "job_templates" and fields.get("playbook") not in {None, *self._playbooks}:
            raise Refusal(400, f"Playbook {fields['playbook']} not found for project.")
        if kind == "schedules" and not _RRULE.fullmatch(fields.get("rrule", "")):
            raise Refusal(400, f"rrule {fields.get('rrule')!r} is not valid")
        if kind == "credential_types":
            _check_injectors(fields["inputs"], fields["injectors"])
        if kind == "credentials":
            names = {one["id"] for one in self._get("credential_types", fields["credential_type"])["inputs"]["fields"]}
            if unknown := set(fields["inputs"]) - names:
                raise Refusal(400, f"inputs: {sorted(unknown)} not allowed for this type")
        if fields.get("extra_data"):
            asked = {one["variable"]: one for one in self.survey(fields["unified_job_template"]).get("spec", [])}
            template = {"survey_spec": {"spec": list(asked.values())}}
            try:
                survey.extra_vars(template, fields["extra_data"])
            except ValueError as exc:
                raise Refusal(400, f"variables_needed_to_start: {exc}") from exc


def _check_injectors(inputs: Mapping[str, Any], injectors: Mapping[str, Mapping[str, str]]) -> None:
    fields = {field["id"] for field in inputs["fields"]}
    if set(injectors) - {"env", "extra_vars", "file"}:
        raise Refusal(400, f"injectors: {sorted(injectors)}")
    files = {name.partition(".")[2] for name in injectors.get("file", {})}
    for one in injectors.values():
        for name, text in one.items():
            used = jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(text))
            if used - fields - {"tower"} or not used:
                raise Refusal(400, f"{name} uses {sorted(used)}, but the fields are {sorted(fields)}")
            if unknown := set(_FILE.findall(text)) - files:
                raise Refusal(400, f"{name} uses the files {sorted(unknown)}, but there are {sorted(files)}")
