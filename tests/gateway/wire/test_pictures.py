"""Pictures and voices that clients send: taken at their most, refused by type one step beyond."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gateway.conversation.commands import Frame, InputAppend, ItemCreate, SessionUpdate
from gateway.conversation.config import OverlapPatch, ReferenceVoice
from gateway.wire import WireLimits, openai_ga
from gateway.wire.problems import WireRefusal

JPEG, PNG = b"\xff\xd8\xff\xe0 jpeg", b"\x89PNG\r\n\x1a\n png"
LIMITS = WireLimits(max_image_bytes=1000, max_reference_voice_bytes=2000)


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def parse(**event: Any) -> Any:
    return openai_ga.parse(json.dumps({"event_id": "mine", **event}), LIMITS)


def append(*frames: str, audio: str = "AAAA", **fields: Any) -> Any:
    return parse(type="input_audio_buffer.append", audio=audio, video_frames=list(frames), **fields)


def refusal(read: Any) -> tuple[str, str | None, str | None]:
    with pytest.raises(WireRefusal) as refused:
        read()
    return refused.value.code, refused.value.param, refused.value.client_event_id


@pytest.mark.behaviour("W22")
def test_frames_come_with_sound_or_without() -> None:
    command = append(text(JPEG), text(PNG), max_slice_nums=3, video_frames_t_ms=700)
    assert isinstance(command, InputAppend) and command.audio == b"\x00" * 3 and command.frames_t_ms == 700
    assert command.frames == (Frame("image/jpeg", JPEG, 3), Frame("image/png", PNG, 3))
    alone = append(text(JPEG), audio="")
    assert (alone.audio, alone.frames, alone.frames_t_ms) == (b"", (Frame("image/jpeg", JPEG, 0),), None)
    assert refusal(lambda: append(audio=""))[:2] == ("invalid_field", "audio")


@pytest.mark.behaviour("W22")
@pytest.mark.parametrize(
    ("frames", "code", "param"),
    [
        (["!!"], "invalid_image", "video_frames[0]"),
        ([text(JPEG), text(b"GIF89a....")], "invalid_image", "video_frames[1]"),
        ([text(b"")], "invalid_image", "video_frames[0]"),
        ([text(JPEG)[:-1]], "invalid_image", "video_frames[0]"),
        (["data:image/jpeg;base64," + text(JPEG)], "invalid_image", "video_frames[0]"),
        ([7], "invalid_field", "video_frames[0]"),
    ],
)
def test_what_is_no_picture_is_refused_with_the_clients_event(frames: list[Any], code: str, param: str) -> None:
    assert refusal(lambda: append(*frames)) == (code, param, "mine")


@pytest.mark.behaviour("W22")
@pytest.mark.parametrize("slices", [0, 10, "2", 1.5])
def test_slices_are_counted_from_one_to_nine(slices: Any) -> None:
    assert refusal(lambda: append(text(JPEG), max_slice_nums=slices)) == ("invalid_field", "max_slice_nums", "mine")


@pytest.mark.parametrize("excess", [0, 1, 2, 3, 1000])
def test_a_picture_at_its_most_is_taken_and_one_byte_more_refused(excess: int) -> None:
    data = text(JPEG.ljust(1000 + excess, b"."))
    if not excess:
        assert len(append(data).frames[0].data) == 1000
    else:
        assert refusal(lambda: append(data)) == ("limit_exceeded", "video_frames[0]", "mine")


def image(url: Any) -> Any:
    content = [{"type": "input_image", "image_url": url}]
    return parse(type="conversation.item.create", item={"type": "message", "role": "user", "content": content})


@pytest.mark.behaviour("W22")
def test_a_picture_of_an_item_is_a_data_url() -> None:
    command = image("data:image/jpeg;base64," + text(JPEG))
    assert isinstance(command, ItemCreate) and command.frames == (Frame("image/jpeg", JPEG),)
    assert [part.kind for part in command.item.content] == ["input_image"], "the item keeps no picture"
    for url in (
        "https://elsewhere/cat.png",
        "data:image/jpeg," + text(JPEG),
        "data:;base64,!",
        None,
        "data:image/gif;base64," + text(b"GIF89a"),
    ):
        assert refusal(lambda url=url: image(url)) == ("invalid_image", "item.content[0].image_url", "mine")


def test_a_response_is_asked_about_no_picture() -> None:
    content = [{"type": "input_image", "image_url": "data:image/png;base64," + text(PNG)}]
    items = [{"type": "message", "role": "user", "content": content}]
    assert refusal(lambda: parse(type="response.create", response={"input": items}))[:2] == ("invalid_item", "response.input")


def session(**fields: Any) -> Any:
    return parse(type="session.update", session={"type": "realtime", **fields})


@pytest.mark.behaviour("W23")
@pytest.mark.parametrize("excess", [0, 2])
def test_a_voice_at_its_most_is_taken_and_one_sample_more_refused(excess: int) -> None:
    voice = {"audio": text(b"\x01\x02" * (1000 + excess // 2)), "rate": 24_000}
    if not excess:
        command = session(audio={"output": {"reference_voice": voice}})
        assert isinstance(command, SessionUpdate) and command.patch.reference_voice == ReferenceVoice(b"\x01\x02" * 1000, 24_000)
        assert "\\x01" not in repr(command) and "AQI" not in repr(command)
    else:
        where = "session.audio.output.reference_voice.audio"
        assert refusal(lambda: session(audio={"output": {"reference_voice": voice}})) == ("limit_exceeded", where, "mine")


@pytest.mark.behaviour("W23")
@pytest.mark.parametrize(
    ("voice", "code", "param"),
    [
        ({"audio": "!"}, "invalid_audio", ".audio"),
        ({"audio": ""}, "invalid_field", ".audio"),
        ({"audio": text(b"\x00")}, "invalid_field", ".audio"),
        ({"audio": text(b"\x00\x00"), "rate": 12_345}, "invalid_field", ".rate"),
        ({}, "missing_field", ".audio"),
    ],
)
def test_what_is_no_voice_is_refused(voice: dict[str, Any], code: str, param: str) -> None:
    where = f"session.audio.output.reference_voice{param}"
    assert refusal(lambda: session(audio={"output": {"reference_voice": voice}})) == (code, where, "mine")


def test_overlap_and_options_are_patches() -> None:
    patch = session(overlap={"policy": "model"}, model_options={"temperature": 0.5, "seed": None}).patch
    assert patch.overlap == OverlapPatch("model") and patch.model_options == {"temperature": 0.5, "seed": None}
    cleared = session(audio={"output": {"reference_voice": None}}).patch
    assert cleared.reference_voice is None
    for wrong, param in (
        ({"policy": "shout"}, "policy"),
        ({"short_ack_ms": 5001}, "short_ack_ms"),
        ({"acknowledgements": [""]}, "acknowledgements[0]"),
    ):
        assert refusal(lambda wrong=wrong: session(overlap=wrong)) == ("invalid_field", f"session.overlap.{param}", "mine")
