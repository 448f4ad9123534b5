"""A key that the server is given is in no output, however verbose, and in no report."""

from __future__ import annotations

from tests.integration.conftest import MakeLab
from tests.integration.play import module, play

KEY = "sk-made-up-0001-never-to-be-seen"


def test_an_api_key_never_shows(make_lab: MakeLab) -> None:
    lab = make_lab("healthy")
    # The lab's server has no key of its own, and takes any. In its place another process has it on its command line.
    played = play(lab, "-vvv", verified_restart_api_key=KEY)
    assert played.result is not None, played.output
    assert played.result["outcome"] == "not_needed"
    assert KEY not in played.output
    assert KEY not in str(played.result)


def test_a_server_that_wants_another_key_is_refused_and_not_killed(make_lab: MakeLab) -> None:
    lab = make_lab("api-key")
    refused = play(lab, "-vvv", verified_restart_api_key=KEY)
    assert refused.result is not None, refused.output
    assert refused.rc != 0
    assert (refused.result["outcome"], refused.result["changed"]) == ("refused", False)
    assert "verified_restart_api_key" in refused.result["reason"]
    assert KEY not in refused.output

    own_key = lab.status()["server"]["api_key"]
    matched = module(
        lab,
        "node",
        "pct_kill_processes",
        {"vmid": 129, "patterns": [r"sglang\.launch_server"], "pct_path": str(lab.bin / "pct")},
        "--check",
    )
    assert "--api-key ********" in matched["matched"][0]["command"]
    assert own_key not in str(matched)
