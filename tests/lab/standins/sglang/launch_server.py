"""`python3 -m sglang.launch_server`: the lab's server behind SGLang's command line."""

from __future__ import annotations

import os
import sys

_HERE = os.path.abspath(__file__)
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))))

from tests.lab import server  # noqa: E402 - the path above makes it importable

if __name__ == "__main__":
    sys.exit(server.main(sys.argv[1:]))
