"""Core terms to the stage contract and back: nothing is lost on the way, payload bytes are handed over as they are."""

from __future__ import annotations

import pytest
from parley_stage.v1 import stage_pb2 as pb

from gateway import translate
from gateway.conversation import commands as cmd
from gateway.conversation import effects as fx
from gateway.conversation.config import AudioFormat

AUTHORITY = pb.Authority(session_id="sess_1", placement=1, attachment=2, holder_id="h")
FORMATS = [
    (AudioFormat(), pb.AUDIO_ENCODING_PCM_S16LE, 24_000),
    (AudioFormat("pcm", 16_000), pb.AUDIO_ENCODING_PCM_S16LE, 16_000),
    (AudioFormat("pcmu", 8_000), pb.AUDIO_ENCODING_G711_ULAW, 8_000),
    (AudioFormat("pcma", 8_000), pb.AUDIO_ENCODING_G711_ALAW, 8_000),
]


def order(body: fx.OrderBody, number: int = 7, previous: int = 5) -> pb.ToStage:
    return translate.order(fx.Order("any", number, previous, 3, body, 2), AUTHORITY)


@pytest.mark.parametrize(("fmt", "encoding", "rate"), FORMATS)
def test_formats(fmt: AudioFormat, encoding: int, rate: int) -> None:
    made = translate.audio_format(fmt)
    assert (made.encoding, made.sample_rate_hz) == (encoding, rate)


def test_client_audio_becomes_an_append_of_the_input_lane() -> None:
    audio = fx.InputAudio(b"\x01\x02\x03\x04", 2, AudioFormat("pcm", 16_000), 99)
    message = translate.relay(fx.Relay("asr", "client", 4, 3, "input", 2, 1, "", audio, False, 6, 8), AUTHORITY)
    append = message.append
    assert (append.edge, append.position, append.previous, append.lane) == ("client", 4, 3, pb.LANE_INPUT)
    assert (append.input_generation, append.config_generation, append.last) == (6, 8, False)
    assert (append.payload.audio.data, append.payload.audio.samples, append.payload.audio.start_sample) == (audio.data, 2, 99)
    assert (message.label.epoch, message.label.turn, message.label.response_id) == (2, 1, "")
    assert message.command_number == 0 and message.authority == AUTHORITY


@pytest.mark.parametrize(
    "payload",
    [
        pb.Payload(latents=pb.Latents(values=pb.Tensor(dtype=pb.D_TYPE_F32, shape=(1, 2), data=bytes(8)), begins=True)),
        pb.Payload(text=pb.Text(text="grüße")),
        pb.Payload(decision=pb.Decision(kind=pb.Decision.KIND_PAUSE, t_ms=5)),
    ],
)
def test_what_a_stage_said_is_relayed_as_it_came(payload: pb.Payload) -> None:
    chunk = translate.chunk("llm", pb.Chunk(position=3, label=pb.Label(epoch=1, response_id="r"), payload=payload, last=True))
    assert (chunk.stage, chunk.position, chunk.epoch, chunk.response_id, chunk.last) == ("llm", 3, 1, "r", True)
    message = translate.relay(fx.Relay("next", "llm", 3, 2, "response", 1, 1, "r", chunk.wire, chunk.last), AUTHORITY)
    assert message.append.payload == payload and message.append.last and message.append.lane == pb.LANE_RESPONSE


def test_a_note_of_a_unit_comes_with_its_times() -> None:
    note = pb.Payload(unit_note=pb.UnitNote(start_ms=1030, end_ms=2030, data=b"as it likes"))
    chunk = translate.chunk("seer", pb.Chunk(position=3, label=pb.Label(epoch=1, turn=2), payload=note))
    assert chunk.output == cmd.NoteOut(1030, 2030, b"as it likes") and (chunk.response_id, chunk.last) == ("", False)


def test_a_last_output_may_come_alone() -> None:
    chunk = translate.chunk("talker", pb.Chunk(position=1, last=True))
    assert chunk.output is None and chunk.wire is None and chunk.finish is None
    assert not translate.relay(fx.Relay("vocoder", "talker", 1, 0, "response", 1, 1, "r", None, True), AUTHORITY).append.HasField("payload")


def test_orders_on_an_edge_are_numbered_appends() -> None:
    commit = order(fx.CommitOrder("item", 10, 20, 4))
    assert commit.command_number == commit.append.position == 7 and commit.append.previous == 5
    assert commit.append.edge == "core" and commit.append.lane == pb.LANE_INPUT
    assert (commit.append.input_generation, commit.append.config_generation) == (4, 2)
    control = commit.append.payload.control
    assert (control.kind, control.item_id, control.start_ms, control.end_ms) == (pb.Control.KIND_COMMIT, "item", 10, 20)
    clear = order(fx.ClearOrder(9)).append
    assert (clear.payload.control.kind, clear.input_generation, clear.lane) == (pb.Control.KIND_CLEAR, 9, pb.LANE_INPUT)


def test_a_frame_is_an_append_of_its_own_edge() -> None:
    image = fx.InputImage("image/png", b"\x89PNG", 700, 2)
    append = translate.relay(fx.Relay("seer", "camera", 3, 2, "input", 1, 0, "", image, False, 6, 8), AUTHORITY).append
    assert (append.edge, append.position, append.lane, append.input_generation) == ("camera", 3, pb.LANE_INPUT, 6)
    assert append.payload.image == pb.Image(media_type="image/png", data=b"\x89PNG", t_ms=700, max_slices=2)


@pytest.mark.behaviour("T5")
def test_silence_is_asked_for_in_a_turn_of_the_model() -> None:
    message = order(fx.ContinueOrder(2300, 4, 9, 6))
    append = message.append
    assert (append.lane, append.input_generation, append.position, append.previous) == (pb.LANE_INPUT, 6, 7, 5)
    assert (message.label.epoch, message.label.turn, message.label.response_id) == (4, 9, "")
    assert append.payload.control == pb.Control(kind=pb.Control.KIND_CONTINUE, start_ms=2300)


def test_a_unit_is_closed_early_and_silence_passed_over_on_the_lane_of_input() -> None:
    close, skip = order(fx.CloseUnitOrder(2300, 6)).append, order(fx.SkipSilenceOrder(1300, 1500, 6)).append
    assert close.payload.control == pb.Control(kind=pb.Control.KIND_CLOSE_UNIT, start_ms=2300)
    assert skip.payload.control == pb.Control(kind=pb.Control.KIND_SKIP_SILENCE, start_ms=1300, end_ms=1500)
    assert {(each.lane, each.input_generation, each.edge) for each in (close, skip)} == {(pb.LANE_INPUT, 6, "core")}


def test_what_a_native_model_says_has_its_turn_and_its_units() -> None:
    label = pb.Label(epoch=2, turn=5, response_id="t5")
    decision = pb.Payload(decision=pb.Decision(kind=pb.Decision.KIND_SPEAK, t_ms=100, decided_at_ms=1100))
    chunk = translate.chunk("seer", pb.Chunk(position=4, label=label, payload=decision), base=10)
    assert (chunk.position, chunk.epoch, chunk.turn, chunk.response_id) == (14, 2, 5, "t5")
    assert chunk.output == cmd.DecisionOut("speak", 100, 1100)
    assert translate.unit("seer", pb.UnitDone(unit=3, consumed_ms=1000, position=4)) == cmd.StageUnit("seer", 3)
    error = pb.StageError(message="no picture", param="camera[2].data")
    failed = translate.chunk("seer", pb.Chunk(position=5, last=True, finish=pb.Finish(reason=pb.Finish.REASON_FAILED, error=error)))
    assert failed.failed and failed.finish == cmd.FinishOut("failed", 0, 0, "no picture", "camera[2].data")


@pytest.mark.behaviour("F2", "F3")
def test_a_cancel_names_both_epochs() -> None:
    message = order(fx.CancelOrder(3, 4, "turn_detected"))
    assert message.WhichOneof("command") == "cancel" and message.command_number == 7
    assert (message.cancel.cancelled_epoch, message.cancel.next_epoch, message.cancel.reason) == (3, 4, "turn_detected")


def test_an_update_carries_only_the_formats_that_change() -> None:
    update = order(fx.UpdateOrder(3, '{"a":1}', None, AudioFormat("pcmu", 8_000))).update
    assert (update.config_generation, update.config_json) == (3, '{"a":1}')
    assert not update.HasField("input_format") and update.output_format.encoding == pb.AUDIO_ENCODING_G711_ULAW


def test_a_prompt_keeps_roles_calls_and_tools() -> None:
    messages = (
        fx.PromptMessage("system", "be brief"),
        fx.PromptMessage("user", "what time is it"),
        fx.PromptMessage("assistant", "", "call", "clock", '{"zone":"utc"}'),
        fx.PromptMessage("tool", "noon", "call"),
    )
    body = fx.PromptOrder(messages, 64, (fx.PromptTool("clock", "tells the time", "{}"),), "auto", 2, 1, "resp")
    message = order(body)
    assert (message.label.epoch, message.label.turn, message.label.response_id) == (2, 1, "resp")
    assert message.append.last and message.append.lane == pb.LANE_RESPONSE
    prompt = message.append.payload.messages
    assert [(m.role, m.content, m.call_id) for m in prompt.messages] == [
        ("system", "be brief", ""), ("user", "what time is it", ""), ("assistant", "", ""), ("tool", "noon", "call"),
    ]  # fmt: skip
    (call,) = prompt.messages[2].tool_calls
    assert (call.call_id, call.name, call.arguments_json) == ("call", "clock", '{"zone":"utc"}')
    assert (prompt.max_tokens, prompt.tool_choice, prompt.tools[0].name) == (64, "auto", "clock")


def test_outputs() -> None:
    audio = pb.Audio(
        format=pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=24_000),
        data=b"\x00\x01",
        samples=1,
        marks=[pb.Mark(text_chars=5, audio_ms=6, sentence_end=True)],
    )
    assert _output(audio=audio) == cmd.AudioOut(b"\x00\x01", 1, 24_000, (cmd.MarkOut(5, 6, True),))
    assert _output(text=pb.Text(text="hi")) == cmd.TextOut("hi")
    transcript = pb.Transcript(item_id="i", text="t", final=True, audio_start_ms=1, audio_end_ms=2)
    assert _output(transcript=transcript) == cmd.TranscriptOut("i", "t", True, 1, 2)
    stopped = pb.Decision(kind=pb.Decision.KIND_SPEECH_STOPPED, t_ms=3, decided_at_ms=4, reason="silence")
    assert _output(decision=stopped) == cmd.DecisionOut("speech_stopped", 3, 4, "silence")
    assert _output(tool=pb.ToolCall(call_id="c", name="n", arguments_json="{}")) == cmd.ToolOut("c", "n", "{}")
    assert _output(latents=pb.Latents()) == cmd.OpaqueOut("latents")


def _output(**payload: object) -> object:
    return translate.chunk("any", pb.Chunk(position=1, payload=pb.Payload(**payload))).output  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reason", "meant"),
    [(pb.Finish.REASON_STOP, "stop"), (pb.Finish.REASON_LENGTH, "length"), (pb.Finish.REASON_FAILED, "failed")],
)
def test_finishes(reason: pb.Finish.Reason.ValueType, meant: str) -> None:
    finish = pb.Finish(reason=reason, input_tokens=1, output_tokens=2)
    assert translate.chunk("llm", pb.Chunk(position=1, last=True, finish=finish)).finish == cmd.FinishOut(meant, 1, 2, "")


def test_every_decision_of_the_contract_has_a_name() -> None:
    for kind in pb.Decision.Kind.values():
        output = _output(decision=pb.Decision(kind=kind))
        assert isinstance(output, cmd.DecisionOut)
        assert (output.kind == "unknown") == (kind == pb.Decision.KIND_UNSPECIFIED)


def test_receipts_and_refusals() -> None:
    marks = pb.Watermarks(edges={"client": 3, "core": 2}, command_number=2)
    assert translate.accepted("asr", marks) == cmd.StageAccepted("asr", {"client": 3, "core": 2}, 2)
    assert translate.updated("turn", pb.Updated(config_generation=2)) == cmd.StageUpdated("turn", 2)
    refused = pb.Updated(config_generation=2, error=pb.StageError(message="no", param="threshold"))
    assert translate.updated("turn", refused) == cmd.StageUpdated("turn", 2, "no", "threshold")
    error = pb.StageError(message="broke", label=pb.Label(epoch=4, response_id="r"))
    assert translate.failed("llm", error) == cmd.StageFailed("llm", "broke", 4, "r")
