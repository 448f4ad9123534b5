# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The core of inference_canary: ask fixed prompts, measure, judge. Once an answer fails, nothing more is asked."""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, TypeVar

from ansible_collections.gpuops.inference.plugins.module_utils import _speculation
from ansible_collections.gpuops.inference.plugins.module_utils._canary_prompts import (
    PROMPTS,
    WARM_UP,
    Prompt,
    soak_prompt,
)
from ansible_collections.gpuops.inference.plugins.module_utils._canary_verdict import (
    OK,
    SOAK_FAILED,
    Expectation,
    Measurement,
    Overall,
    Verdict,
    judge,
    tokens_per_second,
)
from ansible_collections.gpuops.inference.plugins.module_utils._chat import Reply, quoted
from ansible_collections.gpuops.inference.plugins.module_utils._chat_client import (
    BAD_ANSWER,
    ChatClient,
    NoAnswer,
    Server,
    find_server,
)
from ansible_collections.gpuops.inference.plugins.module_utils._engines import SGLANG, VLLM
from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._http import Client
from ansible_collections.gpuops.inference.plugins.module_utils._prometheus import sums
from ansible_collections.gpuops.inference.plugins.module_utils._speculation import Speculation

# Enough for SGLang to take steps that it tells about.
_WARM_UP_TOKENS = 48
_SOAK_TOKENS = 16

# Where the accept length comes from; RETURN of the module says what each is.
STREAM, ANSWER, NATIVE, COUNTERS, TIMINGS = "stream", "answer", "native", "counters", "timings"

# Characters of each answer that are returned.
_EXCERPT = 200

# vLLM's counters have everybody's tokens. So many more than ours may be of the warm-up's last step.
_OTHERS_TOKENS = 64

Job = TypeVar("Job")
Done = TypeVar("Done")


class CanaryRequest(NamedTuple):
    """What the operator asked for. ``timeout`` is in seconds, for each request; ``model`` None is the server's own,
    ``template`` goes to its chat template.
    """

    engine: str
    model: Optional[str]
    timeout: float
    prompts: tuple[str, ...]
    requests: int
    concurrency: int
    max_tokens: int
    soak: int
    template: Mapping[str, Any]
    expected: Expectation


class Outcome(NamedTuple):
    """The result of the module, and what it warns of."""

    result: dict[str, Any]
    warnings: tuple[str, ...]


def run_canary(request: CanaryRequest, client: Client, now: Callable[[], float] = time.monotonic) -> Outcome:
    """Ask and judge. Raises InputError only: whatever the server does is a verdict."""
    _check(request)
    canary = _Canary(request, client, now)
    try:
        verdict = canary.run()
    except NoAnswer as exc:
        verdict = Verdict(exc.reason, exc.message)
    return Outcome(canary.result(verdict), tuple(canary.warnings))


def _check(request: CanaryRequest) -> None:
    """Raise InputError for a value that cannot be meant."""
    for name, fewest in (("requests", 1), ("concurrency", 1), ("max_tokens", 2), ("soak", 0)):
        if getattr(request, name) < fewest:
            raise InputError(f"{name} is {getattr(request, name)}. Give at least {fewest}.")
    if not request.prompts:
        raise InputError("prompts is an empty list, so that nothing would be asked. Leave it out for all of them.")
    expected = request.expected
    if not 0 <= expected.tolerance < 1:
        raise InputError(f"tolerance is {expected.tolerance:g}. Give a share from 0 to less than 1.")
    if expected.tokens_per_second is not None and not 0 < expected.tokens_per_second < float("inf"):
        raise InputError(f"expect_tokens_per_second is {expected.tokens_per_second:g}. Give a number above 0.")
    if expected.accept_length is not None and not 1 <= expected.accept_length < float("inf"):
        raise InputError(
            f"expect_accept_length is {expected.accept_length:g}. It counts all tokens of a step, also the one that "
            "needs no draft, and so is at least 1."
        )


class _Canary:
    """One run. What it has measured stays readable when it breaks off."""

    def __init__(self, request: CanaryRequest, client: Client, now: Callable[[], float]) -> None:
        self.warnings: list[str] = []
        self._request = request
        self._client = client
        self._now = now
        self._server: Optional[Server] = None
        self._source: Optional[str] = None
        self._settled: Optional[Speculation] = None
        self._counters: Optional[dict[str, float]] = None
        self._done: list[Measurement] = []
        self._seconds: Optional[float] = None
        self._overall = Overall(None, Speculation(_speculation.UNKNOWN))
        self._soaked: Optional[dict[str, Any]] = None

    def run(self) -> Verdict:
        """Everything in turn. Raises NoAnswer."""
        request = self._request
        self._server = find_server(self._client, request.engine, request.model, request.timeout)
        chat = ChatClient(self._client, self._server, request.timeout, request.template)
        self._warm_up(chat)
        self._measure(chat)
        self._overall = self._overall._replace(configured=self._configured(chat))
        verdict = judge(self._done, self._overall, request.expected)
        if verdict.code != OK or not request.soak:
            return verdict
        return self._soak(chat) or verdict

    # -- the warm-up --------------------------------------------------------------------------------------------------

    def _warm_up(self, chat: ChatClient) -> None:
        """Ask once, discard the speed, and learn where this server tells of its speculation."""
        reply = chat.stream(WARM_UP.text, _WARM_UP_TOKENS)
        engine = chat.server.engine
        if engine == SGLANG.name:
            self._source = STREAM if reply.details is not None else self._find_other_source(chat)
        elif engine == VLLM.name:
            self._counters = _metrics(chat)
            self._source = COUNTERS if self._counters is not None else None
        elif reply.timings is not None:
            self._source = TIMINGS

    def _find_other_source(self, chat: ChatClient) -> Optional[str]:
        """SGLang tells of its speculation in a stream only since the middle of 2026, and never when there is none."""
        for source in (ANSWER, NATIVE):
            reply = _ask_again(chat, WARM_UP, _WARM_UP_TOKENS, source)
            if reply.details is not None:
                found = _told_by_sglang(reply)
                self._settled = found if found.state == _speculation.OFF else None
                return source
        return None

    # -- measuring ----------------------------------------------------------------------------------------------------

    def _measure(self, chat: ChatClient) -> None:
        prompts = [prompt for prompt in PROMPTS if prompt.name in self._request.prompts]
        jobs = [(number + 1, prompts[number % len(prompts)]) for number in range(self._request.requests)]
        before, began = self._counters, self._now()
        _do_all(lambda job: self._measure_one(chat, *job), jobs, self._request.concurrency, self._done)
        self._seconds = self._now() - began
        if self._source in (ANSWER, NATIVE) and self._settled is None:
            self._ask_all_again(chat)
        found = _speculation.together(one.speculation for one in self._done)
        after = _metrics(chat) if self._source == COUNTERS else None
        if before is not None and after is not None:
            found = _speculation.of_vllm(before, after)
            self._warn_of_others(before, after)
        self._overall = Overall(tokens_per_second(self._done), found)

    def _measure_one(self, chat: ChatClient, number: int, prompt: Prompt) -> Measurement:
        began = self._now()
        reply = chat.stream(prompt.text, self._request.max_tokens)
        seconds = self._now() - began
        return Measurement(number, prompt, reply, seconds, self._settled or self._speculation_of(chat, reply))

    def _speculation_of(self, chat: ChatClient, reply: Reply) -> Speculation:
        """What the server tells of its speculation on a measured request."""
        if self._source == TIMINGS:
            return _speculation.of_llamacpp(reply.timings or {})
        if self._source == COUNTERS:
            return self._counted_since(chat)
        return _told_by_sglang(reply)

    def _ask_all_again(self, chat: ChatClient) -> None:
        """Afterwards, so that it is in nobody's way while the speed is measured."""

        def ask(one: Measurement) -> Measurement:
            reply = _ask_again(chat, one.prompt, self._request.max_tokens, self._source or ANSWER)
            return one._replace(speculation=_told_by_sglang(reply))

        told: list[Measurement] = []
        _do_all(ask, self._done, self._request.concurrency, told)
        self._done = told

    def _counted_since(self, chat: ChatClient) -> Speculation:
        """What the counters moved by. Of requests side by side they tell only the sum."""
        before = self._counters
        if before is None or self._request.concurrency > 1:
            return _NOTHING_SAID
        self._counters = _metrics(chat)
        return _speculation.of_vllm(before, self._counters) if self._counters is not None else _NOTHING_SAID

    def _warn_of_others(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        counts = [one.reply.tokens for one in self._done]
        ours = sum(count for count in counts if count is not None)
        everybodys = after.get(_speculation.VLLM_GENERATED, 0) - before.get(_speculation.VLLM_GENERATED, 0)
        if None not in counts and everybodys > ours + _OTHERS_TOKENS:
            self.warnings.append(
                f"Others used the server meanwhile: it generated {everybodys:.0f} tokens, only {ours} of them for the "
                "canary. The accept length is that of all, and the speed what the others left."
            )

    def _configured(self, chat: ChatClient) -> Optional[dict[str, Any]]:
        """What SGLang says of its configuration, asked only where it decides. None where nobody says anything."""
        if chat.server.engine != SGLANG.name:
            return None
        length = self._overall.speculation.accept_length
        in_vain = length is not None and length <= _speculation.NOTHING_ACCEPTED
        if not in_vain and not self._request.expected.speculation:
            return None
        pages = (chat.optional(path) for path in SGLANG.info)
        page = next((one for one in pages if one is not None), None)
        return _speculation.configured(page.document()) if page is not None else None

    # -- the soak -----------------------------------------------------------------------------------------------------

    def _soak(self, chat: ChatClient) -> Optional[Verdict]:
        """Short requests until one fails: a server that was restarted after SIGKILL was seen to hang after some 100."""

        def ask(number: int) -> int:
            if not chat.ask(soak_prompt(number).text, _SOAK_TOKENS).everything.strip():
                raise NoAnswer(f"Request {number} was answered with an empty text.", reason=BAD_ANSWER)
            return number

        wanted, began = self._request.soak, self._now()
        answered: list[int] = []
        failure = None
        try:
            _do_all(ask, range(1, wanted + 1), self._request.concurrency, answered)
        except NoAnswer as exc:
            failure = exc.message
        self._soaked = {"requests": wanted, "answered": len(answered), "seconds": _rounded(self._now() - began)}
        if failure is None:
            return None
        return Verdict(
            SOAK_FAILED,
            f"The server answered {len(answered)} of {wanted} short requests, and then not as it should. {failure}",
        )

    # -- the result ---------------------------------------------------------------------------------------------------

    def result(self, verdict: Verdict) -> dict[str, Any]:
        """The dictionary that the module returns."""
        done = sorted(self._done, key=lambda one: one.number)
        firsts = [one.reply.first for one in done if one.reply.first is not None]
        tokens = [one.reply.tokens for one in done if one.reply.tokens is not None]
        found = self._overall.speculation
        return {
            "verdict": verdict.code,
            "reason": verdict.reason,
            "engine": self._server.engine if self._server else None,
            "model": self._server.model if self._server else None,
            "requests": [_entry(one) for one in done],
            "tokens_per_second": _rounded(self._overall.tokens_per_second),
            "throughput": _rounded(sum(tokens) / self._seconds) if tokens and self._seconds else None,
            "time_to_first_token": _rounded(max(firsts)) if firsts else None,
            "speculation": found.state,
            "accept_length": _rounded(found.accept_length),
            "accept_rate": _rounded(found.accept_rate),
            "accept_source": self._source,
            "configured_speculation": self._overall.configured,
            "sane": all(one.sane for one in done) if done else None,
            "soak": self._soaked,
        }


_NOTHING_SAID = Speculation(_speculation.UNKNOWN)


def _told_by_sglang(reply: Reply) -> Speculation:
    return _speculation.of_sglang(reply.details, reply.tokens) if reply.details else _NOTHING_SAID


def _ask_again(chat: ChatClient, prompt: Prompt, max_tokens: int, source: str) -> Reply:
    """The same once more, on a way on which an older SGLang tells of its speculation."""
    if source == NATIVE:
        return chat.ask_natively(prompt.text, max_tokens)
    return chat.ask(prompt.text, max_tokens, return_meta_info=True)


def _metrics(chat: ChatClient) -> Optional[dict[str, float]]:
    """The server's metrics; None where it has no such page."""
    page = chat.optional(VLLM.metrics) if VLLM.metrics else None
    return sums(page.body.decode("utf-8", "replace")) if page is not None else None


def _entry(one: Measurement) -> dict[str, Any]:
    """A request as the module returns it."""
    return {
        "number": one.number,
        "prompt": one.prompt.name,
        "tokens": one.reply.tokens,
        "finish_reason": one.reply.finish,
        "duration": _rounded(one.seconds),
        "time_to_first_token": _rounded(one.reply.first),
        "tokens_per_second": _rounded(one.reply.tokens_per_second),
        "accept_length": _rounded(one.speculation.accept_length),
        "accept_rate": _rounded(one.speculation.accept_rate),
        "sane": one.sane,
        "defect": one.defect,
        "answer_right": one.answer_right,
        "text": quoted(one.reply.everything[:_EXCERPT]),
    }


def _rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, 3)


def _do_all(work: Callable[[Job], Done], jobs: Sequence[Job], concurrency: int, done: list[Done]) -> None:
    """Do the jobs, so many at a time, and note in ``done`` what each came to. After a failure none is begun any more;
    it is raised when those under way have ended.
    """
    waiting = iter(jobs)
    if concurrency == 1:
        _work_off(work, waiting, done, [])
        return
    from concurrent.futures import ThreadPoolExecutor  # dear to import, and seldom asked for

    failed: list[bool] = []
    with ThreadPoolExecutor(concurrency) as pool:
        workers = [pool.submit(_work_off, work, waiting, done, failed) for _number in range(concurrency)]
    for worker in workers:
        worker.result()


def _work_off(work: Callable[[Job], Done], waiting: Iterator[Job], done: list[Done], failed: list[bool]) -> None:
    """What one worker does. ``waiting`` and ``failed`` are shared by all of them."""
    for job in waiting:
        if failed:
            return
        try:
            done.append(work(job))
        except NoAnswer:
            failed.append(True)
            raise
