"""Reads a systemd unit file: the part that the stand-in service manager acts on."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple


class UnitFile(NamedTuple):
    """What a [Service] says; times in seconds, None for infinity."""

    description: str
    argv: list[str]
    environment: dict[str, str]
    restart: str
    restart_s: float
    kill_mode: str
    stop_timeout_s: float | None
    output: str | None
    installable: bool


def parse(text: str) -> UnitFile:
    """Raises ValueError, with the sentence systemd would log, when there is nothing to start."""
    values: dict[str, str] = {}
    environment: dict[str, str] = {}
    installable = False
    section = ""
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            section = line.strip("[]")
            installable = installable or section == "Install"
            continue
        name, _equals, value = line.partition("=")
        if section == "Service" and name == "Environment":
            for item in shlex.split(value):
                key, _equals, content = item.partition("=")
                environment[key] = content.replace("%%", "%")
        elif section in ("Unit", "Service"):
            values[name.strip()] = value.strip()
    argv = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(values.get("ExecStart", ""))]
    if not argv:
        raise ValueError("Service has no ExecStart=, ExecStop=, or SuccessAction=. Refusing.")
    output = values.get("StandardOutput", "").replace("%%", "%")
    return UnitFile(
        description=values.get("Description", ""),
        argv=argv,
        environment=environment,
        restart=values.get("Restart", "no"),
        restart_s=seconds(values.get("RestartSec", "100ms")) or 0,
        kill_mode=values.get("KillMode", "control-group"),
        stop_timeout_s=seconds(values.get("TimeoutStopSec", "90s")),
        output=output.partition(":")[2] if output.startswith(("append:", "file:")) else None,
        installable=installable,
    )


def seconds(span: str) -> float | None:
    """A systemd time span ('100ms', '3', '1min 30s') in seconds; None for 'infinity'."""
    if span == "infinity":
        return None
    factors = {"ms": 0.001, "s": 1, "sec": 1, "": 1, "m": 60, "min": 60, "h": 3600}
    return sum(float(number) * factors[unit] for number, unit in re.findall(r"([\d.]+)\s*([a-z]*)", span))


def quote(word: str) -> str:
    """Quote a word for ExecStart= or Environment=. A `$` is left to the caller: it is special in ExecStart= only."""
    return '"%s"' % word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
