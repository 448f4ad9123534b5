# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of each inference engine, as data: processes, endpoints, metrics, log lines.

Sources: the engines' own code (SGLang 0.5, vLLM 0.32, llama.cpp's server) and what was measured on running ones. The
role's vars/main.yml holds the patterns and health paths too; a test keeps the two the same.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence

# What a 503 of the health endpoint means.
STARTING = "starting"
ENGINE_DEAD = "engine_dead"

MODELS = "/v1/models"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


class Engine(NamedTuple):
    """One engine. Patterns are regular expressions, searched in name and command line of processes and in log lines.

    ``parents`` serve HTTP, ``workers`` hold the cards; an engine of one process has no workers. ``owner`` is what
    /v1/models says in ``owned_by``, ``server`` how its HTTP server calls itself, where either gives it away.

    Asking ``gauges`` (JSON) and ``metrics`` (Prometheus's text) queues nothing. ``heartbeat`` is the field of a rank in
    ``gauges`` that its scheduler renews even when it is idle. ``counters`` only grow while work is done. ``health`` is
    what the role asks; with ``health_generates`` it queues a request of its own. ``info`` has version and speculation;
    with ``info_waits`` it waits for the schedulers.
    """

    name: str
    parents: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    owner: Optional[str] = None
    server: Optional[str] = None
    health: str = MODELS
    health_generates: bool = False
    health_503: str = STARTING
    generation: str = COMPLETIONS
    gauges: Optional[str] = None
    heartbeat: Optional[str] = None
    metrics: Optional[str] = None
    counters: tuple[str, ...] = ()
    running: Optional[str] = None
    waiting: Optional[str] = None
    gauge_running: Optional[str] = None
    gauge_waiting: Optional[str] = None
    info: tuple[str, ...] = ()
    info_waits: bool = False
    version: Optional[str] = None
    ready_line: Optional[str] = None
    progress_line: Optional[str] = None

    @property
    def patterns(self) -> tuple[str, ...]:
        """All its processes."""
        return self.workers + self.parents


_SHARDS = r"oading .*?shards:.*?(\d+/\d+)"

SGLANG = Engine(
    name="sglang",
    workers=("^sglang::",),
    parents=(r"sglang\.launch_server", r"(^|/)sglang serve\b"),
    owner="sglang",
    health="/health",
    health_generates=True,
    # The timestamp beside the list of ranks is the HTTP server's own: it moves while the schedulers hang.
    gauges="/v1/loads",
    heartbeat="timestamp",
    gauge_running="num_running_reqs",
    gauge_waiting="num_waiting_reqs",
    metrics="/metrics",
    counters=("sglang:realtime_tokens_total", "sglang:generation_tokens_total", "sglang:prompt_tokens_total"),
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    # Both names that it has had.
    info=("/server_info", "/get_server_info"),
    info_waits=True,
    version="version",
    ready_line=r"The server is fired up and ready to roll!",
    progress_line=_SHARDS,
)

VLLM = Engine(
    name="vllm",
    workers=("^VLLM::",),
    parents=(r"(^|[/ ])vllm serve\b", r"vllm\.entrypoints\."),
    owner="vllm",
    # 200 while the engine hangs, 503 for about a second when it has died.
    health="/health",
    health_503=ENGINE_DEAD,
    # The engine itself reports them, so that of a hung one they show nothing running.
    metrics="/metrics",
    counters=(
        "vllm:iteration_tokens_total_count",
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
    ),
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    info=("/version",),
    version="version",
    ready_line=r"Application startup complete",
    progress_line=_SHARDS,
)

LLAMACPP = Engine(
    name="llamacpp",
    parents=(r"(^|/)llama-server\b",),
    owner="llamacpp",
    server="llama.cpp",
    health="/health",
    # Both are answered between two batches, and only where they are switched on.
    gauges="/slots",
    metrics="/metrics",
    counters=("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:n_decode_total"),
    running="llamacpp:requests_processing",
    waiting="llamacpp:requests_deferred",
    info=("/props",),
    version="build_info",
    ready_line=r"server is listening on",
)

OPENAI = Engine(name="openai", generation=CHAT)

ENGINES = {engine.name: engine for engine in (SGLANG, VLLM, LLAMACPP, OPENAI)}


def model_cards(document: Any) -> list[Mapping[str, Any]]:
    """What /v1/models lists; anything may be in the document."""
    listed = document.get("data") if isinstance(document, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def recognize(cards: Sequence[Mapping[str, Any]], server: Optional[str]) -> Optional[Engine]:
    """The engine that gives itself away by ``owned_by`` of its first model, or by the name of its HTTP server."""
    owner = cards[0].get("owned_by") if cards else None
    for engine in ENGINES.values():
        if isinstance(owner, str) and owner.lower() == engine.owner:
            return engine
        if server is not None and server == engine.server:
            return engine
    return None
