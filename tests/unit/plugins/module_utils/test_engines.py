# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of the engines: that it is the same everywhere, and that it finds what real ones print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES, model_cards, recognize
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_killers

ROLE = Path(__file__).parents[4] / "roles" / "verified_restart"


def test_the_role_kills_and_asks_what_the_modules_know() -> None:
    role = yaml.safe_load((ROLE / "vars" / "main.yml").read_text(encoding="utf-8"))["verified_restart__engines"]
    assert {name: (one["health"], set(one["patterns"])) for name, one in role.items()} == {
        name: (engine.health, set(engine.patterns)) for name, engine in ENGINES.items()
    }


def test_every_pattern_may_be_killed_by() -> None:
    for engine in ENGINES.values():
        if engine.patterns:
            assert compile_killers(engine.patterns, "patterns")


@pytest.mark.parametrize(
    ("command", "engine", "kind"),
    [
        ("sglang::scheduler_DP1_PP0_TP3_EP3", "sglang", "workers"),
        ("sglang::detokenizer", "sglang", "workers"),
        ("python3 -m sglang.launch_server --model-path /m --port 30000", "sglang", "parents"),
        ("/opt/venv/bin/python /opt/venv/bin/sglang serve --model-path /m", "sglang", "parents"),
        ("VLLM::EngineCore_DP0", "vllm", "workers"),
        ("VLLM::Worker_TP1_EP1", "vllm", "workers"),
        ("/opt/venv/bin/python /opt/venv/bin/vllm serve /m --port 8000", "vllm", "parents"),
        ("python -m vllm.entrypoints.openai.api_server --model /m", "vllm", "parents"),
        ("/usr/local/bin/llama-server -m /m.gguf", "llamacpp", "parents"),
    ],
)
def test_titles_of_real_processes_are_known(command: str, engine: str, kind: str) -> None:
    found = [
        (one.name, name)
        for one in ENGINES.values()
        for name, patterns in (("parents", one.parents), ("workers", one.workers))
        if any(re.search(pattern, command) for pattern in patterns)
    ]
    assert found == [(engine, kind)]


def test_an_engine_is_known_by_its_models_or_its_http_server() -> None:
    for name in ("sglang", "vllm", "llamacpp"):
        cards = model_cards({"data": [None, {"id": "m", "owned_by": name}, {"owned_by": "somebody"}]})
        assert recognize(cards, "uvicorn") == ENGINES[name]
    assert recognize([], "llama.cpp") == ENGINES["llamacpp"]
    assert recognize([{"owned_by": "openai"}], "nginx") is None
    assert recognize([{"owned_by": 7}], None) is None


@pytest.mark.parametrize("document", [None, [], {}, {"data": None}, {"data": {"id": "m"}}, {"data": ["m", 7]}])
def test_a_list_of_models_that_is_none_has_no_cards(document: Any) -> None:
    assert model_cards(document) == []
