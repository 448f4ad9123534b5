# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a port: the kernel's tables, as it printed them, and as it never should."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from ansible_collections.gpuops.inference.plugins.module_utils._sockets import (
    PORTS,
    Listening,
    listening,
    parse_tcp,
    require_ports,
)
from tests.unit.fake_proc import FakeProc
from tests.unit.garbage import hostile, printed
from tests.unit.recorded import recorded

ROW = (
    "   3: 0100007F:7530 00000000:0000 0A 00000000:00000001 00:00000000 00000000     0        0 1333868 2 "
    "00000000dec46b8c 100 0 0 10 0"
)


def test_listening_sockets_are_read_and_connections_are_not() -> None:
    assert parse_tcp(recorded("proc_net_tcp", "listening").stdout) == [
        Listening("0.0.0.0", 30001, 1333869),
        Listening("127.0.0.1", 30000, 1333868),
    ]


def test_addresses_of_ipv6_are_read() -> None:
    assert parse_tcp(recorded("proc_net_tcp6", "listening").stdout) == [
        Listening("::1", 30004, 1333872),
        Listening("::", 30002, 1333870),
        Listening("::ffff:127.0.0.1", 30003, 1333871),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
        ROW.replace(" 0A ", " 06 "),
        ROW.replace(" 0A ", " 0a0A "),
        ROW.replace("1333868", "0"),
        ROW.replace("1333868", "-5"),
        ROW.replace("1333868", "9" * 5000),
        ROW.replace(":7530", ":17530"),
        ROW.replace(":7530", ""),
        ROW.replace(":7530", ": 753"),
        ROW.replace("0100007F", "010000"),
        ROW.replace("0100007F", "0100007G"),
        ROW.replace("0100007F", ""),
        ROW[: ROW.index("1333868")],
    ],
)
def test_what_is_no_row_of_a_listening_socket_is_left_out(line: str) -> None:
    assert parse_tcp(f"{line}\n{ROW}\n") == [Listening("127.0.0.1", 30000, 1333868)]


@given(hostile(printed("proc_net_tcp") + printed("proc_net_tcp6")))
def test_no_text_is_an_error_and_no_port_is_made_up(text: str) -> None:
    for one in parse_tcp(text):
        assert one.port in range(65536)
        assert one.inode > 0
        assert f":{one.port:04X}" in text


def test_a_kernel_without_ipv6_has_one_table_and_a_process_that_is_gone_has_none(tmp_path: object) -> None:
    proc = FakeProc(tmp_path)  # type: ignore[arg-type]
    proc.add(4100)
    assert listening(4100, proc.procfs) is None
    (proc.root / "4100" / "net").mkdir()
    (proc.root / "4100" / "net" / "tcp").write_text(f"{ROW}\n{ROW}\n", encoding="ascii")
    assert listening(4100, proc.procfs) == [Listening("127.0.0.1", 30000, 1333868)]


def test_a_socket_of_our_own_is_found_under_the_inode_that_our_handle_shows() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        expected = Listening("127.0.0.1", server.getsockname()[1], os.fstat(server.fileno()).st_ino)
        assert expected in (listening("self", ProcFs()) or [])


def test_a_number_that_is_no_port_is_refused() -> None:
    require_ports([1, 30000, 65535], "ports")
    for port in (0, -1, 65536):
        with pytest.raises(InputError, match=f"ports holds {port}"):
            require_ports([30000, port], "ports")
    assert (PORTS.start, PORTS.stop) == (1, 65536)
