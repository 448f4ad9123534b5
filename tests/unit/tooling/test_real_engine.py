"""What keeps the real engine from running here is said in one sentence."""

from __future__ import annotations

from typing import Optional

import pytest

from tests.tooling import gates, real_engine

CPU = "processor\t: 0\nflags\t\t: fpu sse2 avx avx2\n"
MEMORY = "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n"


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "meminfo", "words"),
    [
        ("x86_64", CPU, MEMORY, None),
        ("x86_64", CPU.replace("avx2", "avx"), MEMORY, "AVX2"),
        ("aarch64", CPU, MEMORY, "AVX2"),
        ("x86_64", "", MEMORY, "AVX2"),
        ("x86_64", CPU, MEMORY.replace("20000000", "2097152"), "needs 5 GiB of memory, and 2.0 GiB are available"),
        ("x86_64", CPU, "", "0.0 GiB are available"),
    ],
)
def test_what_is_missing(machine: str, cpuinfo: str, meminfo: str, words: Optional[str]) -> None:
    said = real_engine.missing(machine, cpuinfo, meminfo)
    assert said is None if words is None else said is not None and words in said


@pytest.mark.parametrize(("no_skips", "word"), [(False, "skipped"), (True, "fail")])
def test_where_it_cannot_run_the_gate_is_skipped_or_fails_and_says_why(
    monkeypatch: pytest.MonkeyPatch, no_skips: bool, word: str
) -> None:
    def prepare() -> real_engine.RealEngine:
        raise real_engine.Unavailable("There is no room for it.")

    monkeypatch.setattr(real_engine, "prepare", prepare)
    outcome = gates._run_gate("real-engine", gates.Options(None, no_skips, {}))
    assert (outcome.word, outcome.why) == (word, "There is no room for it.")
