# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes may be signalled, and why the others may not. Pure: processes in, decision out."""

from __future__ import annotations

import re
from typing import Callable, Collection, Iterable, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._containers import is_container_init
from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Holder
from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Identity, Process

Pattern = re.Pattern[str]

# Programs that have nothing in common: a pattern that finds each of them finds every process.
_PROGRAMS = ("systemd", "bash", "python3 app.py", "nginx: worker process", "Xorg", "7z")

# Names that have nothing in common: what is found in all of them is found in everything.
_UNLIKE = ("a", "Z", "0", "/", "~")

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


def compile_patterns(patterns: Sequence[str], option: str) -> tuple[Pattern, ...]:
    """Compile regular expressions. Raises InputError for one that is empty or invalid, naming it and its option."""
    compiled = []
    for text in patterns:
        if not text.strip():
            raise InputError(
                f"{option} holds an empty pattern. It would match every process: name what is meant.",
                reason="empty_pattern",
            )
        try:
            compiled.append(re.compile(text))
        except (re.error, ValueError, OverflowError, RecursionError) as exc:
            raise InputError(
                f"{option} holds an invalid regular expression, {text!r}: {exc}. Correct it.", reason="invalid_pattern"
            ) from exc
    return tuple(compiled)


def compile_killers(patterns: Sequence[str], option: str) -> tuple[Pattern, ...]:
    """Compile the patterns of processes to be killed. As compile_patterns, and refuses what matches every process
    (the empty text, or any one character), and no pattern at all.
    """
    compiled = compile_patterns(patterns, option)
    if not compiled:
        raise InputError(f"{option} is empty. Name the processes that are meant.", reason="empty_pattern")
    for pattern in compiled:
        if pattern.search("") or any(all(pattern.search(one) for one in kind) for kind in (_UNLIKE, _PROGRAMS)):
            raise InputError(
                f"{option} holds {pattern.pattern!r}, which matches every process. Name what is meant.",
                reason="match_all_pattern",
            )
    return compiled


def matches(process: Process, patterns: Iterable[Pattern]) -> bool:
    """Whether any pattern is found in the process's name or full command line."""
    return any(pattern.search(process.name) or pattern.search(process.command) for pattern in patterns)


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
    """The processes of a container that match and may be signalled. Dead ones that nobody reaped are left out."""

    def reason(process: Process) -> Optional[str]:
        return untouchable(process, ourselves) or (EXCLUDED if matches(process, exclude) else None)

    return _sort((process for process in processes if not process.gone and matches(process, patterns)), reason)


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
        return (
            untouchable(process, rules.ourselves)
            or (None if rules.members is None or process.identity in rules.members else OTHER_CONTAINER)
            or (PROTECTED if matches(process, rules.protect) else None)
            or _bystander(holder, rules)
        )

    return _sort((holder.process for holder in by_pid.values() if not holder.process.gone), reason)


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
