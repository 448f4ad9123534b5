"""execution-environment.yml by ansible-builder: what the image would be built from, without building it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from tests.awx.project import tracked_files
from tests.integration.play import ansible
from tests.tooling.environment import PYTHON, ROOT


def command(argv: list[str], directory: Path) -> str:
    done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_image_is_made_from_what_is_pinned_and_nothing_else(tmp_path: Path) -> None:
    for name in tracked_files(ROOT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    pack = ansible("ansible-galaxy", "collection", "build", "--force", "--output-path", "build/image")
    command(pack, tmp_path)
    command([str(PYTHON), "-m", "ansible_builder", "create", "--context", "build/context"], tmp_path)

    context = tmp_path / "build" / "context"
    wanted = yaml.safe_load((ROOT / "execution-environment.yml").read_text(encoding="utf-8"))["dependencies"]
    made = context / "_build"
    assert (made / "requirements.txt").read_text(encoding="utf-8").split() == wanted["python"]
    assert yaml.safe_load((made / "requirements.yml").read_text(encoding="utf-8")) == wanted["galaxy"]
    excluded = wanted["exclude"]["all_from_collections"]
    assert (made / "exclude-collections.txt").read_text(encoding="utf-8").split() == excluded
    assert (made / "bindep.txt").read_text(encoding="utf-8").splitlines() == wanted["system"]
    [packed] = (made / "collections").iterdir()
    assert packed.read_bytes() == (tmp_path / "build" / "image" / packed.name).read_bytes()
    # Containerfile for podman, Dockerfile for docker.
    [containerfile] = [path.read_text(encoding="utf-8") for path in context.glob("*file")]
    for text in ("quay.io/centos/centos:stream9", "ansible-core==2.19.14", "ansible-runner==2.4.3", "python3.11"):
        assert text in containerfile
