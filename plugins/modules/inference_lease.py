#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: inference_lease
short_description: See to it that only one run at a time is at work on a server
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Takes a lease before something destructive is done, makes it last longer, and gives it back. Whoever finds the
    lease of another run fails, and is told who has it and until when.
  - A lease is a small JSON file on the machine where the work is done, so that it also stands between runs that were
    started on different control machines. Taking one is a single step that two cannot both succeed in.
  - A lease expires. One whose owner died is ended by the next run, which says so. Only the clock of the machine that
    holds the file counts.
  - A file that cannot be understood counts as a lease.
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - Looks whether another run has the lease, and leaves everything as it is.
  diff_mode:
    support: full
    details:
      - Shows who has the lease before and after.
  idempotent:
    support: full
    details:
      - A lease that is ours already is made to last longer, which does not count as a change.
options:
  name:
    description:
      - What is leased. Runs that give the same name exclude each other.
    type: str
    required: true
  state:
    description:
      - V(held) takes the lease, or makes it last longer where it is ours.
      - V(renewed) makes it last longer, and fails where it is no longer ours.
      - V(released) gives it back. The lease of another run is left alone, and is no failure.
    type: str
    choices: [held, renewed, released]
    default: held
  run:
    description:
      - A word that only this run has, of at most 200 characters. By it a lease is known as ours.
    type: str
    required: true
  owner:
    description:
      - Who we are, for whoever meets our lease, such as C(alice@control). At most 200 characters.
    type: str
    default: unknown
  job:
    description:
      - Which job we are, for whoever meets our lease, such as the number of a job of AWX. At most 200
        characters.
    type: str
    default: unknown
  seconds:
    description:
      - For how long from now the lease is ours, unless it is given back earlier. More than V(0).
    type: float
    default: 600
  break_job:
    description:
      - The job of a dead run whose lease is to be ended before it expires. That of any other job stays.
    type: str
  directory:
    description:
      - Where leases are kept, a path from the root on. Only root, or the account that runs this, may be able to write
        there. It is made where it is missing.
    type: path
    default: /run/gpuops.inference
"""

EXAMPLES = r"""
- name: Be the only one at work on container 129
  gpuops.inference.inference_lease:
    name: ct-129
    run: 5d41402abc4b
    owner: alice@control
    job: "4711"
    seconds: 600
  delegate_to: pve1.example.com

- name: Let others
  gpuops.inference.inference_lease:
    name: ct-129
    run: 5d41402abc4b
    state: released
  delegate_to: pve1.example.com
"""

RETURN = r"""
lease:
  description: The lease as it is afterwards, V(null) where nobody has it. In check mode, as it would be.
  returned: success
  type: dict
  contains: &lease
    owner:
      description: Who has it.
      type: str
      sample: alice@control
    job:
      description: Which job has it.
      type: str
      sample: "4711"
    run:
      description: The holder's own word.
      type: str
      sample: 5d41402abc4b
    since:
      description: Since when, in UTC.
      type: str
      sample: "2026-12-01T03:00:00Z"
    expires:
      description: Until when, in UTC, unless it is given back earlier.
      type: str
      sample: "2026-12-01T03:10:00Z"
ended:
  description: The lease of another run that was ended, since it had expired or was named by O(break_job).
  returned: success
  type: dict
  contains: *lease
holder:
  description: The lease that stands in the way.
  returned: failure with RV(reason=leased) or RV(reason=lease_lost)
  type: dict
  contains: *lease
reason:
  description:
    - Stable code of a failure. V(leased) (another run has it), V(lease_lost) (it was ours once), V(lease_unreadable),
      V(lease_directory).
  returned: failure
  type: str
  sample: leased
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._lease import Request, give_back, take
from ansible_collections.gpuops.inference.plugins.module_utils._limits import require_time_to_answer
from ansible_collections.gpuops.inference.plugins.module_utils._termination import SystemClock


def main() -> None:
    """Parameters in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["held", "renewed", "released"], "default": "held"},
            "run": {"type": "str", "required": True},
            "owner": {"type": "str", "default": "unknown"},
            "job": {"type": "str", "default": "unknown"},
            "seconds": {"type": "float", "default": 600},
            "break_job": {"type": "str"},
            "directory": {"type": "path", "default": "/run/gpuops.inference"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        require_time_to_answer(params, "seconds")
        request = Request(
            directory=params["directory"],
            name=params["name"],
            owner=params["owner"],
            job=params["job"],
            run=params["run"],
            seconds=params["seconds"],
            break_job=params["break_job"],
            renew=params["state"] == "renewed",
        )
        act = give_back if params["state"] == "released" else take
        outcome = act(request, SystemClock(), dry_run=module.check_mode)
    except GpuopsError as exc:
        module.fail_json(**exc.result())
    lease, ended = (one.result() if one is not None else None for one in (outcome.lease, outcome.ended))
    result = {"changed": outcome.changed, "lease": lease, "ended": ended}
    if module._diff:
        before = lease if not outcome.changed else ended
        result["diff"] = {"before": before or {}, "after": lease or {}}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
