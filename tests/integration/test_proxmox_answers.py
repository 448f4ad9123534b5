"""Whatever answers where the Proxmox API should be: one clear error, nothing ordered, and no token in it."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.modules import proxmox_container_restart
from tests.integration.play import ansible, run
from tests.integration.replicas import PLAYBOOK, Replicas
from tests.lab.proxmox_api import certificate

SECRET = "0f9e1b2c-made-up-4d1e-9a55-0123456789ab"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")


def http(status: str, body: bytes, kind: str = "text/html") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        *(status.encode(), kind.encode(), len(body)),
        body,
    )


def told(data: str) -> bytes:
    return http("200 OK", data.encode(), "application/json")


# What answers a request, and the reason it is given.
ANSWERS = {
    "a login page": (http("200 OK", b"<html>Log in</html>"), "api_answer"),
    "a proxy's page": (http("502 Bad Gateway", b"<html>\x1b[31mnginx</html>"), "api_failed"),
    "a page that wants a login": (http("401 Unauthorized", b"<html>"), "api_unauthorized"),
    "a redirect to nowhere": (
        b"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        "api_unreachable",
    ),
    "null": (told('{"data": null}'), "api_answer"),
    "no data": (told("{}"), "api_answer"),
    "a list": (told("[]"), "api_answer"),
    "a list in data": (told('{"data": [1, 2]}'), "api_answer"),
    "fields of other types": (told('{"data": {"status": ["running"], "ha": "yes", "pid": "x"}}'), "api_answer"),
    "brackets without end": (told("[" * 200_000), "api_answer"),
    "no UTF-8": (http("200 OK", b'{"data": {"status": "\xff"}}', "application/json"), "api_answer"),
    "half an answer": (b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"data":', "api_failed"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "api_unreachable"),
    "silence": (b"", "api_unreachable"),
}


class Anyone:
    """A TLS server that answers every request with the same bytes. ``heard``: the requests."""

    def __init__(self, files: tuple[Path, Path]) -> None:
        self.answer = b""
        self.heard: list[bytes] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*files)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _address = self._socket.accept()
            except OSError:
                return
            try:
                with self._context.wrap_socket(plain, server_side=True) as connection:
                    self.heard.append(connection.recv(65536))
                    connection.sendall(self.answer)
            except OSError:
                plain.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("api"))


@pytest.fixture
def anyone(files: tuple[Path, Path]) -> Iterator[Anyone]:
    server = Anyone(files)
    yield server
    server.close()


@pytest.mark.parametrize("name", ANSWERS)
def test_the_module_says_what_is_there(
    anyone: Anyone, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    anyone.answer, reason = ANSWERS[name]
    given = {
        "vmid": 129,
        "node": "pve7",
        "api_host": "127.0.0.1",
        "api_port": anyone.port,
        "ca_path": str(files[0]),
        "api_user": "ops@pve",
        "api_token_id": "restart",
        "api_token_secret": SECRET,
    }
    with patch_module_args(given), pytest.raises(SystemExit):
        proxmox_container_restart.main()
    said = capsys.readouterr().out
    result = json.loads(said)
    assert (result["failed"], result["reason"], result.get("changed", False)) == (True, reason, False), result
    assert "127.0.0.1" in result["msg"]
    assert "\x1b" not in result["msg"]
    assert SECRET not in said
    # It had been sent, and nobody was asked for anything but a look.
    assert all(request.startswith(b"GET ") and SECRET.encode() in request for request in anyone.heard)


@pytest.mark.parametrize("name", ["a login page", "a list"])
def test_the_role_refuses_with_a_sentence(anyone: Anyone, files: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    anyone.answer, _reason = ANSWERS[name]
    replicas = Replicas(tmp_path, 1, up=False)
    access = {
        "host": "127.0.0.1",
        "port": anyone.port,
        "ca_path": str(files[0]),
        "user": "ops@pve",
        "token_id": "restart",
        "token_secret": SECRET,
    }
    extra = json.dumps({"verified_restart_proxmox_api": access, "verified_restart_vmid": 129})
    argv = ansible("ansible-playbook", "-vvv", "-i", str(replicas.inventory), "-e", extra, str(PLAYBOOK))
    rc, output = run(argv)
    [result] = replicas.results().values()
    assert rc != 0
    assert (result["outcome"], result["needs"], result["rungs"]) == ("refused", "operator", []), output
    assert "What answers at 127.0.0.1 is not the Proxmox API" in result["reason"]
    assert result["reason"].endswith("Nothing was touched.")
    assert SECRET not in output + str(result)
