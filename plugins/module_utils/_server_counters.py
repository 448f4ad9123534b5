# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a server moves while it works, from the pages that queue nothing. Pure."""

from __future__ import annotations

import json
import math
from typing import Any, Iterable, Mapping, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._engines import Engine
from ansible_collections.gpuops.inference.plugins.module_utils._prometheus import sums

# A request of our own changes these, also when nobody works on it.
_OF_THE_QUEUE = ("running", "waiting", "queue", "timestamp")


class Reading(NamedTuple):
    """``counters`` and ``heartbeat`` are texts that change when something moves; None where there is nothing to read.

    ``running`` and ``waiting`` count requests, as the engine itself reports them: of a hung one they prove nothing.
    ``metrics`` are all of them, summed up over their labels.
    """

    counters: Optional[str] = None
    heartbeat: Optional[str] = None
    running: Optional[float] = None
    waiting: Optional[float] = None
    version: Optional[str] = None
    metrics: Mapping[str, float] = {}


def read_counters(engine: Engine, gauges: Any, metrics: Optional[str]) -> Reading:
    """One reading, from the JSON of the gauges and the text of the metrics, each None where it was not given."""
    ranks = [one for one in _ranks(gauges) if isinstance(one, dict)]
    values = sums(metrics) if metrics is not None else {}
    counted = {name: values[name] for name in engine.counters if name in values}
    moving = [one for one in map(_moving, ranks) if one]
    beats = [one[engine.heartbeat] for one in ranks if engine.heartbeat is not None and engine.heartbeat in one]
    version = gauges.get("version") if isinstance(gauges, dict) else None
    return Reading(
        counters=json.dumps([counted, moving]) if counted or moving else None,
        heartbeat=json.dumps(beats) if beats else None,
        running=_load(engine.gauge_running, ranks, engine.running, values),
        waiting=_load(engine.gauge_waiting, ranks, engine.waiting, values),
        version=version if isinstance(version, str) else None,
        metrics=values,
    )


def moved(readings: Iterable[Optional[str]]) -> Optional[bool]:
    """Whether readings of one thing differ; None with fewer than two of them."""
    known = [one for one in readings if one is not None]
    return len(set(known)) > 1 if len(known) > 1 else None


def _ranks(gauges: Any) -> list[Any]:
    """SGLang's list of ranks, llama.cpp's of slots."""
    listed = gauges.get("loads") if isinstance(gauges, dict) else gauges
    return listed if isinstance(listed, list) else []


def _moving(rank: Mapping[str, Any]) -> dict[str, Any]:
    """What of a rank moves with work, and not by being asked."""
    return {
        name: _moving(value) if isinstance(value, dict) else value
        for name, value in rank.items()
        if isinstance(value, (int, float, dict)) and not any(part in name for part in _OF_THE_QUEUE)
    }


def _load(
    field: Optional[str], ranks: list[dict[str, Any]], metric: Optional[str], values: Mapping[str, float]
) -> Optional[float]:
    """A count of requests: of all ranks, else from the metrics. None where nobody says."""
    counts = [one[field] for one in ranks if field is not None and _is_count(one.get(field))]
    if counts:
        return float(sum(counts))
    return values.get(metric) if metric is not None else None


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
