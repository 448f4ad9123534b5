"""Many simulated hosts on this machine: replicas that answer, each with idle cards, a start command and hooks.

A replica is up while its file lies in UP; its port is open then, and it answers as a server with OpenAI's interface.
Nothing here is a GPU, a container or a systemd: what is tested with it is what the playbook does with many hosts.
"""

from __future__ import annotations

import http.server
import json
import os
import shlex
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab import state as lab_state
from tests.lab.cards import CARDS, make_nodes
from tests.tooling.environment import ROOT

_LOOK_S = 0.01
# What the stand-in answers is kept by its arguments: it costs no interpreter from the second call on.
_NVIDIA_SMI = """#!/bin/sh
answer={cache}/$(printf %s "$*" | tr -c A-Za-z0-9 _)
if [ ! -e "$answer" ]; then
  {real} "$@" > "$answer.$$" && mv "$answer.$$" "$answer" || exit 1
fi
exec cat "$answer"
"""


class _Handler(http.server.BaseHTTPRequestHandler):
    """A server that generates what the role asks for."""

    def do_GET(self) -> None:
        """The model, also as a health check."""
        self._answer({"object": "list", "data": [{"id": "simulated"}]})

    def do_POST(self) -> None:
        """A completion."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer({"choices": [{"text": " 9, 10, 11, 12"}], "usage": {"completion_tokens": 12}})

    def log_message(self, *_arguments: object) -> None:
        """Be quiet."""

    def _answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Replicas:
    """So many of them. ``most_down`` is how many have ever been down at the same time since all were up."""

    def __init__(self, directory: Path, count: int, *, up: bool) -> None:
        self.names = [f"replica{number:02}" for number in range(count)]
        self.inventory = directory / "hosts.json"
        self.broken: set[str] = set()
        """These never come up again."""
        self.most_down = 0
        self.up_directory = directory / "up"
        self.given_back = directory / "given-back"
        """For a hook that gives a replica back: a file for each."""
        self._directory = directory
        self._servers: dict[str, http.server.ThreadingHTTPServer] = {}
        self._ports = dict(zip(self.names, _free_ports(count)))
        self._ended = threading.Event()
        self._make(up=up)

    def _make(self, *, up: bool) -> None:
        state = self._directory / "state"
        for name in ("claims", "dev", "cache"):
            (state / name).mkdir(parents=True)
        make_nodes(str(state / "dev"), character=False)
        lab_state.write_json(str(state / "faults.json"), {})
        lab_state.write_json(str(state / "lab.json"), {})
        self.up_directory.mkdir()
        self.given_back.mkdir()
        real = shlex.join([sys.executable, "-S", "-E", lab_state.DOOR, "nvidia-smi", str(state)])
        tool = state / "nvidia-smi"
        tool.write_text(_NVIDIA_SMI.format(cache=shlex.quote(str(state / "cache")), real=real), encoding="utf-8")
        tool.chmod(0o755)
        common = {
            "ansible_connection": "local",
            "ansible_pipelining": True,
            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
            "verified_restart_engine": "openai",
            "verified_restart_nvidia_smi_path": str(tool),
            "verified_restart_device_directory": str(state / "dev"),
            "verified_restart_expected_gpus": len(CARDS),
            "verified_restart_driver_timeout": 60,
            "verified_restart_lease_directory": str(self._directory / "leases"),
            "verified_restart_lease": "{{ inventory_hostname }}",
            "verified_restart_report_dir": str(self._directory / "report"),
            "verified_restart_health_timeout": 21,
            "verified_restart_hung_after": 1,
            "verified_restart_start_delay": 1,
        }
        hosts = {name: self._variables(name) for name in self.names}
        self.inventory.write_text(
            json.dumps({"all": {"vars": common, "children": {"inference": {"hosts": hosts}}}}), encoding="utf-8"
        )
        if up:
            for name in self.names:
                (self.up_directory / name).touch()

    def _variables(self, name: str) -> dict[str, Any]:
        return {
            "verified_restart_url": f"http://127.0.0.1:{self._ports[name]}",
            "verified_restart_start_command": ["touch", str(self.up_directory / name)],
            "replica_file": str(self.up_directory / name),
            "replica_given_back": str(self.given_back / name),
        }

    def up(self) -> set[str]:
        """Those whose port is open."""
        return set(self._servers)

    def results(self) -> dict[str, dict[str, Any]]:
        """What the role wrote, by host."""
        return {file.stem: json.loads(file.read_text()) for file in (self._directory / "report").glob("*.json")}

    @contextmanager
    def living(self) -> Iterator[None]:
        """Let them live inside the block; those that are up at first are up when it begins."""
        self._follow(os.listdir(self.up_directory))
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            self._follow([])

    def _watch(self) -> None:
        all_were_up = False
        while not self._ended.wait(_LOOK_S):
            self._follow(os.listdir(self.up_directory))
            down = len(self.names) - len(self._servers)
            all_were_up = all_were_up or down == 0
            self.most_down = max(self.most_down, down if all_were_up else 0)

    def _follow(self, files: list[str]) -> None:
        for name in set(files) - set(self._servers) - self.broken:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", self._ports[name]), _Handler)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            self._servers[name] = server
        for name in set(self._servers) - set(files):
            server = self._servers.pop(name)
            server.shutdown()
            server.server_close()


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _one in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


PLAYBOOK = ROOT / "playbooks" / "restart_inference.yml"


def hooks(directory: Path, tasks: Mapping[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Task files of an operator, as variables of the role: ``before`` and ``after``."""
    paths = {name: directory / f"{name}.yml" for name in tasks}
    for name, path in paths.items():
        path.write_text(json.dumps(tasks[name]), encoding="utf-8")
    return {f"verified_restart_{name}": str(path) for name, path in paths.items()}
