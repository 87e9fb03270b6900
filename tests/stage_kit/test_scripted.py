"""The scripted stages: a whole reply through llm, talker and vocoder, checked sample by sample; hearing from real samples."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from parley_stage.v1 import stage_pb2

from stage_kit import Label
from stage_kit.scripted import engines, ramp, reply
from tests.stage_kit.support import INPUT, PCM_24K, WAIT_S, Conversation, StageClient, serving

Decision = stage_pb2.Decision


async def relay(source: Conversation, target: Conversation, edge: str) -> None:
    """What a gateway does with a stage's outputs."""
    async with asyncio.timeout(WAIT_S):
        while True:
            chunk = (await source.read("chunk")).chunk
            payload = chunk.payload if chunk.HasField("payload") else None
            await target.append(payload, Label.of(chunk.label), edge=edge, position=chunk.position, last=chunk.last)
            await source.send(ack=stage_pb2.Ack(position=chunk.position))
            if chunk.last:
                return


async def speak(client: StageClient, session: str, words: int) -> tuple[np.ndarray, list[int]]:
    """The samples of one reply and where its marks say that its words end."""
    llm, talker, vocoder = (client.converse(session, stage) for stage in ("llm", "talker", "vocoder"))
    await llm.open(f'{{"words": {words}}}')
    await talker.open()
    await vocoder.open(output_format=PCM_24K)
    await vocoder.send(credit=stage_pb2.Credit(granted_ms=600_000))
    prompt = stage_pb2.Messages(messages=[stage_pb2.Message(role="user", content="hello")])
    await llm.append(stage_pb2.Payload(messages=prompt), Label(0, 1, f"resp-{session}"), last=True)
    relays = [asyncio.create_task(relay(llm, talker, "llm")), asyncio.create_task(relay(talker, vocoder, "talker"))]
    data, marks, read = b"", [], 0
    while True:
        chunk = (await vocoder.read("chunk")).chunk
        assert chunk.label.response_id == f"resp-{session}"
        if chunk.HasField("payload"):
            assert chunk.payload.audio.start_sample == read
            read += chunk.payload.audio.samples
            data += chunk.payload.audio.data
            marks += [mark.text_chars for mark in chunk.payload.audio.marks]
        if chunk.last:
            break
    await asyncio.gather(*relays)
    return np.frombuffer(data, "<i2"), marks


@pytest.mark.behaviour("S1", "L10")
async def test_replies_are_exact_and_never_mix() -> None:
    async with serving(*engines("all")) as (client, _):
        sessions = {f"s{index}": index + 3 for index in range(6)}
        spoken = await asyncio.gather(*(speak(client, session, words) for session, words in sessions.items()))
        for (session, words), (samples, marks) in zip(sessions.items(), spoken, strict=True):
            assert np.array_equal(samples, ramp(session, 0, words * 32 * 256))
            text = reply(f"resp-{session}", words)
            assert marks == np.cumsum([len(word) for word in text]).tolist()


async def hear(talk: Conversation, samples: np.ndarray) -> None:
    for start in range(0, len(samples), 480):
        part = samples[start : start + 480]
        audio = stage_pb2.Audio(format=PCM_24K, data=part.astype("<i2").tobytes(), samples=len(part), start_sample=start)
        await talk.append(stage_pb2.Payload(audio=audio), Label(), edge="client", lane=INPUT)


async def test_turns_follow_the_real_samples() -> None:
    silence, voice = np.zeros(24000 // 2), 8000 * np.sin(np.arange(24000 // 2) * 0.1)
    signal = np.concatenate([silence, voice, silence[:7200], voice, silence, silence])
    async with serving(*engines("vad")) as (client, _):
        talk = client.converse(stage="turn")
        await talk.open(input_format=PCM_24K)
        await hear(talk, signal)
        decisions = [(await talk.read("chunk")).chunk.payload.decision for _ in range(5)]
    kinds = [decision.kind for decision in decisions]
    assert kinds == [
        Decision.KIND_SPEECH_STARTED,
        Decision.KIND_PAUSE,
        Decision.KIND_SPEECH_RESUMED,
        Decision.KIND_PAUSE,
        Decision.KIND_SPEECH_STOPPED,
    ]
    assert [decision.t_ms for decision in decisions] == pytest.approx([500, 1000, 1300, 1800, 1800], abs=20)
    assert decisions[-1].decided_at_ms - decisions[-1].t_ms == 500


async def test_a_commit_says_what_was_heard() -> None:
    async with serving(*engines("thinker")) as (client, _):
        talk = client.converse(stage="asr")
        await talk.open(input_format=PCM_24K)
        await hear(talk, np.zeros(24000))
        for item, start_ms, end_ms, heard in (("i1", 100, 900, 800), ("i2", 900, 1500, 100)):
            commit = stage_pb2.Control(kind=stage_pb2.Control.KIND_COMMIT, item_id=item, start_ms=start_ms, end_ms=end_ms)
            await talk.append(stage_pb2.Payload(control=commit), Label(0, 1), lane=INPUT)
            transcript = (await talk.read("chunk")).chunk.payload.transcript
            assert (transcript.item_id, transcript.text, transcript.final) == (item, f"heard {heard} ms", True)
