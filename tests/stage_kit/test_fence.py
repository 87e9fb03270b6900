"""The fence table, exhaustively on a small world and by random walks."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_kit.fence import INPUT, RESPONSE, Authority, Fence, FenceTable, Ruling

SMALL = range(3)


@pytest.mark.behaviour("F1")
def test_an_authority_is_immutable_and_equal_by_value() -> None:
    who = Authority("s", 1, 2, "g")
    assert who == Authority("s", 1, 2, "g") and hash(who) == hash(Authority("s", 1, 2, "g"))
    with pytest.raises(AttributeError):
        who.placement = 3  # type: ignore[misc]


@pytest.mark.behaviour("F5")
def test_a_command_needs_exactly_the_attachment_and_changes_nothing_when_refused() -> None:
    for placement, attachment, holder in itertools.product(SMALL, SMALL, "gh"):
        fence = Fence(1, 1, "g")
        before = msgspec.structs.asdict(fence)
        ruling = fence.command(Authority("s", placement, attachment, holder))
        if placement != 1 or attachment < 1 or (attachment == 1 and holder != "g"):
            assert ruling is Ruling.STALE
        elif attachment > 1:
            assert ruling is Ruling.NOT_ATTACHED
        else:
            assert ruling is Ruling.OBEY
        assert msgspec.structs.asdict(fence) == before


def test_only_an_attach_raises_the_attachment_and_nothing_lowers_it() -> None:
    for placement, attachment, holder in itertools.product(SMALL, SMALL, "gh"):
        fence = Fence(1, 1, "g")
        ruling = fence.attach(Authority("s", placement, attachment, holder))
        allowed = placement == 1 and (attachment > 1 or (attachment == 1 and holder == "g"))
        assert (ruling is Ruling.OBEY) == allowed
        assert (fence.attachment, fence.holder_id) == ((attachment, holder) if allowed else (1, "g"))


def test_a_release_is_obeyed_from_the_holder_and_from_anyone_above() -> None:
    for placement, attachment, holder in itertools.product(SMALL, SMALL, "gh"):
        above = placement > 1 or (placement == 1 and attachment > 1)
        same = (placement, attachment, holder) == (1, 1, "g")
        assert (Fence(1, 1, "g").release(Authority("s", placement, attachment, holder)) is Ruling.OBEY) == (above or same)


@pytest.mark.behaviour("F2", "F3", "F4")
def test_a_cancel_never_moves_the_epoch_back_and_needs_a_next() -> None:
    for epoch, cancelled, following in itertools.product(range(4), repeat=3):
        fence = Fence(1, 1, "g", epoch=epoch)
        ruling = fence.cancel(cancelled, following)
        if following <= cancelled:
            assert ruling is Ruling.NO_NEXT and fence.epoch == epoch
        elif following <= epoch:
            assert ruling is Ruling.DUPLICATE and fence.epoch == epoch
        else:
            assert ruling is Ruling.OBEY and fence.epoch == following
        for label_epoch in range(4):
            assert (fence.append(RESPONSE, label_epoch, 0) is Ruling.DISCARD) == (label_epoch < fence.epoch)


def test_each_lane_has_its_own_fence() -> None:
    for epoch, generation, stage_epoch, stage_generation in itertools.product(SMALL, repeat=4):
        fence = Fence(1, 1, "g", epoch=stage_epoch, input_generation=stage_generation)
        assert (fence.append(INPUT, epoch, generation) is Ruling.DISCARD) == (generation < stage_generation)
        assert (fence.append(RESPONSE, epoch, generation) is Ruling.DISCARD) == (epoch < stage_epoch)


@pytest.mark.behaviour("F7", "F8")
@given(
    st.lists(st.tuples(st.sampled_from(["open", "attach", "end", "forget"]), st.integers(1, 4), st.integers(1, 3), st.sampled_from("gh")))
)
def test_the_table_never_goes_back(steps: list[tuple[str, int, int, str]]) -> None:
    table = FenceTable(remembered=8)
    highest_ended = 0
    for action, placement, attachment, holder in steps:
        before = table.get("s")
        known = (before.placement, before.attachment) if before is not None else (0, 0)
        who = Authority("s", placement, attachment, holder)
        if action == "open":
            ruling, fence = table.open(who)
            if ruling is Ruling.OBEY:
                assert placement > highest_ended and placement > known[0]
            assert (fence is None) == (ruling not in (Ruling.OBEY, Ruling.DUPLICATE))
        elif action == "attach":
            ruling, fence = table.attach(who)
            assert (ruling is Ruling.OBEY) == (fence is not None)
        elif action == "end":
            table.end("s", placement)
            highest_ended = max(highest_ended, placement)
        else:
            table.forget("s", placement)
        after = table.get("s")
        if before is not None and after is not None:
            assert (after.placement, after.attachment) >= known


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6))))
def test_a_number_is_obeyed_once(steps: list[tuple[bool, int]]) -> None:
    fence, obeyed = Fence(1, 1, "g"), []
    for turned_back, number in steps:
        if fence.number(number) is Ruling.DUPLICATE:
            continue
        if turned_back:
            fence.turned_back(number)
        else:
            fence.obeyed(number)
            obeyed.append(number)
    assert len(obeyed) == len(set(obeyed))
    assert fence.number(0) is Ruling.OBEY


def test_the_memory_of_ended_placements_is_bounded() -> None:
    table = FenceTable(remembered=2)
    for name in ("a", "b", "c"):
        table.end(name, 5)
    assert table.open(Authority("a", 5, 1, "g"))[0] is Ruling.OBEY
    assert table.open(Authority("c", 5, 1, "g"))[0] is Ruling.STALE
