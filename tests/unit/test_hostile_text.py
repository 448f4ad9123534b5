# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever the driver, Proxmox or a container prints: no error but ours, nothing made up, and unknown is not free.

The strategies are in garbage.py. HOSTILE_EXAMPLES=10000 makes each test try so many inputs in place of 60.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils import _nvml
from ansible_collections.gpuops.inference.plugins.module_utils._containers import (
    classify_pct_failure,
    container_status,
)
from ansible_collections.gpuops.inference.plugins.module_utils._driver import cards_in_proc
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import is_possible_pid, memory_state
from ansible_collections.gpuops.inference.plugins.module_utils._memory_facts import FactsRequest, gather
from ansible_collections.gpuops.inference.plugins.module_utils._nvidia_smi import (
    CARD_FIELDS,
    LEAST_FIELDS,
    PROCESS_FIELDS,
    parse_cards,
    parse_list,
    parse_minors,
    parse_processes,
)
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_killers, compile_patterns
from ansible_collections.gpuops.inference.plugins.module_utils._pct_exec import (
    PctContainer,
    classify_exec_failure,
    parse_answers,
    parse_listing,
)
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from ansible_collections.gpuops.inference.plugins.module_utils._results import process_result
from tests.unit.fake_proc import make_process, stat_line
from tests.unit.garbage import ANY_TEXT, CELLS, LINE_ENDS, NVIDIA_SMI_TEXT, PCT_TEXT, hostile
from tests.unit.recorded import Answer, ScriptedRunner, completed, recorded

Value = TypeVar("Value")

EXITS = st.sampled_from([0, 1, 2, 9, 14, 15, 126, 127, 255, -9, -11])


def answered(ask: Callable[[], Value]) -> Optional[Value]:
    """What came back, or None where the collection's own error said why not. Any other error fails the test."""
    try:
        return ask()
    except GpuopsError as exc:
        refused = exc
    assert refused.message
    assert refused.reason
    json.dumps(refused.result())
    return None


# The driver, by nvidia-smi


def lines_of(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


@given(NVIDIA_SMI_TEXT, st.sampled_from([CARD_FIELDS, LEAST_FIELDS]))
def test_there_are_never_more_cards_than_lines_and_no_memory_that_was_not_printed(
    text: str, fields: tuple[str, ...]
) -> None:
    cards = parse_cards(text, fields)
    assert len(cards.gpus) + len(cards.dead) <= len(lines_of(text))
    for gpu in (*cards.gpus, *cards.dead):
        for mib in (gpu.memory_total_mib, gpu.memory_used_mib, gpu.memory_free_mib):
            assert mib is None or re.search(rf"(?<!\d)0*{mib}(?!\d)", text)
        assert memory_state(gpu, 100) != "idle" or (gpu.memory_used_mib is not None and gpu.error is None)


@given(NVIDIA_SMI_TEXT)
def test_no_list_names_a_card_or_a_process_that_cannot_be(text: str) -> None:
    indices, dead = parse_list(text)
    assert len(indices) + len(dead) <= len(lines_of(text))
    processes, invalid = parse_processes(text, PROCESS_FIELDS)
    assert len(processes or ()) + invalid <= len(lines_of(text))
    assert all(is_possible_pid(one.pid) for one in processes or ())


DETAILS = recorded("nvidia_smi", "incident_details").stdout
MINORS = parse_minors(DETAILS)

# What a process may call itself: `nvidia-smi -q` prints it below its card.
FORGED = st.lists(
    st.one_of(
        st.sampled_from([f"GPU {bus}" for bus in ("00000000:0F:00.0", "00000000:D6:00.0", "00000000:FF:00.0")]),
        st.integers(0, 9).map(lambda minor: f"    Minor Number                          : {minor}"),
        st.sampled_from(CELLS),
    ),
    max_size=4,
)


@given(FORGED, st.sampled_from(LINE_ENDS), st.integers(0, len(MINORS) - 1))
def test_no_name_of_a_process_gives_a_card_another_minor(lines: list[str], end: str, card: int) -> None:
    """Fewer minors are fewer cards that can be reclaimed. Another minor would be another card's holders."""
    blocks = re.split(r"(?m)^(?=GPU )", DETAILS)
    blocks[card + 1] += f"    Processes\n        Name : {end.join(['', *lines])}\n"
    found = parse_minors("".join(blocks))
    assert {bus: minor for bus, minor in found.items() if bus in MINORS}.items() <= MINORS.items()


@given(NVIDIA_SMI_TEXT)
def test_no_details_make_up_a_minor(text: str) -> None:
    for minor in parse_minors(text).values():
        assert re.search(rf"Minor Number\s*:\s*0*{minor}(?!\d)", text)


@given(
    gpu=st.lists(NVIDIA_SMI_TEXT, min_size=1, max_size=3),
    apps=NVIDIA_SMI_TEXT,
    listed=NVIDIA_SMI_TEXT,
    details=NVIDIA_SMI_TEXT,
    exits=st.tuples(EXITS, EXITS, EXITS, EXITS),
    expected=st.one_of(st.none(), st.integers(1, 9)),
)
def test_whatever_nvidia_smi_prints_only_a_card_that_was_read_is_idle(
    gpu: list[str], apps: str, listed: str, details: str, exits: tuple[int, ...], expected: Optional[int]
) -> None:
    answers: dict[str, list[Answer]] = {
        "--query-gpu": [completed(text, rc=exits[0]) for text in gpu],
        "--query-compute-apps": [completed(apps, rc=exits[1])],
        "-L": [completed(listed, rc=exits[2])],
        "-q": [completed(details, rc=exits[3])],
    }
    runner = ScriptedRunner(answers)
    request = FactsRequest(None, 100, expected, "nvidia_smi", "nvidia-smi", processes=True, timeout=20)
    found = answered(lambda: gather(request, runner=runner, procfs=ProcFs("/nowhere")))
    if found is None:
        return
    facts = found.facts
    json.dumps(facts)
    read = [card for card in facts["gpus"] if card["memory_used_mib"] is not None and card["error"] is None]
    assert facts["count"] == len(facts["gpus"]) > 0
    assert len(facts["idle"]) <= len(read)
    assert all(card["state"] == "unknown" for card in facts["gpus"] if card not in read)
    assert all(card["memory_used_mib"] <= 100 for card in facts["gpus"] if card["state"] == "idle")
    assert facts["all_idle"] == all(card["state"] == "idle" for card in facts["gpus"])
    assert expected is None or len(read) >= expected


# The driver, by NVML

CARD = {
    "index": 0,
    "pci_bus_id": "00000000:0F:00.0",
    "uuid": "GPU-0",
    "minor": 2,
    "name": "NVIDIA RTX PRO 6000",
    "total": 102641958912,
    "used": 53477376,
    "free": 101938364416,
    "processes": [[24871, 79759933440], [0, None]],
}
LOST = {"index": 3, "pci_bus_id": "00000000:34:00.0", "code": 15, "text": "GPU is lost"}
ANSWERS = [
    json.dumps({"driver_version": "580.95.05", "gpus": [CARD, {**CARD, "index": 1, "uuid": "GPU-1"}, LOST]}),
    json.dumps({"failure": {"code": 9, "text": "Driver Not Loaded"}}),
    json.dumps({"failure": {"code": None, "reason": "not_installed", "text": "No module named 'pynvml'"}}),
]


@given(hostile(ANSWERS), ANY_TEXT, EXITS, st.booleans())
def test_whatever_nvml_answers_only_a_whole_number_is_memory(
    stdout: str, stderr: str, rc: int, processes: bool
) -> None:
    answer = completed(stdout, rc=rc, stderr=stderr)
    reading = answered(lambda: _nvml.parse(answer, processes=processes))
    if reading is None:
        return
    assert 0 < len(reading.gpus) <= stdout.count("{")
    for gpu in reading.gpus:
        assert gpu.memory_used_mib is None or gpu.memory_used_mib >= 0
        assert (gpu.memory_used_mib is None) == (memory_state(gpu, 100) == "unknown")
    assert all(is_possible_pid(one.pid) for one in reading.compute_processes or ())


# The kernel module

INFORMATION = [
    "Model: \t\t NVIDIA RTX PRO 6000\nIRQ:   \t\t 512\nBus Location: \t 0000:0f:00.0\n"
    "Device Minor: \t 2\nGPU Excluded:\t No\n"
]


@given(hostile(INFORMATION), st.sampled_from(["0000:0f:00.0", "x", "0000:0f:00.8", "²", "0000:0f:00.0 "]))
def test_whatever_the_kernel_module_says_a_minor_was_printed(text: str, name: str) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as root:
        directory = Path(root, "driver", "nvidia", "gpus", name)
        directory.mkdir(parents=True)
        (directory / "information").write_bytes(text.encode("utf-8", "replace"))
        found = cards_in_proc(root)
    assert len(found) <= 1
    for card in found:
        assert card.minor is None or re.search(rf"(?m)^Device Minor:[ \t]*0*{card.minor}[ \t]*$", text)


# Proxmox and the inside of a container

STATUS = [recorded("pct", name).stdout for name in ("status_running", "status_stopped")]
WORD = "gpuops-0123456789abcdef01234567"
MARK = f"{WORD}-5d5b4bd4"


def listing(*stats: str) -> str:
    blocks = "".join(
        f"{MARK} stat\n{stat}{MARK} status\nUid:\t1000\t1000\n{MARK} cgroup\n0::/\n{MARK} command\nsglang\0\n"
        for stat in stats
    )
    return f"Welcome!\n{WORD} begin 50 raw {MARK}\n{blocks}{MARK} done\n{WORD} done\n"


LISTINGS = [
    listing(
        *(stat_line(pid, name, "S", 1, 0, 1, 815).decode() for pid, name in ((1, "systemd"), (312, "sglang::sch")))
    ),
    f"{WORD} begin\n{WORD} sent 312\n{WORD} gone 313\n{WORD} denied 314\n{WORD} done\n",
]


@given(st.one_of(hostile(STATUS), PCT_TEXT), PCT_TEXT, EXITS)
def test_whatever_pct_prints_a_container_s_state_was_printed(stdout: str, stderr: str, rc: int) -> None:
    answer = completed(stdout, rc=rc, stderr=stderr, argv=("pct", "status"))
    runner = ScriptedRunner({"status": [answer]})
    status = answered(lambda: container_status(129, runner=runner, pct_path="pct"))
    if status is not None:
        assert rc == 0
        assert status.status in stdout
        assert status.init_pid is None or status.init_pid > 1
    for classify in (classify_pct_failure, classify_exec_failure):
        json.dumps(classify(129, answer).result())


@given(hostile(LISTINGS))
def test_whatever_comes_back_from_inside_no_process_is_listed_that_cannot_be(text: str) -> None:
    found = answered(lambda: parse_listing(text, WORD))
    for process in found.processes if found is not None else ():
        assert process.pid >= 1
        json.dumps(process_result(process, ProcFs("/nowhere")))
    for pid, _answer in parse_answers(text, WORD):
        assert pid >= 1


@given(hostile(LISTINGS), PCT_TEXT, EXITS)
def test_whatever_pct_exec_prints_nobody_is_signalled_who_did_not_answer(stdout: str, stderr: str, rc: int) -> None:
    """The word is made up for each call, so nothing that was printed before it can hold it."""
    runner = ScriptedRunner({"exec": [completed(stdout, rc=rc, stderr=stderr, argv=("pct", "exec", "129"))]})
    inside = PctContainer(129, runner=runner, pct_path="pct", timeout=30)
    assert answered(inside.list_processes) is None
    assert answered(lambda: inside.send([make_process(312)], 15)) is None


# What the operator gives


@given(st.one_of(ANY_TEXT, st.from_regex(r"[\\(\[{?*+|)\]}a^$.0-9]{0,12}", fullmatch=True)))
def test_any_pattern_is_refused_or_means_somebody(pattern: str) -> None:
    answered(lambda: compile_patterns([pattern], "exclude"))
    compiled: Any = answered(lambda: compile_killers([pattern], "patterns"))
    assert compiled is None or compiled[0].search("") is None
