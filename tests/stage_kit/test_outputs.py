"""Edges, credit and retained outputs, pure."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from parley_stage.v1 import stage_pb2

from stage_kit.credit import Credit
from stage_kit.edges import Arrival, Edges, checksum
from stage_kit.engine import Label
from stage_kit.outputs import OVERHEAD_BYTES, Output, Outputs


def audio(epoch: int, ms: float = 100) -> Output:
    return Output(Label(epoch, 1, "r"), stage_pb2.Payload(audio=stage_pb2.Audio(samples=1)), audio_ms=ms, size=OVERHEAD_BYTES + 100)


class Retention(RuleBasedStateMachine):
    """A stage, and a reader whose connection may break at any point."""

    def __init__(self) -> None:
        super().__init__()
        self.credit = Credit()
        self.outputs = Outputs(self.credit)
        self.epoch = 0
        self.received: dict[int, Output] = {}
        self.first: dict[int, Label] = {}
        self.read = 0
        self.acked = 0

    @rule(old=st.booleans(), spoken=st.booleans())
    def make(self, old: bool, spoken: bool) -> None:
        output = audio(self.epoch - old) if spoken else Output(Label(self.epoch - old, 1, "r"))
        if not output.below(self.epoch):
            self.outputs.add(output)

    @rule(more=st.integers(0, 300))
    def grant(self, more: int) -> None:
        self.credit.grant(self.credit.granted_ms + more)

    @rule()
    def write(self) -> None:
        output = self.outputs.next()
        if output is not None:
            assert output.position == self.read + 1, "a hole"
            assert not output.below(self.epoch), "stale"
            self.read = output.position
            self.received[output.position] = output

    @rule(back=st.integers(0, 5))
    def reconnect(self, back: int) -> None:
        self.read = max(self.acked, self.read - back)
        for position in [each for each in self.received if each > self.read]:
            del self.received[position]
        self.outputs.attach(self.read)

    @rule()
    def ack(self) -> None:
        self.outputs.ack(self.read)
        self.acked = self.read

    @rule()
    def cancel(self) -> None:
        self.epoch += 1
        self.outputs.purge(self.epoch)

    @invariant()
    def credit_holds(self) -> None:
        assert self.credit.sent_ms <= self.credit.granted_ms + 1e-6
        assert self.outputs.kept_bytes >= 0
        assert self.outputs.first_kept == self.acked + 1
        if not len(self.outputs):
            assert self.outputs.kept_bytes == 0


Retention.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_retention = Retention.TestCase


def test_sent_audio_that_a_cancel_took_back_is_refunded_at_the_attach() -> None:
    credit = Credit()
    outputs = Outputs(credit)
    credit.grant(200)
    for _ in range(3):
        outputs.add(audio(0))
    assert [outputs.next() is not None for _ in range(3)] == [True, True, False]
    assert outputs.is_waiting_for_credit()
    outputs.purge(1)
    outputs.attach(consumed=1)  # the second never arrived
    assert credit.sent_ms == 100
    empty = outputs.next()
    assert empty is not None and empty.position == 2 and empty.kind == "empty"


def test_sound_that_only_a_forgotten_reader_had_is_refunded_once() -> None:
    """A reader whose own record was lost starts again from what it knows: the credit that it grants counts from there, too."""
    credit = Credit()
    outputs = Outputs(credit)
    credit.grant(500)
    for _ in range(5):
        outputs.add(audio(0))
        outputs.next()
    outputs.ack(4)
    for _ in range(2):
        outputs.attach(consumed=1)
        assert credit.sent_ms == 200  # the one that it knows of, and the one that comes again
    again = outputs.next()
    assert again is not None and again.position == 5


def test_a_receipt_comes_again_behind_its_output() -> None:
    outputs = Outputs(Credit())
    outputs.add(Output(Label()))
    outputs.add(Output(Label(), unit=stage_pb2.UnitDone(unit=0)))
    assert [outputs.next().kind, outputs.next().kind] == ["empty", "unit_done"]
    outputs.ack(1)
    outputs.attach(consumed=1)
    receipt = outputs.next()
    assert receipt is not None and receipt.unit is not None and receipt.unit.position == 1
    assert outputs.next() is None and outputs.kept_bytes == 0


def test_hearing_is_never_cancelled() -> None:
    decision, text = stage_pb2.Payload(decision=stage_pb2.Decision()), stage_pb2.Payload(text=stage_pb2.Text())
    assert not Output(Label(), decision).below(9)
    assert not Output(Label(), stage_pb2.Payload(unit_note=stage_pb2.UnitNote())).below(9)
    assert Output(Label(), text).below(9)
    assert Output(Label(1, 1, "r"), decision).below(9)


@pytest.mark.behaviour("A2")
def test_edges_judge_without_counting() -> None:
    edges = Edges({"llm": 4})
    payload = stage_pb2.Payload(audio=stage_pb2.Audio(data=b"ab"))
    append = stage_pb2.Append(edge="client", position=1, payload=payload, checksum=checksum(payload))
    assert edges.judge(append) is edges.judge(append) is Arrival.NEXT
    edges.accept(append)
    assert edges.judge(append) is Arrival.DUPLICATE
    append.checksum ^= 1
    assert edges.judge(append) is Arrival.CORRUPT
    assert edges.judge(stage_pb2.Append(edge="client", position=2, checksum=7, payload=payload)) is Arrival.CORRUPT
    assert edges.judge(stage_pb2.Append(edge="llm", position=4)) is Arrival.DUPLICATE
    assert edges.judge(stage_pb2.Append(edge="llm", position=6, previous=5)) is Arrival.GAP
    assert edges.snapshot() == {"llm": 4, "client": 1}


@pytest.mark.parametrize("label", [Label(), Label(3, 2, "r")])
@pytest.mark.parametrize("payload", [None, stage_pb2.Payload(), stage_pb2.Payload(audio=stage_pb2.Audio(data=b"ab", samples=1))])
@pytest.mark.parametrize("finish", [None, stage_pb2.Finish(), stage_pb2.Finish(reason=stage_pb2.Finish.REASON_STOP)])
def test_a_message_says_all_of_an_output_and_what_is_empty_is_there(
    label: Label, payload: stage_pb2.Payload | None, finish: stage_pb2.Finish | None
) -> None:
    last = finish is not None
    chunk = stage_pb2.Chunk(position=7, label=label.proto(), payload=payload, last=last, finish=finish)
    assert Output(label, payload, last, finish, position=7).message() == stage_pb2.FromStage(chunk=chunk)
