#!/usr/bin/python
# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: inference_canary
short_description: Prove that an inference server generates text, as fast as expected and with speculation that works
version_added: 0.1.0
author:
  - The gpuops.inference founders (@gpuops)
description:
  - Asks a fixed set of prompts (prose, code, arithmetic, a long input) through the server's chat template, greedily and
    one at a time, after a warm-up that is not counted. Then it compares what was measured with what is expected.
  - A healthy server may still be a bad one. With C(EAGLE) in place of C(EAGLE3), SGLang drafts tokens of which none is
    ever accepted, warns of nothing, and is slower than without any draft. A server whose weights are broken answers
    V(!!!!!!!!) with status 200.
  - The accept length is always the number of tokens that one step of the target model yields, with the one that needs
    no draft. It is at least 1. Where an engine counts without that token, 1 is added.
  - The speed is that of the decoding. The time until the first token is not in it, and neither is a token whose
    arrival the server does not count.
  - After the first request that is not answered as it should be, nothing more is asked.
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - Changes nothing on the machine, and so does the same in check mode. The server does generate then.
  diff_mode:
    support: N/A
    details:
      - Changes nothing.
  idempotent:
    support: full
options:
  url:
    description:
      - Where the server answers, as seen from the host that the task runs on. A path before C(/v1) belongs to it.
    type: str
    required: true
  engine:
    description:
      - Which server it is. That decides where it tells of its speculation.
      - With V(auto) it is what C(/v1/models) says of itself; a server that says nothing known is V(openai), of which no
        accept length is known.
    type: str
    choices: [auto, sglang, vllm, llamacpp, openai]
    default: auto
  model:
    description:
      - Name that the server serves its model under. By default the first one that C(/v1/models) names.
    type: str
  api_key:
    description:
      - Key that the server asks for. It is never shown.
    type: str
  validate_certs:
    description:
      - Whether the certificate of an C(https) server must be valid.
    type: bool
    default: true
  timeout:
    description:
      - Seconds that one request may take to its last byte, more than V(0). The first one that takes longer ends the
        module.
    type: float
    default: 120
  prompts:
    description:
      - Which prompts are asked. V(long_input) has some 4000 tokens, more than a very small model takes.
    type: list
    elements: str
    choices: [prose, code, arithmetic, long_input]
    default: [prose, code, arithmetic, long_input]
  requests:
    description:
      - How many requests are measured. The prompts take turns, in the order above.
    type: int
    default: 4
  concurrency:
    description:
      - How many requests are under way at a time. More than V(1) makes each of them slower, and with vLLM leaves only
        the accept length of all together.
    type: int
    default: 1
  max_tokens:
    description:
      - Tokens that an answer may have. Fewer than 64 tokens in all tell nothing of an accept length of 1.
    type: int
    default: 256
  chat_template_kwargs:
    description:
      - Variables for the server's chat template, such as C(thinking) for a model that thinks before it answers.
        Thoughts are counted and looked at like the answer.
    type: dict
    default: {}
  expect_tokens_per_second:
    description:
      - Speed that is expected of one request's decoding.
    type: float
  expect_accept_length:
    description:
      - Accept length that is expected over all prompts. More than V(1) also means that speculation is expected.
      - Without it, drafts of which none is accepted are a fault all the same. V(1) says that they are none.
    type: float
  expect_speculation:
    description:
      - How the server is expected to be configured, as C(/server_info) of SGLang says it. Other engines do not say.
    type: dict
    suboptions:
      algorithm:
        description: Name of the algorithm, such as V(EAGLE3).
        type: str
      steps:
        description: Steps of the draft model.
        type: int
      topk:
        description: Branches that each step of the draft model follows.
        type: int
      draft_tokens:
        description: Tokens that are verified in one step, at most.
        type: int
  tolerance:
    description:
      - Share by which speed and accept length may stay below what is expected.
    type: float
    default: 0.1
  soak:
    description:
      - How many short requests to ask in the end. V(0) asks none.
      - A server that was restarted after SIGKILL was seen to look healthy and to hang after some 80 to 140 requests;
        V(200) finds that.
    type: int
    default: 0
  fail_on_verdict:
    description:
      - Fail when the verdict is anything but V(ok).
    type: bool
    default: true
seealso:
  - name: What each verdict means
    description: A page of this collection for operators.
    link: https://github.com/gpuops/gpuops.inference/blob/main/docs/canary.md
"""

EXAMPLES = r"""
- name: See that the server generates text
  gpuops.inference.inference_canary:
    url: http://127.0.0.1:30000

- name: Prove that Kimi-K2.5 speculates with EAGLE-3, and is faster than without
  gpuops.inference.inference_canary:
    url: http://127.0.0.1:30000
    engine: sglang
    expect_tokens_per_second: 82
    expect_accept_length: 2.4
    tolerance: 0.1
    expect_speculation:
      algorithm: EAGLE3
      steps: 3
      topk: 1
      draft_tokens: 4
    chat_template_kwargs:
      thinking: false

- name: After a SIGKILL, see that it does not hang a hundred requests later
  gpuops.inference.inference_canary:
    url: http://127.0.0.1:30000
    soak: 200

- name: Measure, and decide oneself
  gpuops.inference.inference_canary:
    url: http://127.0.0.1:30000
    fail_on_verdict: false
  register: canary

- name: Tell what was measured
  ansible.builtin.debug:
    msg: "{{ canary.verdict }}: {{ canary.reason }}"
"""

RETURN = r"""
verdict:
  description:
    - V(ok); or why not. Of several reasons the gravest is given, in this order.
    - V(unreachable), V(unauthorized), V(timeout), V(bad_answer) when a request was not answered. V(bad_answer) is a
      status other than 200, an answer that broke off, one without end, or one that is none.
    - V(degenerate) for an empty text, one piece again and again, or what is no text. V(wrong_answer) when the sum is
      wrong.
    - V(speculation_off) when it is expected. V(eagle_instead_of_eagle3) when no draft is accepted and SGLang says that
      its algorithm is C(EAGLE), V(no_draft_accepted) when it is another or is not known. V(wrong_speculation) when it
      is not configured as expected, V(low_accept_length) when fewer drafts are accepted than expected.
    - V(slow) when it generates slower than expected. V(unmeasured) when something was expected that nothing tells.
    - V(soak_failed) when one of the O(soak) requests was not answered.
  returned: success, or failure because of the verdict
  type: str
  sample: eagle_instead_of_eagle3
reason:
  description: The verdict in words, with what to do next; V(bad_input) for an option whose value cannot be meant.
  returned: always
  type: str
  sample: The server generates at 161.2 tokens/s. Its accept length is 2.61.
engine:
  description: Which server it is. V(null) when it did not say.
  returned: success, or failure because of the verdict
  type: str
  sample: sglang
model:
  description: Name of the model that was asked for. V(null) when none was found.
  returned: success, or failure because of the verdict
  type: str
  sample: kimi-k2.5
requests:
  description: Each measured request that was answered, in order. The warm-up and the soak are not among them.
  returned: success, or failure because of the verdict
  type: list
  elements: dict
  contains:
    number:
      description: Counts from 1.
      type: int
      sample: 2
    prompt:
      description: V(prose), V(code), V(arithmetic) or V(long_input).
      type: str
      sample: code
    tokens:
      description: Tokens of the answer as the server counts them, or V(null).
      type: int
      sample: 256
    finish_reason:
      description: Why it ended, V(length) at O(max_tokens). V(null) when the server did not say.
      type: str
      sample: length
    duration:
      description: Seconds to the last byte.
      type: float
      sample: 1.702
    time_to_first_token:
      description: Seconds to the first piece of text. V(null) when it did not come piece by piece.
      type: float
      sample: 0.118
    tokens_per_second:
      description: Speed of the decoding, without the first token and the time until it came. V(null) when unknown.
      type: float
      sample: 161.0
    accept_length:
      description: Tokens that a step of the target model yielded, at least 1. V(null) when unknown.
      type: float
      sample: 2.91
    accept_rate:
      description: Share of the drafted tokens that were accepted, 0 to 1. V(null) when unknown.
      type: float
      sample: 0.637
    sane:
      description: Whether it is a text, and not a wrong answer.
      type: bool
      sample: true
    defect:
      description: V(empty), V(repetition), V(not_text), or V(null).
      type: str
      sample: null
    answer_right:
      description: Whether the one right answer is in it. V(null) for a prompt without one, or an answer cut before it.
      type: bool
      sample: null
    text:
      description: The beginning of the text.
      type: str
      sample: "class LeastRecentlyUsed:"
tokens_per_second:
  description: Speed of one request's decoding, over all tokens of all requests. V(null) when unknown.
  returned: success, or failure because of the verdict
  type: float
  sample: 161.2
throughput:
  description: All tokens of all requests in a second, waits and first tokens included. V(null) when unknown.
  returned: success, or failure because of the verdict
  type: float
  sample: 148.8
time_to_first_token:
  description: The longest of all, in seconds. V(null) when unknown.
  returned: success, or failure because of the verdict
  type: float
  sample: 0.402
speculation:
  description: V(on), V(off), or V(unknown) where nothing tells.
  returned: success, or failure because of the verdict
  type: str
  sample: "on"
accept_length:
  description: Tokens that a step of the target model yielded, over all steps. V(null) when unknown.
  returned: success, or failure because of the verdict
  type: float
  sample: 2.61
accept_rate:
  description: Share of the drafted tokens that were accepted, 0 to 1. V(null) when unknown.
  returned: success, or failure because of the verdict
  type: float
  sample: 0.537
accept_source:
  description:
    - What the accept length was taken from. V(stream), the measured answer itself (SGLang). V(answer), the same
      question once more, not streamed (SGLang of the middle of 2026). V(native), the same text once more over
      C(/generate), without the chat template, which lowers it (older SGLang).
    - V(counters) of C(/metrics) (vLLM; they count everybody's requests). V(timings) of the answer (llama.cpp). V(null)
      when there was none.
  returned: success, or failure because of the verdict
  type: str
  sample: stream
configured_speculation:
  description:
    - What SGLang itself says, with the keys of O(expect_speculation). V(null) where it was not asked, which it is only
      when O(expect_speculation) is given or no draft is accepted, or did not say.
  returned: success, or failure because of the verdict
  type: dict
  sample: {algorithm: EAGLE, steps: 3, topk: 1, draft_tokens: 4}
sane:
  description: Whether all answers are. V(null) without any.
  returned: success, or failure because of the verdict
  type: bool
  sample: true
soak:
  description: How many short requests were to be asked, how many were answered, and seconds. V(null) without O(soak).
  returned: success, or failure because of the verdict
  type: dict
  sample: {requests: 200, answered: 200, seconds: 31.4}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._canary import CanaryRequest, run_canary
from ansible_collections.gpuops.inference.plugins.module_utils._canary_prompts import PROMPTS
from ansible_collections.gpuops.inference.plugins.module_utils._canary_verdict import OK, Expectation
from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.gpuops.inference.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.inference.plugins.module_utils._http import Client, parse_url
from ansible_collections.gpuops.inference.plugins.module_utils._limits import require_time_to_answer


def main() -> None:
    """Parameters in, one call, result out."""
    names = [prompt.name for prompt in PROMPTS]
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "engine": {"type": "str", "choices": ["auto", *ENGINES], "default": "auto"},
            "model": {"type": "str"},
            "api_key": {"type": "str", "no_log": True},
            "validate_certs": {"type": "bool", "default": True},
            "timeout": {"type": "float", "default": 120},
            "prompts": {"type": "list", "elements": "str", "choices": names, "default": names},
            "requests": {"type": "int", "default": 4},
            "concurrency": {"type": "int", "default": 1},
            # Ansible takes the names with "token" in them for secrets.
            "max_tokens": {"type": "int", "default": 256, "no_log": False},
            "chat_template_kwargs": {"type": "dict", "default": {}},
            "expect_tokens_per_second": {"type": "float", "no_log": False},
            "expect_accept_length": {"type": "float"},
            "expect_speculation": {
                "type": "dict",
                "options": {
                    "algorithm": {"type": "str"},
                    "steps": {"type": "int"},
                    "topk": {"type": "int"},
                    "draft_tokens": {"type": "int", "no_log": False},
                },
            },
            "tolerance": {"type": "float", "default": 0.1},
            "soak": {"type": "int", "default": 0},
            "fail_on_verdict": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        require_time_to_answer(params, "timeout")
        client = Client(parse_url(params["url"]), key=params["api_key"], validate_certs=params["validate_certs"])
        outcome = run_canary(_request(params), client)
    except GpuopsError as exc:
        module.fail_json(**exc.result())
    for warning in outcome.warnings:
        module.warn(warning)
    result = outcome.result
    if params["fail_on_verdict"] and result["verdict"] != OK:
        module.fail_json(msg=result["reason"], **result)
    module.exit_json(changed=False, **result)


def _request(params: dict[str, Any]) -> CanaryRequest:
    speculation = params["expect_speculation"] or {}
    return CanaryRequest(
        engine=params["engine"],
        model=params["model"],
        timeout=params["timeout"],
        prompts=tuple(params["prompts"]),
        requests=params["requests"],
        concurrency=params["concurrency"],
        max_tokens=params["max_tokens"],
        soak=params["soak"],
        template=params["chat_template_kwargs"],
        expected=Expectation(
            tokens_per_second=params["expect_tokens_per_second"],
            accept_length=params["expect_accept_length"],
            speculation={name: value for name, value in speculation.items() if value is not None},
            tolerance=params["tolerance"],
        ),
    )


if __name__ == "__main__":
    main()
