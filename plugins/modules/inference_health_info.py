#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: inference_health_info
short_description: Tell a healthy inference server from a busy, a starting, a hung and a dead one
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Looks at an inference server from all sides, asks it as little as possible, and says how it is.
  - Alive is not healthy. A hung server lists its models and may call itself healthy, so only a generated text proves
    that it serves. And silent is not hung. During a long prefill a healthy server answers nothing for a while, so it is
    called hung only when two signals that do not depend on each other say so, or when one lasts.
  - In turn it looks at processes and log, asks for the models, reads counters and heartbeat, and then asks for at most
    one short generation. When that does not come, it reads the counters again. While others wait for a generation and
    the counters move, it does not ask for another one.
  - There is one question at a time. A second task that looks at the same server meanwhile asks for no generation. And a
    server that was found silent within the last ten minutes is not asked again as long as none of its counters moves.
    For this a small file is kept in C(/run/gpuops), or in a directory of the account's own.
  - No proxy from the environment is used, and no redirect is followed.
  - Every end is a verdict. It fails only when an option cannot be meant or the container cannot be looked into.
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - Does the same in check mode. It changes nothing, but a generation is asked for unless O(deep=false).
  diff_mode:
    support: N/A
  idempotent:
    support: full
options:
  url:
    description:
      - Where the server is, with scheme, host, port and at most a path.
    type: str
    required: true
  engine:
    description:
      - Which engine it is. With V(auto) it shows in the list of models, in the name of the HTTP server or in the
        processes.
      - With V(openai) only the interface is known, and no processes and counters.
    type: str
    choices: [auto, sglang, vllm, llamacpp, openai]
    default: auto
  api_key:
    description:
      - Key that the server wants, sent as a bearer token.
    type: str
  model:
    description:
      - Name of the model to generate with. Without it, the first one that the server lists.
    type: str
  deep:
    description:
      - Whether to ask for one short generation. Without it an idle server is called healthy only where its schedulers
        report by themselves, as SGLang's do.
    type: bool
    default: true
  timeout:
    description:
      - Seconds that the generation may take, and that a server may keep silent when it is asked for its models.
      - All other questions have 10 seconds together. So the module ends within this time, those 10 seconds, and the
        waits of O(interval).
      - Below 20 seconds a hung server is not to be told from a slow one.
    type: float
    default: 30
  samples:
    description:
      - How often the counters are read at most, to see whether they move.
    type: int
    default: 3
  interval:
    description:
      - Seconds between two readings.
    type: float
    default: 1
  hung_after:
    description:
      - For how many seconds a generation must not have been answered, before a second signal makes the server hung.
      - Without any second signal it takes twice as long. Looks of the last ten minutes count.
    type: float
    default: 20
  stall_after:
    description:
      - A server that is younger than this number of seconds and not ready is starting. An older one whose log or memory
        has not moved for so long has stalled, and is hung.
    type: float
    default: 600
  validate_certs:
    description:
      - Whether the certificate of an C(https) address must be valid.
    type: bool
    default: true
  processes:
    description:
      - Whether the processes of the server are to be seen on the machine that the task runs on. Only then a server is
        called dead or orphaned.
      - The default is V(true) with O(vmid), or when O(url) is a loopback address.
    type: bool
  vmid:
    description:
      - Number of the container in which the server runs, where the task runs on the Proxmox node that holds it.
    type: int
  log_path:
    description:
      - Log file of the server, on the machine that the task runs on.
    type: path
  unit:
    description:
      - Its systemd unit. Its state is read, and its journal where O(log_path) is left out.
    type: str
  pct_path:
    description:
      - Name or path of C(pct). It is run only with O(vmid).
    type: path
    default: pct
seealso:
  - module: gpuops.inference.inference_canary
  - module: gpuops.inference.gpu_memory_facts
"""

EXAMPLES = r"""
- name: Ask whether the server is well, where it runs
  gpuops.inference.inference_health_info:
    url: http://127.0.0.1:30000
    unit: sglang-kimi.service
  register: server

- name: Say so
  ansible.builtin.debug:
    msg: "{{ server.verdict }}: {{ server.reason }}"

- name: Wait until it serves, and give up at once when it hangs or is gone
  gpuops.inference.inference_health_info:
    url: http://127.0.0.1:30000
    engine: sglang
  register: server
  until: server.verdict not in ['starting', 'busy', 'unknown']
  retries: 60
  delay: 10

- name: Look from the node at a server in a container, without adding to its work
  gpuops.inference.inference_health_info:
    url: http://192.0.2.129:30000
    vmid: 129
    deep: false
  delegate_to: pve1.example.com

- name: Look at a server behind a reverse proxy
  gpuops.inference.inference_health_info:
    url: https://llm.example.com/kimi
    api_key: "{{ kimi_api_key }}"
"""

RETURN = r"""
verdict:
  description:
    - V(healthy) generates text. V(busy) is at work and must not be disturbed. V(starting) is not ready yet.
    - V(hung) lives and will not answer. V(dead) has no process and no port. V(orphaned) has workers without the process
      that served.
    - V(unknown) is everything that does not tell, such as a proxy's error, a wrong key or an empty text. Do not kill a
      server for it.
  returned: success
  type: str
  sample: hung
cause:
  description:
    - Stable code of what decided. V(generates), V(counters_move), V(heartbeat), V(progress), V(young), V(says_so),
      V(generation_timeout), V(silent), V(engine_dead), V(stalled), V(parent_gone), V(no_process), V(unit_down),
      V(unauthorized), V(gateway), V(unavailable), V(too_many_requests), V(generation_empty), V(not_asked), V(timeout),
      V(refused), V(closed_early), V(unreachable), V(unresolvable), V(tls), V(bad_answer), V(too_big),
      V(not_enough_seen), or V(models_404) and V(generation_404) for an unexpected status, here 404.
  returned: success
  type: str
  sample: generation_timeout
reason:
  description: The verdict in words. When the module fails, the stable code of the failure.
  returned: always
  type: str
  sample: A generation was not answered for 30 s, and its counters stood still for 30 s all the while.
signals:
  description: What was seen. What could not be seen is not in the list.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description:
        - V(models), V(health), V(generation), V(counters), V(heartbeat), V(running), V(waiting), V(parents),
          V(orphans), V(elsewhere), V(memory), V(log), V(progress), V(loading), V(engine_dead) or V(unit).
      type: str
      sample: counters
    value:
      description:
        - An HTTP status or the code of a failure for C(models), C(health) and C(generation), which may also be
          V(text), V(empty) or V(not_asked).
        - V(moves) or V(still) for C(counters), C(heartbeat), C(memory) and C(log). A number of requests for C(running)
          and C(waiting), as the engine itself says it, and of processes for C(parents), C(orphans) and C(elsewhere),
          which are servers that were told another port. The parts that are loaded, such as V(63/64), for C(progress).
      type: raw
      sample: still
    age_s:
      description:
        - Seconds for which it is known to have been so, looks of the last ten minutes included. Of C(parents) it is
          the age of the youngest.
      type: float
      sample: 30.02
    text:
      description: What was said beside it, or empty.
      type: str
      sample: ""
engine:
  description: The engine, V(null) when nothing gave it away.
  returned: success
  type: str
  sample: sglang
version:
  description: What the server says of its version, or V(null).
  returned: success
  type: str
  sample: 0.5.6
served_models:
  description: Names under which it serves, V(null) when it did not list them.
  returned: success
  type: list
  elements: str
  sample: [kimi-k2.5]
speculation:
  description: What the server itself reports of its speculative decoding. V(null) is unknown.
  returned: success
  type: dict
  contains:
    enabled:
      description: Whether it is on.
      type: bool
      sample: true
    algorithm:
      description: Name of the method. Only SGLang reports it and the following.
      type: str
      sample: EAGLE3
    steps:
      description: Steps of the draft model.
      type: int
      sample: 3
    topk:
      description: Branches in each step.
      type: int
      sample: 1
    draft_tokens:
      description: Tokens that are drafted at most.
      type: int
      sample: 4
processes:
  description: The server's processes. V(null) when they were not to be seen.
  returned: success
  type: list
  elements: dict
  contains:
    role:
      description: V(parent) serves, V(worker) computes, V(orphan) is a worker whose parent is gone.
      type: str
      sample: worker
    pid:
      description: Process id, as the machine sees it that the module ran on.
      type: int
      sample: 81244
    container_pid:
      description: The pid inside the container, V(null) outside of one.
      type: int
      sample: 1107
    vmid:
      description: Container that the process is in, V(null) outside of one.
      type: int
      sample: 129
    name:
      description: Name in the kernel, at most 15 characters.
      type: str
      sample: sglang::schedul
    command:
      description: Command line, without secrets.
      type: str
      sample: sglang::scheduler_TP1
    state:
      description: State letter of the kernel.
      type: str
      sample: S
    uid:
      description: User id of the owner.
      type: int
      sample: 0
    start_time:
      description: When it began, in seconds since the epoch.
      type: float
      sample: 1764547200.12
    unit:
      description: systemd unit that it runs in, or V(null).
      type: str
      sample: sglang-kimi.service
    parent:
      description: C(pid) and C(name) of its parent, or V(null).
      type: dict
      sample: {"pid": 81002, "name": "python3"}
seconds:
  description: How long the look took.
  returned: success
  type: float
  sample: 0.41
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.inference.plugins.module_utils._health import Limits
from ansible_collections.gpuops.inference.plugins.module_utils._health_look import HealthRequest, look
from ansible_collections.gpuops.inference.plugins.module_utils._http import Client, parse_url
from ansible_collections.gpuops.inference.plugins.module_utils._limits import (
    require_seconds,
    require_time_to_answer,
    require_vmid,
)
from ansible_collections.gpuops.inference.plugins.module_utils._look_notes import directory
from ansible_collections.gpuops.inference.plugins.module_utils._machine import this_machine
from ansible_collections.gpuops.inference.plugins.module_utils._server_log import require_unit
from ansible_collections.gpuops.inference.plugins.module_utils._server_witness import Sources, is_this_machine


def main() -> None:
    """Parameters in, one call, result out."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "engine": {"type": "str", "choices": ["auto", *ENGINES], "default": "auto"},
            "api_key": {"type": "str", "no_log": True},
            "model": {"type": "str"},
            "deep": {"type": "bool", "default": True},
            "timeout": {"type": "float", "default": 30},
            "samples": {"type": "int", "default": 3},
            "interval": {"type": "float", "default": 1},
            "hung_after": {"type": "float", "default": 20},
            "stall_after": {"type": "float", "default": 600},
            "validate_certs": {"type": "bool", "default": True},
            "processes": {"type": "bool"},
            "vmid": {"type": "int"},
            "log_path": {"type": "path"},
            "unit": {"type": "str"},
            "pct_path": {"type": "path", "default": "pct"},
        },
        mutually_exclusive=[("vmid", "unit")],
        supports_check_mode=True,
    )
    params = module.params
    try:
        require_vmid(params["vmid"])
        require_time_to_answer(params, "timeout")
        require_seconds(params, "interval", "hung_after", "stall_after")
        require_unit(params["unit"])
        if not 1 <= params["samples"] <= 100:
            raise InputError(f"samples is {params['samples']}. Give a number from 1 to 100.")
        url = parse_url(params["url"])
        seen_from_here = params["vmid"] is not None or is_this_machine(url)
        request = HealthRequest(
            engine=ENGINES.get(params["engine"]),
            model=params["model"],
            timeout=params["timeout"],
            deep=params["deep"],
            samples=params["samples"],
            interval=params["interval"],
            limits=Limits(params["hung_after"], params["stall_after"]),
            sources=Sources(
                processes=seen_from_here if params["processes"] is None else params["processes"],
                vmid=params["vmid"],
                log_path=params["log_path"],
                unit=params["unit"],
                pct_path=params["pct_path"],
            ),
            notes_directory=directory(),
        )
        client = Client(url, key=params["api_key"], validate_certs=params["validate_certs"])
        result = look(request, client, this_machine(check_mode=module.check_mode))
    except GpuopsError as exc:
        module.fail_json(**exc.result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
