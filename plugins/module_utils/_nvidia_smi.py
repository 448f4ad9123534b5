# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks nvidia-smi and parses its tables.

What the real one does (535 to 555, measured): every message goes to stdout; a value that cannot be read is a bracketed
word with exit 0; a card lost when its handle is looked up gives one sentence, no rows and exit 15, while the others
still answer to ``-i``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Callable, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._commands import Completed
from ansible_collections.gpuops.inference.plugins.module_utils._driver_reasons import (
    FATAL_REASONS,
    failure,
    first_line,
    reason_of,
    value_reason,
)
from ansible_collections.gpuops.inference.plugins.module_utils._errors import DriverError
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import (
    ComputeProcess,
    DriverReading,
    Gpu,
    GpuError,
    in_order,
    is_possible_pid,
    normal_bus_id,
    unreadable_gpu,
)

# The name is last: it is the only cell here that can hold a comma, and commas are not escaped.
CARD_FIELDS = ("index", "uuid", "pci.bus_id", "memory.total", "memory.used", "memory.free", "driver_version", "name")
# What every driver knows, for one that refuses any of the rest.
LEAST_FIELDS = ("index", "memory.used")
# Never the process name: it can hold commas or be replaced by [Not Found], and /proc knows it better.
PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory")
# The cell that may hold commas, in a table that has it.
_WIDE_FIELDS = ("name", "process_name")

# Runs nvidia-smi with these arguments, within what is left of the time limit.
Ask = Callable[[Sequence[str]], Completed]

_FORMAT = "--format=csv,noheader,nounits"
# 14: the infoROM of a card is corrupted; all data are there.
_GOOD_EXITS = (0, 14)
_WARNING_LIMIT = 10

_NUMBER = re.compile(r"([0-9]{1,15})(?: ?(?:MiB|%))?")
# A row begins with a number, a UUID or a bracketed word, and a comma. Everything else is a sentence.
_ROW = re.compile(r"\s*(?:[0-9]+|(?:GPU|MIG)-[0-9A-Za-z/_-]+|\[[^\[\],]*\])\s*,")
_UNREADABLE = re.compile(r"\[.*\]|N/A|Not Supported|Insufficient Permissions|Unknown Error|", re.IGNORECASE)
_LISTED = re.compile(r"GPU ([0-9]{1,6}): .*\(UUID: ")
_BLOCK = re.compile(r"GPU ([0-9A-Fa-f]+:[0-9A-Fa-f:.]+)\s*")
_MINOR = re.compile(r"\s+Minor Number\s*:(.*)")
# `GPU3: 0000:34:00.0: Unknown Error`, `GPU0000:02:00.0: Unknown Error`, `gpu 0000:18:00.0: Unknown Error`
_HANDLE = re.compile(
    r"unable to determine the device handle for gpu\s*(?:([0-9]{1,3}):?\s+)?"
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?\s*:?\s*(.*)",
    re.IGNORECASE,
)


class Table(NamedTuple):
    """Rows as field -> cell text; ``whole`` tells of each whether it had one cell a field. The other lines are
    sentences.
    """

    rows: tuple[dict[str, str], ...]
    whole: tuple[bool, ...]
    sentences: tuple[str, ...]


class Cards(NamedTuple):
    """What one answer says of the cards. ``dead`` are those named in sentences, and rows without an index."""

    gpus: tuple[Gpu, ...]
    dead: tuple[Gpu, ...]
    driver_version: Optional[str]
    warnings: tuple[str, ...]


def read(ask: Ask, *, processes: bool) -> DriverReading:
    """Ask for the cards and, with ``processes``, for who computes on them. Raises DriverError, and whatever ``ask``
    raises.
    """
    cards, restriction = _read_cards(ask)
    listed: Optional[tuple[ComputeProcess, ...]] = None
    invalid_pids, warnings = 0, cards.warnings
    if processes:
        completed = ask([_query("compute-apps", PROCESS_FIELDS), _FORMAT, *restriction])
        listed, invalid_pids = parse_processes(completed.stdout, PROCESS_FIELDS)
        if completed.rc not in _GOOD_EXITS or listed is None:
            listed = None
            warnings = (*warnings, f"Who computes on the cards is not known. {_failure(completed).message}")
    return DriverReading(
        backend="nvidia_smi",
        driver_version=cards.driver_version,
        gpus=in_order([*cards.gpus, *cards.dead]),
        compute_processes=listed,
        invalid_pids=invalid_pids,
        warnings=warnings,
    )


def read_minors(ask: Ask, gpus: Sequence[Gpu]) -> dict[str, int]:
    """The device minors from ``nvidia-smi -q`` by bus id, empty where it does not tell. Slow: for who needs it."""
    completed = ask(["-q", "-i", ",".join(str(gpu.index) for gpu in gpus)])
    return parse_minors(completed.stdout) if completed.rc in _GOOD_EXITS else {}


def _read_cards(ask: Ask) -> tuple[Cards, list[str]]:
    """The cards, and the arguments that keep further questions to those that answer."""
    fields: Sequence[str] = CARD_FIELDS
    note: list[str] = []
    completed = ask([_query("gpu", fields), _FORMAT])
    cards = parse_cards(completed.stdout, fields)
    if not cards.gpus and reason_of(completed) == "bad_query":
        note = [f"nvidia-smi refused a field, so only index and memory.used were read: {first_line(completed)}"]
        fields = LEAST_FIELDS
        completed = ask([_query("gpu", fields), _FORMAT])
        cards = parse_cards(completed.stdout, fields)
    restriction: list[str] = []
    if not cards.gpus and cards.dead:
        # One dead card hides the others only from a question about all of them.
        others, dead = parse_list(ask(["-L"]).stdout)
        if not others:
            raise _failure(completed)
        restriction = ["-i", ",".join(map(str, others))]
        dead = (*cards.dead, *dead)
        completed = ask([_query("gpu", fields), _FORMAT, *restriction])
        cards = parse_cards(completed.stdout, fields)
        cards = _with_dead(cards, (*dead, *cards.dead))
    _check(completed, cards)
    return cards._replace(warnings=(*note, *cards.warnings)), restriction


def _check(completed: Completed, cards: Cards) -> None:
    """Raise DriverError unless the rows can be relied on.

    Any exit but 0 and 14 is a failure, except where the answer names the card that is to blame: the rows of the others
    are whole then.
    """
    if not cards.gpus or completed.rc < 0 or (completed.rc not in _GOOD_EXITS and not cards.dead):
        raise _failure(completed)
    indices = [gpu.index for gpu in cards.gpus]
    if len(set(indices)) != len(indices):
        raise _failure(completed, reason="bad_output")


def parse_table(stdout: str, fields: Sequence[str]) -> Table:
    """Rows first, then cells, counted from both ends where one field may hold commas."""
    wide = next((position for position, field in enumerate(fields) if field in _WIDE_FIELDS), None)
    rows: list[dict[str, str]] = []
    whole: list[bool] = []
    sentences: list[str] = []
    for line in _lines(stdout):
        if not _ROW.match(line):
            sentences.extend([line.strip()] if line.strip() else [])
            continue
        cells = line.split(",")
        if wide is not None and len(cells) > len(fields):
            end = len(cells) - (len(fields) - wide - 1)
            cells[wide:end] = [",".join(cells[wide:end])]
        rows.append({field: cell.strip() for field, cell in zip(fields, cells)})
        whole.append(len(cells) == len(fields))
    return Table(tuple(rows), tuple(whole), tuple(sentences))


def number(cell: str) -> Optional[int]:
    """A cell's value, with or without its unit; None for everything that is not plainly a number."""
    found = _NUMBER.fullmatch(cell.strip())
    return int(found[1]) if found else None


def parse_cards(stdout: str, fields: Sequence[str]) -> Cards:
    """The cards of a ``--query-gpu`` table. A row keeps the index it names, and is a dead card when it names none."""
    table = parse_table(stdout, fields)
    found = [_gpu(row, whole) for row, whole in zip(table.rows, table.whole)]
    nameless = [gpu for gpu in found if gpu.index is None]
    dead = _dead(table.sentences)
    warnings = [re.sub(r"(?i)^warning:\s*", "", one) for one in table.sentences if not _HANDLE.match(one)]
    versions = (row.get("driver_version", "") for row in table.rows)
    cards = Cards(
        gpus=tuple(gpu for gpu in found if gpu.index is not None),
        dead=(),
        driver_version=next((version for version in versions if version[:1].isdigit()), None),
        warnings=tuple(warnings[:_WARNING_LIMIT]),
    )
    # A sentence and a row of nothing but bracketed words are two signs of one card.
    return _with_dead(cards, (*dead, *nameless[len(dead) :]))


def _gpu(row: dict[str, str], whole: bool) -> Gpu:
    """A card from its row. A short row is a card lost in mid-answer, or an answer cut off: no number in it counts."""
    words = [GpuError(value_reason(cell) or "bad_output", cell) for cell in row.values() if _UNREADABLE.fullmatch(cell)]
    error = next((word for word in words if word.reason in FATAL_REASONS), None)
    used = number(row.get("memory.used", "")) if whole else None
    if error is None and not whole:
        error = words[0] if words else GpuError("bad_output", "the row has more or fewer cells than were asked for")
    if error is None and used is None:
        cell = row.get("memory.used", "")
        error = GpuError(value_reason(cell) or "bad_output", cell)
    uuid, name = row.get("uuid", ""), row.get("name", "")
    return Gpu(
        index=number(row.get("index", "")),
        uuid=uuid if uuid.startswith("GPU-") else None,
        pci_bus_id=normal_bus_id(row.get("pci.bus_id", "")),
        minor=None,
        name=None if _UNREADABLE.fullmatch(name) else name,
        memory_total_mib=number(row.get("memory.total", "")) if whole else None,
        memory_used_mib=used,
        memory_free_mib=number(row.get("memory.free", "")) if whole else None,
        error=error,
    )


def _dead(sentences: Sequence[str]) -> tuple[Gpu, ...]:
    """The cards that sentences name as unreachable, with as much of index and bus id as they give."""
    dead = []
    for sentence in sentences:
        found = _HANDLE.match(sentence)
        if found:
            reason = value_reason(found[3]) or "device_handle_error"
            index = int(found[1]) if found[1] else None
            dead.append(
                unreadable_gpu(GpuError(reason, sentence), index=index, pci_bus_id=normal_bus_id(found[2] or ""))
            )
    return tuple(dead)


def _with_dead(cards: Cards, dead: Sequence[Gpu]) -> Cards:
    """Add dead cards, each once. One that has a row as well is that row's card; an index that a row has belongs to the
    row.
    """
    errors = {gpu.pci_bus_id: gpu.error for gpu in dead if gpu.pci_bus_id is not None}
    gpus = tuple(replace(gpu, error=gpu.error or errors.get(gpu.pci_bus_id or "")) for gpu in cards.gpus)
    taken, places = {gpu.index for gpu in gpus}, {gpu.pci_bus_id for gpu in gpus}
    kept: list[Gpu] = []
    for gpu in dead:
        if gpu.pci_bus_id is None or gpu.pci_bus_id not in places:
            places.add(gpu.pci_bus_id)
            kept.append(replace(gpu, index=None) if gpu.index in taken else gpu)
    return cards._replace(gpus=gpus, dead=tuple(kept))


def parse_list(stdout: str) -> tuple[tuple[int, ...], tuple[Gpu, ...]]:
    """Of ``nvidia-smi -L``: the indices of the cards that answer (MIG devices are indented, and are no cards), and the
    dead.
    """
    lines = _lines(stdout)
    listed = [int(found[1]) for found in map(_LISTED.match, lines) if found]
    return tuple(dict.fromkeys(listed)), _dead(lines)


def parse_minors(stdout: str) -> dict[str, int]:
    """Of ``nvidia-smi -q``: bus id -> minor. ``N/A`` stays away.

    So does a card that is told of twice: what a process calls itself is printed here too, and may look like a card.
    """
    told: dict[str, list[Optional[int]]] = {}
    bus_id: Optional[str] = None
    for line in _lines(stdout):
        block, minor = _BLOCK.fullmatch(line), _MINOR.fullmatch(line)
        if block:
            bus_id = normal_bus_id(block[1])
            if bus_id in told:
                told[bus_id].append(None)
        elif minor and bus_id is not None:
            told.setdefault(bus_id, []).append(number(minor[1]))
    return {bus_id: minors[0] for bus_id, minors in told.items() if len(minors) == 1 and minors[0] is not None}


def parse_processes(stdout: str, fields: Sequence[str]) -> tuple[Optional[tuple[ComputeProcess, ...]], int]:
    """The compute processes, and how many rows named no possible process or no card. None when only sentences came: not
    'none'.
    """
    table = parse_table(stdout, fields)
    found: list[ComputeProcess] = []
    for row, whole in zip(table.rows, table.whole):
        pid, uuid = number(row.get("pid", "")), row.get("gpu_uuid", "")
        card_known = "gpu_uuid" not in fields or not _UNREADABLE.fullmatch(uuid)
        if whole and pid is not None and is_possible_pid(pid) and card_known:
            found.append(ComputeProcess(pid, uuid, number(row.get("used_memory", ""))))
    troubles = [one for one in table.sentences if not re.match(r"(?i)no running processes|warning:", one)]
    if not table.rows and troubles:
        return None, 0
    return tuple(found), len(table.rows) - len(found)


def _lines(stdout: str) -> list[str]:
    """Not splitlines: that takes much for the end of a line that is none, and a name may hold it."""
    return [line.rstrip("\r") for line in stdout.split("\n")]


def _query(what: str, fields: Sequence[str]) -> str:
    return f"--query-{what}={','.join(fields)}"


def _failure(completed: Completed, *, reason: Optional[str] = None) -> DriverError:
    return failure("nvidia-smi", completed, reason=reason)
