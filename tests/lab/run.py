"""Door for what runs from STATE/bin and for the lab's daemons: `python run.py NAME STATE ARGS...`.

A script, not a module: it must start from any directory, without site-packages, and import only what NAME needs,
because a role calls these dozens of times.
"""

from __future__ import annotations

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _main(name: str, state: str, arguments: list[str]) -> int:
    if name == "nvidia-smi":
        from tests.lab.nvidia_smi import main
    elif name == "pct":
        from tests.lab.pct import main
    elif name == "ha-manager":
        from tests.lab.power import ha_manager as main
    elif name == "ha-request":
        from tests.lab.power import ha_request as main
    elif name == "fd-store":
        from tests.lab.fd_store import main
    elif name == "container-python":
        from tests.lab.pct import container_python as main
    elif name == "systemctl":
        from tests.lab.systemctl import main
    elif name == "monitor":
        from tests.lab.monitor import main
    elif name == "hold":
        from tests.lab.holder import main
    elif name == "supervise":
        from tests.lab.supervisor import main
    else:
        raise SystemExit("%s: no such door" % name)
    return main(state, arguments)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], sys.argv[2], sys.argv[3:]))
