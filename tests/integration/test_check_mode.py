"""What each module does in check mode, as the kernel saw it: no signal, and no file made, changed or removed.

`changed` is not asked. strace writes down every such system call of the module and of all that it starts.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.calls import LOOKS, Call, calls, modules, wait_for_commands
from tests.integration.conftest import standing_lab
from tests.integration.play import LIMIT_S
from tests.integration.test_incident import server_pids
from tests.lab.lab import Lab
from tests.tooling.environment import COLLECTIONS, ROOT

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")

SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
FILES = (
    *("open", "openat", "openat2", "creat", "truncate", "ftruncate", "rename", "renameat", "renameat2", "rmdir"),
    *("unlink", "unlinkat", "mkdir", "mkdirat", "mknod", "mknodat", "link", "linkat", "symlink", "symlinkat"),
    *("chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "setxattr", "mount", "umount2"),
)
# 1234 openat(AT_FDCWD, "/dev/null", O_WRONLY|O_CLOEXEC) = 3
TRACED = re.compile(r"(?m)^(\d+) +(\w+)\((.*)\) += (-?\d+)")
# To whom: 3<pid:1234>, 1234, or 12 /* 1234 in strace's PID NS */ where it is sent by who lives in a container.
SENT = re.compile(r"^(?:\d+<pid:(\d+)>|\d+ /\* (\d+) in strace's PID NS \*/|(\d+)), (\w+)")
READS = re.compile(r"O_RDONLY|O_PATH")
MAKES = re.compile(r"O_CREAT|O_TRUNC|O_TMPFILE")
# Writing there changes no file.
HARMLESS = re.compile(r'^(AT_FDCWD, )?"(/dev/(null|tty|ptmx|pts/\d+)|/proc/self/(oom_score_adj|comm))"')
# Who asks the server just now, and when it was last asked in vain: docs/health.md. Check mode has to know that, too.
ITS_NOTES = re.compile(r'/gpuops(-\d+)?(/health-|", 0700\)$)|^ftruncate')

RUN = """
import importlib, json, sys
from ansible.module_utils.testing import patch_module_args
module = importlib.import_module("ansible_collections.gpuops.inference.plugins.modules." + sys.argv[1])
with patch_module_args(json.loads(sys.argv[2])):
    module.main()
"""

# What Ansible itself has to say in every result.
ANSIBLES_OWN = {"changed", "failed", "msg", "invocation", "diff", "warnings", "deprecations", "exception"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """The incident: there is much that one could end, remove or reset. Without LXC, whose tools take locks to look."""
    with standing_lab("incident", container=False) as incident:
        yield incident


def strace(log: Path) -> list[str]:
    """What comes before a command whose deeds, and those of all that it starts, shall be written to ``log``."""
    wanted = f"trace={','.join((*SIGNALS, *FILES))}"
    decoded = ["--decode-pids=pidns", "--decode-fds=pidfd"]
    return ["strace", "-f", "--seccomp-bpf", *decoded, "-q", "-o", str(log), "-e", wanted]


def traced(call: Call, directory: Path, *, check: bool) -> tuple[dict[str, Any], list[str]]:
    """The module's result, and the system calls by which it, or whom it started, changed something."""
    log = directory / "trace"
    arguments = {**call.arguments, "_ansible_check_mode": check, "_ansible_diff": True}
    completed = subprocess.run(
        [*strace(log), sys.executable, "-B", "-c", RUN, call.module, json.dumps(arguments)],
        cwd=ROOT,
        # The lab's own tools are written in Python, too.
        env={**os.environ, "PYTHONPATH": str(COLLECTIONS), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert completed.stdout, completed.stderr
    result: dict[str, Any] = json.loads(completed.stdout)
    seen = changes(log.read_text(encoding="utf-8", errors="replace"))
    return result, [one for one in seen if call.module != "inference_health_info" or not ITS_NOTES.search(one)]


def changes(trace: str) -> list[str]:
    """Those lines of strace's log that are a signal to somebody else, or a change of a file that did not fail."""
    ours = set(re.findall(r"(?m)^(\d+) ", trace))
    found = []
    for _pid, name, arguments, returned in TRACED.findall(trace):
        if name in SIGNALS:
            is_change = _reaches_others(arguments, ours)
        elif name.startswith("open"):
            is_change = not READS.search(arguments) or bool(MAKES.search(arguments))
        else:
            is_change = True
        if is_change and (name in SIGNALS or int(returned) >= 0) and not HARMLESS.search(arguments):
            found.append(f"{name}({arguments})")
    return found


def _reaches_others(arguments: str, ours: set[str]) -> bool:
    """Whether it is a signal to none of ``ours``. Signal 0 only asks whether somebody is there."""
    sent = SENT.search(arguments)
    if sent is None:
        return True
    *pids, signal = sent.groups()
    return signal != "0" and not ours.intersection(pids)


def undocumented(result: dict[str, Any], documented: dict[str, Any], where: str = "") -> list[str]:
    """The fields of a result that RETURN does not know, at any depth that it describes."""
    found = []
    for field, value in result.items():
        entry = documented.get(field)
        if entry is None:
            found.append(where + field)
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and "contains" in entry:
                found += undocumented(one, entry["contains"], f"{where}{field}.")
    return found


def test_the_tracer_sees_what_there_is_to_see(tmp_path: Path) -> None:
    log = tmp_path / "trace"
    code = """
import os, signal
os.mkdir("a")
open("a/b", "w").close()
os.rename("a/b", "a/c")
os.unlink("a/c")
os.rmdir("a")
os.kill(os.getppid(), 0)
os.kill(os.getppid(), signal.SIGWINCH)
os.kill(os.getpid(), signal.SIGWINCH)
signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGWINCH)
"""
    subprocess.run([*strace(log), sys.executable, "-B", "-c", code], cwd=tmp_path, check=True)
    names = [one.partition("(")[0] for one in changes(log.read_text(encoding="utf-8"))]
    assert names == ["mkdir", "openat", "rename", "unlink", "rmdir", "kill", "pidfd_send_signal"]


def test_every_module_is_called(lab: Lab) -> None:
    assert {one.module for one in calls(lab)} == set(modules())


def test_no_module_changes_anything_in_check_mode_and_says_what_is_documented(lab: Lab, tmp_path: Path) -> None:
    before = server_pids(lab)
    for call in calls(lab):
        result, seen = traced(call, tmp_path, check=True)
        assert seen == [], (call.name, result)
        utils = importlib.import_module(f"ansible_collections.gpuops.inference.plugins.modules.{call.module}")
        documented: dict[str, Any] = yaml.safe_load(utils.RETURN)
        said = {field: value for field, value in result.items() if field not in ANSIBLES_OWN}
        assert undocumented(said, documented) == [], call.name
        if not result.get("failed"):
            promised = {
                field for field, entry in documented.items() if entry["returned"].startswith(("success", "always"))
            }
            assert promised <= set(said), call.name
    assert server_pids(lab) == before


def test_a_module_that_only_looks_changes_nothing_at_all(lab: Lab, tmp_path: Path) -> None:
    for call in calls(lab):
        if call.module in LOOKS:
            result, seen = traced(call, tmp_path, check=False)
            assert (seen, result.get("changed", False)) == ([], False), call.name


@pytest.mark.parametrize("via", ["host", "pct"])
def test_without_check_mode_the_tracer_sees_the_signals(lab: Lab, tmp_path: Path, via: str) -> None:
    pct = str(lab.bin / "pct")
    victim = subprocess.Popen([pct, "exec", "129", "--", "/bin/sh", "-c", "exec sleep 4712"], stdin=subprocess.DEVNULL)
    try:
        wait_for_commands(lab, {"sleep 4712"})
        patterns = {"vmid": 129, "patterns": ["^sleep 4712$"], "via": via, "pct_path": pct, "respawn_timeout": 0}
        result, seen = traced(Call("pct_kill_processes", patterns), tmp_path, check=False)
        assert len(result["terminated"]) == 1, result
        assert any("SIGTERM" in one for one in seen), seen
    finally:
        victim.kill()
        victim.wait()
