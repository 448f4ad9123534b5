"""The service manager of the rootless container: pid 1, in place of systemd.

It reaps orphans, runs units (service.py), and answers `systemctl` (systemctl.py) over a Unix socket: one JSON object
per connection, `{"args": [...]}`, answered by `{"rc": N, "out": TEXT, "err": TEXT}` when the job has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
from typing import Callable

from tests.lab import claims, units, verbs
from tests.lab import state as lab_state
from tests.lab.cards import CARDS
from tests.lab.service import Service

SOCKET = "manager.sock"
INIT_HOLDS = "init-holds.json"
Answer = Callable[[int, str, str], None]
"""Sends exit code, stdout and stderr to the systemctl that waits."""


class Manager:
    """All units of one container."""

    def __init__(self, directory: str, environment: dict[str, str]) -> None:
        self.directory = os.path.join(directory, "units")
        self._environment = environment
        self.services: dict[str, Service] = {}
        self.errors: dict[str, str] = {}

    def reload(self) -> None:
        """Read all unit files again; a running unit keeps its processes and gets its new settings."""
        self.errors.clear()
        for name in sorted(os.listdir(self.directory)):
            if not name.endswith(".service"):
                continue
            with open(os.path.join(self.directory, name), encoding="utf-8") as stream:
                text = stream.read()
            try:
                unit = units.parse(text)
            except ValueError as error:
                self.errors[name] = str(error)
                continue
            if name in self.services:
                self.services[name].unit = unit
            else:
                self.services[name] = Service(name, unit, self._environment)

    def flag(self, name: str, kind: str) -> str:
        """Path of the file whose existence says that a unit is `enabled` or `masked`."""
        return os.path.join(self.directory, "%s.%s" % (name, kind))

    def has_flag(self, name: str, kind: str) -> bool:
        """Whether a unit is `enabled` or `masked`."""
        return os.path.exists(self.flag(name, kind))

    def reap(self) -> None:
        """Collect every child that has ended: main processes of units, and orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for service in self.services.values():
                if service.main_pid == pid:
                    service.exited(status)


def serve(state: str, vmid: int) -> None:
    """Be pid 1 of the container; never returns. The listening socket exists when this process answers."""
    directory = lab_state.container_directory(state, vmid)
    os.makedirs(os.path.join(directory, "units"), exist_ok=True)
    os.chdir(directory)  # a socket's path may have 108 bytes at most: its name alone always fits
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(SOCKET)
    listener.listen(64)
    listener.setblocking(False)
    os.chdir("/")
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    manager = Manager(directory, lab_state.rootless_environment(state))
    manager.reload()
    _hold_cards(state, directory)
    for name, service in manager.services.items():
        if manager.has_flag(name, "enabled"):
            service.start(_started)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    while True:
        waits = [
            wait for service in manager.services.values() for wait in [service.wants_tick_in()] if wait is not None
        ]
        for key, _events in selector.select(min(waits) if waits else None):
            if key.fileobj is listener:
                _accept(manager, listener)
            else:
                os.read(wake_read, 4096)
        manager.reap()
        for service in manager.services.values():
            service.tick()


def _started(_failure: str | None) -> None:
    """Nobody waits for what is started at boot."""


def _hold_cards(state: str, directory: str) -> None:
    """What this boot's init holds itself until its end, and the next one's does not: {"cards": [indices], "mib": N}."""
    path = os.path.join(directory, INIT_HOLDS)
    plan = lab_state.read_json(path)
    if plan:
        os.unlink(path)
        for index in plan["cards"]:
            claims.HeldClaim(state, os.path.join(state, "dev"), CARDS[index]).set_mib(plan["mib"])


def _accept(manager: Manager, listener: socket.socket) -> None:
    connection, _address = listener.accept()
    connection.settimeout(1)
    try:
        with connection.makefile("r", encoding="utf-8") as stream:
            request = json.loads(stream.readline())
    except (OSError, ValueError):
        connection.close()
        return
    verbs.run(manager, request["args"], _answer_once(connection))


def _answer_once(connection: socket.socket) -> Answer:
    def answer(code: int, out: str, err: str) -> None:
        text = json.dumps({"rc": code, "out": out, "err": err})
        with contextlib.suppress(OSError):  # whoever asked is gone; the job is done all the same
            connection.sendall(text.encode("utf-8"))
        connection.close()

    return answer
