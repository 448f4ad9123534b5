"""The lab's `nvidia-smi`: answers what a tool asks of the real one, in its format, with its exit codes.

Every message goes to stdout and stderr stays empty, as measured on the real one.
"""

from __future__ import annotations

import os
import time

from tests.lab import claims, procfs
from tests.lab import state as lab_state
from tests.lab.cards import CARDS, CUDA_VERSION, DRIVER_VERSION, MEMORY_RESERVED_MIB, MEMORY_TOTAL_MIB, MODEL, Card

_OK, _BAD_ARGUMENT, _NOTHING_FOUND, _NO_DRIVER, _LOST = 0, 2, 6, 9, 15

_NO_DRIVER_TEXT = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
_GARBAGE = "\x1b[2J%PDF-1.4 ????, 0x7f, \n;;;,,,\n1e309, -7, NaN\n"

_GPU_UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "memory.reserved": "MiB",
    "utilization.gpu": "%",
    "utilization.memory": "%",
    "power.draw": "W",
}
_GPU_ALIASES = {"gpu_uuid": "uuid", "gpu_name": "name", "gpu_bus_id": "pci.bus_id"}
_APP_ALIASES = {"used_memory": "used_gpu_memory", "name": "process_name"}
_APP_UNITS = {"used_gpu_memory": "MiB"}


class _StopError(Exception):
    """The call ends here, with this exit code, after this text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def main(state: str, arguments: list[str]) -> int:
    """Run one call; returns the exit code."""
    try:
        text = _answer(state, arguments)
        code = _OK
    except _StopError as stop:
        text, code = stop.text, stop.code
    os.write(1, text.encode("utf-8"))
    return code


def _answer(state: str, arguments: list[str]) -> str:
    fault = str(lab_state.read_json(os.path.join(state, "faults.json")).get("nvidia_smi") or "")
    if fault == "hang":
        _hang(state)
    if fault == "garbage":
        return _GARBAGE
    options = _parse(arguments)
    if "version" in options:
        return _version()
    if fault == "no_driver":
        raise _StopError(_NO_DRIVER, _NO_DRIVER_TEXT + "\n")
    lost = int(fault.partition(":")[2]) if fault.startswith("lost") else None
    cards = _selected(options.get("id"))
    if lost is not None and fault.startswith("lost:"):
        sentence = _lost_sentence(lost)
        if "list" in options:
            cards = [card for card in cards if card.index != lost]
            return sentence + _list(cards)
        if any(card.index == lost for card in cards):
            raise _StopError(_LOST, sentence)
    if "list" in options:
        return _list(cards)
    if "persist" in options or "reset" in options:
        return _change(state, cards, options, fault)
    if "query" in options:
        return _details(state, cards)
    if "gpu" in options or "apps" in options:
        return _table(state, cards, options, lost)
    return _summary(state, cards)


def _change(state: str, cards: list[Card], options: dict[str, str], fault: str) -> str:
    """The calls that change a card."""
    from tests.lab import gpu_reset  # only here: they are rare

    if "persist" in options:
        code, text = gpu_reset.persist(state, cards, options["persist"])
    else:
        code, text = gpu_reset.reset(state, cards, fault)
    if code != _OK:
        raise _StopError(code, text)
    return text


def _hang(state: str) -> None:
    """Be deaf to all but SIGKILL, like a call stuck in the driver, until the fault is switched off or the lab ends."""
    import signal  # only here: every other call is quicker without

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while lab_state.read_json(os.path.join(state, "faults.json")).get("nvidia_smi") == "hang":
        time.sleep(0.1)
    raise _StopError(_NO_DRIVER, "")


def _parse(arguments: list[str]) -> dict[str, str]:
    names = {
        "--query-gpu": "gpu",
        "--query-compute-apps": "apps",
        "--format": "format",
        "--id": "id",
        "-i": "id",
        "-L": "list",
        "--list-gpus": "list",
        "-q": "query",
        "--query": "query",
        "--version": "version",
        "-d": "display",
        "--display": "display",
        "-pm": "persist",
        "--persistence-mode": "persist",
        "-r": "reset",
        "--gpu-reset": "reset",
    }
    valueless = ("list", "query", "version", "reset")
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if name not in names:
            raise _StopError(
                _BAD_ARGUMENT, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"
            )
        if names[name] not in valueless and not has_value:
            if not rest:
                text = "Option \"%s\" is missing its value.  Please run 'nvidia-smi -h' for help.\n\n" % name
                raise _StopError(_BAD_ARGUMENT, text)
            value = rest.pop(0)
        options[names[name]] = value
    return options


def _selected(identifiers: str | None) -> list[Card]:
    """Cards in index order, whatever order they were asked in."""
    if identifiers is None:
        return list(CARDS)
    wanted = [word.strip().lower() for word in identifiers.split(",")]
    cards = [card for card in CARDS if {str(card.index), card.uuid.lower(), card.pci_bus_id.lower()} & set(wanted)]
    if len(cards) < len(set(wanted)):
        raise _StopError(_NOTHING_FOUND, "No devices were found\n")
    return cards


def _lost_sentence(index: int) -> str:
    text = "Unable to determine the device handle for GPU%d: %s: GPU is lost.  Reboot the system to recover this GPU\n"
    return text % (index, CARDS[index].pci_bus_id[4:])


def _list(cards: list[Card]) -> str:
    return "".join("GPU %d: %s (UUID: %s)\n" % (card.index, MODEL, card.uuid) for card in cards)


def _version() -> str:
    lines = ("NVIDIA-SMI version", DRIVER_VERSION), ("NVML version", "580.95"), ("DRIVER version", DRIVER_VERSION)
    return "".join("%-19s : %s\n" % line for line in (*lines, ("CUDA Version", CUDA_VERSION)))


def _table(state: str, cards: list[Card], options: dict[str, str], lost: int | None) -> str:
    styles = options.get("format", "").split(",")
    if "csv" not in styles:
        raise _StopError(_BAD_ARGUMENT, "\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n\n")
    if "gpu" in options:
        fields, units, aliases = options["gpu"].split(","), _GPU_UNITS, _GPU_ALIASES
        rows = _gpu_rows(state, cards, lost)
    else:
        fields, units, aliases = options["apps"].split(","), _APP_UNITS, _APP_ALIASES
        rows = _app_rows(state, cards)
    fields = [field.strip() for field in fields]
    known = {*_gpu_row(CARDS[0], 0), "index"} if "gpu" in options else set(_APP_FIELDS)
    for field in fields:
        if aliases.get(field, field) not in known:
            raise _StopError(_BAD_ARGUMENT, 'Field "%s" is not a valid field to query.\n\n' % field)
    if "persistence_mode" in fields:
        off = lab_state.without_persistence(state)
        for row in rows:
            if row["index"] in map(str, off) and row["persistence_mode"] == "Enabled":
                row["persistence_mode"] = "Disabled"
    lines = []
    if "noheader" not in styles:
        # The header keeps its unit also with `nounits`.
        head = [aliases.get(field, field) for field in fields]
        lines.append(", ".join("%s [%s]" % (name, units[name]) if name in units else name for name in head))
    for row in rows:
        cells = []
        for field in fields:
            name = aliases.get(field, field)
            cell = row[name]
            cells.append(
                cell if "nounits" in styles or name not in units or "[" in cell else "%s %s" % (cell, units[name])
            )
        lines.append(", ".join(cells))
    return "".join(line + "\n" for line in lines)


def _gpu_rows(state: str, cards: list[Card], lost: int | None) -> list[dict[str, str]]:
    usage = claims.usage(state)
    return [_lost_row(card) if card.index == lost else _gpu_row(card, usage[card.index].used_mib) for card in cards]


def _lost_row(card: Card) -> dict[str, str]:
    """A card that is lost in the middle of a query spoils only its own row."""
    return {name: value if name == "index" else "[GPU is lost]" for name, value in _gpu_row(card, 0).items()}


def _gpu_row(card: Card, used_mib: int) -> dict[str, str]:
    return {
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
        "index": str(card.index),
        "uuid": card.uuid,
        "name": MODEL,
        "count": str(len(CARDS)),
        "serial": "[N/A]",
        "pci.bus_id": card.pci_bus_id,
        "driver_version": DRIVER_VERSION,
        "pstate": "P8",
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "mig.mode.current": "Disabled",
        "memory.total": str(MEMORY_TOTAL_MIB),
        "memory.reserved": str(MEMORY_RESERVED_MIB),
        "memory.used": str(used_mib),
        "memory.free": str(max(0, MEMORY_TOTAL_MIB - MEMORY_RESERVED_MIB - used_mib)),
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "temperature.gpu": "31",
        "power.draw": "34.12",
    }


_APP_FIELDS = (
    *("pid", "process_name", "gpu_uuid", "gpu_bus_id"),
    *("gpu_name", "gpu_serial", "used_gpu_memory", "timestamp"),
)


def _app_rows(state: str, cards: list[Card]) -> list[dict[str, str]]:
    """One row per process and card.

    Inside a container the driver's pids mean nothing, and the real one shows no process.
    """
    usage = claims.usage(state)
    if not any(one.holders for one in usage.values()):
        return []
    if procfs.pid_namespace("self") != lab_state.config(state).get("pid_namespace"):
        return []
    rows = []
    for card in cards:
        for holder in usage[card.index].holders:
            row = _gpu_row(card, 0)
            name = procfs.command(holder.pid).split(" ")[0].replace(",", "?")
            rows.append(
                {
                    "pid": str(holder.pid),
                    "process_name": "[Not Found]" if name.startswith("[") or not name else name,
                    "gpu_uuid": card.uuid,
                    "gpu_bus_id": card.pci_bus_id,
                    "gpu_name": MODEL,
                    "gpu_serial": "[N/A]",
                    "used_gpu_memory": str(holder.mib),
                    "timestamp": row["timestamp"],
                }
            )
    return rows


def _details(state: str, cards: list[Card]) -> str:
    """The part of `-q` that joins a card with its node and its memory."""
    usage = claims.usage(state)
    off = lab_state.without_persistence(state)
    lines = ["", "==============NVSMI LOG==============", ""]
    head = ("Timestamp", time.ctime()), ("Driver Version", DRIVER_VERSION), ("CUDA Version", CUDA_VERSION)
    lines += ["%-42s: %s" % pair for pair in (*head, ("\nAttached GPUs", len(CARDS)))]
    for card in cards:
        used = usage[card.index].used_mib
        lines.append("GPU %s" % card.pci_bus_id)
        pairs: list[tuple[int, str, object]] = [
            (4, "Product Name", MODEL),
            (4, "Product Architecture", "Blackwell"),
            (4, "Persistence Mode", "Disabled" if card.index in off else "Enabled"),
            (4, "Serial Number", "N/A"),
            (4, "GPU UUID", card.uuid),
            (4, "Minor Number", card.minor),
            (4, "PCI", None),
            (8, "Bus", "0x%s" % card.pci_bus_id[9:11]),
            (8, "Bus Id", card.pci_bus_id),
            (4, "FB Memory Usage", None),
            (8, "Total", "%d MiB" % MEMORY_TOTAL_MIB),
            (8, "Reserved", "%d MiB" % MEMORY_RESERVED_MIB),
            (8, "Used", "%d MiB" % used),
            (8, "Free", "%d MiB" % max(0, MEMORY_TOTAL_MIB - MEMORY_RESERVED_MIB - used)),
        ]
        for indent, name, value in pairs:
            label = " " * indent + name
            lines.append(label if value is None else "%-42s: %s" % (label, value))
        lines.append("")
    return "\n".join(lines) + "\n"


def _summary(state: str, cards: list[Card]) -> str:
    usage = claims.usage(state)
    head = "NVIDIA-SMI %s   Driver Version: %s   CUDA Version: %s" % (DRIVER_VERSION, DRIVER_VERSION, CUDA_VERSION)
    rows = [
        "%3d  %s  %s  %7dMiB / %7dMiB" % (c.index, MODEL, c.pci_bus_id, usage[c.index].used_mib, MEMORY_TOTAL_MIB)
        for c in cards
    ]
    return "\n".join([head, *rows]) + "\n"
