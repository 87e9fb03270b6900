"""Recordings through the whole input path (24 kHz client audio, the kit, real turn decisions) against the recognizer alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import jiwer
import numpy as np
import pytest
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from stage_kit import Service, Settings
from tests.thinker_svc.support.hearing import TRANSCRIPTS, recording, silence, words
from tests.vad_svc.support.stage_client import ServiceProcess, StageSession, session
from thinker_svc.embedded.asr import AsrEngine
from thinker_svc.embedded.models import models_root
from thinker_svc.embedded.moonshine import Moonshine

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def vad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess("vad_svc", tmp_path_factory.mktemp("vad"))
    yield process
    assert process.stop() == 0


@pytest.fixture
async def asr() -> AsyncIterator[str]:
    """Address of a kit that serves stage `asr`."""
    if not (models_root() / "moonshine-tiny").exists():
        pytest.skip("the models are not here")
    service = Service("thinker", [AsrEngine()], Settings())
    await service.start()
    yield service.address
    await service.stop()


def _is_stop(message: stage_pb2.FromStage) -> bool:
    return message.chunk.payload.decision.kind == stage_pb2.Decision.KIND_SPEECH_STOPPED


async def _hear(turn: StageSession, asr: StageSession, audio: NDArray[np.float32], item_id: str) -> stage_pb2.Transcript:
    """What the gateway does with one utterance: relays audio and decisions, commits at the stop, reads the one final transcript."""
    relayed = len(turn.chunks)
    await turn.audio(audio)
    await asr.audio(audio)
    await turn.until(_is_stop)
    decisions = [chunk.payload.decision for chunk in turn.chunks[relayed:]]
    for decision in decisions:
        await asr.append("turn", stage_pb2.Payload(decision=decision))
    start_ms, end_ms = decisions[0].t_ms, decisions[-1].t_ms
    control = stage_pb2.Control(kind=stage_pb2.Control.KIND_COMMIT, item_id=item_id, start_ms=start_ms, end_ms=end_ms)
    await asr.append("core", stage_pb2.Payload(control=control))
    return (await asr.until(lambda message: message.chunk.payload.transcript.final)).chunk.payload.transcript


async def test_word_error_rate_of_the_input_path(vad: ServiceProcess, asr: str) -> None:
    alone, model = [], Moonshine()
    heard = []
    async with session(await vad.address(), "turn", ["client"], {}) as turn, session(asr, "asr", ["client", "turn", "core"], {}) as ears:
        for name in TRANSCRIPTS:
            audio = recording(name)
            alone.append(words(model.transcribe(audio).text))
            final = await _hear(turn, ears, np.concatenate([silence(500), audio, silence(900)]), name)
            assert final.item_id == name
            heard.append(words(final.text))
        partials = [chunk.payload.transcript for chunk in ears.chunks if not chunk.payload.transcript.final]
    references = list(TRANSCRIPTS.values())
    assert jiwer.wer(references, heard) <= jiwer.wer(references, alone) + 0.03
    assert not any(partial.item_id for partial in partials)


async def test_a_hesitation_is_one_item(vad: ServiceProcess, asr: str) -> None:
    """The speaker stops at "because, um" for 0.6 s and goes on: Smart Turn waits, the early result is taken back."""
    hesitation = recording("synth_incomplete_um_because")
    audio = np.concatenate([silence(500), hesitation, silence(600), recording("goforward"), silence(2500)])
    config = {"mode": "semantic_vad"}
    async with (
        session(await vad.address(), "turn", ["client"], config, "um") as turn,
        session(asr, "asr", ["client", "turn", "core"], {}) as ears,
    ):
        final = await _hear(turn, ears, audio, "item_1")
        kinds = [chunk.payload.decision.kind for chunk in turn.chunks]
    assert stage_pb2.Decision.KIND_SPEECH_RESUMED in kinds
    assert words(final.text).startswith("i think we should go there because")
    assert words(final.text).endswith("meters")
