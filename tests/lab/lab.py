"""The lab as a library: `with Lab(state, "incident") as lab: ...`. `python3 -m tests.lab` is a door over it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from tests.lab import bring_up, dstate, host, procfs, status
from tests.lab import state as lab_state
from tests.lab.cards import CARDS
from tests.lab.container import open_container
from tests.lab.errors import LabError
from tests.lab.scenarios import SCENARIOS

_KILL_TIMEOUT_S = 10.0


def _say_on_stderr(text: str) -> None:
    sys.stderr.write("lab: %s\n" % text)
    sys.stderr.flush()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let a second Ctrl-C wait until the block has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Lab:
    """One lab in one state directory. As a context manager it is up inside the block and down after it."""

    def __init__(
        self,
        state: str | os.PathLike[str],
        scenario: str = "incident",
        container: bool = False,
        say: bring_up.Say = _say_on_stderr,
        shown: Sequence[str] = (),
    ) -> None:
        """`shown`: directories that are to be seen in LXC's containers too, read-only and at the same place."""
        # The real path: inside a container a symbolic link on the way may not exist.
        self.state = pathlib.Path(os.path.realpath(state))
        self.scenario = scenario
        self._lxc = container
        self._say = say
        self._shown = list(shown)

    def __enter__(self) -> Lab:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def inventory(self) -> pathlib.Path:
        """Ansible's inventory of this lab."""
        return self.state / "inventory.yml"

    @property
    def bin(self) -> pathlib.Path:
        """Where nvidia-smi, pct and container-python are."""
        return self.state / "bin"

    @property
    def server_log(self) -> pathlib.Path:
        """The server's log; it stays after `down`."""
        return pathlib.Path(lab_state.server_log(str(self.state)))

    def up(self) -> None:
        """Build the scenario and return when it stands.

        Raises LabError; leaves nothing behind then, nor when interrupted.
        """
        scenario = SCENARIOS.get(self.scenario)
        if scenario is None:
            raise LabError("There is no scenario %r; there are: %s." % (self.scenario, ", ".join(SCENARIOS)))
        if os.geteuid() and (scenario.needs_root or self._lxc):
            what = "--container" if self._lxc else "Scenario %s" % scenario.name
            raise LabError("%s needs root: run it as root, or choose another." % what)
        if self._lxc and shutil.which("lxc-start") is None:
            raise LabError("--container needs LXC: install the packages lxc and debootstrap, or leave the option out.")
        self.state.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if self._marked_processes():
                raise LabError("A lab stands in %s already: take it down first (down --state DIR)." % self.state)
            self._take_down()  # files of one that was killed
            shutil.rmtree(self.state / "log", ignore_errors=True)
            try:
                lab_state.write_json(lab_state.shown(str(self.state)), {"paths": self._shown})
                bring_up.build(str(self.state), scenario, lxc=self._lxc, say=self._say)
            except BaseException:
                self._say("cleaning up")
                with _undisturbed():
                    self._take_down()
                raise

    def up_again(self, scenario: str | None = None) -> None:
        """Put the scenario, or another, into this lab again, while its containers go on standing. Raises LabError."""
        with self._locked():
            self.scenario = scenario or self.scenario
            bring_up.build_again(str(self.state), SCENARIOS[self.scenario], lxc=self._lxc, say=self._say)

    def down(self) -> None:
        """End everything and remove all but the logs. Idempotent, also after an `up` that was killed half-way."""
        if not self.state.is_dir():
            self._kill_marked()
            return
        with self._locked():
            self._take_down()

    def status(self) -> dict[str, Any]:
        """What is so now; see README.md."""
        return status.read(str(self.state))

    def _take_down(self) -> None:
        config = lab_state.config(str(self.state))
        root = os.geteuid() == 0
        if root:
            dstate.thaw(self.state)
        for vmid, facts in config.get("containers", {}).items():
            if facts["exists"]:
                open_container(int(vmid), self.state, CARDS, lxc=config["lxc"]).destroy()
        self._kill_marked()
        if root:
            dstate.release(self.state)
            host.unmount_under(self.state / "dev")
        lab_state.clear(str(self.state))

    def _marked_processes(self) -> list[procfs.Stat]:
        """Processes that this lab started, except whoever asks and its ancestors."""
        spared = set()
        pid = os.getpid()
        while pid > 0:
            spared.add(pid)
            ancestor = procfs.read_stat(pid)
            pid = ancestor.parent if ancestor is not None else 0
        marked = [
            pid
            for pid in procfs.pids()
            if pid not in spared and procfs.environment_has(pid, lab_state.MARK, str(self.state))
        ]
        return [stat for stat in map(procfs.read_stat, marked) if stat is not None]

    def _kill_marked(self) -> None:
        # Until none is found: one that was just starting may have forked behind the list.
        while True:
            found = self._marked_processes()
            if not found:
                return
            for stat in found:
                procfs.kill(stat.pid, stat.start_time)
            left = procfs.wait_gone(found, _KILL_TIMEOUT_S)
            if left:
                pids = ", ".join(str(stat.pid) for stat in left)
                raise LabError("These processes of the lab stay after SIGKILL: %s." % pids)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` at a time. The lock goes with this process, however it ends."""
        with open(self.state / "lab.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
