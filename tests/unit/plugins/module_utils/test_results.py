# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules return for a process, and that no secret is in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._errors import SurvivorsError
from ansible_collections.gpuops.inference.plugins.module_utils._results import (
    describe,
    process_diff,
    process_result,
    redact,
    redact_glued,
    refuse_survivors,
)
from tests.unit.fake_proc import BOOT_TIME, FakeProc
from tests.unit.recorded import recorded

SECRET = "sk-made-up-0001"

# Command lines with a secret in them, and what is to be seen of them.
HIDDEN = [
    ("--api-key sk-made-up-0001 --port 1", "--api-key ******** --port 1"),
    ("--api-key=sk-made-up-0001 --port 1", "--api-key=******** --port 1"),
    ("--api_key sk-made-up-0001", "--api_key ********"),
    ("--API-KEY sk-made-up-0001", "--API-KEY ********"),
    ("-api-key sk-made-up-0001", "-api-key ********"),
    ("--admin-api-key sk-made-up-0001", "--admin-api-key ********"),
    ("--hf-token sk-made-up-0001", "--hf-token ********"),
    ("--hf-token=sk-made-up-0001", "--hf-token=********"),
    ("-hft sk-made-up-0001 -m x.gguf", "-hft ******** -m x.gguf"),
    ("--ssl-keyfile-password sk-made-up-0001", "--ssl-keyfile-password ********"),
    ("--ssl-keyfile-password=sk-made-up-0001", "--ssl-keyfile-password=********"),
    ("--aws-secret-access-key sk-made-up-0001", "--aws-secret-access-key ********"),
    ("--client-secret sk-made-up-0001", "--client-secret ********"),
    ("HF_TOKEN=sk-made-up-0001 vllm serve m", "HF_TOKEN=******** vllm serve m"),
    ("env OPENAI_API_KEY=sk-made-up-0001 x", "env OPENAI_API_KEY=******** x"),
    ("sh -c A=1;HF_TOKEN='sk-made-up-0001 x' y", "sh -c A=1;HF_TOKEN=******** y"),
    ('ssh host "HF_TOKEN=sk-made-up-0001" y', 'ssh host "HF_TOKEN=********" y'),
    ("curl -H Authorization: Bearer sk-made-up-0001 u", "curl -H Authorization: Bearer ******** u"),
    ("curl -H authorization: sk-made-up-0001 u", "curl -H authorization: ******** u"),
    ("curl -H 'Authorization: Basic sk-made-up-0001'", "curl -H 'Authorization: Basic ********'"),
    ("x Bearer sk-made-up-0001", "x Bearer ********"),
    ("curl -H X-Api-Key: sk-made-up-0001 u", "curl -H X-Api-Key: ******** u"),
    ('--config {"api_key": "sk-made-up-0001", "a": 1}', '--config {"api_key": ********, "a": 1}'),
    ("https://h/?api_key=sk-made-up-0001 x", "https://h/?api_key=******** x"),
    ("--proxy http://user:sk-made-up-0001@proxy:3128", "--proxy http://user:********@proxy:3128"),
    # vLLM takes several keys, and a key with a blank in it looks the same.
    ("--api-key first sk-made-up-0001 --port 1", "--api-key ******** --port 1"),
    ("--api-key a\nsk-made-up-0001 --port 1", "--api-key ******** --port 1"),
]

# Command lines without any secret, which are left as they are.
SHOWN = [
    "",
    "sglang::scheduler_DP0_TP1_EP0",
    "sglang::detokenizer",
    "sglang::tokenizer_worker:4242",
    "python3 -m sglang.launch_server --max-total-tokens 4096 --port 30000",
    "--max-total-tokens=4096",
    "MAX_TOKENS=4096",
    '--override {"max_tokens": 5}',
    "--speculative-num-draft-tokens 4 --tp-size 8",
    "--tokenizer-path /x",
    "--tokenizer-path=/x",
    "--skip-tokenizer-init",
    "--stop-token-ids 1 2",
    "--api-key-file /etc/key",
    "--trust-remote-code --enable-token --port 1",
    "https://huggingface.co/a/b",
    "keyboard --key k",
]


@pytest.mark.parametrize(("command", "seen"), HIDDEN)
def test_a_secret_is_hidden_and_the_rest_is_not(command: str, seen: str) -> None:
    assert redact(command) == seen
    assert redact(redact(command)) == seen


@pytest.mark.parametrize("command", SHOWN)
def test_what_is_no_secret_is_shown(command: str) -> None:
    assert redact(command) == command


def test_the_server_s_key_of_the_field_case_is_hidden() -> None:
    seen = redact(recorded("cmdline", "E15").stdout.strip())
    assert seen == "python -m sglang.launch_server --model-path /models/x --api-key ******** --port 30000"


@pytest.mark.parametrize(("command", "_seen"), HIDDEN)
def test_where_arguments_ran_together_nothing_after_a_secret_s_name_is_shown(command: str, _seen: str) -> None:
    glued = command.replace(" ", "").replace("\n", "")
    if "-hft" not in command and "://user" not in command:
        assert SECRET not in redact_glued(glued)


def test_where_arguments_ran_together_the_rest_is_still_shown() -> None:
    glued = "python3-msglang.launch_server--max-total-tokens4096--tokenizer-path/x--tp8"
    assert redact_glued(glued) == glued
    assert redact_glued("vllmserve--api-keysk-made-up-0001--port1") == "vllmserve--api-key********"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_a_process_has_the_fields_of_the_contract(proc: FakeProc) -> None:
    proc.add(4100, "systemd", parent=0)
    process = proc.add(
        4242,
        "sglang::schedul",
        b"sglang::scheduler_TP1\0--api-key\0sk-made-up-0001\0",
        parent=4100,
        uid=1000,
        start=150,
        inner=(312,),
        cgroup="0::/lxc/129/ns/system.slice/sglang-kimi.service\n",
    )
    assert process_result(process, proc.procfs, gpus=[1]) == {
        "pid": 4242,
        "container_pid": 312,
        "vmid": 129,
        "name": "sglang::schedul",
        "command": "sglang::scheduler_TP1 --api-key ********",
        "state": "S",
        "uid": 1000,
        "start_time": BOOT_TIME + round(150 / os.sysconf("SC_CLK_TCK"), 2),
        "unit": "sglang-kimi.service",
        "parent": {"pid": 4100, "name": "systemd"},
        "gpus": [1],
    }


def test_what_is_not_known_of_a_process_is_null(proc: FakeProc) -> None:
    (proc.root / "stat").unlink()
    result = process_result(proc.add(4242, parent=0), proc.procfs)
    unknown = ("container_pid", "vmid", "start_time", "unit", "parent")
    assert {key: result[key] for key in unknown} == dict.fromkeys(unknown)


def shown(**fields: Any) -> dict[str, Any]:
    known = {"pid": 4242, "container_pid": None, "name": "pt_main_thread", "state": "S", "vmid": None, "unit": None}
    return {**known, **fields}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "4242 (pt_main_thread)"),
        ({"state": "R"}, "4242 (pt_main_thread)"),
        ({"state": "D", "wchan": "nfs_wait"}, "4242 (pt_main_thread, state D, asleep in nfs_wait)"),
        ({"vmid": 129, "unit": "x.service"}, "4242 (pt_main_thread, container 129, unit x.service)"),
        ({"pid": None, "container_pid": 312}, "312 inside (pt_main_thread)"),
        ({"name": None, "state": None}, "4242 (unknown)"),
        ({"name": "a\nb\x1b[2J"}, "4242 (a\\nb\\x1b[2J)"),
    ],
)
def test_a_process_in_words(fields: dict[str, Any], words: str) -> None:
    assert describe(shown(**fields)) == words


def test_the_diff_has_one_process_a_line_by_pid() -> None:
    before = [shown(pid=20), shown(pid=3, name="x\ny")]
    assert process_diff(before, []) == {"before": "3 (x\\ny)\n20 (pt_main_thread)\n", "after": ""}


def test_the_diff_also_has_processes_that_are_only_known_inside() -> None:
    diff = process_diff([shown(pid=None, container_pid=7), shown(pid=None, container_pid=8)], [])
    assert diff["before"] == "7 inside (pt_main_thread)\n8 inside (pt_main_thread)\n"


def test_nobody_left_is_no_error() -> None:
    refuse_survivors({"survivors": [], "respawned": []}, "on the cards")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("uninterruptible", "the machine must be rebooted"),
        ("zombie", "its first thread is dead"),
        ("permission", "run as root"),
        ("timeout", "raise kill_timeout"),
        ("frozen", "wait for the backup that froze it"),
    ],
)
def test_a_survivor_is_an_error_that_says_what_to_do(reason: str, words: str) -> None:
    result = {"survivors": [shown(reason=reason)], "respawned": [], "changed": True}
    with pytest.raises(SurvivorsError) as caught:
        refuse_survivors(result, "in container 129")
    assert caught.value.message.startswith("1 process is left in container 129. 4242 (pt_main_thread)")
    assert words in caught.value.message
    assert caught.value.result() == {"msg": caught.value.message, **result, "reason": "survivors"}


@pytest.mark.parametrize(
    ("started_by", "words"),
    [
        ({**shown(pid=1, name="systemd", unit="a.service"), "kind": "unit"}, "by unit a.service; stop"),
        ({**shown(pid=7, name="supervisord"), "kind": "process"}, r"by its parent 7 \(supervisord\); stop that"),
        (None, "by somebody who is not to be seen; stop that first"),
    ],
)
def test_whoever_came_back_is_an_error_that_names_who_starts_it(started_by: Any, words: str) -> None:
    newcomer = shown(reason="respawned", unit="a.service", started_by=started_by)
    with pytest.raises(SurvivorsError, match=rf"unit a\.service\): started again {words}") as caught:
        refuse_survivors({"survivors": [], "respawned": [newcomer]}, "on the cards")
    assert caught.value.reason == "respawned"


def test_several_are_counted_and_survivors_give_the_reason() -> None:
    result = {"survivors": [shown(reason="timeout")], "respawned": [shown(reason="respawned")]}
    with pytest.raises(SurvivorsError, match=r"^2 processes are left") as caught:
        refuse_survivors(result, "on the cards")
    assert caught.value.reason == "survivors"
