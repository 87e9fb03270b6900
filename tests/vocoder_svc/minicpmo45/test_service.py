"""The service as a process: `PARLEY_VOCODER=minicpmo45`."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from parley_stage.v1 import stage_pb2

from tests.talker_svc.support.stage import StageSession, service
from vocoder_svc.__main__ import ServiceSettings, main

FORMAT = stage_pb2.AudioFormat(encoding=stage_pb2.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=24_000)


@pytest.mark.behaviour("X10")
async def test_codes_in_sound_out(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "VOCODER": "minicpmo45",
        "CHECKPOINT": str(checkpoint),
        "VOCODER_SLOTS": "2",
        "VOCODER_VOICES_BYTES": "4000000",
    }.items():
        monkeypatch.setenv(f"PARLEY_{name}", value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    async with service("vocoder_svc", tmp_path) as address, grpc.aio.insecure_channel(address) as channel:
        refused = StageSession(channel, "vocoder", "s0")
        error = await refused.open("talker", {"voice": "nobody"}, FORMAT)
        assert error is not None and error.param.endswith("voice")
        await refused.hang_up()
        session = StageSession(channel, "vocoder", "s1")
        assert await session.open("talker", {}, FORMAT) is None
        await session.credit(60_000)
        label = stage_pb2.Label(epoch=0, turn=1, response_id="t1")
        for last in (False, True):
            await session.append(label, stage_pb2.Payload(codes=stage_pb2.Codes(codes=range(100, 125), rate_hz=25)), last=last)
        chunks = await session.until_last("t1")
        # a turn's first second is filled in front with what the generator keeps
        assert sum(chunk.payload.audio.samples for chunk in chunks) == 3840 + 53 * 960
        assert chunks[-1].finish.reason == stage_pb2.Finish.REASON_STOP
        await session.close()


def test_a_wrong_setting_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setenv("PARLEY_VOCODER", "minicpmo45")
    monkeypatch.setenv("PARLEY_CHECKPOINT", str(tmp_path))
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "config.json" in capsys.readouterr().err
    monkeypatch.setenv("PARLEY_VOCODER_FLOW_STEPS", "11")
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "FLOW_STEPS" in (line := capsys.readouterr().err).upper() and line.count("\n") == 1
    assert ServiceSettings().vocoder == "minicpmo45"
