"""What the gate `molecule` reads out of molecule's words."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.tooling import scenarios
from tests.tooling.gates import read_report

LINES = [
    (1.0, "INFO     default ➜ create: Executing\n"),
    (2.0, "\x1b[36mINFO    \x1b[0m \x1b[32mhost\x1b[0m ➜ \x1b[33mcheck\x1b[0m: \x1b[36mExecuting\x1b[0m\n"),
    (3.0, "INFO     proxmox ➜ check: Executing\n"),
    (4.5, "TASK [a task ➜ of a play]\n"),
    (6.0, "INFO     proxmox ➜ cleanup: Executed: Successful\n"),
    (9.0, "ERROR    host ➜ verify: Executed: Failed\n"),
    (9.5, "INFO     host ➜ cleanup: Executed: Successful\n"),
]


def test_each_scenario_has_its_time_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "LABS", tmp_path)
    note = tmp_path / "proxmox" / "log" / "skipped"
    note.parent.mkdir(parents=True)
    note.write_text("needs root\n", encoding="utf-8")

    path = tmp_path / "report.xml"
    scenarios.write(path, scenarios.read(LINES))

    report = read_report(path)
    assert (report.passed, report.failed, report.skipped) == (0, 1, 1)
    assert report.slowest == "host 8 s"
    [told] = ET.parse(path).getroot().findall("testcase/skipped")
    assert told.get("message") == "needs root"
