"""The API of a Proxmox node, as far as a restart asks it: paths, shapes, statuses and words of the real one.

HTTPS on 127.0.0.1 with a certificate of its own (`certificate`). A token is `PVEAPIToken=USER!ID=SECRET`; a wrong one
gets 401, and one without a privilege 403. What the API does is done by a `Guests`: the lab's containers (LabGuests), or
something that a test has made up.

Shapes: pve-manager PVE/API2/Cluster.pm (resources), pve-container src/PVE/API2/LXC/Status.pm, pve-common UPID format.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pathlib
import re
import ssl
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from tests.lab import power, procfs
from tests.lab import state as lab_state
from tests.lab.errors import LabError

AUDIT, POWER = "VM.Audit", "VM.PowerMgmt"


class Token(NamedTuple):
    """A token, with its owner and the privileges that it has on all guests."""

    user: str
    name: str
    secret: str
    privileges: frozenset[str] = frozenset({AUDIT, POWER})

    @property
    def header(self) -> str:
        """What a client sends as `Authorization`."""
        return "PVEAPIToken=%s!%s=%s" % (self.user, self.name, self.secret)


class Guests(Protocol):
    """The containers of the cluster."""

    def list(self) -> list[dict[str, Any]]:
        """Each as /cluster/resources has it: vmid, node, status, name, and `lock` and `hastate` where there are any."""

    def current(self, vmid: int) -> dict[str, Any]:
        """One as status/current has it."""

    def order(self, verb: str, vmid: int, timeout: int) -> None:
        """Do it, and return when it is done. Raises LabError with Proxmox's words."""


class LabGuests:
    """The containers of a lab."""

    def __init__(self, state: str) -> None:
        self._state = os.path.realpath(state)

    def list(self) -> list[dict[str, Any]]:
        """See Guests.list."""
        config = lab_state.config(self._state)
        return [self._resource(config, int(vmid)) for vmid in sorted(config["containers"])]

    def _resource(self, config: dict[str, Any], vmid: int) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "id": "lxc/%d" % vmid,
            "vmid": vmid,
            "type": "lxc",
            "node": config["node"],
            "name": config["containers"][str(vmid)]["name"],
            "status": "running" if power.init_pid(self._state, vmid) else "stopped",
            "template": 0,
            "maxcpu": 32,
        }
        for key, value in (("lock", power.lock(self._state, vmid)), ("hastate", power.ha_state(self._state, vmid))):
            if value is not None:
                facts[key] = value
        return facts

    def current(self, vmid: int) -> dict[str, Any]:
        """See Guests.current."""
        config = lab_state.config(self._state)
        if str(vmid) not in config["containers"]:
            raise LabError("Configuration file 'nodes/%s/lxc/%d.conf' does not exist" % (config["node"], vmid))
        facts = self._resource(config, vmid)
        state = facts.pop("hastate", None)
        facts["ha"] = {"managed": 0} if state is None else {"managed": 1, "state": state}
        pid = power.init_pid(self._state, vmid)
        stat = procfs.read_stat(pid) if pid is not None else None
        if stat is not None:
            with open("/proc/uptime", encoding="ascii") as stream:
                up = float(stream.read().split()[0])
            facts.update({"pid": pid, "uptime": int(up - stat.start_time / os.sysconf("SC_CLK_TCK"))})
        return facts

    def order(self, verb: str, vmid: int, timeout: int) -> None:
        """See Guests.order."""
        power.order(self._state, verb, vmid, timeout)


def certificate(directory: pathlib.Path, name: str = "api") -> tuple[pathlib.Path, pathlib.Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key. It is its own authority."""
    file, key = directory / ("%s.pem" % name), directory / ("%s.key" % name)
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-keyout", str(key), "-out", str(file), "-days", "2", "-subj", "/CN=%s" % name]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return file, key


class ProxmoxApi:
    """The server. `asked` notes method and path of each request, and whether the token was right."""

    def __init__(self, guests: Guests, token: Token, files: tuple[pathlib.Path, pathlib.Path]) -> None:
        self.asked: list[tuple[str, str, bool]] = []
        self.tasks: dict[str, str | None] = {}
        self._guests = guests
        self._token = token
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """One request."""

            def do_GET(self) -> None:
                """Answer."""
                api.answer(self, {})

            def do_POST(self) -> None:
                """Answer."""
                text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                api.answer(self, dict(urllib.parse.parse_qsl(text)))

            def log_message(self, *_arguments: object) -> None:
                """Be quiet."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @contextlib.contextmanager
    def serving(self) -> Iterator[ProxmoxApi]:
        """Serve inside the block."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def answer(self, request: http.server.BaseHTTPRequestHandler, parameters: dict[str, str]) -> None:
        """Answer one request."""
        path, _mark, query = request.path.partition("?")
        good = request.headers.get("Authorization") == self._token.header
        self.asked.append((request.command, path, good))
        try:
            if not good:
                raise _StatusError(401, "no such token '%s'" % self._token.name)
            if not path.startswith("/api2/json/"):
                raise _StatusError(404, "Not Found")
            words = path[len("/api2/json/") :].strip("/").split("/")
            value = self._value(request.command, words, {**dict(urllib.parse.parse_qsl(query)), **parameters})
            status, said, body = 200, "OK", {"data": value}
        except _StatusError as error:
            status, said, body = error.code, str(error), {"data": None, "message": "%s\n" % error}
        except LabError as error:
            status, said, body = 500, str(error), {"data": None, "message": "%s\n" % error}
        data = json.dumps(body).encode()
        with contextlib.suppress(OSError):  # whoever asked is gone
            request.send_response(status, said)
            request.send_header("Content-Type", "application/json;charset=UTF-8")
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)

    def _value(self, method: str, words: list[str], parameters: dict[str, str]) -> Any:
        path = "/".join(words)
        if (method, path) == ("GET", "version"):
            return {"version": "9.0.3", "release": "9.0", "repoid": "025864202ebb6109"}
        if (method, path) == ("GET", "nodes"):
            return [{"node": node, "status": "online", "type": "node"} for node in self._nodes()]
        if (method, path) == ("GET", "cluster/resources"):
            return self._visible(None) if parameters.get("type", "vm") == "vm" else []
        if (method, path) == ("GET", "cluster/ha/resources"):
            managed = [one for one in self._visible(None) if "hastate" in one]
            return [{"sid": "ct:%d" % one["vmid"], "type": "ct", "state": one["hastate"]} for one in managed]
        if words[0] == "nodes" and len(words) > 2:
            return self._of_node(method, words[1], words[2:], parameters)
        raise _StatusError(501, "Method '%s /%s' not implemented" % (method, path))

    def _of_node(self, method: str, node: str, words: list[str], parameters: dict[str, str]) -> Any:
        path = "/".join(words)
        if node not in self._nodes():
            raise _StatusError(500, "hostname lookup '%s' failed" % node)
        if (method, path) == ("GET", "lxc"):
            return [{key: one[key] for key in one if key != "hastate"} for one in self._visible(node)]
        if (method, path) == ("GET", "qemu"):
            return []
        found = re.fullmatch(r"lxc/([0-9]+)/status/([a-z]+)", path)
        if found and (method, found[2]) == ("GET", "current"):
            self._require(AUDIT, int(found[1]))
            return self._guests.current(int(found[1]))
        if found and method == "POST" and found[2] in power.VERBS:
            self._require(POWER, int(found[1]))
            return self._start_task(node, found[2], int(found[1]), int(parameters.get("timeout", power.PATIENCE_S)))
        if method == "GET" and len(words) == 3 and words[0] == "tasks" and words[2] == "status":
            return self._task(node, urllib.parse.unquote(words[1]))
        raise _StatusError(501, "Method '%s /nodes/%s/%s' not implemented" % (method, node, path))

    def _nodes(self) -> list[str]:
        return sorted({one["node"] for one in self._guests.list()})

    def _visible(self, node: str | None) -> list[dict[str, Any]]:
        """Guests are listed to whoever may look at them, and others see an empty list."""
        if AUDIT not in self._token.privileges:
            return []
        return [one for one in self._guests.list() if node in (None, one["node"])]

    def _require(self, privilege: str, vmid: int) -> None:
        if privilege not in self._token.privileges:
            raise _StatusError(403, "Permission check failed (/vms/%d, %s)" % (vmid, privilege))

    def _start_task(self, node: str, verb: str, vmid: int, timeout: int) -> str:
        number = len(self.tasks) + 1
        names = (node, number, number, int(time.time()), verb, vmid, self._token.user, self._token.name)
        task = "UPID:%s:%08X:%08X:%08X:vz%s:%d:%s!%s:" % names
        self.tasks[task] = None

        def work() -> None:
            try:
                self._guests.order(verb, vmid, timeout)
                self.tasks[task] = "OK"
            except LabError as error:
                self.tasks[task] = str(error)

        threading.Thread(target=work, daemon=True).start()
        return task

    def _task(self, node: str, task: str) -> dict[str, Any]:
        if task not in self.tasks:
            raise _StatusError(500, "no such task")
        end = self.tasks[task]
        facts = {
            "upid": task,
            "node": node,
            "user": self._token.user,
            "status": "running" if end is None else "stopped",
        }
        return facts if end is None else {**facts, "exitstatus": end}


class _StatusError(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
