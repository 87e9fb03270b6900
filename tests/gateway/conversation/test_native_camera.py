"""What the client shows: frames within the open unit, numbered, bounded, refused by type."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.conversation import commands, events
from gateway.conversation.commands import FinishOut, Frame, InputAppend, ItemCreate, Resume
from gateway.conversation.effects import Emit, InputImage
from gateway.conversation.items import Item, Part
from gateway.graph import Graph, load_profile

from .duplex import PROFILE, Duplex, DuplexTale
from .support import World, names, pcm, user_text

pytestmark = pytest.mark.behaviour("W22")
JPEG = Frame("image/jpeg", b"\xff\xd8\xff one")
PNG = Frame("image/png", b"\x89PNG two", 4)


def show(world: Duplex, *frames: Frame, ms: int = 100, t_ms: int | None = None, event_id: str = "mine") -> list[Any]:
    return world.do(InputAppend(audio=pcm(ms), frames=frames, frames_t_ms=t_ms, event_id=event_id))


def seen(world: Duplex) -> list[tuple[int, int, str, int, int]]:
    """(position, previous, type, time, slices) of each frame at the model."""
    images = [(relay, relay.payload) for relay in world.relays("seer") if relay.edge == "camera"]
    return [(r.position, r.previous, i.media_type, i.t_ms, i.max_slices) for r, i in images if isinstance(i, InputImage)]


def test_frames_go_to_the_model_before_the_sound_that_brought_them() -> None:
    world = Duplex()
    world.append(500)
    show(world, JPEG, PNG)
    assert seen(world) == [(1, 0, "image/jpeg", 500, 0), (2, 1, "image/png", 500, 4)]
    assert [relay.edge for relay in world.relays("seer")] == ["client", "camera", "camera", "client"]
    assert {relay.lane for relay in world.relays("seer")} == {"input"}
    assert not [relay for relay in world.relays("turn") if relay.edge == "camera"]


def test_a_frame_without_sound_is_a_frame() -> None:
    world = Duplex()
    world.append(500)
    assert show(world, JPEG, ms=0) == []
    assert seen(world) == [(1, 0, "image/jpeg", 500, 0)] and world.heard_ms == 500


def test_a_picture_of_an_item_is_a_frame_too() -> None:
    world = Duplex()
    world.append(700)
    item = Item("shown", role="user", content=(Part("input_image"),))
    told = world.do(ItemCreate(item=item, frames=(PNG,)))
    assert names(told) == ["ItemAdded", "ItemDone"] and world.history() == [""]
    assert seen(world) == [(1, 0, "image/png", 700, 4)]
    world.do(ItemCreate(item=user_text("and words", "no"), frames=(PNG,)))
    assert world.error.code == "native_unsupported" and len(seen(world)) == 1


def test_a_unit_takes_so_many_frames_and_the_next_as_many_again() -> None:
    world = Duplex()
    show(world, JPEG, PNG, ms=500)
    show(world, JPEG, PNG, ms=500)
    before = world.heard_ms
    told = show(world, JPEG, ms=40, event_id="fifth")
    assert names(told) == ["Error"]
    assert (world.error.code, world.error.param, world.error.client_event_id) == ("too_many_frames", "video_frames", "fifth")
    assert world.heard_ms == before and len(seen(world)) == 4, "refused as a whole"
    world.append(30)
    show(world, JPEG, PNG, JPEG, PNG)
    assert len(seen(world)) == 8 and len(world.of(events.Error)) == 1


@pytest.mark.parametrize(("t_ms", "taken"), [(1029, False), (1030, True), (2029, True), (2030, False), (9999, False)])
def test_a_frame_belongs_to_the_open_unit(t_ms: int, taken: bool) -> None:
    world = Duplex()
    world.append(1200)
    show(world, JPEG, t_ms=t_ms)
    if taken:
        assert [time for *_, time, _ in seen(world)] == [t_ms]
    else:
        assert (world.error.code, world.error.param, world.error.client_event_id) == ("frame_out_of_time", "video_frames_t_ms", "mine")
        assert not seen(world) and world.heard_ms == 1200


@pytest.mark.parametrize("heard_ms", [0, 20, 1020])
def test_the_first_unit_takes_frames_from_its_beginning_on(heard_ms: int) -> None:
    world = Duplex()
    world.append(heard_ms)
    show(world, JPEG, t_ms=0)
    assert [time for *_, time, _ in seen(world)] == [0] and not world.of(events.Error)


def test_the_first_unit_is_longer_and_silence_closes_one() -> None:
    world = Duplex()
    show(world, JPEG, t_ms=1029)
    assert len(seen(world)) == 1
    world.say(1000)
    world.speaks("I see", begins=True)
    world.wait(1500)
    show(world, *[JPEG] * 4)
    assert len(seen(world)) == 5, "what is open is another unit"


def test_a_clear_begins_the_unit_and_its_frames_anew() -> None:
    world = Duplex()
    show(world, *[JPEG] * 4, ms=500)
    world.do(commands.InputClear())
    show(world, *[PNG] * 4)
    assert [position for position, *_ in seen(world)] == list(range(1, 9))
    relays = [relay for relay in world.relays("seer") if relay.edge == "camera"]
    assert [relay.input_generation for relay in relays] == [0] * 4 + [1] * 4, "what the clear overtakes is dropped"


def test_a_frame_that_the_model_refuses_is_told_to_the_event_that_brought_it() -> None:
    world = Duplex()
    show(world, JPEG, event_id="good")
    show(world, PNG, event_id="bad")
    refusal = FinishOut("failed", error_message="not a picture", error_param="camera[2].data")
    world.chunk("seer", last=True, finish=refusal, response_id="")
    assert (world.error.code, world.error.param, world.error.client_event_id) == ("input_refused", "video_frames", "bad")
    unknown = msgspec.structs.replace(refusal, error_param="camera[99].data")
    world.chunk("seer", last=True, finish=unknown, response_id="")
    assert world.error.client_event_id is None and not world.c.state.closing


def test_where_nobody_sees_a_frame_is_refused() -> None:
    blind = Graph(load_profile(PROFILE.replace("inputs: [input]", 'inputs: ["input:audio", "input:control"]'), "blind"))
    world = Duplex(graph=blind)
    show(world, JPEG)
    assert (world.error.code, world.error.param) == ("unsupported_value", "video_frames")
    cascade = World()
    cascade.do(InputAppend(audio=pcm(20), frames=(JPEG,)))
    assert (cascade.error.code, cascade.error.param) == ("unsupported_value", "video_frames")
    cascade.do(ItemCreate(item=Item("", role="user", content=(Part("input_image"),)), frames=(JPEG,)))
    assert cascade.error.code == "invalid_item"


@pytest.mark.behaviour("X1")
def test_after_a_takeover_frames_go_on_behind_what_the_model_has() -> None:
    """Numbered like sound: what the client shows again from the announced number on is seen once."""
    tale = DuplexTale()
    tale.speak(200)
    shown = [msgspec.structs.replace(JPEG, data=bytes([n])) for n in range(3)]
    tale.late = True
    for frame in shown:
        tale.do(InputAppend(audio=b"", frames=(frame,)))
    tale.stages["seer"].arrive(4)  # the epoch, the sound and two frames
    assert tale.stages["seer"].marks["camera"] == 2
    tale.die()
    assert tale.c.input.frames == 2
    tale.do(InputAppend(audio=b"", frames=(shown[2],)))
    tale.settle()
    images = [relay.payload for relay in tale.stages["seer"].relays if relay.edge == "camera"]
    assert [image.data for image in images] == [b"\x00", b"\x01", b"\x02"]
    tale.check()


@pytest.mark.behaviour("X1")
def test_frames_that_come_again_count_once_among_those_of_their_unit() -> None:
    tale = DuplexTale()
    tale.speak(200)
    most = tale.c.limits.max_unit_frames
    shown = [msgspec.structs.replace(JPEG, data=bytes([n])) for n in range(most)]
    tale.late = True
    for frame in shown:
        tale.do(InputAppend(audio=b"", frames=(frame,)))
    tale.stages["seer"].arrive(3)  # the epoch, the sound and one frame
    for stage in tale.stages.values():
        stage.coming.clear()
    tale.c.receive(Resume(tuple(stage.attached() for stage in tale.stages.values()), (), True, tale.checks.seq), tale.now)
    assert tale.c.input.frames == 1 == tale.c.native.frames
    for frame in (*shown[1:], JPEG):
        told = tale.c.receive(InputAppend(audio=b"", frames=(frame,)), tale.now)
        refused = [one.event for one in told if isinstance(one, Emit) and isinstance(one.event, events.Error)]
        assert bool(refused) == (frame is JPEG)
    assert tale.c.input.frames == tale.c.native.frames == most
