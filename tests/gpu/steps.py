"""What the probe looks at, one function a step. Each fills its record as it goes, and raises what went wrong."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from tests.gpu.children import TOKEN, Child, mapped_nodes, open_nodes
from tests.gpu.modules import run_module
from tests.gpu.rig import CARDS, PROCESSES, Rig

# So near to what the card showed before counts as free.
_TOLERANCE_MIB = 16
_FREE_WITHIN_S = 20.0

# Only who bears the probe's own name, in its name and its command line, is not protected: nobody else is ever ended.
GUARD = rf"(?s)^(?!.*{TOKEN})"

Data = dict[str, Any]


class RefusedError(Exception):
    """A step stopped before it would have touched what is not the probe's."""


def machine(rig: Rig, record: Data) -> None:
    """Kernel, Python, the driver as its kernel module tells it, and the nodes in /dev."""
    nodes = []
    for path in sorted(Path(rig.devices).glob("nvidia*")):
        status = path.stat()
        if not path.is_dir():
            nodes.append({"path": str(path), "major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)})
    information = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    record.update(
        {
            "kernel": platform.release(),
            "python": platform.python_version(),
            "root": os.geteuid() == 0,
            "pid_namespace": os.readlink("/proc/self/ns/pid"),
            "driver": _text("/proc/driver/nvidia/version"),
            "nodes": nodes,
            "information": {path.parent.name: rig.scrub(_text(path) or "") for path in information},
        }
    )


def join(rig: Rig, record: Data) -> None:
    """Each card's index, minor and bus id by each source: three different numbers, joined by the bus id."""
    by_smi = {one.pci_bus_id: one.index for one in rig.cards()}
    by_proc = {}
    for path in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        lines = (line.split(":", 1) for line in (_text(path) or "").split("\n") if line.startswith("Device Minor"))
        by_proc[path.parent.name.lower()] = next((int(value) for _name, value in lines), None)
    by_nvml = {}
    if rig.lab is None:
        with rig.watch() as watcher:
            by_nvml = {one["pci_bus_id"][-12:]: [one["index"], one["minor"]] for one in watcher.told["cards"]}
    record.update(nvidia_smi_index=by_smi, proc_minor=by_proc, nvml_index_and_minor=by_nvml)


def nodes(rig: Rig, record: Data) -> None:
    """Which nodes a process opens and maps, whether the driver names it, and whether fuser does."""
    visible = {"CUDA_VISIBLE_DEVICES": rig.card.uuid}
    for name, variables in (("cuda", None), ("cuda_visible_devices", visible)):
        with rig.hold(256, variables=variables) as holder, rig.watch() as watcher:
            record[name] = {
                "nodes": open_nodes(holder.pid, rig.devices),
                "mapped": mapped_nodes(holder.pid, rig.devices),
                "named_by_nvidia_smi": holder.pid in rig.computing_pids(),
                "named_by_nvml": _named_by_nvml(rig, holder),
                "fuser": _fuser(rig, holder.pid),
            }
            record["nvml_only"] = {
                "nodes": open_nodes(watcher.pid, rig.devices),
                "mapped": mapped_nodes(watcher.pid, rig.devices),
                "named_by_nvidia_smi": watcher.pid in rig.computing_pids(),
                "fuser": _fuser(rig, watcher.pid),
            }
    record["cuda_opens_uvm"] = _has_uvm(record["cuda"])
    record["nvml_only_opens_uvm"] = _has_uvm(record["nvml_only"])


def prints(rig: Rig, record: Data) -> None:
    """What nvidia-smi prints in each state of the card, and for wrong questions. Each becomes a fixture."""
    index = str(rig.card.index)
    always = {"cards": CARDS, "processes": PROCESSES, "pids": ("-q", "-d", "PIDS", "-i", index), "summary": ()}
    once = {
        "list": ("-L",),
        "version": ("--version",),
        "details": ("-q", "-i", index),
        "process_names": ("--query-compute-apps=pid,process_name,used_memory", "--format=csv"),
        "wrong_field": ("--query-gpu=index,nonsense", "--format=csv"),
        "no_format": ("--query-gpu=index",),
        "wrong_index": ("--query-gpu=index", "--format=csv,noheader", "-i", "99"),
        "by_bus_id": ("--query-gpu=index", "--format=csv,noheader", "-i", rig.card.pci_bus_id),
    }

    def ask(state: str, questions: dict[str, tuple[str, ...]]) -> list[Data]:
        return [rig.ask(arguments, f"{state}_{name}") for name, arguments in questions.items()]

    record["idle"] = ask("idle", {**always, **once})
    for state, mib, busy in (("context", 0, False), ("allocated", 1024, False), ("busy", 1024, True)):
        with rig.hold(mib, busy=busy) as holder:
            record[state] = ask(state, always)
            if busy:
                record["busy"] += ask("busy", {"process_names": once["process_names"]})
                holder.signal(signal.SIGKILL)
                record["killed"] = ask("killed", always)


def modules(rig: Rig, record: Data) -> None:
    """The three modules against a holder and a watcher of ours. ``checks`` says of each expectation whether it held."""
    paths: Data = {"nvidia_smi_path": rig.nvidia_smi}
    places: Data = {**paths, "device_directory": rig.devices, "backend": "nvidia_smi"}
    card: Data = {"gpus": [str(rig.card.index)]}
    done, checks = record.setdefault("results", {}), record.setdefault("checks", {})
    with rig.watch() as watcher, contextlib.ExitStack() as stack:
        before = rig.used_mib(watcher)
        holder = stack.enter_context(rig.hold(1024))
        for backend in ("nvidia_smi", "nvml"):
            done[f"facts_{backend}"] = run_module("gpu_memory_facts", backend=backend, **paths, **card)
        done["reclaim_check"] = run_module("nvidia_fuser_reclaim", check=True, **places, **card)
        done["guarded_check"] = run_module("nvidia_fuser_reclaim", check=True, protect=[GUARD], **places, **card)
        checks["facts_name_the_holder"] = _facts_name(done["facts_nvidia_smi"], holder.pid)
        checks["check_mode_ends_nobody"] = not holder.has_ended() and not watcher.has_ended()
        checks["check_mode_names_the_holder"] = holder.pid in _pids(done["reclaim_check"], "terminated")
        checks["the_watcher_would_be_spared"] = watcher.pid not in _pids(done["reclaim_check"], "terminated", "killed")
        if _pids(done["guarded_check"], "terminated", "killed") != [holder.pid]:
            raise RefusedError("the plan of the reclaim is not exactly the probe's own holder, so it was not run")
        done["reclaim"] = run_module("nvidia_fuser_reclaim", protect=[GUARD], **places, **card)
        checks["the_holder_is_gone"] = holder.has_ended()
        checks["the_watcher_lives"] = not watcher.has_ended()
        checks["something_was_changed"] = done["reclaim"].get("changed") is True
        done["reclaim_again"] = run_module("nvidia_fuser_reclaim", protect=[GUARD], **places, **card)
        checks["a_second_run_changes_nothing"] = done["reclaim_again"].get("changed") is False
        free = _seconds_until(lambda: rig.used_mib(watcher) <= before + _TOLERANCE_MIB)
        checks["the_memory_is_free"] = free is not None
    done["facts_after"] = run_module("gpu_memory_facts", backend="nvidia_smi", **paths, **card)


def errors(rig: Rig, record: Data) -> None:
    """What the modules say where there is nothing for them: one clear error, no traceback."""
    nowhere: Data = {"nvidia_smi_path": "/nowhere/nvidia-smi", "backend": "nvidia_smi"}
    done = {
        "facts_without_nvidia_smi": run_module("gpu_memory_facts", **nowhere),
        "facts_nvml": run_module("gpu_memory_facts", backend="nvml", nvidia_smi_path=rig.nvidia_smi),
        "facts_of_no_such_card": run_module("gpu_memory_facts", gpus=["99"], nvidia_smi_path=rig.nvidia_smi),
        "reclaim_without_nvidia_smi": run_module("nvidia_fuser_reclaim", check=True, **nowhere),
        # It needs Proxmox. Where there is none, this is what an operator reads.
        "kill_without_proxmox": run_module("pct_kill_processes", check=True, vmid=129, patterns=[f"^{TOKEN}$"]),
    }
    clear = {name: not one.get("failed") or bool(one.get("reason")) for name, one in done.items()}
    record.update(results=done, checks={f"{name}_is_clear": held for name, held in clear.items()})


def exits(rig: Rig, record: Data) -> None:
    """How long a process that holds nothing takes to go: what is to be taken off from the times of `release`."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        samples = []
        for _repeat in range(rig.repeats):
            with Child("plain") as child:
                began = time.monotonic()
                child.signal(number)
                _seconds_until(child.has_ended)
                samples.append(time.monotonic() - began)
        record[number.name] = percentiles(samples)


def release(rig: Rig, record: Data) -> None:
    """How long after SIGTERM and SIGKILL the process and the memory are gone."""
    with rig.watch() as watcher:
        before = rig.used_mib(watcher)
        record["before_mib"] = before
        for mib in (1024, rig.card.total_mib * 8 // 10):
            for number in (signal.SIGTERM, signal.SIGKILL):
                exited: list[float] = []
                freed: list[float] = []
                samples: Data = record.setdefault(f"{mib}_mib_{number.name}", {"not_freed": 0})
                for _repeat in range(rig.repeats):
                    with rig.hold(mib) as holder:
                        began = time.monotonic()
                        holder.signal(number)
                        gone = _seconds_until(holder.has_ended)
                        free = _seconds_until(lambda: rig.used_mib(watcher) <= before + _TOLERANCE_MIB)
                        if gone is None or free is None:
                            samples["not_freed"] += 1
                            continue
                        exited.append(gone)
                        freed.append(time.monotonic() - began)
                    samples.update(exited=percentiles(exited), freed=percentiles(freed))


def percentiles(samples: list[float]) -> Data:
    """Seconds: the value that half, and nine in ten, of the samples do not exceed, and the greatest."""
    ranked = sorted(samples)
    if not ranked:
        return {"n": 0}

    def at(share: float) -> float:
        return round(ranked[math.ceil(share * len(ranked)) - 1], 4)

    return {"n": len(ranked), "p50": at(0.5), "p90": at(0.9), "max": round(ranked[-1], 4)}


def _seconds_until(reached: Callable[[], bool]) -> Optional[float]:
    """How long it took, None where it was not reached in time."""
    began = time.monotonic()
    while not reached():
        if time.monotonic() - began > _FREE_WITHIN_S:
            return None
        time.sleep(0.002)
    return time.monotonic() - began


def _facts_name(result: Data, pid: int) -> bool:
    cards = result.get("ansible_facts", {}).get("gpu_memory", {}).get("gpus", [])
    return any(pid == one["pid"] for card in cards for one in card["processes"] or ())


def _pids(result: Data, *kinds: str) -> list[int]:
    return [one["pid"] for kind in kinds for one in result.get(kind) or ()]


def _named_by_nvml(rig: Rig, holder: Child) -> Optional[bool]:
    if rig.lab is not None:
        return None
    with rig.watch() as fresh:
        return any(holder.pid in one["pids"] for one in fresh.told["cards"])


def _has_uvm(look: Data) -> bool:
    return any(one["path"].endswith("/nvidia-uvm") for one in look["nodes"])


def _fuser(rig: Rig, pid: int) -> Optional[Data]:
    """What fuser says of the nodes, None where it is not installed; without ``rc`` where it was too slow."""
    tool = shutil.which("fuser")
    if tool is None:
        return None
    paths = [str(path) for path in sorted(Path(rig.devices).glob("nvidia*")) if not path.is_dir()]
    try:
        done = subprocess.run([tool, *paths], capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return {"rc": None, "pids": [], "sees_it": None}
    # The pids go to stdout; to stderr go the paths, and a complaint for each process that it may not look into.
    pids = done.stdout.decode("utf-8", "replace").split()
    return {"rc": done.returncode, "pids": pids, "sees_it": str(pid) in pids}


def _text(path: object) -> Optional[str]:
    try:
        return Path(str(path)).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
