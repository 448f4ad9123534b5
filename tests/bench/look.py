"""Our scan as a process of its own: `python look.py COLLECTIONS NODE [PID ...]`, with pids only into these.

`--below-proc` in their place asks each process, as where the kernel does not say who has the node open.

Prints JSON: the holders' `pids`, `unreadable`, `seconds` of the scan itself, `mib` (peak memory of this process and of
the largest of its children).
"""

from __future__ import annotations

import os
import sys
import time


def main(collections: str, node: str, *how: str) -> None:
    """Look once."""
    sys.path.insert(0, collections)
    from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Device, find_holders
    from ansible_collections.gpuops.inference.plugins.module_utils._handle_scan import number_of
    from ansible_collections.gpuops.inference.plugins.module_utils._kernel_census import census
    from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs

    below_proc = how == ("--below-proc",)
    pids = None if below_proc or not how else [int(pid) for pid in how]
    ask_kernel = (lambda _wanted: None) if below_proc else census

    start = time.perf_counter()
    found = find_holders([Device(node, number_of(os.stat(node)))], None, ProcFs(), pids, ask_kernel)
    seconds = time.perf_counter() - start
    # What follows is for the bench only, and short.
    import json
    import resource

    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
        peak = next(int(line.split()[1]) for line in stream if line.startswith("VmHWM:"))
    peaks = [peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]
    pids_found = [holder.process.pid for holder in found.holders]
    answer = {
        "pids": pids_found,
        "unreadable": found.unreadable,
        "seconds": seconds,
        "mib": [one / 1024 for one in peaks],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
