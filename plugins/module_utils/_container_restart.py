# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The core of proxmox_container_restart: a container goes down, comes up again, and is another one than before.

How Proxmox is asked, by `pct` or by its API, is handed in. In either case Proxmox itself turns the order for a
container that its high availability manages into a request to that, which acts some seconds later (vm_start, vm_stop
and vm_shutdown in src/PVE/API2/LXC/Status.pm of pve-container). So what counts is the state that is seen, and not
that an order has been taken.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Protocol

from ansible_collections.gpuops.inference.plugins.module_utils._errors import ContainerError, GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._interruption import interruption_deferred
from ansible_collections.gpuops.inference.plugins.module_utils._termination import Clock

# Seconds between two looks.
_INTERVAL = 1.0

# The cluster's manager looks at its requests every 10 s, and a node's every 10 s (pve-ha-manager).
_HA_SECONDS = 60.0
# What a hard stop may take.
_STOP_SECONDS = 60.0
# How much longer a container is waited for that cannot be looked at: the API of a node may be gone for a moment.
_BLIND_SECONDS = 30.0

# Proxmox's own limit on a shutdown. With less, a container that Proxmox would still wait for is ended by force.
PROXMOX_SHUTDOWN_SECONDS = 60

_STARTED = "started"

# Of an order that was refused before Proxmox did anything.
_REFUSALS = frozenset({"api_certificate", "api_tls", "api_unauthorized", "api_forbidden"})


class Look(NamedTuple):
    """A container as Proxmox sees it. ``init`` tells its first process from any other; None when it has none.

    ``ha_state`` is None for a container that no high availability manages.
    """

    status: str
    lock: Optional[str]
    ha_state: Optional[str]
    init: Optional[tuple[int, ...]]


class Power(Protocol):
    """Orders to Proxmox about one container. Each waits for the end of its task, and raises GpuopsError."""

    def look(self) -> Look:
        """The container as it is now."""

    def shutdown(self, seconds: int) -> None:
        """Ask its init to shut down, and wait so long. One that has not by then is no error."""

    def stop(self) -> None:
        """End all its processes."""

    def start(self) -> None:
        """Start it."""


class Limits(NamedTuple):
    """Seconds for the shutdown and for the start."""

    shutdown: int
    start: float


def restart(vmid: int, power: Power, limits: Limits, clock: Clock, *, dry_run: bool) -> dict[str, Any]:
    """Restart the container. Returns the module's result.

    Raises ContainerError, with nothing touched: ``ct_not_running``, ``ct_locked``, ``ha_state``. Raises it with
    ``changed``: ``ct_not_stopped``, and ``ct_not_started`` for a container that is down now. Whatever else is raised
    has ``changed`` too, once an order was given and not refused.
    """
    before = power.look()
    _refuse(vmid, before)
    forced = False
    after = before
    if not dry_run:
        # Whoever cancels the job in between must not leave the container down.
        with interruption_deferred():
            _shut_down(vmid, power, limits)
            try:
                forced, down = _bring_down(vmid, power, before, limits, clock)
                after = _bring_up(vmid, power, before, down, limits, clock)
            except GpuopsError as exc:
                raise _half_way(vmid, exc) from exc
    return {
        "changed": True,
        "vmid": vmid,
        "forced": forced,
        "ha_managed": before.ha_state is not None,
        "before": _shown(before),
        "after": _shown(after),
    }


def _refuse(vmid: int, look: Look) -> None:
    if look.lock is not None:
        raise ContainerError(
            f"Container {vmid} is locked ({look.lock}), so Proxmox has something under way with it. It was not "
            f"restarted. Wait for the end of that task; a lock that was left behind is removed by: pct unlock {vmid}",
            reason="ct_locked",
            vmid=vmid,
            lock=look.lock,
        )
    if look.status != "running":
        raise ContainerError(
            f"Container {vmid} is {look.status}, and was not restarted.", reason="ct_not_running", vmid=vmid
        )
    if look.ha_state not in (None, _STARTED):
        raise ContainerError(
            f"High availability has container {vmid} in state {look.ha_state}, and not {_STARTED}. It was not "
            "restarted. See: ha-manager status",
            reason="ha_state",
            vmid=vmid,
            ha_state=look.ha_state,
        )


def _half_way(vmid: int, exc: GpuopsError) -> GpuopsError:
    """The error of a restart that had begun: it says what may have become of the container."""
    if "changed" in exc.fields:
        return exc
    return ContainerError(
        f"{exc.message} By then container {vmid} had been ordered to restart, and it may be DOWN. "
        f"See: pct status {vmid}",
        reason=exc.reason,
        **{"vmid": vmid, **exc.fields, "changed": True},
    )


def _shut_down(vmid: int, power: Power, limits: Limits) -> None:
    """The first order. One that was refused has changed nothing; what became of one without an answer is not known."""
    try:
        power.shutdown(limits.shutdown)
    except GpuopsError as exc:
        if exc.reason in _REFUSALS:
            raise
        raise _half_way(vmid, exc) from exc


def _bring_down(vmid: int, power: Power, before: Look, limits: Limits, clock: Clock) -> tuple[bool, Look]:
    """Once it was asked to shut down: whether it took force, and the container as it was seen then."""
    patience = _HA_SECONDS if before.ha_state is not None else 0.0

    def is_down(look: Look) -> bool:
        return look.status == "stopped" or _is_another(look, before)

    # Without high availability, Proxmox has waited itself.
    down = _wait(power, is_down, patience + (limits.shutdown if patience else 0), clock)
    if down is not None:
        return False, down
    power.stop()
    down = _wait(power, is_down, patience + _STOP_SECONDS, clock)
    if down is None:
        raise ContainerError(
            f"Container {vmid} did not stop, not even by force. A process in it may sleep in the kernel: then the node "
            "has to be rebooted.",
            reason="ct_not_stopped",
            vmid=vmid,
            changed=True,
        )
    return True, down


def _bring_up(vmid: int, power: Power, before: Look, down: Look, limits: Limits, clock: Clock) -> Look:
    if not _is_another(down, before):
        power.start()
    patience = _HA_SECONDS if before.ha_state is not None else 0.0
    after = _wait(power, lambda look: _is_another(look, before), patience + limits.start, clock)
    if after is None:
        raise ContainerError(
            f"Container {vmid} was stopped and does not run again after {limits.start:g} s: it is DOWN now. See why "
            f"(the task log of Proxmox), and start it: pct start {vmid}",
            reason="ct_not_started",
            vmid=vmid,
            changed=True,
        )
    return after


def _is_another(look: Look, before: Look) -> bool:
    return look.status == "running" and look.init is not None and look.init != before.init


def _wait(power: Power, reached: Callable[[Look], bool], seconds: float, clock: Clock) -> Optional[Look]:
    """The first look that is as wanted; None when there was none in time. Looks once at least.

    A look that fails is no answer: it is tried again, for a while longer than the time. Then its error is raised.
    """
    deadline = clock.now() + seconds
    while True:
        try:
            look = power.look()
        except GpuopsError:
            if clock.now() >= deadline + _BLIND_SECONDS:
                raise
        else:
            if reached(look):
                return look
            if clock.now() >= deadline:
                return None
        clock.sleep(_INTERVAL)


def _shown(look: Look) -> dict[str, Any]:
    return {
        "status": look.status,
        "ha_state": look.ha_state,
        "init_pid": look.init[0] if look.init is not None else None,
    }
