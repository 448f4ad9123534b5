"""Makes the rootless container's namespaces, starts its init, and stays as its parent, as LXC's monitor does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from tests.lab import manager, procfs
from tests.lab import state as lab_state
from tests.lab.titles import set_title

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_SHM_OPTIONS = b"mode=1777,size=256m"
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(state: str, arguments: list[str]) -> int:
    """Return in the caller's process at once; the monitor lives on, in a session of its own, as long as the init."""
    vmid = int(arguments[0])
    if os.fork():
        return 0
    os.setsid()
    set_title("[lxc monitor] /var/lib/lxc %d" % vmid, "lxc-start")
    # The process that enters the namespaces exits; being its init's new parent keeps the monitor itself outside of
    # them.
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    directory = lab_state.container_directory(state, vmid)
    _record(directory, "monitor", os.getpid())
    report_read, report_write = os.pipe()
    entering = os.fork()
    if not entering:
        try:
            _enter(state, vmid, report_write)
        except OSError as error:
            _fail(directory, error)
    os.close(report_write)
    os.waitpid(entering, 0)
    with os.fdopen(report_read) as stream:
        text = stream.read()
    if text:
        _record(directory, "init", int(text))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            sys.exit(0)


def _enter(state: str, vmid: int, report: int) -> None:
    """In a process of its own: new namespaces, then the init as first process of the new pid namespace."""
    user, group = os.getuid(), os.getgid()
    _call("unshare", (_CLONE_NEWUSER if user else 0) | _CLONE_NEWNS | _CLONE_NEWPID)
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", "0 %d 1" % user), ("gid_map", "0 %d 1" % group)):
            with open("/proc/self/%s" % name, "w", encoding="ascii") as stream:
                stream.write(text)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    # A container has a /dev/shm of its own; what its server leaves there goes with it.
    _call("mount", b"shm", b"/dev/shm", b"tmpfs", _MS_NOSUID | _MS_NODEV, _SHM_OPTIONS)
    tools = lab_state.config(state)["tools_inside"]
    _call("mount", os.fsencode(os.path.join(state, "bin")), os.fsencode(tools), None, _MS_BIND, None)
    init = os.fork()
    if init:
        os.write(report, str(init).encode("ascii"))
        os._exit(0)
    os.close(report)
    try:
        _call("mount", b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)
        set_title("/sbin/init", "systemd")
        manager.serve(state, vmid)
    except OSError as error:
        _fail(lab_state.container_directory(state, vmid), error)


def _fail(directory: str, error: OSError) -> None:
    with open(os.path.join(directory, "error"), "w", encoding="utf-8") as stream:
        stream.write(str(error))
    os._exit(1)


def _record(directory: str, name: str, pid: int) -> None:
    """Note which process it is; pid and start time together name it."""
    stat = procfs.read_stat(pid)
    if stat is not None:
        lab_state.write_json(os.path.join(directory, name + ".json"), {"pid": pid, "start_time": stat.start_time})


def _call(name: str, *arguments: object) -> None:
    """A function of the C library that returns -1 on error; raises OSError that names it."""
    if getattr(_LIBC, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (name, os.strerror(number)))
