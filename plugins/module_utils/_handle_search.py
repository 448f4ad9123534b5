# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who of all processes holds something: first at a glance, then, who shows anything, whole."""

from __future__ import annotations

from typing import AbstractSet, Collection, Mapping, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._every_process import Asked, ask_all, ask_each
from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import DeviceNumber, Handle, HandleReader
from ansible_collections.gpuops.inference.plugins.module_utils._kernel_census import Census, census
from ansible_collections.gpuops.inference.plugins.module_utils._mapped_files import File
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import PROC, Process, ProcFs


class Held(NamedTuple):
    """A process, and what it was seen to hold while it was that process."""

    process: Process
    handles: list[Handle]


class HandleSearch:
    """One look for the ``wanted`` things. ``found`` is by pid; ``unreadable`` are those of whom nothing is known.

    ``unmapped`` are those of the ``found`` whose mappings are not known. ``named``: those whom the kernel named, where
    it did, and all others were not looked at.
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
        # Whose threads are known to have handles of their own.
        self._threads: Mapping[int, Collection[int]] = {}
        self._reader = HandleReader(wanted, procfs, nodes)
        self.found: dict[int, Held] = {}
        self.unreadable: set[int] = set()
        self.unmapped: set[int] = set()
        self.named: Optional[frozenset[int]] = None

    def look_at(self, pids: Collection[int]) -> None:
        """Look at these processes."""
        self._note(ask_each(pids, self._whole))

    def look_at_all(self) -> None:
        """Look at every process that may hold something: those that the kernel names, or else all there are."""
        named = self._named_by_the_kernel()
        if named is not None:
            self._look_at_those(named)
            return
        pids = set(self._procfs.pids())
        hung = pids & self._procfs.known_to_hang()
        self._note(ask_all(pids - hung, lambda pid: self._whole(pid) if any(self._reader.handles(pid)) else None))
        self._note(Asked({}, set(), hung))

    def _look_at_those(self, named: Mapping[int, Collection[int]]) -> None:
        """Look at the threads that the kernel named, by process, and ask it once more where nothing is to be seen.

        Who has ended or let go is not named again. Who is holds what /proc does not show: it hides mappings from a root
        that lacks a capability.
        """
        self.named, self._threads = frozenset(named), named
        self.look_at(named)
        unseen = self._unseen(named)
        again = self._ask_kernel(self._wanted) if unseen else {}
        if again is not None:
            # Who only watches lets go and takes hold anew.
            self._threads = {pid: again[pid] for pid in unseen & again.keys()}
            self.look_at(self._threads)
            unseen = self._unseen(self._threads)
        self.unreadable = unseen

    def _unseen(self, named: Mapping[int, object]) -> set[int]:
        """Those who are there, and of whom nothing was found."""
        return {pid for pid in named.keys() - self.found.keys() if self._procfs.stat(pid) is not None}

    def _named_by_the_kernel(self) -> Optional[dict[int, set[int]]]:
        """The threads that hold something, by process. None where all processes have to be asked.

        The kernel numbers processes as the machine does, and at one that hangs it would hang, too.
        """
        procfs = self._procfs
        if procfs.root != PROC or not procfs.in_host_pid_namespace() or procfs.known_to_hang():
            return None
        return self._ask_kernel(self._wanted)

    def _whole(self, pid: int, mapped: bool = True) -> Optional[tuple[int, list[Handle], bool]]:
        """When a process was started, what it holds, and whether that is all. None where it holds nothing."""
        stat = self._procfs.stat(pid)
        if stat is None:
            return None
        # Only now is it known whose handles they are.
        handles: list[Handle] = []
        try:
            handles += self._reader.handles_of_threads(pid, set(self._threads.get(pid, ())) - {pid})
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
            self.found[pid] = Held(process, held)
            if not whole:
                self.unmapped.add(pid)
