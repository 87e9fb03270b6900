"""One place for the outcomes of graphs of all sizes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vocoder_svc.minicpmo45.conformer import ConformerContext
from vocoder_svc.minicpmo45.continuation import SoundContext
from vocoder_svc.minicpmo45.flow import FlowContext
from vocoder_svc.minicpmo45.room import Made, Room


def _contexts(rows: int) -> tuple[FlowContext, SoundContext]:
    conformer = ConformerContext(torch.randn(rows, 3, 2), torch.randn(rows, 3, 4))
    sound = SoundContext(torch.randn(rows, 5, 2), torch.randn(rows, 6), torch.randn(rows, 4), torch.rand(rows, 2, dtype=torch.float64))
    return FlowContext(conformer, torch.randn(2, 3, rows, 4)), sound


def _made(rows: int) -> Made:
    return torch.randn(rows, 9), torch.arange(rows) % 2 == 0, *_contexts(rows)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    else:
        for name in getattr(value, "__struct_fields__", ()):
            yield from _tensors(getattr(value, name))


def _all(made: Made) -> list[Tensor]:
    return [tensor for part in made for tensor in _tensors(part)]


def test_smaller_outcomes_lie_where_the_largest_lay() -> None:
    room, large, small = Room(_contexts), _made(5), _made(2)
    first = [each.clone() for each in _all(room.put(large))]
    assert len(first) == 9 and all(torch.equal(found, given) for found, given in zip(first, _all(large), strict=True))
    places = _all(room.put(large))
    for place, found, given in zip(places, _all(room.put(small)), _all(small), strict=True):
        assert torch.equal(found, given) and found.data_ptr() == place.data_ptr()


def test_a_larger_outcome_gets_more_room_and_what_is_in_inference_is_put_anywhere() -> None:
    room = Room(_contexts)
    with torch.inference_mode():
        room.put(_made(1))
        larger = _made(3)
    assert all(torch.equal(found, given) for found, given in zip(_all(room.put(larger)), _all(larger), strict=True))


def test_what_was_given_room_before_it_grew_has_it_still() -> None:
    """A graph of the smaller size writes there whenever it is replayed, and its outcome is read there."""
    room, small, large = Room(_contexts), _made(2), _made(5)
    before = room.put(small)
    after = room.put(large)
    assert all(torch.equal(found, given) for found, given in zip(_all(before), _all(small), strict=True))
    for place in _all(before):
        place.zero_()
    assert all(torch.equal(found, given) for found, given in zip(_all(after), _all(large), strict=True))
    assert not any(place.is_inference() for place in _all(after))
