"""The Proxmox API: it knows where a container is, restarts it, and nobody gets to see the token."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpuops.inference.plugins.modules import proxmox_container_restart
from tests.integration.conftest import MakeLab
from tests.integration.play import Played, ansible, play, run
from tests.integration.replicas import PLAYBOOK, Replicas
from tests.integration.test_container_restart import CLIMBED, SOON, assert_restarted, init_of
from tests.lab.errors import LabError
from tests.lab.proxmox_api import AUDIT, LabGuests, ProxmoxApi, Token, certificate
from tests.tooling.environment import PYTHON

TOKEN = Token("ops@pve", "restart", "0f9e1b2c-made-up-4d1e-9a55-0123456789ab")
WRONG = "11111111-made-up-2222-3333-444444444444"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")


class Scripted:
    """One container that does as it is told, or as a test made up."""

    def __init__(self, **facts: Any) -> None:
        self.facts: dict[str, Any] = {"status": "running", "pid": 4242, "ha": {"managed": 0}, **facts}
        self.deaf = False
        self.refuses: str | None = None
        self.orders: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    def list(self) -> list[dict[str, Any]]:
        own: dict[str, Any] = {key: self.facts[key] for key in ("status", "lock") if key in self.facts}
        state = self.facts["ha"].get("state")
        return [{"vmid": 129, "node": "pve7", "type": "lxc", **own, **({"hastate": state} if state else {})}]

    def current(self, vmid: int) -> dict[str, Any]:
        if vmid != 129:
            raise LabError(f"Configuration file 'nodes/pve7/lxc/{vmid}.conf' does not exist")
        with self._lock:
            return dict(self.facts)

    def order(self, verb: str, vmid: int, timeout: int) -> None:
        with self._lock:
            self.orders.append((verb, timeout))
            if self.refuses is not None:
                raise LabError(self.refuses)
            if verb == "shutdown" and self.deaf:
                raise LabError("container did not stop")
            if verb == "start":
                self.facts.update(status="running", pid=self.facts["pid"] + 1)
            else:
                self.facts["status"] = "stopped"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("api"))


@pytest.fixture
def guests() -> Scripted:
    return Scripted()


@pytest.fixture
def api(guests: Scripted, files: tuple[Path, Path]) -> Iterator[ProxmoxApi]:
    with ProxmoxApi(guests, TOKEN, files).serving() as serving:
        yield serving


Call = Callable[..., dict[str, Any]]


def arguments(api: ProxmoxApi, ca: Path | None, **other: Any) -> dict[str, Any]:
    """The module's, to restart container 129 by the API."""
    return {
        "vmid": 129,
        "node": "pve7",
        "api_host": "127.0.0.1",
        "api_port": api.port,
        "api_user": TOKEN.user,
        "api_token_id": TOKEN.name,
        "api_token_secret": TOKEN.secret,
        **({"ca_path": str(ca)} if ca else {}),
        **other,
    }


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the module in this process, and look that no token is in what it says."""

    def run_module(api: ProxmoxApi, ca: Path | None, *, check: bool = False, **other: Any) -> dict[str, Any]:
        given = {**arguments(api, ca, **other), "_ansible_check_mode": check}
        with patch_module_args(given), pytest.raises(SystemExit):
            proxmox_container_restart.main()
        said = capsys.readouterr()
        assert TOKEN.secret not in said.out + said.err
        assert given["api_token_secret"] not in said.out + said.err
        result: dict[str, Any] = json.loads(said.out)
        return {"failed": False, **result}

    return run_module


def test_a_token_shows_in_no_output_of_ansible(api: ProxmoxApi, guests: Scripted, files: tuple[Path, Path]) -> None:
    argv = ansible(
        "ansible", "localhost", "-c", "local", "-e", f"ansible_python_interpreter={PYTHON}", "-vvvv", "--diff"
    )
    given = json.dumps(arguments(api, files[0]))
    rc, output = run([*argv, "-m", "gpuops.inference.proxmox_container_restart", "-a", given])
    assert rc == 0, output
    assert guests.facts["pid"] == 4243
    assert "api_token_secret" in output
    assert TOKEN.secret not in output


def test_a_container_goes_down_and_comes_up_as_another(
    call: Call, api: ProxmoxApi, guests: Scripted, files: tuple[Path, Path]
) -> None:
    dry = call(api, files[0], check=True)
    assert (dry["failed"], dry["changed"], guests.orders) == (False, True, [])
    done = call(api, files[0])
    assert (done["failed"], done["changed"], done["forced"]) == (False, True, False), done
    assert (done["before"]["init_pid"], done["after"]["init_pid"]) == (4242, 4243)
    assert guests.orders == [("shutdown", 90), ("start", 60)]
    assert all(good for _method, _path, good in api.asked)


def test_a_container_that_does_not_shut_down_is_ended_by_force(
    call: Call, api: ProxmoxApi, guests: Scripted, files: tuple[Path, Path]
) -> None:
    guests.deaf = True
    done = call(api, files[0])
    assert (done["failed"], done["forced"]) == (False, True), done
    assert [verb for verb, _timeout in guests.orders] == ["shutdown", "stop", "start"]


@pytest.mark.parametrize(
    ("facts", "reason", "words"),
    [
        ({"lock": "backup"}, "ct_locked", "locked (backup)"),
        ({"status": "stopped"}, "ct_not_running", "is stopped"),
        ({"ha": {"managed": 1, "state": "error"}}, "ha_state", "state error"),
    ],
)
def test_a_container_in_no_state_for_it_is_left_alone(
    call: Call,
    api: ProxmoxApi,
    guests: Scripted,
    files: tuple[Path, Path],
    facts: dict[str, Any],
    reason: str,
    words: str,
) -> None:
    guests.facts.update(facts)
    failed = call(api, files[0])
    assert (failed["failed"], failed["reason"], guests.orders) == (True, reason, []), failed
    assert words in failed["msg"]


def test_a_task_that_fails_is_told_in_proxmox_s_words(
    call: Call, api: ProxmoxApi, guests: Scripted, files: tuple[Path, Path]
) -> None:
    guests.refuses = "CT is locked (snapshot)"
    failed = call(api, files[0])
    assert (failed["failed"], failed["reason"]) == (True, "task_failed")
    assert "CT is locked (snapshot)" in failed["msg"]


def test_an_authority_that_did_not_sign_the_certificate_is_not_believed(
    call: Call, api: ProxmoxApi, guests: Scripted, tmp_path: Path
) -> None:
    other = certificate(tmp_path, "other")[0]
    for ca in (other, None):
        failed = call(api, ca)
        assert (failed["failed"], failed["reason"]) == (True, "api_certificate"), failed
        assert "is not trusted here" in failed["msg"]
        assert "ca_path" in failed["msg"]
    # Not even the token was sent.
    assert api.asked == []
    assert call(api, None, validate_certs=False)["failed"] is False


def test_a_wrong_token_and_one_without_the_right_are_told_apart(
    call: Call, api: ProxmoxApi, guests: Scripted, files: tuple[Path, Path]
) -> None:
    failed = call(api, files[0], api_token_secret=WRONG)
    assert (failed["failed"], failed["reason"], guests.orders) == (True, "api_unauthorized", []), failed
    with ProxmoxApi(guests, TOKEN._replace(privileges=frozenset({AUDIT})), files).serving() as poor:
        failed = call(poor, files[0])
    assert (failed["failed"], failed["reason"], guests.orders) == (True, "api_forbidden", []), failed
    assert "VM.PowerMgmt" in failed["msg"]


def access(api: ProxmoxApi, ca: Path, **other: Any) -> dict[str, Any]:
    return {
        "host": "127.0.0.1",
        "port": api.port,
        "user": TOKEN.user,
        "token_id": TOKEN.name,
        "token_secret": TOKEN.secret,
        "ca_path": str(ca),
        **other,
    }


def hidden(played: Played) -> Played:
    """Played, once it is known that no token is in it."""
    for secret in (TOKEN.secret, WRONG):
        assert secret not in played.output + str(played.result)
    return played


def test_refusals_say_what_to_do(api: ProxmoxApi, files: tuple[Path, Path], tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, 1, up=False)
    there = access(api, files[0])
    other = str(certificate(tmp_path, "other")[0])
    refusals: list[tuple[dict[str, Any], int, str]] = [
        (there, 129, "Container 129 is on node pve7, which the inventory does not have. Add a host of that name"),
        (there, 105, "shows no container 105 to this token"),
        ({**there, "token_secret": WRONG}, 129, "does not accept the token"),
        ({**there, "ca_path": other}, 129, "shows a certificate that is not trusted here"),
    ]
    for given, vmid, said in refusals:
        extra = json.dumps({"verified_restart_proxmox_api": given, "verified_restart_vmid": vmid})
        argv = ansible("ansible-playbook", "-vvv", "-i", str(replicas.inventory), "-e", extra, str(PLAYBOOK))
        rc, output = run(argv)
        [result] = replicas.results().values()
        hidden(Played(rc, output, result))
        assert rc != 0
        assert (result["outcome"], result["needs"], result["rungs"]) == ("refused", "operator", []), output
        assert said in result["reason"]
        assert result["reason"].endswith("Nothing was touched.")


@pytest.mark.lxc
def test_the_api_says_where_the_container_is_and_really_restarts_it_once_that_is_allowed(
    make_lab: MakeLab, files: tuple[Path, Path]
) -> None:
    lab = make_lab("init-holds", container=True)
    # The inventory does not say which node it is.
    lines = lab.inventory.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if "verified_restart_node:" not in line]
    lab.inventory.write_text("\n".join(kept), encoding="utf-8")
    init = init_of(lab)
    node = LabGuests(str(lab.state)).list()[0]["node"]
    with ProxmoxApi(LabGuests(str(lab.state)), TOKEN, files).serving() as api:
        known = {
            "verified_restart_proxmox_api": access(api, files[0]),
            "verified_restart_proxmox_nodes": {node: "node"},
            **SOON,
        }
        waits = hidden(play(lab, **known))
        assert waits.result is not None, waits.output
        assert (waits.result["outcome"], waits.result["needs"]) == ("gpus_not_free", "container_restart")
        assert waits.rungs == CLIMBED
        assert "verified_restart_allow_container_restart" in waits.result["reason"]
        assert init_of(lab) == init

        cured = hidden(play(lab, "-vvv", verified_restart_allow_container_restart=True, **known))
        orders = [path.rpartition("/")[2] for method, path, _good in api.asked if method == "POST"]
    assert_restarted(lab, cured, init)
    assert orders == ["shutdown", "start"]
    assert cured.result is not None
    there = {"node": node, "host": "node", "status": "running", "lock": None, "ha_state": None}
    assert cured.result["located"] == there
