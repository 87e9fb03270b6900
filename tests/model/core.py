"""The core's transitions: pure, as in gateway/conversation. Each answers the core after it and what it owes."""

from __future__ import annotations

from .model import Model
from .world import DONE, EMPTY, Append, Batch, Core, Event, Message, Order, Output, Place, put


def order(core: Core, stage: int, response: int = 0, next_epoch: int = 0) -> tuple[Core, tuple[Order, ...]]:
    """A numbered command. A stage that is lost is told nothing."""
    if stage in core.lost:
        return core, ()
    number = core.issued[stage] + 1
    epoch = next_epoch - 1 if next_epoch else core.epoch
    told = Order(stage, number, epoch, response, next_epoch)
    return core._replace(issued=put(core.issued, stage, number), outbox=(*core.outbox, told)), (told,)


def emit(core: Core, *events: Event) -> Core:
    return core._replace(seq=core.seq + len(events))


def _end(m: Model, core: Core, event: Event, epoch: int = 0) -> tuple[Core, Batch]:
    """The open response is over, the epoch rises, every stage that works for it is told."""
    ended = core.response
    core = emit(core._replace(response=0, epoch=max(core.epoch + 1, epoch)), event)
    told: tuple[Message, ...] = ()
    for stage in m.answering:
        core, orders = order(core, stage, next_epoch=core.epoch)
        told += orders
    return core, Batch((event,), told, ended)


def obey(m: Model, core: Core, command: int, name: str) -> tuple[Core, Batch]:
    """A client's command, numbered from 1."""
    if m.rules.client_seq and not m.setup.stock and command <= core.client_seq:
        return core, Batch()
    if name != "noise" or m.rules.refused_counts:
        core = core._replace(client_seq=command)
    if name == "noise":
        event = Event("refused", command=command)
        return emit(core, event), Batch((event,))
    if name == "barge" and core.response:
        return _end(m, core, Event("cancelled", core.response, command=command))
    if name == "barge" or core.response:
        event = Event("nothing" if name == "barge" else "refused", command=command)
        return emit(core, event), Batch((event,))
    response = core.responses + 1
    core = core._replace(responses=response, response=response)
    core, told = order(core, m.answering[0], response)
    event = Event("created", response, command=command)
    return emit(core, event), Batch((event,), told)


def hear(m: Model, core: Core, stage: int, output: Output) -> tuple[Core, Batch, tuple[Append, ...]]:
    """An output of a stage: passed on at once if it is of now, then consumed, unless that was done before a takeover."""
    is_current = output.kind != EMPTY and output.epoch >= core.epoch and output.response == core.response > 0
    passed: tuple[Append, ...] = ()
    if m.is_source(stage):
        if is_current:
            core, append = _pass_on(m, core, output)
            passed = (append,)
        elif m.rules.in_flight_ends:
            core = core._replace(in_flight=tuple(p for p in core.in_flight if p != output.position))
    if output.position <= core.consumed[stage]:
        return core, Batch(), passed
    core = core._replace(consumed=put(core.consumed, stage, output.position))
    if not is_current or m.is_source(stage):
        return core, Batch(), passed
    if output.kind == DONE:
        event = Event("done", output.response)
        return emit(core._replace(response=0), event), Batch((event,)), passed
    event = Event("chunk", output.response, output.kind)
    return emit(core, event), Batch((event,)), passed


def _pass_on(m: Model, core: Core, output: Output) -> tuple[Core, Append]:
    position = output.position
    if position <= core.watermark:
        previous = position - 1
    else:
        in_flight = tuple(sorted({*core.in_flight, position}))
        index = in_flight.index(position)
        previous = in_flight[index - 1] if index else core.watermark
        core = core._replace(in_flight=in_flight, sent=max(core.sent, position))
    return core, Append(m.reader, position, previous, output.epoch, output.response, output.kind)


def accepted(core: Core, watermark: int) -> Core:
    """The reader of the edge has everything up to the watermark."""
    if watermark <= core.watermark:
        return core
    in_flight = tuple(p for p in core.in_flight if p > watermark)
    return core._replace(watermark=watermark, sent=max(core.sent, watermark), in_flight=in_flight)


def acknowledgeable(m: Model, core: Core) -> Core:
    """Notes what stages may forget: what the core has consumed and all readers have."""
    marks = list(core.consumed)
    if m.reader and core.in_flight:
        marks[m.source] = min(marks[m.source], core.in_flight[0] - 1)
    return core._replace(acknowledged=tuple(map(max, core.acknowledged, marks)))


def lose(m: Model, core: Core, stage: int, received: int) -> tuple[Core, Batch]:
    """A stage is lost: what needed it fails, and it is placed anew, its positions going on from a base."""
    batch = Batch()
    if stage not in core.lost:
        core = core._replace(lost=(*core.lost, stage))
    if stage in m.answering and core.response:
        core, batch = _end(m, core, Event("failed", core.response))
    base = max(received, core.consumed[stage])
    if m.is_source(stage) and m.rules.base_of_readers:
        base = max(base, core.watermark, core.sent)
    if m.is_source(stage) and m.rules.in_flight_lost:
        core = core._replace(in_flight=tuple(p for p in core.in_flight if p <= received))
    if m.reader and stage == m.reader:
        core = core._replace(watermark=core.sent, in_flight=())
    core = core._replace(
        outbox=tuple(each for each in core.outbox if each.stage != stage),
        consumed=put(core.consumed, stage, base),
        acknowledged=put(core.acknowledged, stage, base),
    )
    place = Place(stage, base if m.rules.base else 0, core.sent if m.reader and stage == m.reader else 0)
    return core, batch._replace(messages=(*batch.messages, place))


def resync(m: Model, core: Core, known_seq: int, epoch: int) -> tuple[Core, Batch]:
    """Something was forgotten: say so, above every number that the client knows, and begin anew above every epoch that a stage knows."""
    if m.rules.resync_numbered:
        core = core._replace(seq=max(core.seq, known_seq))
    event = Event("resync")
    core = emit(core, event) if m.rules.resync_numbered else core
    ended, batch = core.response, Batch()
    if ended:
        core, batch = _end(m, core, Event("failed", ended), epoch)
    elif epoch > core.epoch:
        core, batch = advance(m, core, epoch)
    return core, batch._replace(events=(event, *batch.events))


def advance(m: Model, core: Core, epoch: int) -> tuple[Core, Batch]:
    core = core._replace(epoch=epoch)
    told: tuple[Message, ...] = ()
    for stage in m.answering:
        core, orders = order(core, stage, next_epoch=epoch)
        told += orders
    return core, Batch((), told)
