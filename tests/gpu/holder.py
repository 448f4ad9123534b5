"""A process that the probe starts to be looked at and ended: `python3 -m tests.gpu.holder TOKEN KIND JSON`.

It prints one line of JSON when it is ready, ``{"ready": true, ...}`` or ``{"error": TEXT}``, and ends with the probe.
TOKEN is its name and stands on its command line, so that nobody takes another process for it.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from tests.gpu.cuda import Cuda, CudaError
from tests.gpu.nvml import Nvml, NvmlError

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def main() -> int:
    """Become the holder that was asked for."""
    token, kind, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    library.prctl(_PR_SET_NAME, token.encode(), 0, 0, 0)
    try:
        _KINDS[kind](options)
    except (CudaError, NvmlError, OSError) as exc:
        _say(error=str(exc))
        return 1
    return 0


def _cuda(options: dict[str, Any]) -> None:
    """A context on the card at ``bus_id``, ``mib`` of memory if not 0, and copies without end if ``busy``."""
    cuda = Cuda()
    buses = cuda.bus_ids()
    if options["bus_id"] not in buses:
        raise CudaError(f"CUDA does not see {options['bus_id']}, but {', '.join(buses) or 'no card'}")
    cuda.make_context(buses.index(options["bus_id"]))
    places = cuda.allocate(options["mib"]) if options["mib"] else []
    _say(ready=True, ordinal=buses.index(options["bus_id"]))
    if places and options["busy"]:
        cuda.copy_for_ever(*places)
    _wait()


def _nvml(_options: dict[str, Any]) -> None:
    """Watch, as an exporter does. Answers each line of standard input, an index, with that card's memory in MiB."""
    nvml = Nvml()
    _say(ready=True, cards=nvml.cards())
    for line in sys.stdin:
        _say(used_mib=nvml.used_mib(int(line)))


def _lab(options: dict[str, Any]) -> None:
    """In place of CUDA on a lab of tests/lab: hold card ``index`` and claim ``mib`` on it."""
    from tests.lab import cards, claims

    claim = claims.HeldClaim(options["state"], options["devices"], cards.CARDS[options["index"]])
    claim.set_mib(options["mib"])
    _say(ready=True)
    _wait()


def _lab_watch(options: dict[str, Any]) -> None:
    """In place of NVML on a lab: hold the nodes that a monitor holds."""
    from tests.lab import cards, claims

    handles = claims.open_nodes(options["devices"], [cards.CONTROL_NODE, *(one.node_name for one in cards.CARDS)])
    _say(ready=True, handles=handles)
    _wait()


def _plain(_options: dict[str, Any]) -> None:
    """Hold nothing."""
    _say(ready=True)
    _wait()


_KINDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "cuda": _cuda,
    "nvml": _nvml,
    "lab": _lab,
    "lab-watch": _lab_watch,
    "plain": _plain,
}


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _wait() -> None:
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
