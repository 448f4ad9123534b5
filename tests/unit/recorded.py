# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tools once printed (tests/unit/fixtures/TOOL/CASE), and a Runner that answers with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Sequence, Union

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed

FIXTURES = Path(__file__).parent / "fixtures"

Answer = Union[Completed, Exception]


def completed(stdout: str = "", *, rc: int = 0, stderr: str = "", argv: Sequence[str] = ("nvidia-smi",)) -> Completed:
    return Completed(tuple(argv), rc, stdout, stderr)


def recorded(tool: str, case: str, *, rc: Optional[int] = None) -> Completed:
    """``rc`` is for cases whose source does not state it."""
    directory = FIXTURES / tool / case
    stated = directory / "rc"
    code = rc if rc is not None else int(stated.read_text()) if stated.exists() else 0
    stderr = directory / "stderr"
    text = (directory / "stdout").read_text(encoding="utf-8")
    return completed(text, rc=code, stderr=stderr.read_text() if stderr.exists() else "", argv=(tool,))


def exit_codes(tool: str, case: str) -> tuple[int, ...]:
    """The stated one; else both a good and a bad one, because the answer must be the same."""
    stated = FIXTURES / tool / case / "rc"
    return (int(stated.read_text()),) if stated.exists() else (0, 255)


@dataclass
class ScriptedRunner:
    """Answers a command whose arguments contain a key. Several answers are given in turn, and the last stays."""

    script: dict[str, list[Answer]]
    calls: list[list[str]] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        self.calls.append(list(argv))
        self.timeouts.append(timeout)
        key = next(key for key in self.script if any(key in argument for argument in argv[1:]))
        answers = self.script[key]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer
