"""Which files of a project AWX offers as playbooks: awx/main/utils/ansible.py, awx/main/models/projects.py (24.6)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

# Any line that could be the key of a play is enough, in whatever kind of file it stands.
_A_PLAY = re.compile(r"\s*-?\s*(hosts|include|import_playbook):")
_ENCRYPTED = "$ANSIBLE_VAULT;"
_PASSED_OVER = {"roles", "tasks", "group_vars", "host_vars"}


def could_be_playbook(path: PurePosixPath, lines: Iterable[str]) -> bool:
    """Whether AWX would offer this file. ``path`` is relative to the project."""
    if path.suffix not in (".yml", ".yaml"):
        return False
    if any(part in _PASSED_OVER or part.startswith(".") for part in path.parent.parts):
        return False
    return any(
        _A_PLAY.match(line) or (number == 0 and line.startswith(_ENCRYPTED)) for number, line in enumerate(lines)
    )
