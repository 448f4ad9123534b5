"""A supervisor outside of systemd: it starts the server again whenever that ends, as supervisord does.

`run.py supervise STATE '{"argv": [...], "environment": {...}, "output": PATH}'`
"""

from __future__ import annotations

import json
import os
import time

from tests.lab.background import to_the_background
from tests.lab.titles import set_title

_RESTART_S = 0.05


def main(state: str, arguments: list[str]) -> int:
    """Go to the background, then start the server for ever. Returns in the caller's process only."""
    plan = json.loads(arguments[0])
    if not to_the_background():
        return 0
    set_title("/usr/bin/python3 /usr/bin/supervisord -n", "supervisord")
    output = os.open(plan["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    while True:
        actions = [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
        argv, environment = plan["argv"], plan["environment"]
        os.waitpid(os.posix_spawn(argv[0], argv, environment, file_actions=actions, setpgroup=0), 0)
        time.sleep(_RESTART_S)
