"""A container without root: user, pid and mount namespaces over the same files, with manager.py as its init.

As root the user namespace is left out: the rest works without one, and also where the kernel refuses unprivileged ones.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.lab import manager, procfs
from tests.lab import state as lab_state
from tests.lab.cards import Card
from tests.lab.errors import LabError

_START_TIMEOUT_S = 10.0
_PATH_OF_TOOLS = "/sbin:/bin:/usr/sbin:/usr/bin"


class RootlessContainer:
    """See container.Container."""

    def __init__(self, vmid: int, state: pathlib.Path, cards: Sequence[Card]) -> None:
        self.vmid = vmid
        self.python: str = lab_state.config(str(state)).get("python", sys.executable)
        self.device_directory = str(state / "dev")
        self._state = str(state)
        self._directory = lab_state.container_directory(self._state, vmid)

    def start(self) -> None:
        """See container.Container."""
        if self._state.startswith("/dev/shm/"):
            raise LabError("%s is not visible in a container, which has its own /dev/shm." % self._state)
        os.makedirs(os.path.join(self._directory, "units"), exist_ok=True)
        log_path = os.path.join(self._state, "log", "container-%d.log" % self.vmid)
        # No pipe of the caller may reach the monitor: whoever reads it would wait for the end of the lab.
        with open(log_path, "ab") as log:
            subprocess.run(
                # The last argument only makes room for the titles.
                [self.python, "-S", "-E", lab_state.DOOR, "monitor", self._state, str(self.vmid), "." * 64],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
                cwd="/",
                env={"PATH": _PATH_OF_TOOLS, lab_state.MARK: self._state, "GPUOPS_LAB_VMID": str(self.vmid)},
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            self._raise_reported_error()
            ready = os.path.exists(os.path.join(self._directory, "manager.sock"))
            if ready and self.init_pid() is not None and self._systemctl("is-system-running").returncode == 0:
                return
            time.sleep(0.01)
        raise LabError(
            "The init of container %d did not answer within %g s; see %s." % (self.vmid, _START_TIMEOUT_S, log_path)
        )

    def _raise_reported_error(self) -> None:
        path = os.path.join(self._directory, "error")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
            raise LabError(
                "The namespaces of container %d could not be made (%s): run as root, or let unprivileged users make "
                "user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
                "kernel.apparmor_restrict_unprivileged_userns=0)." % (self.vmid, text)
            )

    def halt(self, seconds: float | None) -> bool:
        """See container.Container. The init knows no shutdown, so it is always by force."""
        self._end()
        for name in (manager.SOCKET, "init.json", "monitor.json"):
            pathlib.Path(self._directory, name).unlink(missing_ok=True)
        return True

    def destroy(self) -> None:
        """See container.Container."""
        self._end()
        if os.path.isdir(self._directory):
            shutil.rmtree(self._directory)

    def _end(self) -> None:
        """End the init; the kernel ends everything inside together with it. Raises LabError."""
        found = []
        for name in ("init", "monitor"):
            noted = lab_state.read_json(os.path.join(self._directory, name + ".json"))
            stat = procfs.read_stat(noted["pid"]) if noted else None
            if stat is not None and stat.start_time == noted["start_time"]:
                found.append(stat)
                procfs.kill(stat.pid, stat.start_time)
        left = procfs.wait_gone(found, 10)
        if left:
            raise LabError("Container %d does not end: process %d stays after SIGKILL." % (self.vmid, left[0].pid))

    def init_pid(self) -> int | None:
        """See container.Container."""
        noted = lab_state.read_json(os.path.join(self._directory, "init.json"))
        return int(noted["pid"]) if noted and procfs.is_alive(noted["pid"], noted["start_time"]) else None

    def attach_argv(self, argv: list[str], env: dict[str, str] | None = None) -> list[str]:
        """See container.Container. Raises LabError when the container is stopped."""
        pid = self.init_pid()
        if pid is None:
            raise LabError("Container %d is not running." % self.vmid)
        tool = shutil.which("nsenter", path=_PATH_OF_TOOLS)
        if tool is None:
            raise LabError("nsenter is missing; install util-linux.")
        enter = [tool, "-t", str(pid), "-m", "-p"]
        if os.getuid():
            enter += ["-U", "--preserve-credentials"]
        if env is not None:
            argv = ["/usr/bin/env", "-i", *("%s=%s" % item for item in env.items()), *argv]
        return [*enter, "--", *argv]

    def install_unit(self, name: str, text: str) -> None:
        """See container.Container."""
        with open(os.path.join(self._directory, "units", name), "w", encoding="utf-8") as stream:
            stream.write(text)
        self._systemctl("daemon-reload").check_returncode()

    def service_manager_argv(self, *args: str) -> list[str]:
        """See container.Container."""
        return self.attach_argv([os.path.join(self._state, "bin", "systemctl"), *args])

    def _systemctl(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.service_manager_argv(*args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
