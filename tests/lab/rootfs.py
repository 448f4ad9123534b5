"""The root file system of the lab's LXC containers: Debian with systemd and Python, built once and kept.

It lies in `$LAB_CACHE`, else `~/.cache/gpuops-lab`. Its name has the recipe's hash: a changed recipe is built anew.
`python3 -m tests.lab.rootfs` builds it alone, for a CI that keeps the cache, and prints where it is.
`LAB_MIRROR` names the Debian mirror; otherwise it is the one that this machine's apt uses.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.lab import host
from tests.lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITE = "bookworm"
PACKAGES = ("dbus", "python3", "python3-setproctitle", "systemd", "systemd-sysv")
DEFAULT_MIRROR = "http://deb.debian.org/debian"

# Nothing here is of use in a container that lives for minutes, and each costs time at boot.
MASKED_UNITS = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "systemd-tmpfiles-clean.timer",
)
FILES = {
    # The distribution's own tmp.conf empties /tmp at boot. The lab's state is bind-mounted, and often lies below /tmp.
    "etc/tmpfiles.d/tmp.conf": "d /tmp 1777 root root -\nd /var/tmp 1777 root root -\n",
    "etc/fstab": "",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/resolv.conf": "",
    # Empty means: systemd makes one at boot, so that two containers differ.
    "etc/machine-id": "",
}
_WASTE = (
    "etc/hostname",  # the name that LXC sets shall stay
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log/bootstrap.log",
)
_PACKAGES_OF_TOOLS = {"debootstrap": "debootstrap", "unshare": "util-linux"}
_BUILD_TIMEOUT_S = 1800


def cache_directory() -> pathlib.Path:
    """Where root file systems are kept."""
    chosen = os.environ.get("LAB_CACHE")
    return pathlib.Path(chosen).resolve() if chosen else pathlib.Path.home() / ".cache" / "gpuops-lab"


def path() -> pathlib.Path:
    """Where the file system of this recipe is, or will be."""
    recipe = json.dumps([SUITE, PACKAGES, MASKED_UNITS, FILES, _WASTE], sort_keys=True)
    return cache_directory() / ("rootfs-" + hashlib.sha256(recipe.encode()).hexdigest()[:12])


def _mirror() -> str:
    """The Debian mirror to build from."""
    chosen = os.environ.get("LAB_MIRROR")
    if chosen:
        return chosen
    try:
        text = host.run_tool(["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)"])
    except LabError:
        return DEFAULT_MIRROR  # no apt here: debootstrap runs on other distributions too
    uris = [line.split()[2] for line in text.splitlines() if line.startswith("Debian Debian http")]
    return uris[0] if uris else DEFAULT_MIRROR


@contextlib.contextmanager
def _lock(directory: pathlib.Path) -> Iterator[int]:
    """Hold the cache for one builder. Yields the lock's descriptor, which a child may inherit to hold it on."""
    with (directory / "lock").open("w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream.fileno()


def _say(text: str) -> None:
    sys.stderr.write(f"lab: {text}\n")
    sys.stderr.flush()


def ensure() -> pathlib.Path:
    """The file system's directory, built now if it is not there. Raises LabError when building fails.

    Built under another name and renamed when complete: what has the right name is whole. Of two builders one waits.
    """
    target = path()
    if target.is_dir():
        return target
    host.require(_PACKAGES_OF_TOOLS)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.parent) as lock:
        if target.is_dir():
            return target
        for leftover in target.parent.glob("building-*"):
            host.unmount_under(leftover)  # before anything is deleted below it
            shutil.rmtree(leftover)
        building = target.parent / ("building-" + target.name)
        _build(building, lock)
        building.rename(target)
    return target


def _build(directory: pathlib.Path, lock: int) -> None:
    """Fill `directory` by debootstrap, then make it small and quick to boot."""
    mirror, began = _mirror(), time.monotonic()
    _say(f"building the containers' root file system from {mirror} (once; a minute or two)")
    directory.mkdir()
    log = directory.parent / "debootstrap.log"
    # Namespaces of its own: debootstrap mounts /proc in the target, and nothing of that outlives it. The child holds
    # the lock, too, so that nobody deletes under its feet when this process is killed.
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    argv += ["debootstrap", "--variant=minbase", "--include=" + ",".join(PACKAGES), SUITE, str(directory), mirror]
    with log.open("w", encoding="utf-8") as stream:
        try:
            status = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                pass_fds=[lock],
                timeout=_BUILD_TIMEOUT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            text = "debootstrap from %s did not end within %d s: see %s"
            raise LabError(text % (mirror, _BUILD_TIMEOUT_S, log)) from None
    if status != 0:
        words = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        text = "debootstrap from %s failed: %s (all of it: %s; another mirror: LAB_MIRROR)"
        raise LabError(text % (mirror, words, log))
    _trim(directory)
    _say("built in %.0f s" % (time.monotonic() - began))


def _trim(directory: pathlib.Path) -> None:
    """Apply what the recipe says besides packages."""
    for name in _WASTE:
        waste = directory / name
        if waste.is_dir():
            shutil.rmtree(waste)
            waste.mkdir()  # packages expect the directory itself
        else:
            waste.unlink(missing_ok=True)
    for name, text in FILES.items():
        file = directory / name
        file.unlink(missing_ok=True)
        file.write_text(text, encoding="utf-8")
    for unit in MASKED_UNITS:
        mask = directory / "etc/systemd/system" / unit
        mask.unlink(missing_ok=True)
        mask.symlink_to("/dev/null")


def main() -> int:
    """Build, say where. Returns the exit status."""
    try:
        target = ensure()
    except LabError as error:
        _say(str(error))
        return 1
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
