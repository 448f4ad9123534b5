# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A restart of a container, step by step; and how pct, ha-manager and the API are read."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._container_restart import Limits, Look, restart
from ansible_collections.gpuops.inference.plugins.module_utils._errors import CommandError, ContainerError
from ansible_collections.gpuops.inference.plugins.module_utils._pct_power import PctPower, parse_ha_state
from ansible_collections.gpuops.inference.plugins.module_utils._proxmox_failure import api_failure
from tests.unit.doubles import FakeClock
from tests.unit.fake_proc import FakeProc
from tests.unit.recorded import Answer, ScriptedRunner, completed

LIMITS = Limits(shutdown=90, start=120)


class Switch:
    """A Power whose orders take effect so many seconds later; ``deaf`` and ``dead`` ones never do."""

    def __init__(self, clock: FakeClock, *, ha: Optional[str] = None, lock: Optional[str] = None) -> None:
        self.clock = clock
        self.ha = ha
        self.lock = lock
        self.status = "running"
        self.pid = 100
        self.after = 25.0 if ha else 0.0
        self.deaf_to: tuple[str, ...] = ()
        # Since which order, and for how many seconds from then on, no look succeeds.
        self.blind_after: tuple[str, float] = ("", 0)
        self._blind_until = 0.0
        self.refuses: dict[str, ContainerError] = {}
        self.orders: list[str] = []
        self._due: list[tuple[float, str]] = []

    def look(self) -> Look:
        if self.clock.now() < self._blind_until:
            raise ContainerError("No answer.", reason="api_unreachable")
        for due, verb in list(self._due):
            if self.clock.now() >= due:
                self._due.remove((due, verb))
                self.status = "running" if verb == "start" else "stopped"
                self.pid += verb == "start"
        return Look(self.status, self.lock, self.ha, (self.pid,) if self.status == "running" else None)

    def shutdown(self, seconds: int) -> None:
        assert seconds == 90
        self._order("shutdown")

    def stop(self) -> None:
        self._order("stop")

    def start(self) -> None:
        self._order("start")

    def _order(self, verb: str) -> None:
        if verb in self.refuses:
            raise self.refuses[verb]
        self.orders.append(verb)
        if verb == self.blind_after[0]:
            self._blind_until = self.clock.now() + self.blind_after[1]
        if verb not in self.deaf_to:
            self._due.append((self.clock.now() + self.after, verb))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.mark.parametrize("ha", [None, "started"])
def test_it_goes_down_and_comes_up_as_another(clock: FakeClock, ha: Optional[str]) -> None:
    switch = Switch(clock, ha=ha)
    result = restart(129, switch, LIMITS, clock, dry_run=False)
    assert switch.orders == ["shutdown", "start"]
    assert (result["changed"], result["forced"], result["ha_managed"]) == (True, False, ha is not None)
    assert (result["before"]["init_pid"], result["after"]["init_pid"]) == (100, 101)


def test_one_that_does_not_shut_down_is_ended_by_force(clock: FakeClock) -> None:
    switch = Switch(clock)
    switch.deaf_to = ("shutdown",)
    assert restart(129, switch, LIMITS, clock, dry_run=False)["forced"] is True
    assert switch.orders == ["shutdown", "stop", "start"]


def test_high_availability_gets_its_time_before_force(clock: FakeClock) -> None:
    switch = Switch(clock, ha="started")
    switch.after = 100.0
    assert restart(129, switch, LIMITS, clock, dry_run=False)["forced"] is False


@pytest.mark.parametrize(
    ("deaf_to", "reason", "words"),
    [
        (("shutdown", "stop"), "ct_not_stopped", "did not stop, not even by force"),
        (("start",), "ct_not_started", "it is DOWN now"),
    ],
)
def test_what_did_not_happen_is_an_error_that_says_where_we_are(
    clock: FakeClock, deaf_to: tuple[str, ...], reason: str, words: str
) -> None:
    switch = Switch(clock)
    switch.deaf_to = deaf_to
    with pytest.raises(ContainerError, match=words) as error:
        restart(129, switch, LIMITS, clock, dry_run=False)
    assert (error.value.reason, error.value.fields["changed"]) == (reason, True)


@pytest.mark.parametrize("verb", ["shutdown", "start"])
def test_who_cannot_look_for_a_moment_still_brings_it_up(clock: FakeClock, verb: str) -> None:
    switch = Switch(clock)
    switch.blind_after = (verb, 20)
    done = restart(129, switch, LIMITS, clock, dry_run=False)
    assert (done["after"]["init_pid"], switch.orders) == (101, ["shutdown", "start"])


@pytest.mark.parametrize(("verb", "orders"), [("shutdown", ["shutdown"]), ("start", ["shutdown", "start"])])
def test_who_cannot_look_any_more_says_that_it_may_be_down(clock: FakeClock, verb: str, orders: list[str]) -> None:
    switch = Switch(clock)
    switch.blind_after = (verb, 1e9)
    with pytest.raises(ContainerError, match=r"No answer\. .* may be DOWN\. See: pct status 129") as caught:
        restart(129, switch, LIMITS, clock, dry_run=False)
    assert caught.value.reason == "api_unreachable"
    assert caught.value.fields == {"vmid": 129, "changed": True}
    assert switch.orders == orders


@pytest.mark.parametrize(
    ("verb", "reason", "changed"),
    [
        ("shutdown", "api_forbidden", False),
        ("shutdown", "api_unreachable", True),
        ("stop", "api_forbidden", True),
        ("start", "api_forbidden", True),
    ],
)
def test_an_order_that_fails_says_whether_anything_was_touched(
    clock: FakeClock, verb: str, reason: str, changed: bool
) -> None:
    switch = Switch(clock)
    switch.deaf_to = ("shutdown",) if verb == "stop" else ()
    switch.refuses = {verb: ContainerError("No.", reason=reason)}
    with pytest.raises(ContainerError, match="No") as caught:
        restart(129, switch, LIMITS, clock, dry_run=False)
    assert (caught.value.reason, caught.value.fields.get("changed", False)) == (reason, changed)
    assert ("may be DOWN" in caught.value.message) == changed


def test_whoever_rebooted_it_meanwhile_did_it_for_us(clock: FakeClock) -> None:
    looks = iter(range(10))

    class Rebooted(Switch):
        """Its first process is another one from the second look on."""

        def look(self) -> Look:
            return super().look()._replace(init=(100 + min(next(looks), 1),))

    rebooted = Rebooted(clock)
    rebooted.deaf_to = ("shutdown",)
    assert restart(129, rebooted, LIMITS, clock, dry_run=False)["forced"] is False
    assert rebooted.orders == ["shutdown"]


@pytest.mark.parametrize(("ha", "lock", "reason"), [(None, "backup", "ct_locked"), ("error", None, "ha_state")])
def test_nothing_is_ordered_where_something_stands_in_the_way(
    clock: FakeClock, ha: Optional[str], lock: Optional[str], reason: str
) -> None:
    switch = Switch(clock, ha=ha, lock=lock)
    with pytest.raises(ContainerError) as error:
        restart(129, switch, LIMITS, clock, dry_run=False)
    assert (error.value.reason, switch.orders) == (reason, [])


def test_check_mode_orders_nothing(clock: FakeClock) -> None:
    switch = Switch(clock)
    assert restart(129, switch, LIMITS, clock, dry_run=True)["changed"] is True
    assert switch.orders == []


# As ha-manager of Proxmox VE 8 prints it (PVE::CLI::ha_manager, status).
HA_STATUS = """\
quorum OK
master pve1 (active, Tue Dec  1 03:00:00 2026)
lrm pve1 (active, Tue Dec  1 03:00:04 2026)
service ct:129 (pve1, started)
service ct:12 (pve1, error)
service ct:130 (pve2, ignored)
service vm:131 (pve1, started)
"""


@pytest.mark.parametrize(("vmid", "state"), [(129, "started"), (12, "error"), (130, None), (131, None), (29, None)])
def test_the_state_of_high_availability_is_read(vmid: int, state: Optional[str]) -> None:
    assert parse_ha_state(HA_STATUS, vmid) == state


def pct(script: dict[str, list[Answer]], proc: FakeProc) -> tuple[PctPower, ScriptedRunner]:
    runner = ScriptedRunner(script)
    power = PctPower(129, runner=runner, procfs=proc.procfs, pct_path="pct", ha_manager_path="ha-manager")
    return power, runner


def test_pct_is_called_with_these_arguments(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    power, runner = pct({"": [completed()]}, proc)
    power.shutdown(90)
    power.stop()
    power.start()
    assert runner.calls == [
        ["pct", "shutdown", "129", "--timeout", "90"],
        ["pct", "stop", "129"],
        ["pct", "start", "129"],
    ]
    # More than Proxmox itself waits.
    assert runner.timeouts[0] > 90


def test_an_order_that_pct_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    power, _runner = pct(
        {"start": [completed(rc=255, stderr="CT is locked (snapshot)\n", argv=("pct", "start"))]}, proc
    )
    with pytest.raises(ContainerError, match=r"CT is locked \(snapshot\)"):
        power.start()


def test_a_node_without_high_availability_has_none_and_one_that_does_not_tell_stops_it(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    running = "status: running\nlock: backup\n"
    missing = CommandError("no ha-manager", reason="not_installed")
    power, _runner = pct({"129": [completed(running)], "status": [missing]}, proc)
    assert power.look() == Look("running", "backup", None, None)
    power, _runner = pct({"129": [completed(running)], "status": [completed(rc=2, stderr="no quorum")]}, proc)
    with pytest.raises(ContainerError, match="no quorum"):
        power.look()


SSL = (
    "SSLError: HTTPSConnectionPool(host='192.0.2.11', port=8006): Max retries exceeded with url: /api2/json/version "
    "(Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
    "unable to get local issuer certificate (_ssl.c:1006)')))"
)
REFUSED = (
    "ConnectionError: HTTPSConnectionPool(host='192.0.2.11', port=8006): Max retries exceeded with url: / (Caused by "
    "NewConnectionError('<urllib3.connection.HTTPSConnection object>: Failed to establish a new connection: [Errno "
    "111] Connection refused'))"
)


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        (SSL, "api_certificate", "(unable to get local issuer certificate)"),
        ("SSLError: [SSL: WRONG_VERSION_NUMBER] wrong version number", "api_tls", "wrong version number"),
        (REFUSED, "api_unreachable", "Connection refused"),
        ("401 Unauthorized: no such token 'restart' for user 'ops@pve'", "api_unauthorized", "token_secret"),
        ("403 Forbidden: Permission check failed (/vms/129, VM.PowerMgmt)", "api_forbidden", "VM.PowerMgmt"),
        ("ModuleNotFoundError: No module named 'requests'", "api_library", "pip install"),
        ("Failed to import the required Python library (proxmoxer) on control's Python", "api_library", "pip install"),
        ("500 Internal Server Error: got no worker upid", "api_failed", "got no worker upid"),
        ("500 Internal Server Error: \x1b[31mred\x07", "api_failed", "Error: ?[31mred?"),
        ("TypeError: list indices must be integers or slices, not str", "api_answer", "is not the Proxmox API"),
        ("'NoneType' object has no attribute 'get'", "api_answer", "192.0.2.11"),
        (REFUSED.replace("url: /", "url: /api2/json/nodes/pve1/lxc/401/status"), "api_unreachable", "refused"),
        ("500 Internal Server Error: nodes/pve1/lxc/403.conf does not exist", "api_failed", "403.conf"),
        ("ResourceException: 401 Unauthorized: b''", "api_unauthorized", "token_secret"),
        ("ResourceException: 595 Errors during connection", "api_unreachable", "595"),
        ("", "api_failed", "no message"),
    ],
)
def test_a_failure_of_the_api_is_one_sentence(text: str, reason: str, words: str) -> None:
    failure = api_failure(text, "192.0.2.11")
    assert failure.reason == reason
    assert words in failure.sentence
    assert "\n" not in failure.sentence
