"""What a gate's end is taken for."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from tests.tooling import environment, gates
from tests.tooling.gates import Check, Options, Outcome

REPORT = '<testsuites><testsuite tests="{}" failures="{}" errors="{}" skipped="{}"/></testsuites>'


def judged(
    path: Path, *, rc: int, report: Optional[str] = None, keyword: Optional[str] = None, no_skips: bool = False
) -> Outcome:
    file = path / "report.xml"
    if report is not None:
        file.write_text(report, encoding="utf-8")
    check = Check("lab", [], report=file, skips_count_as_failed=no_skips)
    return gates.judge_tests(check, rc, 1.0, Options(keyword, no_skips, {}))


@pytest.mark.parametrize(
    ("rc", "report", "word", "numbers"),
    [
        (0, REPORT.format(5, 0, 0, 1), "pass", (4, 0, 1)),
        (1, REPORT.format(5, 1, 1, 0), "fail", (3, 2, 0)),
        # Crashed before or after it counted: the exit status has the last word.
        (3, None, "fail", (0, 1, 0)),
        (-9, REPORT.format(5, 0, 0, 0), "fail", (5, 1, 0)),
        (5, REPORT.format(0, 0, 0, 0), "fail", (0, 1, 0)),
        (0, "<torn", "skipped", (0, 0, 0)),
    ],
)
def test_pytest(tmp_path: Path, rc: int, report: Optional[str], word: str, numbers: tuple[int, int, int]) -> None:
    outcome = judged(tmp_path, rc=rc, report=report)
    assert outcome.word == word
    assert (outcome.passed, outcome.failed, outcome.skipped) == numbers


def test_a_word_that_matches_nothing_in_one_gate_is_no_failure(tmp_path: Path) -> None:
    outcome = judged(tmp_path, rc=gates.NO_TESTS_COLLECTED, keyword="leak")
    assert outcome.word == "skipped"
    assert outcome.why == "no test matches leak"


def test_where_none_may_be_skipped_a_skip_is_a_failure(tmp_path: Path) -> None:
    outcome = judged(tmp_path, rc=0, report=REPORT.format(5, 0, 0, 2), no_skips=True)
    assert (outcome.word, outcome.failed) == ("fail", 2)


def test_the_slowest_test_is_named(tmp_path: Path) -> None:
    cases = '<testcase name="test_a[x]" time="1.2"/><testcase name="test_b" time="31.6"/><testcase name="test_c"/>'
    outcome = judged(tmp_path, rc=0, report=f'<testsuites><testsuite tests="3">{cases}</testsuite></testsuites>')
    assert outcome.why == "3 passed, 0 failed, 0 skipped; slowest: test_b 32 s"


def test_table_has_one_line_a_gate_and_the_slowest() -> None:
    outcomes = [Outcome("lint", 7, 0, 0, 12.34, "", 11.7), Outcome("lab", 0, 1, 0, 5, "no test was found")]
    assert gates.table(outcomes).strip().splitlines() == [
        "gate  result   seconds     cpu  why",
        "lint  pass        12.3      12",
        "lab   fail         5.0       0  no test was found",
        "slowest: lint, 12 of 17 s",
    ]


def test_a_gate_whose_set_up_fails_is_a_failure_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_options: Options) -> list[Check]:
        raise environment.SetUpError("no network")

    monkeypatch.setitem(gates.GATES, "docs", broken)
    outcome = gates._run_gate("docs", Options(None, False, {}))
    assert (outcome.word, outcome.why) == ("fail", "its set-up failed")
