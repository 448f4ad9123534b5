"""An account that may only run pct, by the rule and the script that the guide shows, can end what is in a container."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.play import ansible, run
from tests.lab.lab import Lab
from tests.tooling.environment import ROOT

PYTHON = Path("/usr/bin/python3")

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("sudo") is None, reason="needs root and sudo"),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"needs a Python that every account may run: {PYTHON}"),
]

# In mounts of its own, so that the machine's accounts and rules stay what they are.
PREPARED = """
set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/up" "$1/work" "$1/local" "$1/local-work"
cp /etc/passwd /etc/shadow "$1"
echo 'ansible:x:4242:4242::/nonexistent:/bin/sh' >> "$1/passwd"
echo 'ansible:*:19000:0:99999:7:::' >> "$1/shadow"
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/shadow" /etc/shadow
mount -t overlay overlay -o "lowerdir=/usr/sbin,upperdir=$1/up,workdir=$1/work" /usr/sbin
cp "$2" /usr/sbin/pct
mount -t tmpfs -o mode=755 tmpfs /etc/sudoers.d
printf '%s\\n' "$3" > /etc/sudoers.d/ansible
chmod 0440 /etc/sudoers.d/ansible
visudo --check --quiet
mount -t overlay overlay -o "lowerdir=/usr/local/bin,upperdir=$1/local,workdir=$1/local-work" /usr/local/bin
printf '%s\\n' "$4" > /usr/local/bin/pct-as-root
chmod 755 /usr/local/bin/pct-as-root
shift 4
exec "$@"
"""


def shown(beginning: str) -> str:
    """The indented block of the guide that begins so."""
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    found = re.search(rf"(?m)^    {re.escape(beginning)}.*\n(?:    .*\n)*", guide)
    assert found, beginning
    return re.sub(r"(?m)^    ", "", found[0])


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="gpuops lab ") as directory, Lab(directory, "dead") as dead:
        yield dead


def as_ansible(lab: Lab, room: Path, *argv: str) -> tuple[int, str]:
    """Run something where the account, the rule, the script and /usr/sbin/pct are."""
    prepared = [PREPARED, "sh", str(room), str(lab.bin / "pct"), shown("ansible ALL="), shown("#!/bin/sh")]
    return run(["unshare", "--mount", "sh", "-c", *prepared, *argv], ANSIBLE_PIPELINING="1")


def test_the_rule_is_enough_to_end_a_process_of_the_container(lab: Lab, tmp_path: Path) -> None:
    marker = f"gpuops-least-rights-{tmp_path.name}"
    argv = [str(lab.bin / "pct"), "exec", "129", "--", "sh", "-c", f"sleep 600; : {marker}"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as inside:
        arguments = {"vmid": 129, "via": "pct", "patterns": [marker], "pct_path": "/usr/local/bin/pct-as-root"}
        options = ["-b", "--become-user", "ansible", "--become-method", "su", "-i", str(lab.inventory)]
        options += ["-e", f"ansible_python_interpreter={PYTHON}", "-a", json.dumps(arguments)]
        module = ansible("ansible", "node", "-m", "gpuops.inference.pct_kill_processes", *options)
        rc, output = as_ansible(lab, tmp_path, *module)
        ended = inside.poll()
        inside.kill()
    assert rc == 0, output
    assert marker in output
    assert ended is not None


@pytest.mark.parametrize(
    "command",
    ["/usr/sbin/pct stop 129", "/usr/sbin/pct enter 129", "/usr/sbin/pct exec x -- id", "/usr/bin/id", "/bin/sh -c id"],
)
def test_the_rule_allows_nothing_else(lab: Lab, tmp_path: Path, command: str) -> None:
    rc, output = as_ansible(lab, tmp_path, "su", "ansible", "-c", f"sudo -n {command}")
    assert rc != 0
    assert "sudo: a password is required" in output
