"""`systemctl` of the rootless container: hands the call to pid 1 (manager.py) and prints its answer."""

from __future__ import annotations

import json
import os
import socket
import sys

from tests.lab import procfs
from tests.lab import state as lab_state

VMID_MARK = "GPUOPS_LAB_VMID"
"""Environment variable that tells which container this pid 1 is."""


def main(state: str, arguments: list[str]) -> int:
    """Run one call; returns the exit code.

    Outside a container it says what the real one says where systemd is not pid 1.
    """
    # Asked of the pid 1 that rules here, not of the wrapper that was called.
    manager_state, vmid = procfs.environment_value(1, lab_state.MARK), procfs.environment_value(1, VMID_MARK)
    if manager_state is None or vmid is None:
        sys.stderr.write("System has not been booted with systemd as init system (PID 1). Can't operate.\n")
        return 1
    connection = socket.socket(socket.AF_UNIX)
    os.chdir(lab_state.container_directory(manager_state, int(vmid)))  # for the 108 bytes of a socket's path
    try:
        connection.connect("manager.sock")
    except OSError as error:
        sys.stderr.write("Failed to connect to bus: %s\n" % error.strerror)
        return 1
    connection.sendall(json.dumps({"args": arguments}).encode("utf-8") + b"\n")
    with connection.makefile("r", encoding="utf-8") as stream:
        text = stream.read()
    if not text:
        sys.stderr.write("Failed to get reply: connection reset by peer\n")
        return 1
    answer = json.loads(text)
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    return int(answer["rc"])
