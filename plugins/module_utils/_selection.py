# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes may be signalled, and why the others may not. Pure: processes in, decision out."""

from __future__ import annotations

from typing import Callable, Collection, Iterable, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._containers import is_container_init
from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Holder
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import Pattern, matches
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Identity, Process

# Why a process is spared. The codes are part of what the modules return.
INIT = "init"
CONTAINER_INIT = "container_init"
KERNEL_THREAD = "kernel_thread"
OURSELVES = "ourselves"
EXCLUDED = "excluded"
PROTECTED = "protected"
OTHER_CONTAINER = "other_container"
OUTSIDE_NAMESPACE = "outside_namespace"
MONITOR = "monitor"
COMPUTES_ELSEWHERE = "computes_elsewhere"
COMMAND_UNKNOWN = "command_unknown"

# Searched in the name (cut at 15 characters by the kernel) and in the command line. Killing these breaks the machine,
# the driver (SIGKILL of DCGM's exporter froze a card until the reboot), or the fabric between the cards.
# Each is the whole last part of the program's path, not a directory on the way to it.
DEFAULT_PROTECT = tuple(
    rf"^(\S*/)?({programs})(\s|$)"
    for programs in (
        r"nvidia-persiste[^\s/]*",
        r"(nv|nvidia)-fabricma[^\s/]*|nvlsm",
        r"nvidia-(imex|powerd|smi|cuda-mps)[^\s/]*",
        r"nv-hostengine|dcgmi?|dcgm-exporter",
        r"(Xorg|gdm|sddm|lightdm|gnome-shell|kwin)[^\s/]*|Xwayland|X|weston|sway",
        r"systemd[^\s/]*|\(sd-pam\)|init|dbus-daemon|dbus-broker[^\s/]*|login|agetty",
        r"dockerd|containerd[^\s/]*|conmon|crio|podman|runc|crun|lxc-start|lxcfs|lxc-monitord",
        r"\[lxc monitor\]",
        r"pve[^\s/]*|pmxcfs|corosync|qemu-system[^\s/]*|kvm",
        r"sshd[^\s/]*",
    )
)


class Spared(NamedTuple):
    """A process that was found but is not to be signalled."""

    process: Process
    reason: str


class Selection(NamedTuple):
    """``targets`` are to be signalled, in the order found; ``spared`` were found as well, each with the reason."""

    targets: tuple[Process, ...]
    spared: tuple[Spared, ...]


def untouchable(process: Process, ourselves: Collection[int]) -> Optional[str]:
    """Why this process is never signalled by anyone, or None. ``ourselves``: the module's own process and its
    ancestors.
    """
    if process.pid <= 1:
        return INIT
    if process.pid in ourselves:
        return OURSELVES
    if process.kernel_thread:
        return KERNEL_THREAD
    if is_container_init(process):
        return CONTAINER_INIT
    return None


def select_matching(
    processes: Iterable[Process],
    *,
    patterns: Sequence[Pattern],
    exclude: Sequence[Pattern],
    ourselves: Collection[int],
) -> Selection:
    """The processes of a container that match and may be signalled. Dead ones that nobody reaped are left out.

    One whose command line the kernel never tells may match as well as any, and may be excluded as well as any: where
    its name does not decide that, it is spared.
    """

    def reason(process: Process) -> Optional[str]:
        why = untouchable(process, ourselves) or (EXCLUDED if matches(process, exclude) else None)
        doubtful = not process.command_known and (exclude or not matches(process, patterns))
        return why or (COMMAND_UNKNOWN if doubtful else None)

    def found(process: Process) -> bool:
        return matches(process, patterns) or not process.command_known

    return _sort((process for process in processes if not process.gone and found(process)), reason)


class HolderRules(NamedTuple):
    """Which holders of cards may be signalled.

    ``cards`` are the indices to reclaim; ``computing`` says on which cards the driver lists a pid, None when the
    driver's list could not be read; ``members`` are the identities of the one container that is meant, None when all
    are.
    """

    ourselves: Collection[int]
    protect: Sequence[Pattern]
    spare_monitors: bool
    cards: Collection[int]
    computing: Optional[dict[int, frozenset[int]]]
    members: Optional[Collection[Identity]]


def select_holders(holders: Iterable[Holder], rules: HolderRules) -> Selection:
    """The holders of the cards that may be signalled."""
    by_pid = {holder.process.pid: holder for holder in holders}

    def reason(process: Process) -> Optional[str]:
        holder = by_pid[process.pid]
        foreign = rules.members is not None and process.identity not in rules.members
        why = untouchable(process, rules.ourselves)
        return (
            # To a neighbour's first process, a restart of our container is no help.
            (OTHER_CONTAINER if foreign and why == CONTAINER_INIT else why)
            or (OTHER_CONTAINER if foreign else None)
            or (PROTECTED if matches(process, rules.protect) else None)
            or (COMMAND_UNKNOWN if not process.command_known and _by_command(rules.protect) else None)
            or _bystander(holder, rules)
        )

    return _sort((holder.process for holder in by_pid.values() if not holder.process.gone), reason)


def _by_command(protect: Sequence[Pattern]) -> bool:
    """Whether some of the patterns may need the command line: our own know their programs by the name as well."""
    return any(pattern.pattern not in DEFAULT_PROTECT for pattern in protect)


def _bystander(holder: Holder, rules: HolderRules) -> Optional[str]:
    """A holder without memory on the cards that are meant: it watches (no compute context), or computes on other
    cards.
    """
    computes_on = (rules.computing or {}).get(holder.process.pid, frozenset())
    if computes_on:
        # Whoever speaks CUDA opens every card it can see. The driver's list tells on which it computes.
        return None if not rules.cards or computes_on & set(rules.cards) else COMPUTES_ELSEWHERE
    if holder.compute_context or not rules.spare_monitors:
        return None
    return MONITOR


def _sort(processes: Iterable[Process], reason: Callable[[Process], Optional[str]]) -> Selection:
    targets: list[Process] = []
    spared: list[Spared] = []
    for process in processes:
        why = reason(process)
        if why is None:
            targets.append(process)
        else:
            spared.append(Spared(process, why))
    return Selection(tuple(targets), tuple(spared))
