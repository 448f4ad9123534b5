"""A key that the server is given is in no output, however verbose, and in no report."""

from __future__ import annotations

from tests.integration.conftest import MakeLab
from tests.integration.play import module, play
from tests.lab.scenarios import SCENARIOS

KEY = SCENARIOS["api-key"].api_key
WRONG_KEY = "sk-made-up-0001-never-to-be-seen"


def test_a_key_opens_the_server_and_never_shows(make_lab: MakeLab) -> None:
    assert KEY is not None
    lab = make_lab("api-key")
    before = lab.status()["server"]["pids"]

    refused = play(lab, "-vvv", verified_restart_api_key=WRONG_KEY)
    assert refused.result is not None, refused.output
    assert refused.rc != 0
    assert (refused.result["outcome"], refused.result["changed"]) == ("refused", False)
    assert "verified_restart_api_key" in refused.result["reason"]
    assert lab.status()["server"]["pids"] == before

    restarted = play(lab, "-vvv", "--diff", verified_restart_api_key=KEY, verified_restart_force=True)
    assert restarted.result is not None, restarted.output
    assert restarted.result["outcome"] == "healthy"
    assert lab.status()["server"]["pids"] != before

    evidence = lab.state / "report" / "evidence" / "kimi.json"
    for text in (refused.output, str(refused.result), restarted.output, str(restarted.result), evidence.read_text()):
        for key in (KEY, WRONG_KEY):
            assert key not in text


def test_a_key_on_a_command_line_is_not_returned(make_lab: MakeLab) -> None:
    assert KEY is not None
    lab = make_lab("api-key")
    arguments = {"vmid": 129, "patterns": [r"sglang\.launch_server"], "pct_path": str(lab.bin / "pct")}
    for via in ("host", "pct"):
        result = module(lab, "node", "pct_kill_processes", {**arguments, "via": via}, "--check", "-vvv")
        assert "--api-key ********" in result["matched"][0]["command"]
        assert KEY not in str(result)
