"""Retained outputs of one session: positions from 1 without holes, kept until acknowledged. Pure; lives on the event loop.

A position is given when an output first leaves. So a cancelled output that never left needs none; one that may have left keeps its position
as an empty chunk (payload unset, not last, a label with nothing but the stage's epoch), and no reader ever meets a hole.
"""

from __future__ import annotations

from collections import deque

import msgspec
from parley_stage.v1 import stage_pb2

from stage_kit.credit import Credit
from stage_kit.engine import Label

OVERHEAD_BYTES = 64
REMEMBERED_RECEIPTS = 64
REMEMBERED_ACKS = 4096
"""Acknowledged outputs with sound whose length is known, in case that who acknowledged them is forgotten."""
_UNFENCED = frozenset({"decision", "transcript", "unit_note"})


class Output(msgspec.Struct):
    """One output on its way. `size` is what it counts against the bound on kept bytes."""

    label: Label
    payload: stage_pb2.Payload | None = None
    last: bool = False
    finish: stage_pb2.Finish | None = None
    audio_ms: float = 0.0
    unit: stage_pb2.UnitDone | None = None
    size: int = OVERHEAD_BYTES
    position: int = 0
    made_at: float = 0.0
    """Monotonic second at which it reached the event loop."""
    since: float = 0.0
    """Monotonic second from which its making is measured: of a unit's receipt when the unit was complete, of a response's first output when
    the response's first append came; 0.0: not measured."""

    def below(self, epoch: int) -> bool:
        """True when a stage at this epoch must not send it. What is of the input, without a response, is never cancelled."""
        if self.label.epoch >= epoch or self.unit is not None:
            return False
        kind = self.payload.WhichOneof("value") if self.payload is not None else None
        return bool(self.label.response_id) or kind not in _UNFENCED

    @property
    def kind(self) -> str:
        """For metrics: payload kind by field name, "last" for a bare end, "empty" for a cancelled one, "unit_done"."""
        if self.unit is not None:
            return "unit_done"
        if self.payload is None:
            return "last" if self.last else "empty"
        return self.payload.WhichOneof("value") or "empty"

    def message(self) -> stage_pb2.FromStage:
        """The message, without its placement."""
        if self.unit is not None:
            return stage_pb2.FromStage(unit_done=self.unit)
        message = stage_pb2.FromStage()
        # filled where it lies: a chunk that is given to the constructor is copied once more, with its sound
        chunk, label = message.chunk, self.label
        chunk.position, chunk.last = self.position, self.last
        chunk.label.epoch, chunk.label.turn, chunk.label.response_id = label.epoch, label.turn, label.response_id
        if self.payload is not None:
            chunk.payload.CopyFrom(self.payload)
        if self.finish is not None:
            chunk.finish.CopyFrom(self.finish)
        return message


class Outputs:
    """What a stage made for a session and may have to send (again)."""

    def __init__(self, credit: Credit) -> None:
        self._credit = credit
        self._waiting: deque[Output] = deque()
        self._sent: dict[int, Output] = {}
        self._acked_ms: deque[tuple[int, float]] = deque(maxlen=REMEMBERED_ACKS)
        self._receipts: deque[Output] = deque()
        self._receipt_cursor = 0
        self._cursor = 1
        self.first_kept = 1
        self.last = 0
        self.kept_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def add(self, output: Output) -> None:
        """Queues it behind all others of the session."""
        self._waiting.append(output)
        self.kept_bytes += output.size

    def is_waiting_for_credit(self) -> bool:
        """True when the next output is audio that must not leave yet."""
        return self._cursor > self.last and bool(self._waiting) and not self._credit.allows(self._waiting[0].audio_ms)

    def has_next(self) -> bool:
        """True when `next` would give something."""
        if self._next_receipt() is not None or self._cursor <= self.last:
            return True
        return bool(self._waiting) and self._credit.allows(self._waiting[0].audio_ms)

    def next(self) -> Output | None:
        """The next output to write to the stream: first what must be sent again, then what waits, as far as the credit goes."""
        receipt = self._next_receipt()
        if receipt is not None:
            self._receipt_cursor += 1
            return receipt
        if self._cursor <= self.last:
            output = self._sent[self._cursor]
        else:
            if not self.has_next():
                return None
            output = self._waiting.popleft()
            if output.unit is not None:
                return self._send_receipt(output, output.unit)
            self.last += 1
            output.position = self.last
            self._credit.spend(output.audio_ms)
            self._sent[self.last] = output
        self._cursor = output.position + 1
        return output

    def ack(self, position: int) -> int:
        """Forgets all up to this position (bounded by what was sent). Returns the bytes freed."""
        freed = 0
        for each in range(self.first_kept, min(position, self.last) + 1):
            output = self._sent.pop(each)
            freed += output.size
            if output.audio_ms:
                self._acked_ms.append((each, output.audio_ms))
            self.first_kept = each + 1
        self._cursor = max(self._cursor, self.first_kept)
        while self._receipts and self._receipts[0].position < self.first_kept - 1:
            self._drop_receipt()
        self.kept_bytes -= freed
        return freed

    def attach(self, consumed: int) -> None:
        """A new stream: everything above what its reader consumed is sent again, with the same positions.

        Sound that another reader acknowledged, and this one knows nothing of, is not counted against its credit.
        """
        while self._acked_ms and self._acked_ms[-1][0] > consumed:
            self._credit.refund(self._acked_ms.pop()[1])
        self._cursor = max(self.first_kept, min(consumed, self.last) + 1)
        for position in range(self._cursor, self.last + 1):
            output = self._sent[position]
            if output.payload is None and output.audio_ms:
                self._credit.refund(output.audio_ms)
                output.audio_ms = 0.0
        self._receipt_cursor = sum(1 for receipt in self._receipts if receipt.position < consumed)

    def purge(self, epoch: int) -> int:
        """The epoch rose: nothing below it is sent any more. Returns the bytes freed."""
        before = self.kept_bytes
        kept: deque[Output] = deque()
        for output in self._waiting:
            if output.below(epoch):
                self.kept_bytes -= output.size
            else:
                kept.append(output)
        self._waiting = kept
        for position, output in self._sent.items():
            if output.below(epoch):
                self.kept_bytes -= output.size - OVERHEAD_BYTES
                self._sent[position] = Output(Label(epoch=epoch), audio_ms=output.audio_ms, position=position)
        return before - self.kept_bytes

    def _send_receipt(self, output: Output, unit: stage_pb2.UnitDone) -> Output:
        output.position = unit.position = self.last
        self.kept_bytes -= output.size
        self._receipts.append(output)
        self._receipt_cursor = len(self._receipts)
        if len(self._receipts) > REMEMBERED_RECEIPTS:
            self._drop_receipt()
        return output

    def _drop_receipt(self) -> None:
        self._receipts.popleft()
        self._receipt_cursor = max(0, self._receipt_cursor - 1)

    def _next_receipt(self) -> Output | None:
        if self._receipt_cursor < len(self._receipts):
            receipt = self._receipts[self._receipt_cursor]
            if receipt.position < self._cursor:
                return receipt
        return None
