"""Builds a lab: the steps of `up`, one function each, in the order they run."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import time
from typing import Callable

from tests.lab import claims, dstate, fd_store, host, inventory, manager, procfs, status, units
from tests.lab import state as lab_state
from tests.lab.cards import CARDS, make_nodes
from tests.lab.container import NEIGHBOUR_VMID, STOPPED_VMID, VMID, Container, open_container
from tests.lab.errors import LabError
from tests.lab.scenarios import BARE_CONTEXT_MIB, Bystander, Scenario
from tests.lab.server import DEVICES_MARK

Say = Callable[[str], None]
_NAMES = {VMID: "kimi", NEIGHBOUR_VMID: "neighbour", STOPPED_VMID: "spare"}
_STAND_TIMEOUT_S = 30.0
_PORT_INSIDE_LXC = 30000


def build(state: str, scenario: Scenario, *, lxc: bool, say: Say) -> None:
    """Bring everything up, until the scenario stands. Raises LabError; whoever calls cleans up behind it."""
    port = _PORT_INSIDE_LXC if lxc else _free_port()
    say("files and cards in %s" % state)
    _write_config(state, scenario, port, lxc=lxc)
    _make_cards(state, lxc=lxc)
    _write_tools(state, lxc=lxc)
    if scenario.needs_root:
        dstate.prepare(pathlib.Path(state))
        dstate.mount_disk(pathlib.Path(state))
    containers = {vmid: open_container(vmid, pathlib.Path(state), CARDS, lxc=lxc) for vmid in (VMID, NEIGHBOUR_VMID)}
    if scenario.init_holds and not lxc:
        _have_init_hold_rootless(state, scenario)
    for vmid, container in containers.items():
        say("container %d (%s)" % (vmid, _NAMES[vmid]))
        container.start()
    ours = containers[VMID]
    ours.install_unit(lab_state.UNIT, _unit_text(state, scenario, ours, port))
    _run(ours.service_manager_argv("enable", lab_state.UNIT), "enable %s" % lab_state.UNIT)
    if scenario.init_holds and lxc:
        _have_systemd_hold(state, scenario, ours)
    inventory.write(
        state, port=port, device_directory=os.path.join(state, "dev"), role_variables=scenario.role_variables
    )
    bystander = scenario.bystander
    if bystander is not None and not bystander.late:
        _start_bystander(state, containers[bystander.vmid], bystander, port, say)
    _set_the_manner(state, scenario)
    if scenario.started:
        say("server loads (%s)" % ("healthy" if scenario.fault is None else "and will hang"))
        _start_server(state, scenario, ours, port)
    _wait_until_it_stands(state, scenario, ours, port)
    _end_the_parent(scenario, ours)
    if bystander is not None and bystander.late:
        _start_bystander(state, containers[bystander.vmid], bystander, port, say)
    say("scenario %s stands: %s" % (scenario.name, scenario.summary))


def build_again(state: str, scenario: Scenario, *, lxc: bool, say: Say) -> None:
    """Put the scenario into the lab that stands in ``state``: its server ends, and starts as the scenario says.

    Raises LabError, also for a scenario that needs more than that.
    """
    if not scenario.started or scenario.supervised or scenario.bystander is not None or scenario.needs_root:
        raise LabError("Scenario %s cannot be put into a lab that stands: build a new one." % scenario.name)
    port = int(lab_state.config(state)["port"])
    ours = open_container(VMID, pathlib.Path(state), CARDS, lxc=lxc)
    say("server ends")
    _run(ours.service_manager_argv("stop", lab_state.UNIT), "stop %s" % lab_state.UNIT)
    _end_what_the_stop_left(state)
    for card in CARDS:
        claims.forget(state, card)
    _write_config(state, scenario, port, lxc=lxc)
    ours.install_unit(lab_state.UNIT, _unit_text(state, scenario, ours, port))
    _set_the_manner(state, scenario)
    say("server loads (%s)" % ("healthy" if scenario.fault is None else "and will hang"))
    _start_server(state, scenario, ours, port)
    _wait_until_it_stands(state, scenario, ours, port)
    _end_the_parent(scenario, ours)


def _set_the_manner(state: str, scenario: Scenario) -> None:
    """Say how the server serves. Nothing to say is no file, also where an earlier scenario left one."""
    manner = pathlib.Path(lab_state.server_manner(state))
    if scenario.manner:
        lab_state.write_json(str(manner), scenario.manner)
    else:
        manner.unlink(missing_ok=True)


def _end_the_parent(scenario: Scenario, container: Container) -> None:
    """Stop the unit of a hung server: with KillMode=process systemd kills its first process, and no other."""
    if scenario.parent_gone:
        _run(container.service_manager_argv("stop", lab_state.UNIT), "stop %s" % lab_state.UNIT)


def _end_what_the_stop_left(state: str) -> None:
    """On a busy machine the unit's limit is over before the ranks have gone, and KillMode=process leaves them."""
    marked = [pid for pid in procfs.pids() if procfs.environment_has(pid, lab_state.SERVER_MARK, state)]
    found = [stat for stat in map(procfs.read_stat, marked) if stat is not None]
    for stat in found:
        procfs.kill(stat.pid, stat.start_time)
    if procfs.wait_gone(found, _STAND_TIMEOUT_S):
        raise LabError("The server in %s does not end." % state)


def _write_config(state: str, scenario: Scenario, port: int, *, lxc: bool) -> None:
    containers = {vmid: {"name": name, "exists": vmid != STOPPED_VMID} for vmid, name in _NAMES.items()}
    lab_state.write_json(
        os.path.join(state, "lab.json"),
        {
            "scenario": scenario.name,
            "lxc": lxc,
            "python": sys.executable,
            "port": port,
            "node": socket.gethostname().partition(".")[0],
            "pid_namespace": procfs.pid_namespace("self"),
            "tools_inside": lab_state.tools_inside(state),
            "containers": containers,
        },
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _make_cards(state: str, *, lxc: bool) -> None:
    for name in ("claims", "dev", "bin", "containers", "tmp", "log"):
        os.makedirs(os.path.join(state, name), exist_ok=True)
    devices = os.path.join(state, "dev")
    if lxc:
        host.allow_devices(pathlib.Path(devices))
    make_nodes(devices, character=lxc)
    lab_state.write_json(os.path.join(state, "faults.json"), {})


def _write_tools(state: str, *, lxc: bool) -> None:
    """The stand-ins in STATE/bin: they find interpreter and lab from any directory, and also inside a container."""
    for name in ("nvidia-smi", "pct", "ha-manager", "container-python") + (() if lxc else ("systemctl",)):
        path = os.path.join(state, "bin", name)
        words = " ".join(shlex.quote(word) for word in (lab_state.DOOR, name, state))
        python = shlex.quote(sys.executable)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write("#!/bin/sh\n")
            if lxc:
                stream.write('[ -x %s ] || exec /usr/bin/python3 -S -E %s "$@"\n' % (python, words))
            stream.write('exec %s -S -E %s "$@"\n' % (python, words))
        os.chmod(path, 0o755)


def _server(state: str, scenario: Scenario, container: Container, port: int) -> tuple[list[str], dict[str, str]]:
    """The server's command line and what it needs in its environment."""
    arguments = ["-m", "sglang.launch_server", "--model-path", "/models/Kimi-K2.5", "--served-model-name", "Kimi-K2.5"]
    arguments += ["--tp-size", "8", "--host", "127.0.0.1", "--port", str(port), "--trust-remote-code"]
    if scenario.algorithm is not None:
        arguments += ["--speculative-algorithm", scenario.algorithm, "--speculative-num-steps", "3"]
        arguments += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]
        arguments += ["--speculative-draft-model-path", "/models/Kimi-K2.5-eagle3"]
    if scenario.api_key is not None:
        arguments += ["--api-key", scenario.api_key]
    environment = {
        "PYTHONPATH": os.path.join(lab_state.REPOSITORY, "tests", "lab", "standins"),
        "PYTHONDONTWRITEBYTECODE": "1",
        lab_state.MARK: state,
        lab_state.SERVER_MARK: state,
        DEVICES_MARK: container.device_directory,
    }
    return [container.python, *arguments], environment


def _unit_text(state: str, scenario: Scenario, container: Container, port: int) -> str:
    argv, environment = _server(state, scenario, container, port)
    lines = ["[Unit]", "Description=SGLang server for Kimi-K2.5", "After=network.target", "", "[Service]"]
    # A dollar sign is special in ExecStart= only.
    lines.append("ExecStart=%s" % " ".join([units.quote(argv[0]).replace("$", "$$"), *argv[1:]]))
    lines += ["Environment=%s" % units.quote("%s=%s" % item) for item in environment.items()]
    lines += ["StandardOutput=append:%s" % lab_state.server_log(state).replace("%", "%%"), "StandardError=inherit"]
    lines += ["Restart=always", "RestartSec=100ms", "KillMode=%s" % scenario.kill_mode, "TimeoutStopSec=2s"]
    return "\n".join([*lines, "", "[Install]", "WantedBy=multi-user.target", ""])


def _have_init_hold_rootless(state: str, scenario: Scenario) -> None:
    directory = lab_state.container_directory(state, VMID)
    os.makedirs(directory)
    plan = {"cards": scenario.init_holds, "mib": BARE_CONTEXT_MIB}
    lab_state.write_json(os.path.join(directory, manager.INIT_HOLDS), plan)


def _have_systemd_hold(state: str, scenario: Scenario, container: Container) -> None:
    plan = {"cards": scenario.init_holds, "mib": BARE_CONTEXT_MIB, "devices": container.device_directory}
    words = [container.python, "-S", "-E", lab_state.DOOR, "fd-store", state, json.dumps(plan)]
    lines = ["[Service]", "Type=oneshot", "RemainAfterExit=yes", "NotifyAccess=all", "FileDescriptorStoreMax=16"]
    lines += ["ExecStart=%s" % " ".join(map(units.quote, words)), ""]
    container.install_unit(fd_store.UNIT, "\n".join(lines))
    _run(container.service_manager_argv("start", fd_store.UNIT), "start %s" % fd_store.UNIT)


def _start_bystander(state: str, container: Container, bystander: Bystander, port: int, say: Say) -> None:
    say("%s in container %d" % (bystander.title, bystander.vmid))
    plan = {
        "title": bystander.title,
        "cards": bystander.cards,
        "mib": bystander.mib,
        "devices": container.device_directory,
        "port": port if bystander.takes_port else None,
        "mapped": bystander.mapped,
        "named": bystander.named,
    }
    # The last argument makes room for the title.
    argv = [container.python, "-S", "-E", lab_state.DOOR, "hold", state, json.dumps(plan), "." * 64]
    clean = {"PATH": "/usr/bin:/bin", lab_state.MARK: state}
    _run(container.attach_argv(argv, clean), "start %s in container %d" % (bystander.title, container.vmid))


def _start_server(state: str, scenario: Scenario, container: Container, port: int) -> None:
    if scenario.fault is not None:
        frozen = dstate.freeze(pathlib.Path(state)) if scenario.fault.rank1_frozen else None
        write_to = None if frozen is None else os.path.join(str(frozen), "cache")
        lab_state.write_json(
            lab_state.server_fault(state), {**dataclasses.asdict(scenario.fault), "write_to": write_to}
        )
    if not scenario.supervised:
        _run(container.service_manager_argv("start", lab_state.UNIT), "start %s" % lab_state.UNIT)
        return
    argv, environment = _server(state, scenario, container, port)
    clean = {"PATH": "/usr/bin:/bin", lab_state.MARK: state}
    plan = {"argv": argv, "environment": {**clean, **environment}, "output": lab_state.server_log(state)}
    # The last argument makes room for the title.
    supervisor = [container.python, "-S", "-E", lab_state.DOOR, "supervise", state, json.dumps(plan), "." * 64]
    _run(container.attach_argv(supervisor, clean), "start a supervisor")


def _run(argv: list[str], what: str) -> None:
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise LabError(
            "The lab could not %s: exit code %d, %s" % (what, done.returncode, done.stdout.strip() or "no output")
        )


def _wait_until_it_stands(state: str, scenario: Scenario, container: Container, port: int) -> None:
    """Every card shows what the scenario says; a healthy server answers; a frozen worker sleeps in the kernel."""
    expected = scenario.expected_mib()
    deadline = time.monotonic() + _STAND_TIMEOUT_S
    shown: list[int] = []
    while time.monotonic() < deadline:
        shown = [usage.used_mib for _index, usage in sorted(claims.usage(state).items())]
        if shown == expected and _is_as_it_should(state, scenario, container, port):
            return
        time.sleep(0.05)
    raise LabError(
        "Scenario %s did not come to stand within %g s: the cards show %s MiB, expected %s; the server's log ends: %s"
        % (scenario.name, _STAND_TIMEOUT_S, shown, expected, _log_tail(state))
    )


def _is_as_it_should(state: str, scenario: Scenario, container: Container, port: int) -> bool:
    if scenario.started and scenario.fault is None:
        return status.healthy(container, port, 5)
    if scenario.needs_root:
        holders = claims.usage(state)[1].holders
        stats = [procfs.read_stat(holder.pid) for holder in holders]
        return any(stat is not None and stat.state == "D" for stat in stats)
    return True


def _log_tail(state: str) -> str:
    try:
        with open(lab_state.server_log(state), encoding="utf-8", errors="replace") as stream:
            return " | ".join(stream.read().splitlines()[-3:]) or "empty"
    except FileNotFoundError:
        return "(no log)"
