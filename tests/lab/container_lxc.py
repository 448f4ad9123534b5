"""A container of the lab as a real LXC container with real systemd, laid out as Proxmox lays it out.

Everything of it lies in STATE/lxc, which is LXC's path (`lxc-* -P`): a later process finds it there again. It makes no
mount on the node: LXC mounts the overlay in the container's namespace, and the kernel drops it with the container.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.lab import cards as lab_cards
from tests.lab import cgroup2, dstate, host, lxc_claim, lxc_config, procfs, rootfs
from tests.lab import state as lab_state
from tests.lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

# What a command gets that `pct exec` runs, whatever the node's PATH is (field facts).
PATH_INSIDE = "/sbin:/bin:/usr/sbin:/usr/bin"

_PACKAGES = {
    "lxc-start": "lxc",
    "lxc-attach": "lxc",
    "lxc-info": "lxc",
    "lxc-stop": "lxc",
    "mount": "mount",
    "umount": "mount",
    "unshare": "util-linux",
}
_BOOT_TIMEOUT_S = 60.0
_KILL_TIMEOUT_S = 3.0
_TESTS = pathlib.Path(os.path.abspath(__file__)).parents[1]
_LOCKS = pathlib.Path("/run/lxc/lock")  # LXC: src/lxc/lxclock.c


class LxcContainer:
    """One container; see `container.Container`. `cards` are those whose nodes it gets."""

    python = "/usr/bin/python3"
    device_directory = "/dev"

    def __init__(self, vmid: int, state: pathlib.Path, cards: Sequence[lab_cards.Card]) -> None:
        self.vmid = vmid
        self._state = pathlib.Path(os.path.realpath(state))
        self._state_as_named = os.path.abspath(state)
        self._cards = cards
        self._lxc_path = self._state / "lxc"
        # LXC's names are one name space (its sockets, its locks); two labs must not meet there, whatever their VMIDs.
        self._name = f"gpuops-{hashlib.sha256(str(self._state).encode()).hexdigest()[:10]}-{vmid}"
        self._home = self._lxc_path / self._name
        self._which = ["-P", str(self._lxc_path), "-n", self._name]

    # -- starting ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create and boot, or boot again what was stopped; return when systemd inside is up. Raises LabError."""
        host.require(_PACKAGES)
        for path in (str(self._state), self._state_as_named, str(_TESTS)):
            lxc_config.check_path(path)
        base = rootfs.ensure()
        lxc_claim.take(self.vmid, self._state)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.destroy)  # also when interrupted
            dstate.prepare(self._state)
            self._write(base)
            self._launch()
            self._wait_for_systemd()
            on_failure.pop_all()

    def _write(self, base: pathlib.Path) -> None:
        """Everything that LXC reads: root file system, hook, configuration."""
        self._home.mkdir(parents=True, exist_ok=True)
        numbers = lab_cards.character_numbers()
        names = [card.node_name for card in self._cards] + [lab_cards.CONTROL_NODE, lab_cards.UVM_NODE]
        nodes = {name: numbers[name] for name in names}
        hook = self._home / "autodev"
        hook.write_text(lxc_config.autodev_hook(nodes), encoding="utf-8")
        hook.chmod(0o755)
        shown = lab_state.read_json(lab_state.shown(str(self._state))).get("paths", ())
        text = lxc_config.render(
            vmid=self.vmid,
            root=self._root(base),
            hook=hook,
            read_only=sorted({str(_TESTS), os.path.realpath(_TESTS), *shown}),
            read_write=sorted({str(self._state), self._state_as_named}),
            devices=sorted(nodes.values()),
            apparmor=os.path.isdir("/sys/module/apparmor"),
        )
        (self._home / "config").write_text(text, encoding="utf-8")

    def _root(self, base: pathlib.Path) -> str:
        """LXC's name of the root file system: an overlay of `base`, or a copy where the kernel cannot overlay here."""
        changes, copy = self._home / "upper", self._home / "copy"
        overlay = changes.exists() or (lxc_config.can_overlay(base, changes) and self._overlay_works(base))
        if overlay and not copy.exists():
            changes.mkdir(exist_ok=True)
            return f"overlayfs:{base}:{changes}"
        if not copy.exists():
            unfinished = self._home / "copying"
            host.run_tool(["cp", "-a", "--reflink=auto", "--", str(base), str(unfinished)], timeout=600)
            unfinished.rename(copy)
        return f"dir:{copy}"

    def _overlay_works(self, base: pathlib.Path) -> bool:
        """Whether the file system of the state directory can be an overlay's upper one (an overlay itself cannot)."""
        probe = self._home / "probe"
        for name in ("upper", "work", "merged"):
            (probe / name).mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={base},upperdir={probe / 'upper'},workdir={probe / 'work'}"
        argv = ["unshare", "--mount", "mount", "-t", "overlay", "-o", options, "overlay", str(probe / "merged")]
        try:
            host.run_tool(argv)
        except LabError:
            return False
        finally:
            shutil.rmtree(probe)
        return True

    def _launch(self) -> None:
        """Start LXC's monitor, which starts init and stays."""
        launcher = str(pathlib.Path(__file__).with_name("lxc_launch.py"))
        argv = [sys.executable, launcher, "lxc-start", *self._which, "-d", "-o", str(self._log), "-l", "WARN"]
        try:
            host.run_tool(argv)
        except LabError as error:
            text = "Container %d does not start: %s; LXC's log: %s"
            raise LabError(text % (self.vmid, error, self._log_tail())) from None

    @property
    def _log(self) -> pathlib.Path:
        return self._home / "lxc.log"

    def _log_tail(self) -> str:
        """LXC's last words, on one line. They go into the error, because a failed start removes the file."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        # Debian's LXC is built without seccomp and says so with each lxc-attach.
        return " | ".join([line for line in lines if "lxc.seccomp" not in line][-4:]) or "empty"

    def _wait_for_systemd(self) -> None:
        deadline = time.monotonic() + _BOOT_TIMEOUT_S
        while True:
            answer = self._ask(self.service_manager_argv("is-system-running"))
            if answer in ("running", "degraded"):
                return
            if time.monotonic() > deadline or self.init_pid() is None:
                raise LabError(
                    f"systemd in container {self.vmid} did not come up within {_BOOT_TIMEOUT_S:g} s: "
                    f"it says {answer!r}; LXC's log: {self._log_tail()}"
                )
            time.sleep(0.05)

    def _ask(self, argv: list[str]) -> str:
        """The last line that a command says, whatever its exit code (`is-system-running` has 1 for degraded)."""
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_BOOT_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return "no answer"
        return "".join((done.stdout.strip() or done.stderr.strip()).splitlines()[-1:])

    # -- using ------------------------------------------------------------------------------------------------------

    def init_pid(self) -> int | None:
        """The container's init as the node sees it; None when the container is stopped or was never made."""
        if not (self._home / "config").exists():
            return None  # asking LXC would make it create its lock again
        word = self._ask(["lxc-info", *self._which, "-p", "-H"])
        return int(word) if word.isdigit() and word != "0" else None

    def attach_argv(self, argv: list[str], env: dict[str, str] | None = None) -> list[str]:
        """An argv that runs `argv` inside, as root; see `container.Container`. PATH is Proxmox's unless in `env`."""
        variables = {"PATH": PATH_INSIDE, **(env or {})}
        keep = "--keep-env" if env is None else "--clear-env"
        settings = [f"--set-var={name}={value}" for name, value in sorted(variables.items())]
        return ["lxc-attach", *self._which, keep, *settings, "--", *argv]

    def service_manager_argv(self, *args: str) -> list[str]:
        """An argv that runs `systemctl ARGS` inside."""
        return self.attach_argv(["systemctl", *args], {})

    def install_unit(self, name: str, text: str) -> None:
        """Write /etc/systemd/system/NAME inside and make systemd read it. Raises LabError."""
        host.run_tool(self.attach_argv(["tee", "--", "/etc/systemd/system/" + name], {}), stdin=text)
        host.run_tool(self.service_manager_argv("daemon-reload"))

    def halt(self, seconds: float | None) -> bool:
        """See container.Container. The signal is the one that Proxmox has LXC send to a systemd (lxc.signal.halt)."""
        init = self.init_pid()
        if init is None:
            return True
        if seconds is None:
            host.run_tool(["lxc-stop", *self._which, "--kill"], timeout=20)
        else:
            os.kill(init, signal.SIGRTMIN + 4)
        deadline = time.monotonic() + (_KILL_TIMEOUT_S if seconds is None else seconds)
        while self.init_pid() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        # The monitor goes after init, and a start before that would meet it.
        procfs.wait_gone(host.processes_with(str(self._lxc_path), self._name), _KILL_TIMEOUT_S)
        return True

    # -- ending -----------------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Kill all of it and leave nothing: no process, mount, cgroup or file. Idempotent.

        Works from the world, not from what `start` remembered, so it also cleans behind one that was killed half-way.
        Raises LabError, and keeps the files, when a process cannot be killed.
        """
        # A start still under way would bring up after us what we take down now.
        for stat in host.processes_with("lxc-start", *self._which):
            procfs.kill(stat.pid, stat.start_time)
        if lxc_claim.is_mine(self.vmid, self._state):
            self._kill_members()
        elif (self._home / "config").exists():  # somebody emptied /run
            with contextlib.suppress(LabError):  # it is stopped already
                host.run_tool(["lxc-stop", *self._which, "--kill"], timeout=20)
        # The monitor goes by itself when init has gone; an lxc-attach does, when its command has.
        left = procfs.wait_gone(host.processes_with(str(self._lxc_path), self._name), _KILL_TIMEOUT_S)
        for stat in left:
            procfs.kill(stat.pid, stat.start_time)
        procfs.wait_gone(left, _KILL_TIMEOUT_S)
        lxc_claim.give_back(self.vmid, self._state)
        self._remove_files()

    def _kill_members(self) -> None:
        """Kill whatever is in the container's cgroup, also without its monitor."""
        with cgroup2.hierarchy() as top:
            inside = top / lxc_claim.cgroups(self.vmid)[0]
            cgroup2.kill(inside)
            left = cgroup2.wait_until_empty(inside, _KILL_TIMEOUT_S)
            if left:  # a process on the frozen disk dies as soon as that is thawed
                dstate.thaw(self._state)
                left = cgroup2.wait_until_empty(inside, _KILL_TIMEOUT_S)
        if left:
            text = "Processes %s of container %d survive SIGKILL: their /proc/PID/stack says where they sleep."
            raise LabError(text % (left, self.vmid))

    def _remove_files(self) -> None:
        """Delete what lies in the state directory, after making sure that nothing is mounted there."""
        host.unmount_under(self._home)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._home)
        _remove_lock(_LOCKS / str(self._lxc_path).lstrip("/") / ("." + self._name))
        with contextlib.suppress(OSError):  # another container of this lab has its files there
            self._lxc_path.rmdir()
        if not self._lxc_path.exists():
            dstate.release(self._state)


def _remove_lock(lock: pathlib.Path) -> None:
    """Remove LXC's lock file and the directories that LXC made for it and that are empty now."""
    lock.unlink(missing_ok=True)
    for directory in lock.parents:
        if directory == _LOCKS:
            return
        with contextlib.suppress(OSError):
            directory.rmdir()
