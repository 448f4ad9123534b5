"""The lab's `pct`: status, exec, list and config, with the answers, sentences and exit codes of Proxmox's."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

from tests.lab import power, procfs
from tests.lab import state as lab_state
from tests.lab.cards import CARDS
from tests.lab.container import Container, open_container
from tests.lab.errors import LabError

_FAILED = 255


class _RefusedError(Exception):
    """pct itself refuses; the text goes to stderr, the exit code is 255."""


def main(state: str, arguments: list[str]) -> int:
    """Run one call; returns the exit code. `exec` with success does not return: it becomes the command's entry."""
    try:
        return _run(state, arguments)
    except (_RefusedError, LabError) as error:
        sys.stderr.write("%s\n" % error)
        return _FAILED


def container_python(state: str, arguments: list[str]) -> int:
    """The interpreter inside container 129, in place of SSH: stdin, exit code and arguments go through."""
    config = lab_state.config(state)
    try:
        container = _open(state, config, 129)
        environment = {**os.environ, "PATH": lab_state.inside_path(state, lxc=config.get("lxc", False))}
        argv = container.attach_argv([container.python, *arguments])
    except LabError as error:
        sys.stderr.write("%s\n" % error)
        return _FAILED
    return os.execvpe(argv[0], argv, environment)


def _run(state: str, arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("help", "--help"):
        sys.stderr.write("ERROR: no command specified\nUSAGE: pct <COMMAND> [ARGS] [OPTIONS]\n")
        return _FAILED
    verb, rest = arguments[0], arguments[1:]
    config = lab_state.config(state)
    if verb == "list":
        return _list(state, config)
    if verb not in ("status", "exec", "config", *power.VERBS):
        raise _RefusedError("ERROR: unknown command 'pct %s'" % verb)
    if not rest or not rest[0].isdigit():
        got = "got '%s'" % rest[0] if rest else "property is missing and it is not optional"
        raise _RefusedError(
            "400 Parameter verification failed.\nvmid: type check ('integer') failed - %s\npct %s <vmid>" % (got, verb)
        )
    vmid = int(rest[0])
    if str(vmid) not in config.get("containers", {}):
        raise _RefusedError(
            "Configuration file 'nodes/%s/lxc/%d.conf' does not exist" % (config.get("node", "lab"), vmid)
        )
    if verb == "status":
        return _status(state, config, vmid, rest[1:])
    if verb in power.VERBS:
        return _power(state, verb, vmid, rest[1:])
    if verb == "config":
        return _config(config, vmid)
    return _exec(state, config, vmid, rest[1:])


def _open(state: str, config: dict[str, Any], vmid: int) -> Container:
    return open_container(vmid, pathlib.Path(state), CARDS, lxc=config.get("lxc", False))


def _init_pid(state: str, config: dict[str, Any], vmid: int) -> int | None:
    return _open(state, config, vmid).init_pid() if config["containers"][str(vmid)]["exists"] else None


def _status(state: str, config: dict[str, Any], vmid: int, options: list[str]) -> int:
    pid = _init_pid(state, config, vmid)
    status = "running" if pid else "stopped"
    verbose = [option for option in options if option.lstrip("-").partition("=")[0] == "verbose"]
    unknown = [option for option in options if option not in verbose and option not in ("0", "1")]
    if unknown:
        raise _RefusedError("Unknown option: %s\n400 unable to parse option" % unknown[0].lstrip("-"))
    if not verbose or verbose[0].endswith("=0") or "0" in options:
        print("status: %s" % status)
        return 0
    name = config["containers"][str(vmid)]["name"]
    fields: dict[str, object] = {"cpus": 32, "maxdisk": 2147483648000, "maxmem": 549755813888, "maxswap": 0}
    lock = power.lock(state, vmid)
    fields.update({"lock": lock} if lock else {})
    fields.update({"name": name, "status": status, "type": "lxc", "vmid": vmid})
    if pid:
        stat = procfs.read_stat(pid)
        started = stat.start_time / os.sysconf("SC_CLK_TCK") if stat else 0
        with open("/proc/uptime", encoding="ascii") as stream:
            fields.update({"pid": pid, "uptime": int(float(stream.read().split()[0]) - started)})
    for key in sorted(fields):
        print("%s: %s" % (key, fields[key]))
    return 0


def _power(state: str, verb: str, vmid: int, options: list[str]) -> int:
    seconds = power.PATIENCE_S
    while options:
        name, has_value, value = options.pop(0).lstrip("-").partition("=")
        if verb != "shutdown" or name != "timeout":
            raise _RefusedError("Unknown option: %s\n400 unable to parse option" % name)
        seconds = int(value if has_value else options.pop(0))
    power.order(state, verb, vmid, seconds)
    return 0


def _list(state: str, config: dict[str, Any]) -> int:
    print("%-10s %-10s %-12s %-20s" % ("VMID", "Status", "Lock", "Name"))
    for vmid, facts in sorted(config.get("containers", {}).items()):
        status = "running" if _init_pid(state, config, int(vmid)) else "stopped"
        print("%-10s %-10s %-12s %-20s" % (vmid, status, "", facts["name"]))
    return 0


def _config(config: dict[str, Any], vmid: int) -> int:
    print("arch: amd64\ncores: 32")
    for place, card in enumerate(CARDS):
        print("dev%d: /dev/%s" % (place, card.node_name))
    print("hostname: %s\nmemory: 524288\nostype: debian\nswap: 0" % config["containers"][str(vmid)]["name"])
    return 0


def _exec(state: str, config: dict[str, Any], vmid: int, words: list[str]) -> int:
    keep = True
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, has_value, value = word.lstrip("-").partition("=")
        if name != "keep-env":
            raise _RefusedError("Unknown option: %s\n400 unable to parse option" % name)
        keep = (value if has_value else words.pop(0) if words else "1") not in ("0", "no", "off", "false")
    if not words:
        raise _RefusedError("400 not enough arguments\npct exec <vmid> [<extra-args>] [OPTIONS]")
    if _init_pid(state, config, vmid) is None:
        raise _RefusedError("container '%d' not running!" % vmid)
    lxc = config.get("lxc", False)
    path = lab_state.inside_path(state, lxc=lxc)
    clean = {"PATH": path, "container": "lxc"} if lxc else lab_state.rootless_environment(state)
    argv = _open(state, config, vmid).attach_argv(words, None if keep else clean)
    sys.stdout.flush()
    code = subprocess.run(argv, env={**os.environ, "PATH": path}, check=False).returncode
    return code if code >= 0 else 128 - code  # as lxc-attach reports a signal
