"""One answer while it is made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from stage_kit.engine import Label
from thinker_svc.embedded.llm_text import SpokenText
from thinker_svc.embedded.tokenizer import Detokenizer


class Pending(Protocol):
    """The library's own future of a generation."""

    def done(self) -> bool: ...

    def result(self) -> Any: ...


class Run:
    """Belongs to the engine's thread, except `on_token`, which a generating thread calls."""

    def __init__(
        self, label: Label, order: int, wake: Callable[[], None], prompt: list[str], input_tokens: int, max_tokens: int, max_sentences: int
    ) -> None:
        self.label = label
        self.order = order  # of arrival
        self.prompt = prompt
        self.input_tokens = input_tokens
        self.max_tokens = max_tokens
        self.output_tokens = 0
        self.detokenizer = Detokenizer()
        self.spoken = SpokenText(max_sentences)
        self.arrived: deque[str] = deque()
        self.pending: Pending | None = None  # set once a worker took it
        self._wake = wake
        self._stopped = False

    def on_token(self, step: Any) -> bool:
        """Called with each generated token; true ends the generation."""
        if not self._stopped:
            self.arrived.append(step.token)
            self._wake()
        return self._stopped

    def stop(self) -> None:
        """Nothing more is wanted: the generating thread ends with its next token."""
        self._stopped = True

    @property
    def has_news(self) -> bool:
        """Tokens to collect, or an end."""
        return bool(self.arrived) or (self.pending is not None and self.pending.done())

    @property
    def holds_worker(self) -> bool:
        """Started and not at its end."""
        return self.pending is not None and not self.pending.done()
