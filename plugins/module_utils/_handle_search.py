# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who of all processes holds something: first at a glance, then, who shows anything, whole."""

from __future__ import annotations

from typing import AbstractSet, Collection, Mapping, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._every_process import Asked, ask_all, ask_each
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import DeviceNumber, Handle, HandleReader
from ansible_collections.gpuops.inference.plugins.module_utils._kernel_census import Census, Named, census
from ansible_collections.gpuops.inference.plugins.module_utils._mapped_files import File
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import PROC, Process, ProcFs

# The kernel is asked anew as long as not everything that it says is to be seen, but only so often. Who opens a card and
# lets go of it many times a second is rarely missed so often.
MOST_QUESTIONS = 4


class Held(NamedTuple):
    """A process, and what it was seen to hold while it was that process."""

    process: Process
    handles: list[Handle]


class HandleSearch:
    """One look for the ``wanted`` things. ``found`` is by pid; ``unreadable`` are those of whom nothing is known.

    ``unmapped`` are those of the ``found`` whose mappings are not known. ``by_kernel``: only those were looked at whom
    the kernel named.
    """

    def __init__(
        self,
        wanted: AbstractSet[DeviceNumber],
        procfs: ProcFs,
        nodes: Optional[Mapping[File, DeviceNumber]] = None,
        ask_kernel: Census = census,
    ) -> None:
        self._procfs = procfs
        self._wanted = wanted
        self._ask_kernel = ask_kernel
        # Whose threads may have handles of their own.
        self._threads: dict[int, set[int]] = {}
        self._reader = HandleReader(wanted, procfs, nodes)
        self.found: dict[int, Held] = {}
        self.unreadable: set[int] = set()
        self.unmapped: set[int] = set()
        self.by_kernel = False

    def look_at(self, pids: Collection[int]) -> None:
        """Look at these processes."""
        self._note(ask_each(pids, self._whole))

    def look_at_all(self) -> None:
        """Look at every process that may hold something: those that the kernel names, or else all there are."""
        self.by_kernel = self._kernel_may_be_asked() and self._look_at_those_named()
        if not self.by_kernel:
            # This look stands for itself.
            self.found, self.unreadable, self.unmapped = {}, set(), set()
            self._look_at_everybody()

    def _look_at_everybody(self) -> None:
        pids = set(self._procfs.pids())
        hung = pids & self._procfs.known_to_hang()
        self._note(ask_all(pids - hung, lambda pid: self._whole(pid) if any(self._reader.handles(pid)) else None))
        self._note(Asked({}, set(), hung))

    def _kernel_may_be_asked(self) -> bool:
        """The kernel numbers processes as the machine does, and at one that hangs it would hang, too."""
        procfs = self._procfs
        return procfs.root == PROC and procfs.in_host_pid_namespace() and not procfs.known_to_hang()

    def _look_at_those_named(self) -> bool:
        """Whether the kernel names those who hold something. They are looked at, until everything it says was seen.

        Who let go or ended may have handed on what he held: the kernel is asked anew. Of whom it still names then,
        /proc does not show everything, as it hides mappings from a root that lacks a capability.
        """
        unseen: set[Named] = set()
        for _question in range(MOST_QUESTIONS):
            named = self._ask_kernel(self._wanted)
            if named is None:
                return False
            unseen = self._unseen(named)
            for one in unseen:
                self._threads.setdefault(one.pid, set()).add(one.thread)
            self.look_at({one.pid for one in unseen})
            unseen = self._unseen(named)
            if not unseen:
                break
        # What anybody has mapped has been said.
        self.unreadable, self.unmapped = {one.pid for one in unseen}, set()
        return True

    def _unseen(self, named: AbstractSet[Named]) -> set[Named]:
        """What of this was not found."""
        seen = {(pid, handle.number) for pid, held in self.found.items() for handle in held.handles}
        return {one for one in named if (one.pid, one.number) not in seen}

    def _whole(self, pid: int, mapped: bool = True) -> Optional[tuple[int, list[Handle], bool]]:
        """When a process was started, what it holds, and whether that is all. None where it holds nothing."""
        stat = self._procfs.stat(pid)
        if stat is None:
            return None
        # Only now is it known whose handles they are.
        handles: list[Handle] = []
        try:
            handles += self._reader.handles_of_threads(pid, self._threads.get(pid, set()) - {pid})
            for handle in self._reader.handles(pid) if mapped else self._reader.open_handles(pid):
                handles.append(handle)
        except OSError:
            if not handles:
                raise
            mapped = False
        return (stat.start_ticks, handles, mapped) if handles else None

    def _note(self, asked: Asked) -> None:
        # Those whose mappings never come can still have handles.
        again = ask_each(asked.silent, lambda pid: self._whole(pid, mapped=False))
        self._procfs.note_that_it_hangs(asked.silent)
        answers = {**asked.answers, **again.answers}
        self.unreadable |= (asked.unreadable | again.unreadable) - answers.keys()
        for pid, (start_ticks, handles, whole) in answers.items():
            process = self._procfs.process(pid)
            # The pid may have been given to another process meanwhile.
            if process is None or process.start_ticks != start_ticks or self._procfs.look_again(process) is None:
                continue
            held = [Handle(evidence, DeviceNumber(*number)) for evidence, number in handles]
            earlier = self.found.get(pid)
            if earlier is not None and earlier.process.identity == process.identity:
                held = list(dict.fromkeys((*earlier.handles, *held)))
            self.found[pid] = Held(process, held)
            if not whole:
                self.unmapped.add(pid)
