"""The scripts as a person types them: what they say at once, and that nothing is left when they are interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.lab.scenarios import SCENARIOS
from tests.tooling.environment import ROOT

DEMO = ROOT / "scripts" / "demo"
LIMIT_S = 120

# Each demo writes to build/demo: one at a time.
pytestmark = pytest.mark.xdist_group("demo")


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/demo from another directory."""
    return subprocess.run(
        [DEMO, *arguments],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_list_names_the_scenarios_and_nothing_else() -> None:
    listed = demo("--list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines() == list(SCENARIOS)


def test_an_unknown_scenario_is_one_clear_error() -> None:
    refused = demo("--scenario", "incidents")
    assert refused.returncode == 2
    assert "there is no scenario 'incidents'" in refused.stderr
    assert "incident, " in refused.stderr


def test_an_unknown_gate_is_one_clear_error() -> None:
    refused = subprocess.run([ROOT / "scripts" / "test", "linting"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "no such gate: linting" in refused.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, signum: signal.Signals) -> None:
    # Short, because Unix sockets lie below it; tmp_path only says whose it is.
    with tempfile.TemporaryDirectory(prefix="gpuops-") as directory:
        log = tmp_path / "log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [DEMO, "--scenario", "dead"],
                env={**os.environ, "TMPDIR": directory},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            wait_for("== ansible-playbook", log, child)
            child.send_signal(signum)
            assert child.wait(LIMIT_S) == 128 + signum, log.read_text(encoding="utf-8")
        finally:
            child.kill()
            child.wait()
        assert mentioning(directory) == []
        assert os.listdir(directory) == []


def wait_for(text: str, log: Path, child: subprocess.Popen[bytes]) -> None:
    """Until the log holds ``text``; an assertion when the child ends before that, or takes too long."""
    deadline = time.monotonic() + LIMIT_S
    while text not in log.read_text(encoding="utf-8"):
        assert child.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.1)


def mentioning(text: str) -> list[str]:
    """Command lines of all processes that mention ``text`` in their command line or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
            if entry.name.isdigit() and text.encode() in command + (entry / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return found
