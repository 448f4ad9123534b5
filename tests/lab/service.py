"""One unit of the stand-in service manager: its processes and its states, as systemd runs a Type=simple service."""

from __future__ import annotations

import collections
import os
import signal
import time
import uuid
from typing import Callable, Optional

from tests.lab import procfs, units

_START_LIMIT_BURST = 5
_START_LIMIT_INTERVAL_S = 10.0
_MARK = "INVOCATION_ID"

Done = Callable[[Optional[str]], None]
"""Called when a job ended: with None, or with systemctl's sentence for the failure."""


class Service:
    """A state machine: `start`, `stop` are jobs; `exited` and `tick` drive it."""

    def __init__(self, name: str, unit: units.UnitFile, environment: dict[str, str]) -> None:
        self.name, self.unit = name, unit
        self._environment = environment
        self.active, self.sub, self.result = "inactive", "dead", "success"
        self.main_pid = 0
        self.restarts = 0
        self.exit_code, self.exit_status = 0, 0
        self.entered_at = 0.0  # seconds since the epoch; when the unit became active last
        self._invocation = ""
        self._deadline: float | None = None
        self._unasked = False  # the main process went although nobody stopped the unit
        self._starts: collections.deque[float] = collections.deque(maxlen=_START_LIMIT_BURST)
        self._waiting_for_stop: list[Done] = []
        self._start_after_stop: list[Done] = []

    def start(self, done: Done) -> None:
        """Start job. While the unit still stops, the start waits for it."""
        if self.active == "active":
            done(None)
        elif self.active == "deactivating":
            self._start_after_stop.append(done)
        else:
            self._spawn(done)

    def stop(self, done: Done) -> None:
        """Stop job: ends when nothing is left that KillMode wants gone."""
        self._unasked = False
        if self.sub == "auto-restart":
            self._enter("inactive", "dead")
        if self.active in ("inactive", "failed"):
            done(None)
            return
        self._waiting_for_stop.append(done)
        if self.active == "active":
            self._enter_signal("stop-sigterm")

    def exited(self, status: int) -> None:
        """The main process ended with this wait status."""
        self.main_pid = 0
        self.exit_code = 1 if os.WIFEXITED(status) else 2  # CLD_EXITED, CLD_KILLED
        self.exit_status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else os.WTERMSIG(status)
        if self.active == "active":
            clean = status == 0 or (os.WIFSIGNALED(status) and self.exit_status in (1, 2, 13, 15))
            self.result = "success" if clean else ("exit-code" if os.WIFEXITED(status) else "signal")
            self._unasked = True
            self._enter_signal("stop-sigterm")
        self.tick()

    def tick(self) -> None:
        """Look at the clock and at the processes; move on if it is time."""
        now = time.monotonic()
        due = self._deadline is not None and now >= self._deadline
        if self.sub == "auto-restart" and due:
            self.restarts += 1
            self._spawn(_ignore)
        elif self.active == "deactivating":
            if not self._waited_for():
                self._stopped()
            elif due and self.sub == "stop-sigterm":
                self.result = "timeout"
                self._enter_signal("stop-sigkill")
            elif due:  # still around after SIGKILL: systemd, too, gives up
                self._stopped()

    def wants_tick_in(self) -> float | None:
        """Seconds until `tick` should be called; None: no need."""
        if self.active == "deactivating":
            return 0.03
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def reset_failed(self) -> None:
        """Forget a failure, and how often the unit was started."""
        self._starts.clear()
        if self.active == "failed":
            self._enter("inactive", "dead")
            self.result = "success"

    def members(self) -> list[procfs.Stat]:
        """Processes of the unit.

        What a cgroup is for systemd is here the INVOCATION_ID that every descendant inherits.
        """
        if not self._invocation:
            return []
        found = [pid for pid in procfs.pids() if procfs.environment_has(pid, _MARK, self._invocation)]
        return [stat for stat in map(procfs.read_stat, found) if stat is not None and stat.state not in "ZX"]

    def _spawn(self, done: Done) -> None:
        now = time.monotonic()
        if len(self._starts) == _START_LIMIT_BURST and now - self._starts[0] < _START_LIMIT_INTERVAL_S:
            self.result = "start-limit-hit"
            self._enter("failed", "failed")
            done('Job for %s failed.\nSee "systemctl status %s" for details.' % (self.name, self.name))
            return
        self._starts.append(now)
        self._invocation = uuid.uuid4().hex
        environment = {**self._environment, **self.unit.environment, _MARK: self._invocation}
        output = self.unit.output or os.devnull
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        argv = self.unit.argv
        try:
            self.main_pid = os.posix_spawn(
                argv[0],
                argv,
                environment,
                file_actions=actions,
                setsid=True,
                setsigdef=[signal.SIGPIPE, signal.SIGCHLD],
            )
        except OSError:
            self.main_pid, self.exit_code, self.exit_status = 0, 1, 203  # EXIT_EXEC
            self.result = "exit-code"
            self._unasked = True
            self._stopped()
        else:
            self.result, self._unasked = "success", False
            self.entered_at = time.time()
            self._enter("active", "running")
        done(None)

    def _enter(self, active: str, sub: str, deadline_s: float | None = None) -> None:
        self.active, self.sub = active, sub
        self._deadline = None if deadline_s is None else time.monotonic() + deadline_s

    def _enter_signal(self, sub: str) -> None:
        self._enter("deactivating", sub, self.unit.stop_timeout_s)
        mode = self.unit.kill_mode
        if mode == "none":
            return
        number = signal.SIGTERM if sub == "stop-sigterm" else signal.SIGKILL
        only_main = mode == "process" or (mode == "mixed" and number == signal.SIGTERM and self.main_pid)
        if mode == "mixed" and not only_main:
            number = signal.SIGKILL
        for stat in self.members():
            if not only_main or stat.pid == self.main_pid:
                procfs.kill(stat.pid, stat.start_time, number)

    def _waited_for(self) -> bool:
        """Whether something lives that the stop must wait for."""
        mode = self.unit.kill_mode
        if self.main_pid and mode != "none":
            return True
        if mode in ("process", "none") or not self.members():
            return False
        if mode == "mixed" and self.sub == "stop-sigterm":
            self._enter_signal("stop-sigkill")
        return True

    def _stopped(self) -> None:
        restart = self.unit.restart == "always" or (self.unit.restart == "on-failure" and self.result != "success")
        if self._unasked and restart and not self._start_after_stop:
            self._enter("activating", "auto-restart", self.unit.restart_s)
        elif self.result == "success":
            self._enter("inactive", "dead")
        else:
            self._enter("failed", "failed")
        stops, self._waiting_for_stop = self._waiting_for_stop, []
        starts, self._start_after_stop = self._start_after_stop, []
        for done in stops:
            done(None)
        if starts:
            self._spawn(starts[0])
        for done in starts[1:]:
            done(None)


def _ignore(_word: str | None) -> None:
    """Nobody waits for a restart that nobody asked for."""
