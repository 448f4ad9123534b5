# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container's power switch by ``pct``, on the node that holds it. See _container_restart.Power."""

from __future__ import annotations

import re
from typing import Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed, Runner, describe_exit
from ansible_collections.gpuops.inference.plugins.module_utils._container_restart import Look
from ansible_collections.gpuops.inference.plugins.module_utils._containers import PCT_TIMEOUT, container_status
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, ContainerError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs

# A hard stop and a start end their task within seconds; a container with many mounts takes longer.
_TASK_TIMEOUT = 120.0

# Of high availability, as `ha-manager status` prints it: service ct:129 (pve1, started)
_SERVICE = re.compile(r"(?m)^service ct:(\d+) \(([^,()]*), *([a-z_]+)\)")
# Listed, but left alone: vm_is_ha_managed() in PVE::HA::Config.
_IGNORED = "ignored"


class PctPower:
    """Orders by ``pct``; what high availability does with the container is asked of ``ha-manager``."""

    def __init__(self, vmid: int, *, runner: Runner, procfs: ProcFs, pct_path: str, ha_manager_path: str) -> None:
        self._vmid = vmid
        self._runner = runner
        self._procfs = procfs
        self._pct_path = pct_path
        self._ha_manager_path = ha_manager_path

    def look(self) -> Look:
        """See Power.look."""
        status = container_status(self._vmid, runner=self._runner, pct_path=self._pct_path)
        stat = self._procfs.stat(status.init_pid) if status.init_pid is not None else None
        init = (stat.pid, stat.start_ticks) if stat is not None else None
        return Look(status.status, status.lock, self._ha_state(), init)

    def shutdown(self, seconds: int) -> None:
        """See Power.shutdown. pct fails when the time is over, and the look that follows tells."""
        self._runner.run(self._argv("shutdown", "--timeout", str(seconds)), timeout=seconds + PCT_TIMEOUT)

    def stop(self) -> None:
        """See Power.stop."""
        self._order("stop")

    def start(self) -> None:
        """See Power.start."""
        self._order("start")

    def _order(self, verb: str) -> None:
        answer = self._runner.run(self._argv(verb), timeout=_TASK_TIMEOUT)
        if answer.rc != 0:
            raise _refused(self._vmid, answer)

    def _argv(self, verb: str, *options: str) -> Sequence[str]:
        return [self._pct_path, verb, str(self._vmid), *options]

    def _ha_state(self) -> Optional[str]:
        try:
            answer = self._runner.run([self._ha_manager_path, "status"], timeout=PCT_TIMEOUT)
        except CommandError as exc:
            if exc.reason == "not_installed":
                return None
            raise
        if answer.rc != 0:
            raise _refused(self._vmid, answer)
        return parse_ha_state(answer.stdout, self._vmid)


def parse_ha_state(text: str, vmid: int) -> Optional[str]:
    """The state of a container in what ``ha-manager status`` prints; None when it is not managed."""
    states = {int(number): state for number, _node, state in _SERVICE.findall(text)}
    state = states.get(vmid)
    return None if state == _IGNORED else state


def _refused(vmid: int, answer: Completed) -> ContainerError:
    said = (f"{answer.stdout}\n{answer.stderr}".strip() or "no output").splitlines()[-1]
    return ContainerError(
        f"'{' '.join(answer.argv)}' failed ({describe_exit(answer.rc)}): {said}",
        reason="pct_failed",
        vmid=vmid,
        cmd=list(answer.argv),
        rc=answer.rc,
        stdout=answer.stdout,
        stderr=answer.stderr,
    )
