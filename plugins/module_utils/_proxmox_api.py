# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container's power switch by the Proxmox API, through proxmoxer. See _container_restart.Power.

proxmoxer is imported only when a connection is opened: a module that goes by pct does not need it.
"""

from __future__ import annotations

import os
import re
from typing import Any, Callable, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._container_restart import Look
from ansible_collections.gpuops.inference.plugins.module_utils._errors import ContainerError
from ansible_collections.gpuops.inference.plugins.module_utils._proxmox_failure import api_failure, no_answer
from ansible_collections.gpuops.inference.plugins.module_utils._termination import Clock

# A call is quick, but the node that answers asks another one.
_CALL_SECONDS = 30
# A hard stop and a start; see _pct_power.
_TASK_SECONDS = 120.0
_INTERVAL = 1.0
# Over these proxmoxer stumbles in a body that is JSON, but no answer of the API: `[]`, or brackets without end.
_STUMBLES = (AttributeError, LookupError, RecursionError, TypeError)
_NUMBER = re.compile(r"[0-9]{1,10}")
_IGNORED = "ignored"


class ApiError(ContainerError):
    """The API did not do what it was asked."""


class ApiAccess(NamedTuple):
    """Where the API is, and with which token. ``ca_path``: whom to trust in place of the system's authorities."""

    host: str
    port: int
    user: str
    token_id: str
    token_secret: str
    validate_certs: bool
    ca_path: Optional[str]


class Door(NamedTuple):
    """proxmoxer's ``api``, and the classes of the ``errors`` that a call of it may throw."""

    api: Any
    errors: tuple[type[Exception], ...]


def connect(access: ApiAccess) -> Door:
    """A door to the API. Nothing is asked yet. Raises ApiError."""
    try:
        # Without requests, proxmoxer would end the process.
        import requests  # noqa: F401  # pylint: disable=unused-import
        from proxmoxer import AuthenticationError, ProxmoxAPI, ResourceException
    except ImportError as exc:
        raise _error(exc, access.host) from exc
    if access.ca_path is not None and not os.path.exists(access.ca_path):
        raise ApiError(f"ca_path is {access.ca_path}, and there is no such file.", reason="api_certificate")
    # What requests throws is an OSError; an answer that is no JSON is a ValueError.
    errors = (OSError, ValueError, AuthenticationError, ResourceException, *_STUMBLES)
    try:
        api = ProxmoxAPI(
            access.host,
            port=access.port,
            user=access.user,
            token_name=access.token_id,
            token_value=access.token_secret,
            verify_ssl=access.validate_certs and (access.ca_path or True),
            timeout=_CALL_SECONDS,
        )
    except errors as exc:
        raise _error(exc, access.host) from exc
    return Door(api, errors)


class ApiPower:
    """Orders by the API of any node of the cluster, which hands them to the node that holds the container."""

    def __init__(self, vmid: int, node: str, *, door: Door, host: str, clock: Clock) -> None:
        self._vmid = vmid
        self._errors = door.errors
        self._node = door.api.nodes(node)
        self._container = self._node.lxc(vmid)
        self._host = host
        self._clock = clock

    def look(self) -> Look:
        """See Power.look."""
        answer = self._told(self._container.status.current.get)
        ha = answer.get("ha") or {}
        lock, pid = answer.get("lock") or None, answer.get("pid") or 0
        if not (isinstance(ha, dict) and isinstance(lock, (str, type(None))) and _NUMBER.fullmatch(str(pid))):
            raise _no_answer(self._host)
        state = str(ha.get("state") or "unknown") if ha.get("managed") else None
        return Look(
            status=answer["status"],
            lock=lock,
            ha_state=None if state == _IGNORED else state,
            init=(int(pid),) if int(pid) else None,
        )

    def shutdown(self, seconds: int) -> None:
        """See Power.shutdown."""
        self._task("shutdown", seconds + _TASK_SECONDS, timeout=seconds)

    def stop(self) -> None:
        """See Power.stop."""
        self._require(self._task("stop", _TASK_SECONDS), "stop")

    def start(self) -> None:
        """See Power.start."""
        self._require(self._task("start", _TASK_SECONDS), "start")

    def _task(self, verb: str, seconds: float, **parameters: int) -> str:
        """Give an order and wait for the end of its task. Returns how that ended, ``OK`` when well."""
        task = self._asked(getattr(self._container.status, verb).post, **parameters)
        if not (isinstance(task, str) and task.startswith("UPID:")):
            raise _no_answer(self._host)
        deadline = self._clock.now() + seconds
        while True:
            unheard = ""
            try:
                answer = self._told(self._node.tasks(task).status.get)
                if answer["status"] == "stopped":
                    return str(answer.get("exitstatus") or "")
            except ApiError as exc:
                # The order was given. That nobody tells its end for a moment does not undo it.
                unheard = f" ({exc.message})"
            if self._clock.now() >= deadline:
                return f"no end within {seconds:g} s{unheard}"
            self._clock.sleep(_INTERVAL)

    def _require(self, end: str, verb: str) -> None:
        if end != "OK" and not end.startswith("WARN"):
            raise ApiError(
                f"The Proxmox API at {self._host} did not {verb} container {self._vmid}: {end or 'no reason given'}",
                reason="task_failed",
                vmid=self._vmid,
            )

    def _told(self, call: Callable[..., Any]) -> dict[str, Any]:
        """What is asked for, when it tells a ``status`` as each of these answers does."""
        answer = self._asked(call)
        if not (isinstance(answer, dict) and isinstance(answer.get("status"), str)):
            raise _no_answer(self._host)
        return answer

    def _asked(self, call: Callable[..., Any], **parameters: int) -> Any:
        try:
            return call(**parameters)
        except self._errors as exc:
            raise _error(exc, self._host) from exc


def _error(exc: Exception, host: str) -> ApiError:
    failure = api_failure(f"{type(exc).__name__}: {exc}", host)
    return ApiError(failure.sentence, reason=failure.reason)


def _no_answer(host: str) -> ApiError:
    failure = no_answer(host)
    return ApiError(failure.sentence, reason=failure.reason)
