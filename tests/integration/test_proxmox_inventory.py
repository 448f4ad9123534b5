"""inventories/proxmox_api, asked as a controller asks it: by ansible-inventory, the credential in the environment."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.integration.play import ansible, run
from tests.lab.proxmox_api import certificate
from tests.tooling.environment import ROOT

TOKEN = "PVEAPIToken=ansible@pve!awx=made-up-0008"

# What a cluster of two nodes answers, in the shapes of its API viewer: container 129 serves, 130 is something else.
ANSWERS: dict[str, Any] = {
    "nodes": [{"node": name, "type": "node", "status": "online"} for name in ("pve1", "pve2")],
    "pools": [],
    "nodes/pve1/network": [{"iface": "vmbr0", "active": 1, "address": "192.0.2.11", "gateway": "192.0.2.1"}],
    "nodes/pve2/network": [{"iface": "vmbr0", "active": 1, "address": "192.0.2.12", "gateway": "192.0.2.1"}],
    "nodes/pve1/qemu": [],
    "nodes/pve2/qemu": [],
    "nodes/pve1/lxc": [{"vmid": "130", "name": "shop", "status": "running", "type": "lxc"}],
    "nodes/pve2/lxc": [{"vmid": "129", "name": "kimi", "status": "running", "type": "lxc", "tags": "inference;prod"}],
    "nodes/pve1/lxc/130/status/current": {"status": "running", "vmid": 130},
    "nodes/pve2/lxc/129/status/current": {"status": "running", "vmid": 129},
    "nodes/pve1/lxc/130/config": {"hostname": "shop", "tags": "prod"},
    "nodes/pve2/lxc/129/config": {"hostname": "kimi", "tags": "inference;prod"},
    "nodes/pve1/lxc/130/snapshot": [{"name": "current"}],
    "nodes/pve2/lxc/129/snapshot": [{"name": "current"}],
    "nodes/pve1/lxc/130/interfaces": [{"name": "eth0", "hwaddr": "bc:24:11:00:00:02", "inet": "192.0.2.130/24"}],
    "nodes/pve2/lxc/129/interfaces": [
        {"name": "lo", "hwaddr": "00:00:00:00:00:00", "inet": "127.0.0.1/8"},
        {"name": "eth0", "hwaddr": "bc:24:11:00:00:01", "inet": "192.0.2.129/24"},
    ],
}


class Answers(BaseHTTPRequestHandler):
    """An API that only whoever has the token may ask."""

    def do_GET(self) -> None:
        known = ANSWERS.get(self.path.removeprefix("/api2/json/"))
        status = 401 if self.headers["Authorization"] != TOKEN else 501 if known is None else 200
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps({"data": known}).encode())

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@contextmanager
def serving(files: tuple[Path, Path] | None = None) -> Iterator[str]:
    """The URL of the API, with TLS where there is a certificate with its key."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    if files is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"{'http' if files is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def inventory(proxmox: str, **more: str) -> tuple[int, str]:
    """What ansible-inventory says with the credential in the environment."""
    argv = ansible("ansible-inventory", "-i", str(ROOT / "inventories" / "proxmox_api"), "--list")
    settings = {
        "PROXMOX_URL": proxmox,
        "PROXMOX_USER": "ansible@pve",
        "PROXMOX_TOKEN_ID": "awx",
        "PROXMOX_TOKEN_SECRET": TOKEN.rpartition("=")[2],
    }
    return run(argv, **settings, **more)


def test_the_authority_of_the_cluster_is_believed_when_the_credential_brings_it(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    with serving(files) as proxmox:
        _rc, unknown = inventory(proxmox)
        _rc, empty = inventory(proxmox, REQUESTS_CA_BUNDLE="")
        rc, output = inventory(proxmox, REQUESTS_CA_BUNDLE=str(files[0]))
    assert "CERTIFICATE_VERIFY_FAILED" in unknown
    assert "CERTIFICATE_VERIFY_FAILED" in empty
    assert rc == 0, output
    assert json.loads(output[output.index("{") :])["inference"]["hosts"] == ["kimi"]


def test_the_containers_with_the_tag_are_found_on_the_nodes_where_they_are() -> None:
    with serving() as proxmox:
        rc, output = inventory(proxmox)
    assert rc == 0, output
    found = json.loads(output[output.index("{") :])
    assert found["inference"]["hosts"] == ["kimi"]
    assert found["proxmox_nodes"]["hosts"] == ["pve1", "pve2"]
    hosts = plain(found["_meta"]["hostvars"])
    kimi = hosts["kimi"]
    assert (kimi["verified_restart_vmid"], kimi["verified_restart_node"]) == (129, "pve2")
    assert (kimi["ansible_host"], hosts["pve2"]["ansible_host"]) == ("192.0.2.129", "192.0.2.12")
    assert kimi["verified_restart_service"] == "sglang-kimi.service"
    assert "shop" not in hosts
    assert TOKEN.rpartition("=")[2] not in output


def plain(value: Any) -> Any:
    """The values without the marks by which ansible-inventory shows that a text must not be rendered."""
    if isinstance(value, dict):
        return (
            value["__ansible_unsafe"]
            if "__ansible_unsafe" in value
            else {key: plain(one) for key, one in value.items()}
        )
    return value
