# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Iterator, Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils import _driver
from ansible_collections.gpuops.inference.plugins.module_utils._driver import cards_in_proc, read_driver
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, DriverError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import DriverReading
from tests.unit.recorded import FIXTURES, Answer, ScriptedRunner, completed, recorded

INCIDENT = recorded("nvidia_smi", "incident")
DETAILS = recorded("nvidia_smi", "incident_details")
NVML = '{"gpus": [{"index": 0, "uuid": "GPU-0", "pci_bus_id": "0000:0f:00.0", "used": 0, "minor": 5}]}'


def runner_with(**script: Answer) -> ScriptedRunner:
    answers: dict[str, list[Answer]] = {"--query-gpu": [INCIDENT], "-L": [completed()], "-q": [DETAILS]}
    answers = {"pynvml": [completed()], "--query-compute-apps": [completed()], **answers}
    names = {"gpu": "--query-gpu", "apps": "--query-compute-apps", "details": "-q", "nvml": "pynvml"}
    answers.update({names[name]: [answer] for name, answer in script.items()})
    return ScriptedRunner(answers)


def read_with(
    runner: ScriptedRunner,
    proc: Path,
    *,
    backend: str = "nvidia_smi",
    clock: Optional[Iterator[float]] = None,
) -> DriverReading:
    return read_driver(
        runner=runner,
        backend=backend,
        nvidia_smi_path="/opt/nvidia-smi",
        timeout=20,
        proc_root=str(proc),
        device_directory=str(proc / "dev"),
        clock=(lambda: next(clock)) if clock is not None else (lambda: 100.0),
    )


def add_card(proc: Path, bus_id: str, minor: Optional[int], more: str = "") -> None:
    directory = proc / "driver" / "nvidia" / "gpus" / bus_id
    directory.mkdir(parents=True)
    line = f"Device Minor: \t {minor}\n" if minor is not None else ""
    (directory / "information").write_text(f"Model: \t\t NVIDIA RTX PRO 6000\nBus Location: \t {bus_id}\n{line}{more}")


BUSES = ("0f", "15", "51", "54", "8f", "95", "d1", "d6")
MINORS = (2, 3, 0, 1, 6, 7, 4, 5)


def add_all(proc: Path) -> None:
    for bus, minor in zip(BUSES, MINORS):
        add_card(proc, f"0000:{bus}:00.0", minor)


def test_a36_the_minor_comes_by_bus_id_from_the_kernel_module(tmp_path: Path) -> None:
    text = (FIXTURES / "nvidia_container_cli" / "A36" / "stdout").read_text()
    for block in text.split("\n\n"):
        values = dict(line.split(":", 1) for line in block.splitlines())
        add_card(tmp_path, values["Bus Location"].strip().removeprefix("0000"), int(values["Device Minor"]))
    runner = runner_with(gpu=completed("".join(INCIDENT.stdout.splitlines(keepends=True)[:3])))
    assert [(gpu.index, gpu.minor) for gpu in read_with(runner, tmp_path).gpus] == [(0, 2), (1, 3), (2, 0)]


@pytest.mark.parametrize(
    "text", ["Device Minor:\n7\n", "IRQ: 5\rDevice Minor: 7\n", "Device Minor: 7 8\n", "Device Minor: \n"]
)
def test_a_minor_stands_on_its_own_line_or_is_not_known(tmp_path: Path, text: str) -> None:
    add_card(tmp_path, "0000:0f:00.0", None, text)
    assert [(card.pci_bus_id, card.minor) for card in cards_in_proc(str(tmp_path))] == [("0000:0f:00.0", None)]


def test_the_details_are_not_asked_for_when_the_kernel_module_says_it(tmp_path: Path) -> None:
    add_all(tmp_path)
    runner = runner_with()
    assert [gpu.minor for gpu in read_with(runner, tmp_path).gpus] == list(MINORS)
    assert [call[0] for call in runner.calls] == ["/opt/nvidia-smi"] * 2
    assert not any("-q" in call for call in runner.calls)


def test_where_the_kernel_module_does_not_say_it_the_details_do(tmp_path: Path) -> None:
    add_card(tmp_path, "0000:0f:00.0", 2)
    add_card(tmp_path, "0000:15:00.0", None)
    runner = runner_with()
    assert [gpu.minor for gpu in read_with(runner, tmp_path).gpus] == list(MINORS)
    assert runner.calls[-1][1:] == ["-q", "-i", "1,2,3,4,5,6,7"]


def test_a_minor_that_nobody_says_is_not_known(tmp_path: Path) -> None:
    reading = read_with(runner_with(details=completed("", rc=255)), tmp_path)
    assert [gpu.minor for gpu in reading.gpus] == [None] * 8


def test_a_card_that_only_the_kernel_module_has_is_unknown(tmp_path: Path) -> None:
    add_all(tmp_path)
    add_card(tmp_path, "0000:e0:00.0", 8)
    add_card(tmp_path, "0000:e1:00.0", 9)
    add_card(tmp_path, "0000:e2:00.0", 10, "GPU Excluded:\t Yes\n")
    (tmp_path / "dev").mkdir()
    # Without a node it is not for us, as in a container that has only some of the cards.
    for minor in (8, 10):
        (tmp_path / "dev" / f"nvidia{minor}").touch()
    *listed, silent = read_with(runner_with(), tmp_path).gpus
    assert [gpu.error for gpu in listed] == [None] * 8
    assert silent.error is not None
    assert (silent.index, silent.pci_bus_id, silent.minor) == (None, "0000:e0:00.0", 8)
    assert silent.error.reason == "not_listed"


def test_what_is_no_card_in_proc_is_passed_over(tmp_path: Path) -> None:
    add_card(tmp_path, "README", 1)
    (tmp_path / "driver" / "nvidia" / "gpus" / "0000:99:00.0").mkdir()
    assert [(card.pci_bus_id, card.minor) for card in cards_in_proc(str(tmp_path))] == [("0000:99:00.0", None)]


def test_one_time_limit_holds_for_all_questions_together(tmp_path: Path) -> None:
    runner = runner_with()
    read_with(runner, tmp_path, clock=iter([0.0, 0.0, 5.0, 19.0]))
    assert runner.timeouts == [20.0, 15.0, 1.0]


def test_when_the_time_is_up_nothing_more_is_started(tmp_path: Path) -> None:
    runner = runner_with()
    with pytest.raises(CommandError) as caught:
        read_with(runner, tmp_path, clock=iter([0.0, 0.0, 20.0]))
    assert (caught.value.reason, len(runner.calls)) == ("timeout", 1)


@pytest.mark.parametrize("unkillable", [False, True])
@pytest.mark.parametrize("question", ["gpu", "apps", "details"])
def test_a29_after_a_hang_no_second_nvidia_smi_is_started(tmp_path: Path, question: str, unkillable: bool) -> None:
    hang = CommandError("x", reason="timeout", cmd=[], unkillable=unkillable)
    runner = runner_with(**{question: hang})
    with pytest.raises(CommandError) as caught:
        read_with(runner, tmp_path)
    assert len(runner.calls) == ["gpu", "apps", "details"].index(question) + 1
    assert (caught.value.reason, caught.value.fields["unkillable"]) == ("timeout", unkillable)
    assert "within 20 s" in caught.value.message
    assert ("unkillable" in caught.value.message) is unkillable


def test_a38_a_missing_tool_is_not_a_machine_without_cards(tmp_path: Path) -> None:
    missing = CommandError("not found in /usr/bin; nvidia_smi_path", reason="not_installed")
    with pytest.raises(CommandError, match="nvidia_smi_path"):
        read_with(runner_with(gpu=missing), tmp_path)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_driver, "has_nvml_binding", lambda: True)
    monkeypatch.setattr(_driver, "has_nvml_library", lambda: True)


def test_auto_does_not_start_a_child_for_a_library_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_driver, "has_nvml_binding", lambda: False)
    runner = runner_with()
    assert read_with(runner, tmp_path, backend="auto").backend == "nvidia_smi"
    assert {call[0] for call in runner.calls} == {"/opt/nvidia-smi"}


@pytest.mark.usefixtures("importable")
def test_auto_takes_nvml_where_it_works(tmp_path: Path) -> None:
    runner = runner_with(nvml=completed(NVML))
    reading = read_with(runner, tmp_path, backend="auto")
    assert (reading.backend, reading.gpus[0].minor, len(runner.calls)) == ("nvml", 5, 1)


@pytest.mark.usefixtures("importable")
def test_auto_goes_on_to_nvidia_smi_where_nvml_does_not_work(tmp_path: Path) -> None:
    broken = completed('{"failure": {"code": 12, "text": "NVML Shared Library Not Found"}}')
    assert read_with(runner_with(nvml=broken), tmp_path, backend="auto").backend == "nvidia_smi"
    with pytest.raises(DriverError) as caught:
        read_with(runner_with(nvml=broken, gpu=recorded("nvidia_smi", "A12")), tmp_path, backend="auto")
    assert caught.value.reason == "no_devices"
    assert "NVML Shared Library Not Found" in caught.value.fields["nvml_error"]


@pytest.mark.usefixtures("importable")
def test_auto_does_not_ask_nvidia_smi_after_nvml_has_hung(tmp_path: Path) -> None:
    runner = runner_with(nvml=CommandError("x", reason="timeout", unkillable=True))
    with pytest.raises(CommandError) as caught:
        read_with(runner, tmp_path, backend="auto")
    assert len(runner.calls) == 1
    assert "import" not in caught.value.message


def test_nvml_alone_fails_clearly_when_it_does_not_work(tmp_path: Path) -> None:
    missing = completed('{"failure": {"reason": "not_installed", "text": "No module named pynvml"}}')
    with pytest.raises(DriverError) as caught:
        read_with(runner_with(nvml=missing), tmp_path, backend="nvml")
    assert caught.value.reason == "not_installed"


def test_auto_does_not_start_a_process_for_nvml_where_the_drivers_library_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_driver, "has_nvml_binding", lambda: True)
    monkeypatch.setattr(_driver, "has_nvml_library", lambda: False)
    runner = runner_with(nvml=completed(NVML))
    assert read_with(runner, tmp_path, backend="auto").backend == "nvidia_smi"
    assert not any("pynvml" in " ".join(argv) for argv in runner.calls)
