"""What `systemctl VERB` does in the rootless container; texts and exit codes are those of systemd 252."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Callable

from tests.lab.service import Service

if TYPE_CHECKING:
    from tests.lab.manager import Answer, Manager

_VALUELESS = {
    *("--no-block", "--quiet", "-q", "--no-pager", "--runtime", "--value", "--now", "--system", "--force", "-f", "-l"),
    *("--full", "--all", "-a", "--plain", "--no-legend", "--no-ask-password"),
}


def run(manager: Manager, arguments: list[str], answer: Answer) -> None:
    """Carry out one call and answer it, at once or when its job has ended."""
    options: dict[str, str] = {}
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if word in _VALUELESS:
            options[word] = ""
        elif name in ("--property", "-p", "--state", "--type", "-t"):
            options[name] = ",".join(
                filter(None, (options.get(name), value if has_value else rest.pop(0) if rest else ""))
            )
        elif word.startswith("-p") and len(word) > 2:
            options["-p"] = ",".join(filter(None, (options.get("-p"), word[2:])))
        elif word == "--":
            words, rest = words + rest, []
        elif word == "--version":
            answer(0, "systemd 252 (the lab's stand-in)\n", "")
            return
        elif word.startswith("-"):
            answer(1, "", "systemctl: unrecognized option '%s'\n" % word)
            return
        else:
            words.append(word)
    verb = words[0] if words else "list-units"
    names = [name if "." in name else name + ".service" for name in words[1:]]
    if verb in ("start", "stop", "restart", "try-restart"):
        _job(manager, verb, names, answer, no_block="--no-block" in options)
    elif verb in _IMMEDIATE:
        answer(*_IMMEDIATE[verb](manager, names, options))
    else:
        answer(1, "", "Unknown command verb %s.\n" % verb)


def _job(manager: Manager, verb: str, names: list[str], answer: Answer, *, no_block: bool) -> None:
    if len(names) != 1:
        answer(1, "", "Too %s arguments.\n" % ("many" if names else "few"))
        return
    name = names[0]
    service = manager.services.get(name)
    starts = verb in ("start", "restart")
    if starts and manager.has_flag(name, "masked"):
        answer(1, "", "Failed to %s %s: Unit %s is masked.\n" % (verb, name, name))
        return
    if service is None:
        why = "has a bad unit file setting" if name in manager.errors else "not found" if starts else "not loaded"
        answer(1 if name in manager.errors else 5, "", "Failed to %s %s: Unit %s %s.\n" % (verb, name, name, why))
        return

    def done(failure: str | None) -> None:
        if not no_block:
            answer(1 if failure else 0, "", failure + "\n" if failure else "")

    if verb == "start":
        service.start(done)
    elif verb == "stop":
        service.stop(done)
    elif verb == "restart" or service.active == "active":
        service.stop(_nothing)
        service.start(done)
    else:
        done(None)
    if no_block:
        answer(0, "", "")


def _nothing(_word: str | None) -> None:
    """The stop half of a restart: the start half answers."""


def _is_active(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    states = [manager.services[name].active if name in manager.services else "inactive" for name in names]
    return (0 if "active" in states else 3), _unless_quiet(options, states), ""


def _is_failed(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    states = [manager.services[name].active if name in manager.services else "inactive" for name in names]
    return (0 if "failed" in states else 1), _unless_quiet(options, states), ""


def _is_enabled(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    states = []
    for name in names:
        if name not in manager.services and not manager.has_flag(name, "masked"):
            return 1, "", "Failed to get unit file state for %s: No such file or directory\n" % name
        states.append(_file_state(manager, name))
    return (0 if "enabled" in states else 1), _unless_quiet(options, states), ""


def _unless_quiet(options: dict[str, str], lines: list[str]) -> str:
    return "" if {"--quiet", "-q"} & set(options) else "".join(line + "\n" for line in lines)


def _file_state(manager: Manager, name: str) -> str:
    if manager.has_flag(name, "masked"):
        return "masked"
    service = manager.services.get(name)
    if service is not None and not service.unit.installable:
        return "static"
    return "enabled" if manager.has_flag(name, "enabled") else "disabled"


def _set_flag(manager: Manager, names: list[str], kind: str, on: bool) -> tuple[int, str, str]:
    for name in names:
        if kind == "enabled" and name not in manager.services:
            return 1, "", "Failed to %s unit: Unit file %s does not exist.\n" % ("enable" if on else "disable", name)
        path = manager.flag(name, kind)
        if on:
            with open(path, "w", encoding="ascii"):
                pass
        elif os.path.exists(path):
            os.unlink(path)
    return 0, "", ""


def _mask(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    """Mask units that are not there. A unit file in /etc/systemd/system is in the way, and wins over a mask in /run."""
    for name in names:
        if name not in manager.services:
            _set_flag(manager, [name], "masked", True)
        elif "--runtime" not in options:
            return 1, "", "Failed to mask unit: File /etc/systemd/system/%s already exists.\n" % name
    return 0, "", ""


def _reload(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    manager.reload()
    return 0, "", ""


def _reset_failed(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    for name in names or list(manager.services):
        if name not in manager.services:
            return 1, "", "Failed to reset failed state of unit %s: Unit %s not loaded.\n" % (name, name)
        manager.services[name].reset_failed()
    return 0, "", ""


def _is_system_running(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    failed = any(service.active == "failed" for service in manager.services.values())
    return (1, "degraded\n", "") if failed else (0, "running\n", "")


def _list_unit_files(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    found = [name for name in manager.services if not names or name in names]
    lines = ["UNIT FILE STATE PRESET"] + ["%s %s enabled" % (name, _file_state(manager, name)) for name in found]
    return (0 if found else 1), "\n".join(lines) + "\n\n%d unit files listed.\n" % len(found), ""


def _list_units(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    rows = [(s.name, "loaded", s.active, s.sub, s.unit.description) for s in manager.services.values()]
    return 0, "".join("%s %s %s %s %s\n" % row for row in rows), ""


def _status(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    for name in names:
        if name not in manager.services:
            return 4, "", "Unit %s could not be found.\n" % name
    out = ""
    code = 0
    for service in (manager.services[name] for name in names):
        out += "* %s - %s\n" % (service.name, service.unit.description)
        out += "     Loaded: loaded (%s)\n" % _file_state(manager, service.name)
        out += "     Active: %s (%s)\n   Main PID: %d\n" % (service.active, service.sub, service.main_pid)
        code = code or (0 if service.active in ("active", "deactivating", "activating") else 3)
    return code, out, ""


def _show(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    asked = ",".join(filter(None, (options.get("--property"), options.get("-p"))))
    blocks = []
    for name in names:
        properties = _properties(manager, name)
        wanted = [item for item in asked.split(",") if item in properties] if asked else list(properties)
        # The real one prints in an order of its own, not in the order asked for.
        ordered = [item for item in properties if item in wanted]
        form = "%s=%s\n" if "--value" not in options else "%.0s%s\n"
        blocks.append("".join(form % (item, properties[item]) for item in ordered))
    return 0, "\n".join(blocks), ""


def _cat(manager: Manager, names: list[str], options: dict[str, str]) -> tuple[int, str, str]:
    texts = []
    for name in names:
        path = os.path.join(manager.directory, name)
        if name not in manager.services:
            return 1, "", "No files found for %s.\n" % name
        with open(path, encoding="utf-8") as stream:
            texts.append("# /etc/systemd/system/%s\n%s" % (name, stream.read()))
    return 0, "\n".join(texts), ""


def _properties(manager: Manager, name: str) -> dict[str, str]:
    service = manager.services.get(name)
    masked = manager.has_flag(name, "masked")
    if service is None:
        load = "masked" if masked else "bad-setting" if name in manager.errors else "not-found"
        values = {"MainPID": "0", "Id": name, "Names": name, "Description": name, "LoadState": load}
        values.update({"ActiveState": "inactive", "SubState": "dead", "UnitFileState": "masked" if masked else ""})
        if name in manager.errors:
            values["LoadError"] = 'org.freedesktop.systemd1.BadUnitSetting "%s"' % manager.errors[name]
        return values
    return _service_properties(manager, service, "masked" if masked else "loaded")


def _service_properties(manager: Manager, service: Service, load: str) -> dict[str, str]:
    unit = service.unit
    stop = "infinity" if unit.stop_timeout_s is None else "%gs" % unit.stop_timeout_s
    entered = time.strftime("%a %Y-%m-%d %H:%M:%S %Z", time.localtime(service.entered_at)) if service.entered_at else ""
    command = "{ path=%s ; argv[]=%s ; ignore_errors=no }" % (unit.argv[0], " ".join(unit.argv))
    return {
        "Type": "simple",
        "Restart": unit.restart,
        "RestartUSec": "%gms" % (unit.restart_s * 1000),
        "TimeoutStopUSec": stop,
        "MainPID": str(service.main_pid),
        "ControlPID": "0",
        "NRestarts": str(service.restarts),
        "Result": service.result,
        "ExecMainPID": str(service.main_pid),
        "ExecMainCode": str(service.exit_code),
        "ExecMainStatus": str(service.exit_status),
        "ExecStart": command,
        "ControlGroup": "/system.slice/%s" % service.name if service.main_pid else "",
        "KillMode": unit.kill_mode,
        "Id": service.name,
        "Names": service.name,
        "Description": unit.description,
        "LoadState": load,
        "ActiveState": service.active,
        "FreezerState": "running",
        "SubState": service.sub,
        "FragmentPath": "/etc/systemd/system/%s" % service.name,
        "UnitFileState": _file_state(manager, service.name),
        "ActiveEnterTimestamp": entered,
        "CanStart": "yes",
        "CanStop": "yes",
        "CanReload": "no",
        "NeedDaemonReload": "no",
    }


_IMMEDIATE: dict[str, Callable[[Manager, list[str], dict[str, str]], tuple[int, str, str]]] = {
    "is-active": _is_active,
    "is-failed": _is_failed,
    "is-enabled": _is_enabled,
    "is-system-running": _is_system_running,
    "daemon-reload": _reload,
    "daemon-reexec": _reload,
    "reset-failed": _reset_failed,
    "show": _show,
    "cat": _cat,
    "status": _status,
    "list-units": _list_units,
    "list-unit-files": _list_unit_files,
    "enable": lambda manager, names, options: _set_flag(manager, names, "enabled", True),
    "disable": lambda manager, names, options: _set_flag(manager, names, "enabled", False),
    "mask": _mask,
    "unmask": lambda manager, names, options: _set_flag(manager, names, "masked", False),
}
