# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which TCP ports of a network namespace are listened on, from the tables /proc/PID/net/tcp and tcp6.

Formats are those of proc_pid_net(5) and of get_tcp4_sock and get_tcp6_sock in the kernel's net/ipv4/tcp_ipv4.c and
net/ipv6/tcp_ipv6.c. The tables show the namespace of PID, whoever reads them.
"""

from __future__ import annotations

import re
import socket
import struct
import sys
from typing import Iterator, NamedTuple, Optional, Sequence

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs, first_number

# TCP_LISTEN of include/net/tcp_states.h. Others with the port as their local one do not keep a server from binding it.
_LISTENING = "0A"

_TABLES = ("tcp", "tcp6")


_PORT = re.compile(r"[0-9A-F]{4}")

PORTS = range(1, 65536)


class Listening(NamedTuple):
    """A socket that somebody listens on. ``inode`` is its ``st_ino``, the same for all who share it."""

    address: str
    port: int
    inode: int


def require_ports(ports: Sequence[int], option: str) -> None:
    """Raise InputError for a number that is no TCP port."""
    for port in ports:
        if port not in PORTS:
            raise InputError(f"{option} holds {port}. A TCP port is a number from {PORTS.start} to {PORTS.stop - 1}.")


def parse_tcp(text: str) -> list[Listening]:
    """The listening sockets of one table. Lines that are none of the kernel's rows are left out."""
    rows = (_row(line.split()) for line in text.split("\n"))
    return [row for row in rows if row is not None]


def _row(fields: list[str]) -> Optional[Listening]:
    # sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ...
    if len(fields) < 10 or fields[3] != _LISTENING:
        return None
    address, _colon, port = fields[1].partition(":")
    inode = first_number(fields[9])
    if not inode or not _PORT.fullmatch(port):
        return None
    try:
        return Listening(_address(bytes.fromhex(address)), int(port, 16), inode)
    except ValueError:
        return None


def _address(words: bytes) -> str:
    """The kernel prints an address as 32-bit words in the machine's own byte order. Raises ValueError for others."""
    if len(words) not in (4, 16):
        raise ValueError(f"an address of {len(words)} bytes")
    count = len(words) // 4
    in_order = struct.pack(f"{'<' if sys.byteorder == 'little' else '>'}{count}I", *struct.unpack(f">{count}I", words))
    return socket.inet_ntop(socket.AF_INET if count == 1 else socket.AF_INET6, in_order)


def listening(pid: object, procfs: ProcFs) -> Optional[list[Listening]]:
    """What is listened on in the network namespace of ``pid`` (``self`` for our own); None where it cannot be read."""
    tables = [procfs.read_text(pid, "net", table) for table in _TABLES]
    if tables[0] is None:
        return None
    # A kernel without IPv6 has no second table.
    return list(_distinct(tables))


def _distinct(tables: list[Optional[str]]) -> Iterator[Listening]:
    seen = set()
    for text in tables:
        for one in parse_tcp(text or ""):
            if one not in seen:
                seen.add(one)
                yield one
