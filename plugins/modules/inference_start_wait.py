#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: inference_start_wait
short_description: Wait for an inference server to load, and show how far it has come
version_added: 0.1.0
description:
  - Looks at a server that is starting again and again, prints a line when something has moved, and ends as soon as the
    end is known.
  - That is when the server answers its health check, with 200 or because it wants a key; when its process has ended,
    with the last lines of the log and the likely cause; when nothing has moved for O(stall_after) (neither the log, nor
    the shards, nor the memory of a card); or at O(limit).
  - It runs where the server runs, so on Proxmox in the container. What cannot be read there (no unit, no log, no
    C(nvidia-smi)) is V(null), and does not stop the wait.
  - With O(limit=0) it looks once and never fails. RV(log_position) of such a look, taken before the start, is what
    O(log_since) wants, so that an older run's lines are not taken for the new one's.
options:
  url:
    description:
      - Where the server will answer, as seen from where the module runs.
    type: str
    required: true
  engine:
    description:
      - Which server it is. That decides the path of its health check and how its log tells its progress.
    type: str
    choices: [sglang, vllm, llamacpp, openai]
    default: sglang
  api_key:
    description:
      - Key of the server, where its health check wants one.
    type: str
  validate_certs:
    description:
      - Whether a server that speaks TLS must have a certificate that is trusted here.
    type: bool
    default: true
  unit:
    description:
      - The systemd unit of the server. Without it the server counts as ended when none of its processes is left.
    type: str
  log_path:
    description:
      - The file that the server logs to. By default it is the one that O(unit) writes to, else the unit's journal.
    type: path
  log_since:
    description:
      - The RV(log_position) of an earlier look. Only what the log has gained since then counts.
    type: str
  patterns:
    description:
      - Regular expressions that find the server's processes, in name and command line. By default those of O(engine).
    type: list
    elements: str
  expect_process:
    description:
      - Whether a process of the server has been seen already, so that none means that it has ended. While it waits, the
        action finds that out by itself.
    type: bool
    default: false
  nvidia_smi_path:
    description:
      - Name or path of C(nvidia-smi), which tells the memory of the cards.
    type: path
    default: nvidia-smi
  driver_timeout:
    description:
      - Seconds that a question to the driver may take.
    type: float
    default: 20
  timeout:
    description:
      - Seconds that one health check may take. SGLang itself answers a hung one after 20 seconds.
    type: float
    default: 25
  interval:
    description:
      - Seconds between two looks.
    type: float
    default: 5
  stall_after:
    description:
      - Seconds without any movement after which the start has failed.
    type: float
    default: 600
  limit:
    description:
      - Seconds in all after which the start has failed. With V(0) there is one look, whatever it shows.
    type: float
    default: 3600
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - Waiting changes nothing. In check mode there is one look, since nothing was started.
  diff_mode:
    support: N/A
    details:
      - Changes nothing.
  idempotent:
    support: full
seealso:
  - module: gpuops.inference.inference_health_info
author:
  - the gpuops.inference founders (@gpuops)
"""

EXAMPLES = r"""
- name: Note where the log ends
  gpuops.inference.inference_start_wait:
    url: http://127.0.0.1:30000
    unit: sglang-kimi.service
    limit: 0
  register: before

- name: Start the server
  ansible.builtin.systemd_service:
    name: sglang-kimi.service
    state: started

- name: Wait until it has loaded, for at most an hour, and no longer than ten minutes without movement
  gpuops.inference.inference_start_wait:
    url: http://127.0.0.1:30000
    unit: sglang-kimi.service
    log_since: "{{ before.log_position }}"
    stall_after: 600
    limit: 3600
"""

RETURN = r"""
state:
  description: V(ready), V(starting) or V(exited).
  returned: always
  type: str
  sample: ready
end:
  description:
    - How the wait ended, V(ready), V(exited), V(stalled) or V(timeout). V(null) after a single look.
  returned: always
  type: str
  sample: ready
seconds:
  description: What the wait took.
  returned: always
  type: float
  sample: 214.6
wait:
  description: What it waits by, in seconds.
  returned: always
  type: dict
  contains:
    interval:
      description: See O(interval).
      type: float
    stall_after:
      description: See O(stall_after).
      type: float
    limit:
      description: See O(limit).
      type: float
  sample: {interval: 5.0, stall_after: 600.0, limit: 3600.0}
said:
  description: In words, what the unit or else the health check said last.
  returned: always
  type: str
  sample: http://127.0.0.1:30000/health answers with status 200.
health_status:
  description: Status of the health check, V(null) where there was no answer.
  returned: always
  type: int
  sample: 200
unit_state:
  description: C(ActiveState) of the unit.
  returned: always
  type: str
  sample: active
unit_substate:
  description: C(SubState) of the unit.
  returned: always
  type: str
  sample: running
unit_result:
  description: C(Result) of the unit.
  returned: always
  type: str
  sample: success
main_pid:
  description: The unit's main process.
  returned: always
  type: int
  sample: 312
processes:
  description: How many processes match O(patterns).
  returned: always
  type: int
  sample: 10
shards_loaded:
  description: How many shards of the weights are loaded, where the log says so.
  returned: always
  type: int
  sample: 12
shards_total:
  description: How many shards there are.
  returned: always
  type: int
  sample: 64
memory_used_mib:
  description: MiB in use on each card, in the order of their indices; V(null) where the driver cannot be asked.
  returned: always
  type: list
  elements: int
  sample: [76115, 76115]
cards_error:
  description: Why the cards could not be read.
  returned: always
  type: str
  sample: null
log_source:
  description: The log that was read.
  returned: always
  type: str
  sample: journal of sglang-kimi.service
log_position:
  description: Where the log ended, for O(log_since) of a later look.
  returned: always
  type: str
  sample: "file:1835012:40219"
log_last_line:
  description: The last line that says something, without secrets.
  returned: always
  type: str
  sample: The server is fired up and ready to roll!
log_tail:
  description: The last lines, at most 20, without secrets.
  returned: always
  type: list
  elements: str
  sample: []
cause:
  description:
    - Likely cause of an end. V(port_in_use), V(shm_full), V(gpu_out_of_memory), V(weights_missing), V(nccl),
      V(cuda_unusable) or V(killed_by_kernel). V(null) where the log says nothing that is known.
  returned: always
  type: str
  sample: null
advice:
  description: What to do about RV(cause).
  returned: always
  type: str
  sample: null
reason:
  description: Stable code of a failure, RV(end) or V(bad_input).
  returned: failure
  type: str
  sample: stalled
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._commands import SystemRunner
from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._http import parse_url, require_key
from ansible_collections.gpuops.inference.plugins.module_utils._limits import require_seconds, require_time_to_answer
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import compile_patterns
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import ProcFs
from ansible_collections.gpuops.inference.plugins.module_utils._start_look import LookRequest, look, require_position


def main() -> None:
    """One look. The action plugin of the same name looks again and again."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "engine": {"type": "str", "choices": ["sglang", "vllm", "llamacpp", "openai"], "default": "sglang"},
            "api_key": {"type": "str", "no_log": True},
            "validate_certs": {"type": "bool", "default": True},
            "unit": {"type": "str"},
            "log_path": {"type": "path"},
            "log_since": {"type": "str"},
            "patterns": {"type": "list", "elements": "str"},
            "expect_process": {"type": "bool", "default": False},
            "nvidia_smi_path": {"type": "path", "default": "nvidia-smi"},
            "driver_timeout": {"type": "float", "default": 20},
            "timeout": {"type": "float", "default": 25},
            "interval": {"type": "float", "default": 5},
            "stall_after": {"type": "float", "default": 600},
            "limit": {"type": "float", "default": 3600},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        require_seconds(params, "interval", "stall_after", "limit")
        require_time_to_answer(params, "timeout")
        require_time_to_answer(params, "driver_timeout")
        require_key(params["api_key"])
        require_position(params["log_since"])
        engine = ENGINES[params["engine"]]
        patterns = engine.patterns if params["patterns"] is None else params["patterns"]
        request = LookRequest(
            url=parse_url(params["url"]),
            engine=engine,
            key=params["api_key"],
            validate_certs=params["validate_certs"],
            timeout=params["timeout"],
            unit=params["unit"] or None,
            log_path=params["log_path"] or None,
            log_since=params["log_since"],
            patterns=compile_patterns(patterns, "patterns"),
            expect_process=params["expect_process"],
            nvidia_smi_path=params["nvidia_smi_path"],
            driver_timeout=params["driver_timeout"],
        )
        result = look(request, SystemRunner(), ProcFs())
    except GpuopsError as exc:
        module.fail_json(**exc.result())
    wait = {option: params[option] for option in ("interval", "stall_after", "limit")}
    module.exit_json(changed=False, end=None, seconds=0.0, wait=wait, **result)


if __name__ == "__main__":
    main()
