# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/health.md says what the code knows: the verdicts, the limits, and what each engine's signs are worth."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from ansible_collections.gpuops.inference.plugins.module_utils import _health as health
from ansible_collections.gpuops.inference.plugins.module_utils._engines import (
    ENGINE_DEAD,
    LLAMACPP,
    MODELS,
    OPENAI,
    SGLANG,
    VLLM,
    Engine,
)
from ansible_collections.gpuops.inference.plugins.modules import inference_health_info

GUIDE = (Path(__file__).parents[2] / "docs" / "health.md").read_text(encoding="utf-8")
OPTIONS = yaml.safe_load(inference_health_info.DOCUMENTATION)["options"]
COLUMNS: dict[str, Engine] = {"SGLang": SGLANG, "vLLM": VLLM, "llama.cpp": LLAMACPP, "other servers": OPENAI}


def of_engines(row: str) -> list[tuple[Engine, str]]:
    """What a row of the table of signs says of each engine."""
    line = next(line for line in GUIDE.splitlines() if line.startswith(f"| {row} |"))
    return list(zip(COLUMNS.values(), (cell.strip() for cell in line.strip("|").split("|")[1:])))


def paths(cell: str) -> set[str]:
    return set(re.findall(r"`(/\S+)`", cell))


def test_the_verdicts_are_those_of_the_code() -> None:
    known = [health.HEALTHY, health.BUSY, health.STARTING, health.HUNG, health.DEAD, health.ORPHANED, health.UNKNOWN]
    assert re.findall(r"(?m)^\| `(\w+)` \|", GUIDE) == known


def test_the_seconds_are_the_defaults_of_the_module() -> None:
    for option in ("timeout", "hung_after", "stall_after"):
        assert f"`{option}` ({OPTIONS[option]['default']} s" in GUIDE


def test_each_engine_has_its_column() -> None:
    [header] = [line for line in GUIDE.splitlines() if line.startswith("| | ")]
    assert [cell.strip() for cell in header.strip("|").split("|")][1:] == list(COLUMNS)


def test_what_lives_although_the_engine_hangs_is_what_is_not_believed() -> None:
    for engine, cell in of_engines("lives although the engine hangs"):
        assert MODELS in paths(cell)
        assert (engine.health in paths(cell)) == (not engine.health_generates)


def test_what_moves_is_what_is_read() -> None:
    for engine, cell in of_engines("moves while it works"):
        assert paths(cell) == {path for path in (engine.metrics, engine.gauges) if path is not None}
    for engine, cell in of_engines("moves while it idles"):
        assert (engine.heartbeat is not None) == (cell != "nothing")
        assert f"`{engine.heartbeat}` in `{engine.gauges}`" in cell or engine.heartbeat is None


def test_a_503_means_what_it_is_taken_for() -> None:
    for engine, cell in of_engines("its 503"):
        if engine is not OPENAI:
            assert cell.startswith(f"`{engine.health}`: ")
            assert (engine.health_503 == ENGINE_DEAD) == ("dead" in cell)


def test_the_workers_are_those_that_are_looked_for() -> None:
    said = {engine.name: cell for engine, cell in of_engines("its workers")}
    titles = {engine.name: [f"`{one.strip('^')}*`" for one in engine.workers] for engine in (SGLANG, VLLM)}
    assert said == {**{name: ", ".join(one) for name, one in titles.items()}, "llamacpp": "none", "openai": "not known"}


def test_who_is_asked_for_the_speculation_waits_or_not() -> None:
    for engine, cell in of_engines("says how it speculates"):
        assert engine.info_waits == (f"`{engine.info[0] if engine.info else ''}` (waits for the schedulers)" in cell)
