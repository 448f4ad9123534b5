# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The core of inference_health_info: look at a server from all sides, ask it as little as possible, and judge.

First what costs nothing (processes, log), then what queues nothing (models, counters), then at most one generation, and
the counters again when it does not come. One question at a time. A server that an earlier look found silent, and of
which nothing has moved since, is not asked again.
"""

from __future__ import annotations

import time
from typing import Any, Mapping, NamedTuple, Optional

from ansible_collections.gpuops.inference.plugins.module_utils import _health as health
from ansible_collections.gpuops.inference.plugins.module_utils import _speculation
from ansible_collections.gpuops.inference.plugins.module_utils._chat import error_text, read_answer
from ansible_collections.gpuops.inference.plugins.module_utils._engines import (
    CHAT,
    ENGINE_DEAD,
    MODELS,
    OPENAI,
    Engine,
    model_cards,
    recognize,
)
from ansible_collections.gpuops.inference.plugins.module_utils._health import Limits, Signal
from ansible_collections.gpuops.inference.plugins.module_utils._http import Answer, Client, HttpError
from ansible_collections.gpuops.inference.plugins.module_utils._look_notes import Notes, notes
from ansible_collections.gpuops.inference.plugins.module_utils._machine import Machine
from ansible_collections.gpuops.inference.plugins.module_utils._results import redact
from ansible_collections.gpuops.inference.plugins.module_utils._server_counters import Reading, moved, read_counters
from ansible_collections.gpuops.inference.plugins.module_utils._server_witness import (
    Sources,
    Witness,
    first_look,
    log_signals,
    process_signals,
    second_look,
    unit_signals,
)

# Seconds for one question that queues nothing, and for all of them before the generation, and again after it.
QUICK = 2.0
QUICK_ALL = 5.0

_PROMPT = "Counting up one by one: 1, 2, 3, 4, 5, 6, 7, 8,"
_TOKENS = 8

_MOST_MODELS = 100


class HealthRequest(NamedTuple):
    """What the operator asked for. Times in seconds; ``engine`` None: whichever answers.

    ``samples`` readings of the counters, ``interval`` apart. ``notes_directory``: see _look_notes.
    """

    engine: Optional[Engine]
    model: Optional[str]
    timeout: float
    deep: bool
    samples: int
    interval: float
    limits: Limits
    sources: Sources
    notes_directory: Optional[str]


def look(request: HealthRequest, client: Client, machine: Machine) -> dict[str, Any]:
    """Look, and say how the server is. Raises InputError and ContainerError: all else is a verdict."""
    with notes(str(client.url), request.notes_directory, time.time) as kept:
        return _Look(request, client, machine, kept).run()


class _Look:
    """One look. What it sees becomes signals."""

    def __init__(self, request: HealthRequest, client: Client, machine: Machine, kept: Notes) -> None:
        self._request = request
        self._client = client
        self._machine = machine
        self._notes = kept
        self._now = machine.clock.now
        self._began = self._now()
        self._quick_left = QUICK_ALL
        self._signals: dict[str, Signal] = {}
        self._engine = request.engine
        self._witness = Witness()
        self._readings: list[Reading] = []
        self._first_reading = self._began
        self._models: Optional[list[str]] = None
        self._version: Optional[str] = None
        self._speculation: dict[str, Any] = dict.fromkeys(("enabled", "algorithm", "steps", "topk", "draft_tokens"))

    def run(self) -> dict[str, Any]:
        """Look from all sides, and judge."""
        self._witness = first_look(self._request.sources, self._engine, self._client.url, self._machine)
        self._engine = self._witness.engine
        self._keep(*process_signals(self._witness, self._request.sources, self._machine))
        self._ask_for_models()
        if self._value(health.MODELS) == 200:
            self._ask_gently()
            self._ask_for_text()
        elif self._value(health.MODELS) != health.TIMEOUT and (self._witness.log or self._value(health.PARENTS)):
            # Whether a start moves shows only after a while.
            self._wait()
        self._see_what_moved()
        return self._result(health.judge(self._signals, self._request.limits))

    def _result(self, verdict: health.Verdict) -> dict[str, Any]:
        found = self._witness.processes
        return {
            "changed": False,
            **verdict._asdict(),
            "signals": [signal._replace(age_s=round(signal.age_s, 2))._asdict() for signal in self._signals.values()],
            "engine": self._engine.name if self._engine is not None else None,
            "version": self._version,
            "served_models": self._models,
            "speculation": self._speculation,
            "processes": found.results(self._machine.procfs) if found is not None else None,
            "seconds": round(self._now() - self._began, 2),
        }

    def _keep(self, *signals: Signal) -> None:
        self._signals.update({signal.name: signal for signal in signals})

    def _note(self, name: str, value: Any, age: float = 0.0, text: str = "") -> None:
        self._keep(Signal(name, value, age, text))

    def _value(self, name: str) -> Any:
        return self._signals[name].value if name in self._signals else None

    def _wait(self) -> None:
        if self._request.samples > 1 and self._request.interval > 0:
            self._machine.clock.sleep(self._request.interval)

    def _since(self, name: str, value: str, began: float) -> float:
        """For how many seconds it has been so: by this look, since ``began`` of our clock, and by the ones before."""
        now, seconds = time.time(), self._now() - began
        return max(seconds, now - self._notes.since(name, self._mark(value), now - seconds))

    def _mark(self, value: str) -> str:
        """What is noted of a value. Of another server the same value would say nothing."""
        return f"{self._witness.identity} {value}"

    # -- what queues nothing ------------------------------------------------------------------------------------------

    def _ask_for_models(self) -> None:
        """The first sign of life. Who is silent gets the rest of the time, and is asked nothing more then."""
        asked = self._now()
        first = min(QUICK_ALL, self._request.timeout)
        for seconds in (first, self._request.timeout - first):
            if seconds <= 0:
                return
            try:
                answer = self._client.get(MODELS, timeout=seconds)
            except HttpError as exc:
                age = self._since(health.MODELS, exc.reason, asked)
                self._note(health.MODELS, exc.reason, age, str(exc.fields["phase"]))
                if exc.reason != health.TIMEOUT:
                    return
            else:
                self._note(health.MODELS, "too_big" if answer.truncated else answer.status)
                self._learn_from_models(answer)
                return

    def _learn_from_models(self, answer: Answer) -> None:
        cards = model_cards(answer.document())
        if answer.status == 200:
            names = [one.get("id") for one in cards[:_MOST_MODELS]]
            self._models = [one for one in names if isinstance(one, str)]
        if self._engine is None:
            self._engine = recognize(cards, answer.headers.get("server")) or (OPENAI if answer.status == 200 else None)
        if answer.status == 503 and "oading model" in error_text(answer.body):
            self._note(health.LOADING, True)

    def _page(self, path: Optional[str]) -> Optional[Answer]:
        """Ask what is answered at once, or not at all. None where there is no whole answer."""
        limit = min(QUICK, self._quick_left)
        if path is None or limit <= 0:
            return None
        asked = self._now()
        try:
            answer = self._client.get(path, timeout=limit)
        except HttpError:
            return None
        finally:
            self._quick_left -= self._now() - asked
        return None if answer.truncated else answer

    def _ask_gently(self) -> None:
        engine = self._engine or OPENAI
        self._read_counters()
        if engine.health != MODELS and not engine.health_generates:
            self._ask_for_health()
        if not engine.info_waits:
            self._learn_from_info()

    def _ask_for_health(self) -> None:
        engine = self._engine or OPENAI
        answer = self._page(engine.health)
        if answer is None:
            return
        self._note(health.HEALTH, answer.status)
        if answer.status == 503:
            self._note(health.ENGINE_DEAD if engine.health_503 == ENGINE_DEAD else health.LOADING, True)

    def _learn_from_info(self) -> None:
        engine = self._engine or OPENAI
        for path in engine.info:
            page = self._page(path)
            if page is None or page.status != 200:
                continue
            document = page.document()
            version = _mapping(document).get(engine.version or "")
            self._version = version if isinstance(version, str) else self._version
            configured = _speculation.configured(document)
            if configured is not None:
                self._speculation = {"enabled": configured["algorithm"] not in (None, ""), **configured}
            return

    def _read_counters(self) -> None:
        """One reading of all that moves while the server works."""
        engine = self._engine or OPENAI
        pages = [self._page(path) for path in (engine.gauges, engine.metrics)]
        gauges, metrics = (page if page is not None and page.status == 200 else None for page in pages)
        reading = read_counters(
            engine,
            gauges.document() if gauges is not None else None,
            metrics.body.decode("utf-8", "replace") if metrics is not None else None,
        )
        if not self._readings:
            self._first_reading = self._now()
        self._readings.append(reading)
        for name, value in ((health.RUNNING, reading.running), (health.WAITING, reading.waiting)):
            if value is not None:
                self._note(name, value)
        self._version = reading.version or self._version
        if engine.name == "vllm" and reading.metrics:
            state = _speculation.of_vllm({}, reading.metrics).state
            self._speculation["enabled"] = _ENABLED.get(state, True if _drafts(reading) else None)

    def _work_is_done(self) -> bool:
        return bool(moved(one.counters for one in self._readings))

    # -- the one generation -------------------------------------------------------------------------------------------

    def _ask_for_text(self) -> None:
        why_not = self._reason_not_to_ask()
        if why_not:
            self._wait()
            self._read_counters()
            self._note(health.GENERATION, health.NOT_ASKED, text=why_not)
        elif self._known_silent():
            self._note(health.GENERATION, health.TIMEOUT, self._since(health.GENERATION, health.TIMEOUT, self._now()))
            self._look_for_work()
        else:
            self._generate()
            if self._value(health.GENERATION) != health.TEXT:
                self._look_for_work()
        said = self._value(health.GENERATION)
        # Who is at work, and has been given a generation to do, is given nothing more that its schedulers must answer.
        idle_enough = said == health.TEXT or (said == health.NOT_ASKED and self._work_is_done())
        if self._engine is not None and self._engine.info_waits and idle_enough:
            self._learn_from_info()

    def _reason_not_to_ask(self) -> str:
        """Why no generation is asked for; empty when it is."""
        if not self._request.deep:
            return "it was not asked to generate (deep is false)"
        if not self._notes.free:
            return "it was not asked to generate, as another task is just asking it"
        if self._value(health.WAITING):
            # Ours would only wait behind the others. Where nothing moves, only asking shows why.
            self._wait()
            self._read_counters()
            if self._work_is_done():
                return "it was not asked to generate, as others wait for that"
        return ""

    def _known_silent(self) -> bool:
        """Whether an earlier look waited for a generation in vain, and nothing that can be seen has moved since."""
        if self._notes.earlier(health.GENERATION) != self._mark(health.TIMEOUT):
            return False
        last = self._readings[-1]
        seen = {health.COUNTERS: last.counters, health.HEARTBEAT: last.heartbeat}
        known = {name: value for name, value in seen.items() if value is not None}
        return bool(known) and all(self._notes.earlier(name) == self._mark(value) for name, value in known.items())

    def _generate(self) -> None:
        engine = self._engine or OPENAI
        model = self._request.model or (self._models[0] if self._models else "default")
        body: dict[str, Any] = {"model": model, "max_tokens": _TOKENS, "temperature": 0}
        if engine.generation == CHAT:
            body["messages"] = [{"role": "user", "content": _PROMPT}]
        else:
            body["prompt"] = _PROMPT
        asked = self._now()
        try:
            answer = self._client.post(engine.generation, body, timeout=self._request.timeout)
        except HttpError as exc:
            silent = exc.reason == health.TIMEOUT
            age = self._since(health.GENERATION, exc.reason, asked) if silent else self._now() - asked
            self._note(health.GENERATION, exc.reason, age)
            return
        self._judge_text(answer)

    def _judge_text(self, answer: Answer) -> None:
        if answer.status != 200:
            self._note(health.GENERATION, answer.status, answer.seconds, redact(error_text(answer.body)))
            return
        if answer.truncated:
            self._note(health.GENERATION, "too_big", answer.seconds)
            return
        reply = read_answer(answer.document())
        if reply.error is not None:
            self._note(health.GENERATION, "bad_answer", answer.seconds, redact(reply.error))
            return
        self._note(health.GENERATION, health.TEXT if reply.everything.strip() else health.EMPTY, answer.seconds)
        if reply.timings:
            self._speculation["enabled"] = _ENABLED.get(_speculation.of_llamacpp(reply.timings).state)

    def _look_for_work(self) -> None:
        """No text came: whether the server works shows in what has moved meanwhile."""
        self._quick_left = QUICK_ALL
        for number in range(max(1, self._request.samples - 1)):
            if number:
                self._wait()
            self._read_counters()
            if self._work_is_done():
                return
        young = (
            not self._value(health.PARENTS) or self._signals[health.PARENTS].age_s < self._request.limits.stall_after
        )
        waits = self._engine is not None and self._engine.health_generates
        if waits and young and self._value(health.GENERATION) == health.TIMEOUT:
            # While it warms up it says so at once. An old one does not warm up, and is not given more to do.
            self._ask_for_health()

    # -- what moved ---------------------------------------------------------------------------------------------------

    def _see_what_moved(self) -> None:
        self._note_movement(health.COUNTERS, [one.counters for one in self._readings], self._first_reading)
        self._note_movement(health.HEARTBEAT, [one.heartbeat for one in self._readings], self._first_reading)
        later = second_look(self._witness, self._request.sources, self._machine)
        memory = [None if one is None else str(one) for one in (self._witness.memory, later.memory)]
        self._note_movement(health.MEMORY, memory, self._began)
        signals = [
            *log_signals(self._witness, later, self._engine),
            *unit_signals(self._request.sources, self._machine),
        ]
        if self._value(health.GENERATION) == health.TEXT:
            signals = [signal for signal in signals if signal.name != health.PROGRESS]
        self._keep(*signals)

    def _note_movement(self, name: str, readings: list[Optional[str]], began: float) -> None:
        moves = moved(readings)
        if moves is None:
            return
        last = next(one for one in reversed(readings) if one is not None)
        self._note(name, health.MOVES if moves else health.STILL, 0.0 if moves else self._since(name, last, began))


_ENABLED = {_speculation.ON: True, _speculation.OFF: False}


def _drafts(reading: Reading) -> bool:
    return _speculation.VLLM_DRAFTS in reading.metrics


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
