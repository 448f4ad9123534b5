# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wait of inference_start_wait: the module looks on the target, this plugin repeats it and tells the operator."""

from __future__ import annotations

import time
from typing import Any, Mapping, Optional

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gpuops.inference.plugins.module_utils._start_progress import (
    READY,
    Limits,
    Progress,
    line,
    moved,
    sentence,
)

_MODULE = "gpuops.inference.inference_start_wait"

# A line at least this often, also when nothing moves, so that a log shows that the play lives. Seconds.
_SILENCE = 60.0

display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Looks until the end is known. Options are the module's own, which also checks them."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        """The last look, with ``end``, ``seconds``, and ``failed`` unless the server is ready."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        host = str((task_vars or {}).get("inventory_hostname", self._task.delegate_to or "server"))
        began = time.monotonic()
        progress: Optional[Progress] = None
        shown: Optional[Mapping[str, Any]] = None
        shown_at = began
        seen_process = bool(self._task.args.get("expect_process", False))
        while True:
            look = self._look(seen_process, task_vars)
            now = time.monotonic()
            if look.get("failed") or "state" not in look:
                return {**result, **look, "failed": True}
            # The options as the module understood them: since ansible-core 2.21 no result has its invocation by itself.
            wanted = look["wait"]
            if wanted["limit"] == 0 or self._task.check_mode:
                return {**result, **look}
            seen_process = seen_process or look["processes"] > 0
            if progress is None:
                progress = Progress(Limits(wanted["stall_after"], wanted["limit"]), began)
            end = progress.take(look, now)
            if end is not None or shown is None or moved(shown, look) or now - shown_at >= _SILENCE:
                display.display(f"{host}: {line(look, now - began, progress.still(now))}")
                shown, shown_at = look, now
            if end is not None:
                return {**result, **look, **_ending(end, look, now - began, progress.still(now))}
            time.sleep(min(wanted["interval"], max(0.0, began + wanted["limit"] - now)))

    def _look(self, expect_process: bool, task_vars: Optional[dict[str, Any]]) -> dict[str, Any]:
        arguments = {**self._task.args, "expect_process": expect_process}
        look: dict[str, Any] = self._execute_module(module_name=_MODULE, module_args=arguments, task_vars=task_vars)
        return look


def _ending(end: str, look: Mapping[str, Any], seconds: float, still: float) -> dict[str, Any]:
    told = {"end": end, "seconds": round(seconds, 1), "msg": sentence(end, look, seconds, still)}
    if end == READY:
        return told
    return {**told, "failed": True, "reason": end}
