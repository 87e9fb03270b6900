"""A conversation as the model reads it: ChatML, cut to the context by whole turns."""

from __future__ import annotations

from collections.abc import Sequence

from parley_stage.v1 import stage_pb2

from thinker_svc.embedded.tokenizer import TextTokenizer

# the model was trained with this line and answers far worse under any other
SYSTEM_LINE = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

ROLES = frozenset(("system", "user", "assistant", "tool"))


class PromptTooLong(Exception):
    """The instructions and the newest turn alone exceed the context."""


class Prompt:
    """Renders prompts. `prefix` begins every one of them, so that its state can be kept."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._begin, self._end = tokenizer.meta.bos_token, tokenizer.meta.eos_token
        self._newline = tokenizer.tokens("\n")
        self.prefix = [self._begin, *tokenizer.tokens(f"system\n{SYSTEM_LINE}")]
        self._answer = [self._begin, *tokenizer.tokens("assistant\n")]

    def tokens(self, messages: Sequence[stage_pb2.Message], room: int, history_room: int | None = None) -> list[str]:
        """What follows `prefix`, at most `room` tokens with it, and of the conversation no more turns than fit into `history_room`.

        The newest turn is whole in any case. Raises PromptTooLong; ValueError for an unknown role.
        """
        system, turns = _split(messages)
        head = [*self._instructions(system), self._end, *self._newline]
        left = room - len(self.prefix) - len(head) - len(self._answer)
        kept: list[list[str]] = []
        used = 0
        for turn in reversed(turns):
            rendered = [token for message in turn for token in self._message(message)]
            used += len(rendered)
            if used > left or (kept and history_room is not None and used > history_room):
                break
            kept.append(rendered)
        if not kept and used > left:
            raise PromptTooLong
        return head + [token for turn in reversed(kept) for token in turn] + self._answer

    def _instructions(self, system: Sequence[stage_pb2.Message]) -> list[str]:
        text = "\n".join(message.content for message in system if message.content)
        return self._tokenizer.tokens(f". {text}") if text else []

    def _message(self, message: stage_pb2.Message) -> list[str]:
        calls = [f"{call.name}({call.arguments_json})" for call in message.tool_calls]
        text = "\n".join(part for part in (message.content, *calls) if part)
        return [self._begin, *self._tokenizer.tokens(f"{message.role}\n{text}"), self._end, *self._newline]


def _split(messages: Sequence[stage_pb2.Message]) -> tuple[list[stage_pb2.Message], list[list[stage_pb2.Message]]]:
    """The leading system messages, and the rest in turns that begin with each user message."""
    system: list[stage_pb2.Message] = []
    turns: list[list[stage_pb2.Message]] = []
    for message in messages:
        if message.role not in ROLES:
            raise ValueError("a message has an unknown role")
        if message.role == "system" and not turns:
            system.append(message)
        elif message.role == "user" or not turns:
            turns.append([message])
        else:
            turns[-1].append(message)
    return system, turns
