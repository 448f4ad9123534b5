#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: proxmox_container_restart
short_description: Restart a container of Proxmox VE, and see that it is another one than before
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Shuts a container down, ends it by force when that takes too long, starts it, and looks whether it runs with another
    first process. All its processes end with it.
  - With O(api_host) the Proxmox API is asked, from wherever the module runs. Otherwise C(pct) is, and the module has to
    run on the node that holds the container.
  - A container that is locked (a backup, a migration, a snapshot) is left alone, and the lock is named. So is one that
    does not run.
  - Proxmox turns the order for a container that its high availability manages into a request to that. The module waits
    for it, and refuses where high availability has the container in another state than C(started).
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - Says whether the container would be restarted, and touches nothing.
  diff_mode:
    support: full
    details:
      - Shows the container's state and first process before and after.
  idempotent:
    support: none
    details:
      - A container that runs is restarted each time.
requirements:
  - proxmoxer >= 2.0 and requests, with O(api_host) only
options:
  vmid:
    description:
      - Number of the container.
    type: int
    required: true
  shutdown_timeout:
    description:
      - Seconds that the container may take to shut down, before it is ended by force. Proxmox itself gives V(60), so
        that less than that is refused.
    type: int
    default: 90
  start_timeout:
    description:
      - Seconds until it must run again, more than V(0).
    type: float
    default: 120
  pct_path:
    description:
      - Name or path of C(pct).
    type: path
    default: pct
  ha_manager_path:
    description:
      - Name or path of C(ha-manager). Where there is none, nothing is highly available.
    type: path
    default: ha-manager
  api_host:
    description:
      - A node of the cluster whose API is asked. Leave it out to use C(pct).
    type: str
  api_port:
    description:
      - Port of the API.
    type: int
    default: 8006
  api_user:
    description:
      - Owner of the token, with its realm.
    type: str
  api_token_id:
    description:
      - Name of the token.
    type: str
  api_token_secret:
    description:
      - The token itself.
    type: str
  node:
    description:
      - Name that Proxmox has for the node that holds the container. Needed with O(api_host).
    type: str
  validate_certs:
    description:
      - Whether the API's certificate must be trusted. Without that, anybody in between can read the token.
    type: bool
    default: true
  ca_path:
    description:
      - File of the authority that signed the API's certificate. The system's authorities when left out.
    type: path
seealso:
  - module: gpuops.inference.pct_kill_processes
  - module: community.proxmox.proxmox
"""

EXAMPLES = r"""
- name: See whether container 129 would be restarted
  gpuops.inference.proxmox_container_restart:
    vmid: 129
  delegate_to: pve1.example.com
  check_mode: true
  diff: true
"""

RETURN = r"""
vmid:
  description: Number of the container.
  returned: success, and failure
  type: int
  sample: 129
forced:
  description: Whether it did not shut down in time, and was ended by force. V(false) in check mode.
  returned: success
  type: bool
  sample: false
ha_managed:
  description: Whether it was done by requests to high availability.
  returned: success
  type: bool
  sample: false
before:
  description: The container before.
  returned: success
  type: dict
  contains: &look
    status:
      description: What Proxmox says, such as V(running).
      type: str
      sample: running
    ha_state:
      description: State that high availability has it in, V(null) when that does not manage it.
      type: str
      sample: started
    init_pid:
      description: Its first process, as the node sees it.
      type: int
      sample: 4242
after:
  description: The container afterwards; in check mode as before.
  returned: success
  type: dict
  contains: *look
lock:
  description: What Proxmox has the container locked for.
  returned: failure with RV(reason=ct_locked)
  type: str
  sample: backup
reason:
  description:
    - Stable code of a failure. Nothing was touched with V(ct_locked), V(ct_not_running), V(ct_not_on_node),
      V(ha_state), V(bad_input), V(api_certificate), V(api_tls), V(api_unauthorized), V(api_forbidden) and
      V(api_library). The container may be down with V(ct_not_started), V(ct_not_stopped), V(task_failed),
      V(pct_failed), V(api_unreachable), V(api_answer) and V(api_failed); C(changed) tells whether it had been
      ordered to restart.
  returned: failure
  type: str
  sample: ct_locked
"""

from typing import Any, Mapping

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._container_restart import (
    PROXMOX_SHUTDOWN_SECONDS,
    Limits,
    Power,
    restart,
)
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._limits import (
    require_seconds,
    require_time_to_answer,
    require_vmid,
)
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine, this_machine
from ansible_collections.gpuops.inference.plugins.module_utils._pct_power import PctPower
from ansible_collections.gpuops.inference.plugins.module_utils._proxmox_api import ApiAccess, ApiPower, connect

_OF_THE_API = ("api_user", "api_token_id", "api_token_secret", "node")


def main() -> None:
    """Parameters in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "vmid": {"type": "int", "required": True},
            "shutdown_timeout": {"type": "int", "default": 90},
            "start_timeout": {"type": "float", "default": 120},
            "pct_path": {"type": "path", "default": "pct"},
            "ha_manager_path": {"type": "path", "default": "ha-manager"},
            "api_host": {"type": "str"},
            "api_port": {"type": "int", "default": 8006},
            "api_user": {"type": "str"},
            "api_token_id": {"type": "str", "no_log": False},
            "api_token_secret": {"type": "str", "no_log": True},
            "node": {"type": "str"},
            "validate_certs": {"type": "bool", "default": True},
            "ca_path": {"type": "path"},
        },
        required_by={"api_host": _OF_THE_API},
        supports_check_mode=True,
    )
    params = module.params
    try:
        _require(params)
        machine = this_machine(check_mode=module.check_mode)
        limits = Limits(shutdown=params["shutdown_timeout"], start=params["start_timeout"])
        result = restart(params["vmid"], _power(params, machine), limits, machine.clock, dry_run=machine.dry_run)
    except GpuopsError as exc:
        module.fail_json(**{"vmid": params["vmid"], **exc.result()})
    if module._diff:
        result["diff"] = {"before": result["before"], "after": result["after"]}
    module.exit_json(**result)


def _require(params: Mapping[str, Any]) -> None:
    require_vmid(params["vmid"])
    require_seconds(params, "shutdown_timeout")
    require_time_to_answer(params, "start_timeout")
    if params["shutdown_timeout"] < PROXMOX_SHUTDOWN_SECONDS:
        raise InputError(
            f"shutdown_timeout is {params['shutdown_timeout']}. Proxmox itself waits {PROXMOX_SHUTDOWN_SECONDS} s for "
            "a container to shut down: give no less."
        )


def _power(params: Mapping[str, Any], machine: Machine) -> Power:
    if params["api_host"] is None:
        return PctPower(
            params["vmid"],
            runner=machine.runner,
            procfs=machine.procfs,
            pct_path=params["pct_path"],
            ha_manager_path=params["ha_manager_path"],
        )
    access = ApiAccess(
        host=params["api_host"],
        port=params["api_port"],
        user=params["api_user"],
        token_id=params["api_token_id"],
        token_secret=params["api_token_secret"],
        validate_certs=params["validate_certs"],
        ca_path=params["ca_path"],
    )
    return ApiPower(params["vmid"], params["node"], door=connect(access), host=access.host, clock=machine.clock)


if __name__ == "__main__":
    main()
