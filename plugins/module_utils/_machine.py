# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What touches the machine, in one bundle: a module hands in the real ones, check mode and tests others."""

from __future__ import annotations

from typing import NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Runner, SystemRunner
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from ansible_collections.gpuops.inference.plugins.module_utils._termination import (
    Clock,
    DryRunSignaller,
    HostSignaller,
    Signaller,
    SystemClock,
)


class Machine(NamedTuple):
    """The edges of one module run. ``host_signaller`` signals processes of this machine; with ``dry_run`` nobody is
    signalled.
    """

    runner: Runner
    procfs: ProcFs
    clock: Clock
    host_signaller: Signaller
    dry_run: bool = False

    def signaller(self, wanted: Optional[Signaller] = None) -> Signaller:
        """The signaller to use in place of ``wanted`` (default: the host's): in check mode one that only notes."""
        if self.dry_run:
            return DryRunSignaller()
        return wanted if wanted is not None else self.host_signaller


def this_machine(*, check_mode: bool) -> Machine:
    """The machine that the module runs on."""
    procfs = ProcFs()
    return Machine(
        runner=SystemRunner(),
        procfs=procfs,
        clock=SystemClock(),
        host_signaller=HostSignaller(procfs),
        dry_run=check_mode,
    )
