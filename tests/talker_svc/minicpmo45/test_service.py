"""The talker as a process, with this engine."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from parley_stage.v1 import stage_pb2, stage_pb2_grpc

from talker_svc.__main__ import main
from tests.talker_svc.minicpmo45.support.harness import payload
from tests.talker_svc.support.stage import StageSession, service


async def test_a_turn_over_the_wire(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "PARLEY_TALKER": "minicpmo45",
        "PARLEY_CHECKPOINT": str(tiny_checkpoint),
        "PARLEY_TALKER_TAIL_CODES": "40",
        "OMP_NUM_THREADS": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    async with service("talker_svc", tmp_path) as address, grpc.aio.insecure_channel(address) as channel:
        card = (await stage_pb2_grpc.StageStub(channel).Describe(stage_pb2.DescribeRequest())).stages[0]  # type: ignore[no-untyped-call]
        assert (card.engine, list(card.reads), list(card.makes)) == ("minicpmo45", ["thought"], ["codes"])
        assert card.kv_bytes == card.slots * card.kv_bytes_per_session > 0
        session, refused = StageSession(channel, "talker", "one"), StageSession(channel, "talker", "two")
        error = await refused.open("thinker", {"temperature": 9})
        assert error is not None and (error.code, error.param) == (stage_pb2.StageError.CODE_INVALID_ARGUMENT, "temperature")
        assert await session.open("thinker", {"seed": 7}) is None
        label = stage_pb2.Label(epoch=0, turn=1, response_id="t1")
        await session.append(label, payload(4, 1))
        await session.append(label, payload(3, 2, turn_end=True), last=True)
        chunks = await session.until_last("t1")
        assert [len(chunk.payload.codes.codes) for chunk in chunks] == [25, 25, 15]
        assert chunks[-1].finish.output_tokens == 65
        await session.close()
        await refused.hang_up()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"PARLEY_TALKER": "other"}, "setting talker"),
        ({"PARLEY_TALKER": "minicpmo45"}, "setting PARLEY_CHECKPOINT"),
        ({"PARLEY_TALKER": "minicpmo45", "PARLEY_CHECKPOINT": "nowhere"}, "nowhere: no such folder"),
        ({"PARLEY_TALKER": "minicpmo45", "PARLEY_CHECKPOINT": "nowhere", "PARLEY_TALKER_POSITIONS": "9"}, "setting positions"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(
    settings: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as exited:
        main()
    lines = capsys.readouterr().err.splitlines()
    assert exited.value.code == 1 and len(lines) == 1 and lines[0].startswith("talker: ") and said in lines[0]
