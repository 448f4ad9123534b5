"""The profiles of models say only what the role understands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from tests.unit.test_role import OPTIONS, load

PROFILES = sorted((Path(__file__).parents[2] / "inventories" / "profiles").glob("*.yml"))
KIMI = next(path for path in PROFILES if path.stem == "kimi-k2.5-eagle3")


def read(path: Path) -> dict[str, Any]:
    profile: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return profile


def spec(option: dict[str, Any]) -> dict[str, Any]:
    """An option as Ansible's own validator wants it."""
    known: dict[str, Any] = {key: option[key] for key in ("type", "elements", "choices", "no_log") if key in option}
    if "options" in option:
        known["options"] = {name: spec(inner) for name, inner in option["options"].items()}
    return known


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_variable_is_one_of_the_role_and_of_its_type(path: Path) -> None:
    profile = read(path)
    assert set(profile) <= set(OPTIONS)
    checked = ArgumentSpecValidator({name: spec(OPTIONS[name]) for name in profile}).validate(profile)
    assert checked.error_messages == []
    # Validation turns "82" into 82.0: what stands there is the type already.
    assert checked.validated_parameters == profile


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_nothing_of_one_machine_is_in_a_profile(path: Path) -> None:
    own = {"verified_restart_vmid", "verified_restart_node", "verified_restart_api_key", "verified_restart_report_dir"}
    assert not own & set(read(path))


def test_kimi_is_expected_as_it_was_measured() -> None:
    profile = read(KIMI)
    assert profile["verified_restart_expect_speculation"] == {
        "algorithm": "EAGLE3",
        "steps": 3,
        "topk": 1,
        "draft_tokens": 4,
    }
    assert (profile["verified_restart_expected_gpus"], profile["verified_restart_idle_memory_mib"]) == (8, 100)
    assert profile["verified_restart_expect_tokens_per_second"] == 82
    engines = load("vars/main.yml")["verified_restart__engines"]
    assert profile["verified_restart_kill_patterns"] == engines["sglang"]["patterns"]
