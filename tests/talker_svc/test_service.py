"""The talker as a process, through the contract."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from parley_stage.v1 import stage_pb2, stage_pb2_grpc

from tests.talker_svc.support.stage import ROOT, StageSession, service

pytestmark = pytest.mark.models


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with service("talker_svc", tmp_path) as address, grpc.aio.insecure_channel(address) as channel:
        yield channel


def _text(text: str) -> stage_pb2.Payload:
    return stage_pb2.Payload(text=stage_pb2.Text(text=text))


def _label(epoch: int, response_id: str) -> stage_pb2.Label:
    return stage_pb2.Label(epoch=epoch, turn=1, response_id=response_id)


def _marks(chunks: list[stage_pb2.Chunk]) -> list[int]:
    return [chunk.payload.latents.mark.text_chars for chunk in chunks if chunk.payload.latents.ends]


@pytest.mark.behaviour("S1", "FR65")
async def test_two_sessions_speak_at_once_and_a_cancel_is_clean(channel: grpc.aio.Channel) -> None:
    card = (await stage_pb2_grpc.StageStub(channel).Describe(stage_pb2.DescribeRequest())).stages[0]  # type: ignore[no-untyped-call]
    assert (card.stage, list(card.reads), list(card.makes)) == ("talker", ["text"], ["latents"])
    one, two = StageSession(channel, "talker", "one"), StageSession(channel, "talker", "two")
    await one.open("llm", {"voice": "joe", "speed": 1.2})
    await two.open("llm", {})
    texts = {one: "Grüße, friend 👩‍👩‍👧! It is 3.5 km.", two: "Nothing but sheep. They sleep."}
    for at in range(max(map(len, texts.values()))):
        for session, text in texts.items():
            if at < len(text):
                await session.append(_label(0, "resp"), _text(text[at]), last=at == len(text) - 1)
    for session, text in texts.items():
        chunks = await session.until_last("resp")
        marks = _marks(chunks)
        assert marks == sorted(set(marks)) and marks[-1] == len(text)
        assert [chunk.position for chunk in chunks] == list(range(1, len(chunks) + 1))
        assert chunks[-1].finish.reason == stage_pb2.Finish.REASON_STOP

    await one.append(_label(0, "old"), _text("This is a long answer. It has sentences. And it goes on. And on. And on."))
    await one.cancel(0)
    seen = len(one.events)
    await one.append(_label(1, "new"), _text("Yes."), last=True)
    assert _marks(await one.until_last("new")) == [4]
    assert all(event.chunk.label.response_id == "new" for event in one.events[seen:] if event.HasField("chunk"))
    for session in texts:
        await session.close()


async def test_a_foreign_voice_is_refused_at_open(channel: grpc.aio.Channel) -> None:
    session = StageSession(channel, "talker", "one")
    error = await session.open("llm", {"voice": "alloy"})
    assert error is not None and (error.code, error.param) == (stage_pb2.StageError.CODE_INVALID_ARGUMENT, "voice")
    await session.hang_up()


async def test_a_missing_model_is_told_in_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "PARLEY_MODELS": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "talker_svc", env=environment, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    lines = [line for line in said.decode().splitlines() if line.startswith("talker:")]
    assert process.returncode == 1 and len(lines) == 1 and "parley models fetch" in lines[0]
