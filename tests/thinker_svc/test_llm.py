"""Stage `llm` with the real model, driven through a real replica."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import InvalidConfig, Label
from tests.stage_kit.support import Conversation, StageClient, serving
from thinker_svc.embedded.llm import LlmEngine
from thinker_svc.embedded.llm_settings import LlmConfig, LlmSettings

pytestmark = pytest.mark.models

STOP, LENGTH, FAILED = stage_pb2.Finish.REASON_STOP, stage_pb2.Finish.REASON_LENGTH, stage_pb2.Finish.REASON_FAILED
LONG = "Tell me a long story about a dragon and a knight."


async def ask(talk: Conversation, text: str, label: Label, max_tokens: int = 0) -> None:
    messages = stage_pb2.Messages(messages=[stage_pb2.Message(role="user", content=text)], max_tokens=max_tokens)
    await talk.append(stage_pb2.Payload(messages=messages), label, last=True)


async def answer(talk: Conversation, label: Label) -> tuple[str, stage_pb2.Finish, int]:
    """Text, finish and number of chunks of one response."""
    text, count = "", 0
    while True:
        chunk = (await talk.read("chunk")).chunk
        assert Label.of(chunk.label) == label
        text, count = text + chunk.payload.text.text, count + 1
        if chunk.last:
            return text, chunk.finish, count


async def test_a_question_is_answered_in_a_stream() -> None:
    async with serving(LlmEngine()) as (client, _):
        talk = client.converse(stage="llm")
        await talk.open()
        label = Label(3, 1, "r1")
        await ask(talk, "What is the capital of France?", label)
        text, finish, count = await answer(talk, label)
        assert text == "The capital of France is Paris."
        assert (finish.reason, finish.output_tokens) == (STOP, 7)
        assert finish.input_tokens == 37 and count > 1


async def test_answers_end_after_their_sentences_or_tokens() -> None:
    async with serving(LlmEngine()) as (client, _):
        talk = client.converse(stage="llm")
        await talk.open('{"max_sentences": 1}')
        await ask(talk, "Why is the sky blue?", Label(1, 1, "one"))
        text, finish, _ = await answer(talk, Label(1, 1, "one"))
        assert finish.reason == STOP and text.count(". ") == 0 and text.endswith(".")
        await ask(talk, LONG, Label(1, 2, "short"), max_tokens=5)
        _, finish, _ = await answer(talk, Label(1, 2, "short"))
        assert (finish.reason, finish.output_tokens) == (LENGTH, 5)


@pytest.mark.behaviour("S1")
async def test_conversations_at_once_never_mix() -> None:
    questions = ["What is the capital of France?", "Why is the sky blue?", "Where does the sun rise?", "How do I boil an egg?"]
    async with serving(LlmEngine(LlmSettings(workers=2))) as (client, _):
        talks = [client.converse(f"s{at}", "llm") for at in range(len(questions))]
        labels = [Label(1, 1, f"r{at}") for at in range(len(questions))]
        alone = []
        for talk, label, question in zip(talks, labels, questions, strict=True):
            await talk.open()
            await ask(talk, question, label)
            alone.append((await answer(talk, label))[0])
        again = [Label(1, 2, label.response_id + "b") for label in labels]
        for talk, label, question in zip(talks, again, questions, strict=True):
            await ask(talk, question, label)
        together = await asyncio.gather(*(answer(talk, label) for talk, label in zip(talks, again, strict=True)))
        assert [text for text, _, _ in together] == alone
        assert len(set(alone)) == len(alone)


@pytest.mark.behaviour("F4", "F9")
async def test_a_cancel_ends_the_answer_and_frees_its_worker() -> None:
    async with serving(LlmEngine(LlmSettings(workers=1, max_sentences=0))) as (client, _):
        talk = client.converse(stage="llm")
        await talk.open()
        await ask(talk, LONG, Label(1, 1, "old"))
        await talk.read("chunk")
        await talk.cancel(1, 2)
        await talk.read("cancelled")
        seen = len(talk.seen)
        await ask(talk, "What is the capital of France?", Label(2, 2, "new"))
        label = Label(2, 2, "new")
        while True:  # chunks that were sent before the cancel may still lie unread
            chunk = (await talk.read("chunk")).chunk
            if chunk.label.response_id == "new" and chunk.last:
                break
        after = [message.chunk for message in talk.seen[seen:] if message.WhichOneof("event") == "chunk"]
        assert {Label.of(chunk.label) for chunk in after} == {label}
        assert "".join(chunk.payload.text.text for chunk in after) == "The capital of France is Paris."


async def test_a_waiting_answer_can_be_cancelled_and_another_session_goes_on() -> None:
    async with serving(LlmEngine(LlmSettings(workers=1, max_sentences=0, max_tokens=80))) as (client, _):
        first, second = client.converse("a", "llm"), client.converse("b", "llm")
        await first.open()
        await second.open()
        await ask(first, LONG, Label(1, 1, "first"))
        await first.read("chunk")
        await ask(second, LONG, Label(1, 1, "second"))
        await second.cancel(1, 2)
        await second.read("cancelled")
        await ask(second, "Where does the sun rise?", Label(2, 1, "third"))
        assert (await answer(first, Label(1, 1, "first")))[1].reason in (STOP, LENGTH)
        text, finish, _ = await answer(second, Label(2, 1, "third"))
        assert "east" in text and finish.reason == STOP


@pytest.mark.behaviour("S2")
async def test_an_overlong_prompt_fails_one_response_only() -> None:
    async with serving(LlmEngine()) as (client, _):
        talk = client.converse(stage="llm")
        await talk.open()
        await ask(talk, "word " * 3000, Label(1, 1, "long"))
        _, finish, _ = await answer(talk, Label(1, 1, "long"))
        assert finish.reason == FAILED
        assert (finish.error.code, finish.error.param) == (stage_pb2.StageError.CODE_LIMIT_EXCEEDED, "context_tokens")
        await ask(talk, "Where does the sun rise?", Label(1, 2, "next"))
        assert "east" in (await answer(talk, Label(1, 2, "next")))[0]


def test_configurations() -> None:
    engine = LlmEngine()
    assert engine.validate({"max_tokens": 5, "max_sentences": 0}) == LlmConfig(5, 0)
    for config, param in (
        ({"x": 1}, "x"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_sentences": -1}, "max_sentences"),
    ):
        with pytest.raises(InvalidConfig) as caught:
            engine.validate(config)
        assert caught.value.param == param


class Thinker:
    """`python -m thinker_svc` as a process."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.ready_file = folder / "ready.json"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PARLEY_") or key == "PARLEY_MODELS"}
        environment |= {"PARLEY_READY_FILE": str(self.ready_file)} | settings
        self.process = subprocess.Popen([sys.executable, "-m", "thinker_svc"], env=environment, stderr=subprocess.PIPE, text=True)

    async def address(self) -> str:
        async with asyncio.timeout(60):
            while not self.ready_file.exists():
                assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
                await asyncio.sleep(0.05)
        return str(json.loads(self.ready_file.read_text())["grpc"])

    async def end(self) -> tuple[int, list[str]]:
        _, errors = await asyncio.to_thread(self.process.communicate, timeout=30)
        return self.process.returncode, errors.splitlines()


async def test_the_process_leaves_cleanly_while_it_answers(tmp_path: Path) -> None:
    thinker = Thinker(tmp_path, PARLEY_DRAIN_S="0", PARLEY_LLM_MAX_SENTENCES="0", PARLEY_LLM_MAX_TOKENS="1500")
    client = StageClient(await thinker.address())
    talk = client.converse(stage="llm")
    await talk.open()
    await ask(talk, LONG, Label(1, 1, "r"))
    await talk.read("chunk")
    thinker.process.send_signal(signal.SIGTERM)
    code, errors = await thinker.end()
    await client.channel.close()
    assert code == 0, errors[-3:]
    assert not any("dragon" in line for line in errors)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PARLEY_MODELS": "/nowhere", "PARLEY_ASR_MODELS": "/nowhere"}, "fetch the models with"),
        ({"PARLEY_LLM": "psychic"}, "setting llm"),
        ({"PARLEY_LLM_WORKERS": "0"}, "setting workers"),
    ],
)
async def test_a_start_that_cannot_be_says_why_in_one_line(tmp_path: Path, settings: dict[str, str], words: str) -> None:
    code, errors = await Thinker(tmp_path, **settings).end()
    assert code == 1
    said = [line for line in errors if not line.startswith("{")]
    assert len(said) == 1 and words in said[0], errors
