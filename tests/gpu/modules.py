"""Runs a module of the collection as it is, with nothing but ansible.module_utils, and reads its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.gpu.children import ROOT

_LIMIT_S = 60


def run_module(name: str, *, check: bool = False, **parameters: Any) -> dict[str, Any]:
    """The module's result. It is given its parameters on standard input, as ansible-core has it for debugging."""
    arguments = {"ANSIBLE_MODULE_ARGS": {**parameters, "_ansible_check_mode": check}}
    with tempfile.TemporaryDirectory() as directory:
        namespace = Path(directory) / "ansible_collections" / "gpuops"
        namespace.mkdir(parents=True)
        (namespace / "inference").symlink_to(ROOT)
        path = os.pathsep.join(filter(None, [directory, os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-m", f"ansible_collections.gpuops.inference.plugins.modules.{name}"],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": path},
            input=json.dumps(arguments).encode(),
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    lines = done.stdout.decode("utf-8", "replace").strip().split("\n")
    try:
        result: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        result = {"failed": True, "msg": "no JSON came back", "stderr": done.stderr.decode("utf-8", "replace")[-2000:]}
    result.pop("invocation", None)
    return result
