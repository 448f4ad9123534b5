# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/guide.md speaks of words, causes and variables that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpuops.inference.plugins.module_utils import _start_log

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
ROLE = ROOT / "roles" / "verified_restart"
SOURCES = [*ROLE.glob("tasks/**/*.yml"), *ROLE.glob("vars/*.yml"), *ROOT.glob("plugins/module_utils/*.py")]


def flat(text: str) -> str:
    """Text as a person reads it: what is written over two lines, or as two strings side by side, is one."""
    return re.sub(r"\s+", " ", re.sub(r"[\"']\s*\n\s*[f~]?\s*[\"']", "", text))


WORDS = flat("\n".join(path.read_text(encoding="utf-8") for path in SOURCES))
DEFAULTS = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text(encoding="utf-8"))


def rows(heading: str) -> list[str]:
    """The first cells of the table that begins with this one."""
    table = GUIDE[GUIDE.index(f"\n| {heading} |") :].split("\n\n")[0].strip().splitlines()
    return [line.split("|")[1].strip() for line in table[2:]]


@pytest.mark.parametrize("phrase", rows("`reason` says"))
def test_what_a_reason_is_said_to_say_is_said_somewhere(phrase: str) -> None:
    assert phrase.strip('"') in WORDS


def test_every_cause_of_a_failed_start_has_its_row() -> None:
    codes = {cause.code for _pattern, cause in _start_log._COMPILED} | {_start_log._KILLED.code}
    assert {cell.strip("`") for cell in rows("cause")} == codes


@pytest.mark.parametrize("name", sorted(set(re.findall(r"verified_restart_[a-z_]+", GUIDE))))
def test_every_variable_that_is_named_is_the_role_s(name: str) -> None:
    assert name in DEFAULTS


def test_every_right_to_hurt_is_one_of_the_role_s_and_off() -> None:
    names = [f"verified_restart_{cell.strip('`')}" for cell in rows("variable")]
    assert [DEFAULTS[name] for name in names] == [False] * len(names)
    assert {name for name in DEFAULTS if name.startswith("verified_restart_allow_")} <= set(names)


def test_every_file_that_is_named_is_there() -> None:
    paths = re.findall(r"`((?:inventories|docs|scripts|roles)/[\w./-]+|\w+\.md)`", GUIDE)
    assert [one for one in paths if not (ROOT / one).exists() and not (ROOT / "docs" / one).exists()] == []
