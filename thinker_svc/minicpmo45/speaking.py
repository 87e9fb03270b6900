"""What leaves the stage: decisions, text, thoughts, notes, receipts."""

from __future__ import annotations

import torch
from parley_stage.v1 import stage_pb2
from torch import Tensor

from stage_kit import Label, Slot
from thinker_svc.minicpmo45.note import packed
from thinker_svc.minicpmo45.session import OpenUnit, Session

UNIT_S = 1.0
_DTYPES = {torch.float32: stage_pb2.D_TYPE_F32, torch.float16: stage_pb2.D_TYPE_F16, torch.bfloat16: stage_pb2.D_TYPE_BF16}


def decided(slot: Slot, session: Session, token: int, *, ended: bool) -> None:
    """A token of the open unit was decided: tells what the unit does with its first, and the text of the later ones."""
    unit, tokens = session.unit, session.tokens
    assert unit is not None
    first = not unit.tokens
    unit.tokens.append(token)
    if first:
        if session.turn_label is not None or not (ended or token == tokens.turn_eos):
            _speaks(slot, session, unit)
        else:
            _decide(slot, unit, stage_pb2.Decision.KIND_LISTEN, Label(unit.epoch, session.turn), "forced" if unit.listens else "")
        return
    if ended or not unit.speaks:
        return
    label = session.turn_label
    assert label is not None
    if session.vocabulary.is_text(token):
        unit.said.append(token)
    closes = token == tokens.turn_eos
    text = session.text.push(token)
    if closes:
        text += session.text.flush()
    if text or closes:
        payload = stage_pb2.Payload()
        # half the time of a message that is made first and copied in
        payload.text.text = text
        slot.emit(payload, label, last=closes)


def finish_unit(slot: Slot, session: Session, unit: OpenUnit, hidden: Tensor | None = None, now: float = 0.0) -> None:
    """A unit of new sound is over. `hidden` [at least the tokens, hidden] on the host, by the number of the token: what a speaking unit
    passes on; None: it was broken off, or listened."""
    label = session.turn_label
    if hidden is not None and unit.speaks and label is not None:
        ends = session.tokens.turn_eos in unit.tokens
        slot.emit(_thought(unit.tokens[1:-1], hidden[1 : len(unit.tokens) - 1], ends=ends), label, last=ends)
        session.sound_until = max(session.sound_until, now) + UNIT_S
        if ends:
            _decide(slot, unit, stage_pb2.Decision.KIND_TURN_END, label)
            session.turn_label = None
    assert unit.heard is not None
    noted = packed(unit.number, unit.fed, unit.drawn)
    note = stage_pb2.UnitNote(start_ms=unit.heard.start_ms, end_ms=unit.heard.end_ms, data=noted)
    slot.emit(stage_pb2.Payload(unit_note=note), Label(slot.epoch, session.turn))
    heard, receipt = unit.heard, label or Label(unit.epoch, session.turn)
    slot.unit_done(session.receipts, heard.consumed_ms, receipt, complete_at=heard.complete_at)
    session.receipts += 1


def _speaks(slot: Slot, session: Session, unit: OpenUnit) -> None:
    unit.speaks = True
    if session.turn_label is None:
        session.turn += 1
        unit.opened_turn = True
        session.turn_label = Label(unit.epoch, session.turn, f"t{session.turn}")
        session.text.reset()
        session.sound_until = 0.0
    _decide(slot, unit, stage_pb2.Decision.KIND_SPEAK, session.turn_label)


def _decide(slot: Slot, unit: OpenUnit, kind: stage_pb2.Decision.Kind, label: Label, reason: str = "") -> None:
    assert unit.heard is not None
    slot.decide(kind, unit.heard.start_ms, decided_at_ms=unit.heard.end_ms, label=label, reason=reason)


def _thought(tokens: list[int], states: Tensor, *, ends: bool) -> stage_pb2.Payload:
    payload = stage_pb2.Payload()
    # a message that is made first is copied into its parent, and states are long
    thought = payload.thought
    thought.token_ids.extend(tokens)
    thought.turn_end = ends
    thought.hidden.dtype = _DTYPES[states.dtype]
    thought.hidden.shape.extend(states.shape)
    if len(states):
        thought.hidden.data = states.contiguous().view(torch.uint8).numpy().tobytes()
    return payload
