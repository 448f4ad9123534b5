# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The patterns by which an operator names processes. Pure."""

from __future__ import annotations

import re
from typing import Iterable, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process

Pattern = re.Pattern[str]

# Programs that have nothing in common: a pattern that finds each of them finds every process.
_PROGRAMS = ("systemd", "bash", "python3 app.py", "nginx: worker process", "Xorg", "7z")

# Names that have nothing in common: what is found in all of them is found in everything.
_UNLIKE = ("a", "Z", "0", "/", "~")


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
