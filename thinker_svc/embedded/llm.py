"""Stage `llm`: SmolLM2-135M, int8 on the CPU. Answers stream token by token and end after a few sentences, because they are spoken."""

from __future__ import annotations

import atexit
import re
import time
from collections import deque
from typing import Any

import ctranslate2
import msgspec
import structlog
from parley_stage.v1 import stage_pb2

from stage_kit.engine import Append, Card, Engine, InvalidConfig, Label
from stage_kit.logs import describe
from stage_kit.slot import Slot
from thinker_svc.embedded.llm_prompt import Prompt, PromptTooLong
from thinker_svc.embedded.llm_run import Run
from thinker_svc.embedded.llm_settings import LlmConfig, LlmSettings
from thinker_svc.embedded.models import locate
from thinker_svc.embedded.tokenizer import TextTokenizer

MODEL = "smollm2-135m"
BATCH = 4
POLL_S = 0.02  # ends without a token, and workers that a cancelled run frees, are not reported

_log = structlog.get_logger(stage="llm")


class LlmEngine(Engine):
    """Generating threads of CTranslate2 fill each run's queue; a step carries what arrived to the sessions."""

    def __init__(self, settings: LlmSettings | None = None) -> None:
        self._settings = settings or LlmSettings()
        slots = self._settings.slots
        self.card = Card("llm", "ctranslate2", "smollm2-135m-instruct", ("messages",), ("text",), slots=slots, batch=BATCH)
        self._busy: list[Run] = []
        self._order = 0

    def load(self) -> None:
        """Raises ModelMissing."""
        settings = self._settings
        weights = locate(f"{MODEL}/ct2/model.bin", settings.models).parent
        self._tokenizer = TextTokenizer(locate(f"{MODEL}/tokenizer.json", settings.models).parent)
        self._prompt = Prompt(self._tokenizer)
        self._end = self._tokenizer.meta.eos_token
        self._unwanted = [[token] for token in self._tokenizer.meta.special_tokens if token != self._end]
        threads, workers = settings.worker_threads, settings.workers
        self._generator = ctranslate2.Generator(str(weights), compute_type="int8", intra_threads=threads, inter_threads=workers)
        self._warm_up()
        atexit.register(self._settle)

    def validate(self, config: dict[str, Any]) -> LlmConfig:
        try:
            parsed = msgspec.convert(config, LlmConfig)
        except msgspec.ValidationError as error:
            found = re.search(r"unknown field `([^`]*)`|`\$\.([^`]*)`", str(error))
            raise InvalidConfig(next(filter(None, found.groups()), "") if found else "", str(error)) from None
        if parsed.max_tokens is not None and parsed.max_tokens < 1:
            raise InvalidConfig("max_tokens", "must be at least 1")
        if parsed.max_sentences is not None and parsed.max_sentences < 0:
            raise InvalidConfig("max_sentences", "must be at least 0")
        return parsed

    def open(self, slot: Slot) -> None:
        slot.state = deque()

    def close(self, slot: Slot) -> None:
        for run in _runs(slot):
            run.stop()
        slot.state = deque()

    def receive(self, slot: Slot, append: Append) -> None:
        if append.payload is None:
            return
        settings, config, messages = self._settings, slot.config, append.payload.messages
        bounds = (settings.max_tokens, config.max_tokens, messages.max_tokens or None)
        max_tokens = min(bound for bound in bounds if bound is not None)
        sentences = settings.max_sentences if config.max_sentences is None else config.max_sentences
        try:
            prompt = self._prompt.tokens(messages.messages, settings.context_tokens - max_tokens, settings.history_tokens)
        except PromptTooLong:
            code = stage_pb2.StageError.CODE_LIMIT_EXCEEDED
            slot.fail(append.label, "the prompt exceeds the context", code=code, param="context_tokens")
            return
        self._order += 1
        read = len(self._prompt.prefix) + len(prompt)
        _runs(slot).append(Run(append.label, self._order, slot.wake, prompt, read, max_tokens, sentences))

    def cancelled(self, slot: Slot) -> None:
        self._drop(slot, [run for run in _runs(slot) if run.label.epoch < slot.epoch])

    def failed(self, slot: Slot, label: Label) -> None:
        self._drop(slot, [run for run in _runs(slot) if run.label == label])

    def ready(self, slot: Slot) -> float | None:
        if not (runs := _runs(slot)):
            return None
        if runs[0].pending is None:
            return float(runs[0].order) if self._has_free_worker() else None
        return 0.0 if runs[0].has_news else None

    def due(self, slot: Slot) -> float | None:
        return time.monotonic() + POLL_S if _runs(slot) else None

    def step(self, slots: list[Slot]) -> None:
        for slot in slots:
            run = _runs(slot)[0]
            if run.pending is not None:
                self._collect(slot, run)
            elif self._has_free_worker():
                self._start(run)

    def _start(self, run: Run) -> None:
        run.pending = self._generate(run.prompt, run.max_tokens, run.on_token)
        self._busy.append(run)

    def _generate(self, prompt: list[str], max_tokens: int, on_token: Any) -> Any:
        return self._generator.generate_batch(
            [prompt],
            static_prompt=self._prompt.prefix,
            cache_static_prompt=True,
            max_length=max_tokens,
            end_token=self._end,
            sampling_topk=1,
            repetition_penalty=self._settings.repetition_penalty,
            suppress_sequences=self._unwanted,
            include_prompt_in_result=False,
            callback=on_token,
            asynchronous=True,
        )[0]

    def _collect(self, slot: Slot, run: Run) -> None:
        ended = not run.holds_worker  # asked first: whatever came before the end is in the queue by now
        text, reason = "", None
        while run.arrived and reason is None:
            token = run.arrived.popleft()
            if token == self._end:
                reason = stage_pb2.Finish.REASON_STOP
                break
            run.output_tokens += 1
            text += run.spoken.push(run.detokenizer.push(token))
            if run.spoken.complete:
                reason = stage_pb2.Finish.REASON_STOP
            elif run.output_tokens == run.max_tokens:
                reason = stage_pb2.Finish.REASON_LENGTH
        if reason is not None:
            self._finish(slot, run, text, reason)
        elif ended:
            self._broke(slot, run)
        elif text:
            slot.emit(_text(text), run.label)

    def _finish(self, slot: Slot, run: Run, text: str, reason: stage_pb2.Finish.Reason) -> None:
        text += run.spoken.finish()
        finish = stage_pb2.Finish(reason=reason, input_tokens=run.input_tokens, output_tokens=run.output_tokens)
        self._drop(slot, [run])
        slot.emit(_text(text) if text else None, run.label, last=True, finish=finish)

    def _broke(self, slot: Slot, run: Run) -> None:
        self._drop(slot, [run])
        try:
            if run.pending is not None:
                run.pending.result()
        except RuntimeError as error:
            _log.error("llm.generation_failed", session_id=slot.session_id, error=describe(error))
        slot.fail(run.label, "the generation ended early")

    def _drop(self, slot: Slot, runs: list[Run]) -> None:
        for run in runs:
            run.stop()
        slot.state = deque(run for run in _runs(slot) if run not in runs)

    def _has_free_worker(self) -> bool:
        self._busy = [run for run in self._busy if run.holds_worker]
        return len(self._busy) < self._settings.workers

    def _settle(self) -> None:
        # a generating thread that calls back into an interpreter on its way out would abort the process
        for run in self._busy:
            run.stop()
        for run in self._busy:
            while run.holds_worker:
                time.sleep(POLL_S)

    def _warm_up(self) -> None:
        # one for each worker: every worker has its own state of the prefix
        prompt = self._prompt.tokens([stage_pb2.Message(role="user", content="Hello!")], self._settings.context_tokens)
        for pending in [self._generate(prompt, 4, None) for _ in range(self._settings.workers)]:
            pending.result()


def _runs(slot: Slot) -> deque[Run]:
    runs: deque[Run] = slot.state
    return runs


def _text(text: str) -> stage_pb2.Payload:
    return stage_pb2.Payload(text=stage_pb2.Text(text=text))
