"""The engine as the kit sees it: a real checkpoint, real sound and pictures, scripted decisions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parley_stage.v1 import stage_pb2

from minicpmo45.tokens import Tokens
from stage_kit import InvalidConfig, Label, SessionOver
from tests.stage_kit.support import INPUT, RESPONSE, serving
from tests.thinker_svc.minicpmo45.clients import Client, picture, run
from tests.thinker_svc.minicpmo45.thinking import states
from thinker_svc.__main__ import ThinkerSettings, engines
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.script import BadScript, Script
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings

UNITS = [["listen"], ["speak", 65, 66, "chunk_eos"], ["speak", 67, "turn_eos", "chunk_eos"], ["listen"], ["speak", 68, 69, 70, "chunk_eos"]]
PCM_16K = stage_pb2.AudioFormat(encoding=stage_pb2.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=16_000)
Code = stage_pb2.StageError


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> MiniCpmThinkerEngine:
    torch.set_num_threads(1)
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps({"units": UNITS}))
    settings = MiniCpmThinkerSettings(checkpoint=tiny_checkpoint, slots=3, window_tokens=1024, script=script, input_s=20)
    made = MiniCpmThinkerEngine(settings)
    made.load()
    return made


@pytest.fixture
def open_client(engine: MiniCpmThinkerEngine) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def opened(name: str = "one", **config: Any) -> Client:
        made.append(Client(engine, name, **config))
        return made[-1]

    yield opened
    for client in made:
        engine.close(client.slot)
    assert engine._pool.held == 0 and engine._pool.free == engine._pool.pages - 1


def test_a_conversation(open_client: Callable[..., Client]) -> None:
    one, two = open_client("one", voice="HT_ref_audio"), open_client("another", voice="HT_ref_audio")
    one.units(5)
    two.units(2)
    run(one, two)
    assert one.kinds() == [
        *("listen", "unit_done", "speak", "text", "text", "thought", "unit_done", "speak", "text", "text", "thought", "turn_end"),
        *("unit_done", "listen", "unit_done", "speak", "text", "text", "text", "thought", "unit_done"),
    ]
    assert one.receipts() == [1030, 1000, 1000, 1000, 1000] and two.kinds() == one.kinds()[:7]
    thought = one.thoughts()[0]
    assert list(thought.token_ids) == [65, 66] and list(thought.hidden.shape) == [2, 64] and thought.hidden.dtype == stage_pb2.D_TYPE_F32


def test_sound_in_pieces_with_early_pictures_is_the_same_as_at_once(open_client: Callable[..., Client]) -> None:
    sound = 0.1 * np.random.default_rng(5).standard_normal(3030 * 16).astype(np.float32)
    whole, parts = open_client("same!"), open_client("same?")
    whole.sound(3030, sound)
    whole.frame(200)
    whole.frame(1_200, max_slices=2)
    run(whole)
    for begin in range(0, 3030, 30):
        parts.sound(30, sound[begin * 16 : (begin + 30) * 16])
        if begin in (210, 1_230):
            parts.frame(begin - 10, max_slices=1 + (begin > 1000))
        run(parts)
    assert parts.kinds() == whole.kinds() and not parts.errors() and parts.receipts() == [1030, 1000, 1000]
    assert parts.slot.state.table.length == whole.slot.state.table.length == 14 + 66 + 15 + 66 + 14 + parts.slot.state.table.prefix_length
    for ours, theirs in zip(parts.thoughts(), whole.thoughts(), strict=True):
        assert ours.token_ids == theirs.token_ids and (states(ours) - states(theirs)).abs().max() < 1e-5


@pytest.mark.behaviour("N45")
def test_frames_that_are_refused_change_nothing(open_client: Callable[..., Client]) -> None:
    client = open_client()
    client.units(1)
    run(client)
    length = client.slot.state.table.length
    client.frame(1_029)
    client.frame(1_500, b"no picture")
    client.frame(1_500, media_type="image/gif")
    client.frame(1_500, max_slices=10)
    client.frame(12_100)
    run(client)
    assert client.slot.state.table.length == length and client.woken >= 3
    for _ in range(5):
        client.frame(1_500)
    run(client)
    found = [(error.code, error.param) for error in client.errors()]
    assert [param for _, param in found] == [
        *("camera[1].t_ms", "camera[5].t_ms", "camera[2].data", "camera[3].media_type", "camera[4].max_slices", "camera[10].frames"),
    ]
    assert {code for code, _ in found} == {Code.CODE_INVALID_ARGUMENT}
    client.units(1)
    run(client)
    assert client.slot.state.number == 2 and client.slot.state.window.spans[1].length == 4 * 66 + 1 + 10 + 3 + 2


@pytest.mark.behaviour("T5")
def test_silence_goes_on_only_for_the_turn_in_progress_and_only_where_no_sound_came(open_client: Callable[..., Client]) -> None:
    client = open_client()
    client.units(1)
    client.go_on(2_030, Label(0, 1, "t1"))
    run(client)
    assert client.receipts() == [1030], "no turn is open"
    client.units(1)
    client.sound(300)
    run(client)
    for label, end in ((Label(1, 1, "t1"), 3_030), (Label(0, 2, "t2"), 3_030), (Label(0, 1, "t1"), 2_030)):
        client.go_on(end, label)
    run(client)
    assert client.receipts() == [1030, 1000]
    client.go_on(3_030, Label(0, 1, "t1"))
    client.go_on(3_030, Label(0, 1, "t1"))
    run(client)
    assert client.receipts() == [1030, 1000, 300] and client.kinds()[-2:] == ["turn_end", "unit_done"]


def test_a_unit_is_closed_early_once_and_not_while_the_model_speaks(open_client: Callable[..., Client]) -> None:
    client = open_client()
    client.sound(600)
    client.close_unit(1_600)
    client.close_unit(1_600)
    client.frame(650)
    run(client)
    assert client.receipts() == [600] and client.kinds() == ["listen", "unit_done"]
    assert client.slot.state.unit.pictures == 1, "the frame is of the unit behind it"
    assert _decided(client) == [(0, 600)]
    client.sound(400)
    client.skip_silence(600, 800)
    client.skip_silence(600, 800)
    client.sound(800)
    run(client)
    assert client.receipts() == [600, 1000] and client.kinds()[2] == "speak" and _decided(client) == [(0, 600), (800, 1_800)]
    client.sound(300)
    client.close_unit(3_100)
    run(client)
    assert client.receipts() == [600, 1000], "its turn is in progress"
    client.sound(700)
    run(client)
    assert client.kinds()[-2:] == ["turn_end", "unit_done"]
    client.sound(200)
    client.close_unit(3_700)
    run(client)
    assert client.receipts() == [600, 1000, 1000], "of the unit before: real sound completed it"
    client.close_unit(4_000)
    client.cancel()
    run(client)
    assert client.receipts() == [600, 1000, 1000, 200] and not client.errors()


def _decided(client: Client) -> list[tuple[int, int]]:
    """Start and end of the units that were decided."""
    decisions = [output.payload.decision for output in client.outputs if output.payload is not None and output.kind == "decision"]
    return [(decision.t_ms, decision.decided_at_ms) for decision in decisions]


def test_a_cancel_in_mid_turn(open_client: Callable[..., Client]) -> None:
    client = open_client()
    client.units(2)
    session = client.slot.state
    while session.unit is None or len(session.unit.tokens) < 2 or session.number == 0:
        client.engine.step([client.slot])
    client.cancel()
    client.cancel()
    client.units(2)
    run(client)
    assert client.kinds() == ["listen", "unit_done", "speak", "text", "unit_done", "listen", "unit_done", "listen", "unit_done"]
    assert client.outputs[-6].payload is not None and client.outputs[-6].payload.decision.reason == "forced"
    assert [output.label.epoch for output in client.outputs[-6:]] == [2] * 6


def test_a_cancel_that_the_engine_sees_first_in_a_step(open_client: Callable[..., Client]) -> None:
    client = open_client()
    client.units(2)
    run(client)
    client.slot.epoch = 1
    client.units(1)
    run(client)
    assert client.kinds()[-2:] == ["listen", "unit_done"] and client.outputs[-1].label.epoch == 1


def test_sound_that_is_no_number_is_said_and_heard_as_silence(open_client: Callable[..., Client]) -> None:
    client = open_client()
    client.sound(1030, np.full(1030 * 16, math.nan, np.float32))
    run(client)
    assert [(error.code, error.param) for error in client.errors()] == [(Code.CODE_INVALID_ARGUMENT, "client[1].audio")]
    assert client.receipts() == [1030]


def test_more_sound_than_may_wait_ends_the_session(open_client: Callable[..., Client]) -> None:
    client = open_client()
    client.units(19)
    client.sound(970)
    with pytest.raises(SessionOver) as over:
        client.sound(1)
    assert (over.value.slot, over.value.code, over.value.param) == (client.slot, Code.CODE_LIMIT_EXCEEDED, "input_s")


def test_cleared_sound_and_pictures_were_never_there(open_client: Callable[..., Client]) -> None:
    client = open_client()
    client.units(1)
    run(client)
    length = client.slot.state.table.length
    client.frame(1_100)
    client.sound(500)
    run(client)
    assert client.slot.state.table.length > length
    client.engine.cleared(client.slot)
    assert client.slot.state.table.length == length
    client.units(1)
    run(client)
    assert client.receipts() == [1030, 1000] and client.slot.state.gather.start_ms == 2_530
    assert client.slot.state.window.spans[1].length == 1 + 10 + 3 + 2


def test_instructions_hold_from_the_first_unit_on_and_rebuild_the_prefix_until_then(open_client: Callable[..., Client]) -> None:
    client = open_client()
    run(client)
    short = client.slot.state.table.prefix_length
    client.update(instructions="A much longer prompt than before.", voice="HT_ref_audio")
    run(client)
    prefix = client.slot.state.table.prefix_length
    assert prefix > short + 30
    client.units(1)
    run(client)
    client.update(instructions="Another.", temperature=0.2)
    assert [(error.code, error.param) for error in client.errors()] == [(Code.CODE_FAILED_PRECONDITION, "instructions")]
    assert client.slot.state.config.sampling.temperature == 0.2 and client.slot.state.table.prefix_length == prefix
    assert client.slot.state.config.instructions.startswith("A much")


def test_a_stage_placed_anew_reads_what_was_said_and_only_listens_to_what_was_heard(open_client: Callable[..., Client]) -> None:
    client = open_client(previous="Once upon a time.", listen_until_ms=2_100)
    run(client)
    plain = open_client("plain")
    run(plain)
    assert client.slot.state.table.prefix_length > plain.slot.state.table.prefix_length + 10
    client.units(3)
    run(client)
    assert client.kinds() == ["listen", "unit_done", "listen", "unit_done", "speak", "text", "text", "thought", "turn_end", "unit_done"]


def test_a_prefix_that_takes_half_the_window_is_refused(engine: MiniCpmThinkerEngine) -> None:
    with pytest.raises(InvalidConfig, match="instructions: "):
        engine.validate({"instructions": "x" * 600})
    engine.validate({"instructions": "x" * 450})


def test_a_script_that_is_none_is_refused(tmp_path: Path, engine: MiniCpmThinkerEngine) -> None:
    tokens: Tokens = engine._vocabulary.tokens
    file = tmp_path / "script.json"
    for content in (
        "",
        "[]",
        '{"units": []}',
        '{"units": [3]}',
        '{"units": [["nothing"]]}',
        '{"units": [[999999]]}',
        '{"units": [[1]], "stagger": -1}',
    ):
        file.write_text(content)
        with pytest.raises(BadScript):
            Script.read(file, tokens, 151_748, torch.device("cpu"))
    file.write_text('{"units": [["listen"], [null, 5]], "repeat": false, "stagger": 1}')
    script = Script.read(file, tokens, 151_748, torch.device("cpu"))
    slots, units, steps = torch.tensor([0, 0, 1, 0, 0]), torch.tensor([0, 1, 0, 2, 1]), torch.tensor([0, 1, 1, 0, 9])
    assert script(slots, units, steps).tolist() == [tokens.listen, 5, 5, -1, -1]


def test_settings_choose_it(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_THINKER", "minicpmo45")
    monkeypatch.setenv("PARLEY_CHECKPOINT", str(tiny_checkpoint))
    monkeypatch.setenv("PARLEY_THINKER_SLOTS", "2")
    (engine,) = engines(ThinkerSettings())
    assert engine.card.stage == "thinker" and engine.card.slots == 2 and engine.card.kv_bytes == 2 * engine.card.kv_bytes_per_session


@pytest.mark.behaviour("S2")
async def test_through_the_kit(engine: MiniCpmThinkerEngine) -> None:
    """Sound over the wire in, a turn out; a session whose window is full ends by type, the other goes on."""
    config = json.dumps({"force_listen_count": 0, "window": "off"})
    async with serving(engine) as (client, _):
        full, other = client.converse("full", "thinker"), client.converse("other", "thinker")
        for talk in (full, other):
            await talk.open(config, input_format=PCM_16K)
        sent = dict.fromkeys(("full", "other"), 0)

        async def say(talk: Any, name: str, count: int) -> None:
            data = np.zeros(count, "<i2").tobytes()
            audio = stage_pb2.Audio(format=PCM_16K, data=data, samples=count, start_sample=sent[name])
            sent[name] += count
            await talk.append(stage_pb2.Payload(audio=audio), Label(), edge="client", lane=INPUT)

        image = stage_pb2.Image(media_type="image/png", data=picture(900, 900), t_ms=100, max_slices=9)
        for _ in range(4):
            await full.append(stage_pb2.Payload(image=image), Label(), edge="camera", lane=INPUT)
        await say(full, "full", 16_480)
        error = (await full.read("error")).error
        assert (error.code, error.param, error.session_ended) == (Code.CODE_LIMIT_EXCEEDED, "window_tokens", True)
        for count in (16_480, 16_000, 16_000):
            await say(other, "other", count)
        text = ""
        while (chunk := (await other.read("chunk")).chunk).payload.WhichOneof("value") != "thought" or not chunk.last:
            text += chunk.payload.text.text
        assert text == "bcd" and chunk.payload.thought.turn_end and chunk.label.response_id == "t1"
        control = stage_pb2.Control(kind=stage_pb2.Control.KIND_CONTINUE, start_ms=9_999)
        await other.append(stage_pb2.Payload(control=control), Label(0, 1, "t1"), lane=RESPONSE)
        assert [(await other.read("unit_done")).unit_done.unit for _ in range(3)] == [0, 1, 2]
        await other.close()
        await other.read("closed")


def test_bfloat16_from_the_weights_to_the_thoughts(tiny_checkpoint: Path) -> None:
    engine = MiniCpmThinkerEngine(MiniCpmThinkerSettings(checkpoint=tiny_checkpoint, slots=1, window_tokens=512, dtype="bfloat16"))
    engine.load()
    client = Client(engine, "one", temperature=0.5)
    client.frame(10)
    client.units(2)
    run(client)
    assert client.receipts() == [1030, 1000] and not client.errors()
    for thought in client.thoughts():
        assert thought.hidden.dtype == stage_pb2.D_TYPE_BF16 and len(thought.hidden.data) == len(thought.token_ids) * 64 * 2
    engine.close(client.slot)
