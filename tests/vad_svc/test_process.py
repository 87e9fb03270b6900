"""`python -m vad_svc` as a process: 24 kHz client audio in over gRPC, decisions out, exit on SIGTERM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from parley_stage.v1 import stage_pb2, stage_pb2_grpc

from tests.vad_svc.support.audio import recording, silence
from tests.vad_svc.support.harness import Caller
from tests.vad_svc.support.stage_client import ServiceProcess, session
from vad_svc.engine import TurnEngine

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess("vad_svc", tmp_path_factory.mktemp("vad"))
    yield process
    assert process.stop() == 0


def _is_stop(message: stage_pb2.FromStage) -> bool:
    return message.chunk.payload.decision.kind == stage_pb2.Decision.KIND_SPEECH_STOPPED


@pytest.mark.parametrize("mode", ["server_vad", "semantic_vad"])
async def test_decides_over_the_wire_as_the_engine_does(service: ServiceProcess, engine: TurnEngine, mode: str) -> None:
    audio = np.concatenate([silence(500), recording("synth_q_sky_blue"), silence(900), recording("cards_001"), silence(1000)])
    async with session(await service.address(), "turn", ["client"], {"mode": mode}, mode) as stage:
        await stage.audio(audio)
        await stage.until(_is_stop)
        await stage.until(_is_stop)
        decided = [chunk.payload.decision for chunk in stage.chunks]
    expected = Caller(engine, mode=mode).hear(audio)
    assert [stage_pb2.Decision.Kind.Name(d.kind).removeprefix("KIND_").lower() for d in decided] == [d.kind for d in expected]
    assert max(abs(wire.t_ms - alone.t_ms) for wire, alone in zip(decided, expected, strict=True)) <= 32
    assert [d.reason for d in decided] == [d.reason for d in expected]


async def test_silent_client_is_ended_by_the_wall_clock(service: ServiceProcess) -> None:
    """Field report 31: the packets stop in mid-speech."""
    async with session(await service.address(), "turn", ["client"], {"silence_duration_ms": 200}, "s2") as stage:
        await stage.audio(np.concatenate([silence(500), recording("goforward")[:20_000]]))
        stopped = (await stage.until(_is_stop)).chunk.payload.decision
        assert stopped.reason == "timeout"


async def test_refuses_a_bad_configuration(service: ServiceProcess) -> None:
    with pytest.raises(RuntimeError, match="threshold"):
        async with session(await service.address(), "turn", ["client"], {"threshold": 2}, "s3"):
            pass


async def test_card(service: ServiceProcess) -> None:
    async with grpc.aio.insecure_channel(await service.address()) as channel:
        answer = await stage_pb2_grpc.StageStub(channel).Describe(stage_pb2.DescribeRequest())  # type: ignore[no-untyped-call]
    (card,) = answer.stages
    assert (answer.service, card.stage, list(card.reads), list(card.makes)) == ("vad", "turn", ["audio"], ["decision"])
    assert list(card.capabilities) == ["server_vad", "semantic_vad"]


def test_missing_models_are_said_in_one_line(tmp_path: Path) -> None:
    process = ServiceProcess("vad_svc", tmp_path, PARLEY_MODELS=str(tmp_path))
    _, errors = process.process.communicate(timeout=20)
    assert process.process.returncode == 1
    assert "parley models fetch" in errors.strip().splitlines()[-1]
