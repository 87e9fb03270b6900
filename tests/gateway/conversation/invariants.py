"""What must hold of every effect of a conversation, whatever it was told: checked one effect at a time."""

from __future__ import annotations

from collections import defaultdict

from gateway.conversation import events
from gateway.conversation.effects import Ack, CancelOrder, Effect, Emit, Grant, Order, PromptOrder, Relay, UpdateOrder, Vacate
from gateway.conversation.limits import Limits

_DELTAS = {events.TranscriptDelta: "text", events.TextDelta: "text", events.AudioDelta: "sound"}


class Told:
    """What the client was told of one response."""

    def __init__(self) -> None:
        self.text = ""
        self.arguments: dict[str, str] = {}
        self.items_added: list[str] = []
        self.items_done: dict[int, str] = {}


class Invariants:
    """`see` raises AssertionError at the first effect that breaks a rule."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.seq = 0
        self.live: str | None = None
        self.ended: set[str] = set()
        self.told: dict[str, Told] = {}
        self.item_ids: set[str] = set()
        self.in_history: set[str] = set()
        self.numbers: dict[str, int] = defaultdict(int)
        self.core_edge: dict[str, int] = defaultdict(int)
        self.acks: dict[str, int] = defaultdict(int)
        self.granted = 0
        self.epoch = 1
        self.labels: dict[tuple[int, str], int] = {}
        self.play_end_us = 0.0

    def see(self, effect: Effect, now: int, *, consumed: dict[str, int], rate: int) -> None:
        match effect:
            case Emit(seq, event):
                assert seq == self.seq + 1, "events are numbered without a gap"
                self.seq = seq
                self._event(event, now, rate)
            case Order():
                self._order(effect)
            case Relay():
                assert effect.position > effect.previous
                assert effect.lane == "input" or effect.epoch >= self.epoch, "nothing of a cancelled epoch is passed on"
                key = (effect.epoch, effect.response_id)
                assert not effect.response_id or self.labels.setdefault(key, effect.turn) == effect.turn, "one label a response"
            case Ack(stage, position):
                assert self.acks[stage] < position <= consumed.get(stage, 0), "an ack rises and names consumed outputs only"
                self.acks[stage] = position
            case Grant(_, granted_ms):
                assert granted_ms > self.granted
                self.granted = granted_ms
            case Vacate("vocoder"):
                self.granted = 0  # it counts from the open of its place

    def _order(self, order: Order) -> None:
        assert order.number == self.numbers[order.stage] + 1, "orders of a stage are numbered without a gap"
        self.numbers[order.stage] = order.number
        assert order.previous == self.core_edge[order.stage]
        match order.body:
            case CancelOrder(cancelled, following):
                assert following == cancelled + 1
                self.epoch = max(self.epoch, following)
            case PromptOrder():
                assert order.body.epoch == order.epoch == self.epoch
                self.labels[order.body.epoch, order.body.response_id] = order.body.turn
                assert order.body.messages
        if not isinstance(order.body, CancelOrder | UpdateOrder):
            self.core_edge[order.stage] = order.number

    def _event(self, event: events.Event, now: int, rate: int) -> None:
        match event:
            case events.ResponseCreated(response):
                assert self.live is None, "at most one response is live"
                assert response.id not in self.told, "a response id is never used again"
                self.live = response.id
                self.told[response.id] = Told()
            case events.ResponseDone(response):
                assert response.id == self.live, "one terminal, and only of the live response"
                told = self.told[response.id]
                assert told.items_added == [item.id for item in response.output]
                assert told.items_done == dict(enumerate(told.items_added))
                assert response.usage is not None and response.status != "in_progress"
                assert (response.reason is not None) == (response.status in ("cancelled", "incomplete"))
                assert (response.error_code is not None) == (response.status == "failed")
                self.live = None
                self.ended.add(response.id)
            case events.ItemAdded(item, previous):
                assert previous is None or previous in self.in_history, "the item before is one that the client knows"
                assert item.id not in self.in_history
                self.in_history.add(item.id)
            case events.ItemDone(item, _):
                assert item.id in self.in_history and item.status != "in_progress"
            case events.ItemDeleted(item_id):
                self.in_history.remove(item_id)
            case _:
                self._of_response(event, now, rate)

    def _of_response(self, event: events.Event, now: int, rate: int) -> None:
        response_id = getattr(event, "response_id", None)
        if response_id is None or isinstance(event, events.OutputCleared | events.UnitDecided):
            return
        assert response_id == self.live, "nothing of a response leaves before its beginning or after its end"
        told = self.told[response_id]
        match event:
            case events.OutputItemAdded():
                assert event.item.id not in self.item_ids, "an item id is made once"
                assert event.output_index == len(told.items_added)
                self.item_ids.add(event.item.id)
                told.items_added.append(event.item.id)
            case events.OutputItemDone():
                assert event.item.id == told.items_added[event.output_index]
                assert event.output_index not in told.items_done
                told.items_done[event.output_index] = event.item.id
            case events.TranscriptDelta() | events.TextDelta():
                told.text += event.delta
            case events.TranscriptDone():
                assert event.transcript == told.text, "joined deltas are what done says"
            case events.TextDone():
                assert event.text == told.text, "joined deltas are what done says"
            case events.ArgumentsDelta():
                told.arguments[event.item_id] = told.arguments.get(event.item_id, "") + event.delta
            case events.ArgumentsDone():
                assert event.arguments == told.arguments[event.item_id]
            case events.AudioDelta():
                self._sound(event, now, rate)

    def _sound(self, delta: events.AudioDelta, now: int, rate: int) -> None:
        assert delta.data
        duration = len(delta.data) // 2 * 1_000_000 / rate
        lead = max(0.0, self.play_end_us - now * 1000)
        assert lead == 0 or lead + duration <= self.limits.max_output_lead_ms * 1000 + 1, "sound leaves at most the lead ahead"
        self.play_end_us = now * 1000 + lead + duration

    def silenced(self, now: int) -> None:
        """The listener was told to stop."""
        self.play_end_us = min(self.play_end_us, now * 1000.0)
