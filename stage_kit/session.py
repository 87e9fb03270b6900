"""One session at one stage, on the event loop: commands in, outputs out. The engine sees its `slot` only."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from parley_stage.v1 import stage_pb2

from stage_kit.audio import Format, Formats
from stage_kit.audio_out import LEAST_PIECE_MS, MOST_BYTES_A_MS, AudioOut
from stage_kit.checks import check_append
from stage_kit.credit import Credit
from stage_kit.edges import Arrival, Edges
from stage_kit.engine import Label
from stage_kit.errors import Code, Refusal
from stage_kit.fence import Fence, Ruling
from stage_kit.intake import Intake, Staged
from stage_kit.loop import Control
from stage_kit.outputs import Output, Outputs
from stage_kit.pending import Pending, Waiting
from stage_kit.slot import Slot

if TYPE_CHECKING:
    from stage_kit.host import Host
    from stage_kit.stream import Stream


class Session:
    """State of a session: who commands, what was accepted, what was made."""

    def __init__(self, host: Host, session_id: str, fence: Fence, request: stage_pb2.Open, config: Any, formats: Formats) -> None:
        settings = host.settings
        self.host = host
        self.session_id = session_id
        self.fence = fence
        self.stream: Stream | None = None
        self.opened_at = time.monotonic()
        self.expires_at = self.opened_at + settings.detached_ttl_s
        """When to free it if no stream holds it then."""
        self.opening = True
        self.closing = False
        self.close_reason = ""
        self.credit = Credit()
        self.outputs = Outputs(self.credit)
        self.edges = Edges(request.resume_after)
        self.pending = Pending()
        self.input_generation = 0
        self.holds_engine = False
        self.faults = 0
        self.passed_over = 0
        self.served_at_turn = 0
        self.received_at = 0
        """Which receipt of the engine's was its last."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        audio_out = None
        if formats.output is not None:
            pieces = (settings.output_piece_ms or LEAST_PIECE_MS, 0 if settings.output_piece_ms else host.card.piece_ms)
            # half of a message: its marks and label have room, too
            carried_ms = max(1, settings.message_bytes // 2 // MOST_BYTES_A_MS)
            audio_out = AudioOut(formats.output, host.card.output_rate, *(min(ms, carried_ms) for ms in pieces))
        self.slot = Slot(session_id, config, self._deliver, self._wake_engine, settings.kept_output_bytes, audio_out)
        self.intake = Intake(self.slot, host.card, formats.input)
        self._formats = {formats.input} if formats.input is not None else set()
        self._generation = 1
        self._unreported = False
        self._receipt_due = False
        self._waits_for_credit = False

    # ---- commands; each may raise Refusal or InvalidConfig and has changed nothing then

    def append(self, message: stage_pb2.ToStage) -> None:
        """Takes data in, or counts and forgets it where a fence has passed it."""
        append, fence = message.append, self.fence
        size = check_append(
            append, self.host.card, self.host.settings, self._formats, len(self.edges.snapshot()), self.edges.watermark(append.edge)
        )
        arrival = self.edges.judge(append)
        if arrival is Arrival.CORRUPT:
            raise Refusal(Code.CODE_INVALID_ARGUMENT, "the checksum does not fit the payload", param="append.checksum")
        if arrival is Arrival.DUPLICATE:
            self.host.metrics.append("duplicate")
            return
        if arrival is Arrival.GAP or self.edges.is_held(append.edge):
            self._turn_back(message)
            return
        label = Label.of(message.label)
        discard = fence.number(message.command_number) is Ruling.DUPLICATE
        discard = discard or fence.append(append.lane, label.epoch, append.input_generation) is Ruling.DISCARD
        if not discard:
            self._raise_fences(append, label)
            if self.pending.bytes + size > self.host.settings.pending_append_bytes and len(self.pending):
                self._hold(message)
        fence.obeyed(message.command_number)
        self.edges.accept(append)
        self.host.metrics.append("discarded" if discard else "accepted")
        if not discard:
            self.pending.push(Waiting(append, label, size, time.monotonic()))
            self.host.runner.appended(self)
        self._report_accepted()

    def update(self, update: stage_pb2.Update) -> None:
        """Stages a configuration; a generation seen before is answered again and touches nothing."""
        if update.config_generation > self._generation:
            if len(self.intake.staged) >= self.host.settings.staged_updates_count:
                raise Refusal(Code.CODE_LIMIT_EXCEEDED, "too many updates wait for an append", param="staged_updates_count")
            config = self.host.validated(update.config_json)
            source = self._format(update, "input_format", self.host.card.input_rate)
            target = self._format(update, "output_format", self.host.card.output_rate)
            self._generation = update.config_generation
            if source is not None:
                self._formats.add(source)
            self.intake.staged.append(Staged(update.config_generation, config, source, target))
        self.reply(updated=stage_pb2.Updated(config_generation=update.config_generation))

    def cancel(self, cancel: stage_pb2.Cancel) -> None:
        """Advances the epoch on arrival. What it answers is written before any later output, and nothing of the old epoch after it."""
        ruling = self.fence.cancel(cancel.cancelled_epoch, cancel.next_epoch)
        if ruling is Ruling.NO_NEXT:
            raise Refusal(Code.CODE_FAILED_PRECONDITION, "next_epoch must be above cancelled_epoch", param="cancel.next_epoch")
        self._enter_epoch()
        if ruling is Ruling.OBEY:
            self.host.metrics.cancels.inc()
            self.host.runner.control(Control.CANCEL, self)
        self.reply(cancelled=stage_pb2.Cancelled(epoch=self.fence.epoch))

    def grant(self, credit: stage_pb2.Credit) -> None:
        """More audio may leave."""
        if self.credit.grant(credit.granted_ms):
            if self.slot.audio_out is not None:
                self.slot.audio_out.paced(self.credit.window_ms)
            self._wake()

    def ack(self, ack: stage_pb2.Ack) -> None:
        """Outputs that all readers have are forgotten."""
        if ack.position > self.outputs.last:
            raise Refusal(Code.CODE_INVALID_ARGUMENT, "no output of this position was sent", param="ack.position")
        self._freed(self.outputs.ack(ack.position))

    # ---- streams

    def attach(self, stream: Stream) -> None:
        """This stream holds the session from now on."""
        self.stream, stream.session = stream, self
        self._unreported = False

    def detach(self, stream: Stream) -> None:
        """The stream is gone; the session stays."""
        if self.stream is stream:
            self.stream, self.expires_at = None, time.monotonic() + self.host.settings.detached_ttl_s

    def resend_above(self, consumed: int) -> None:
        """For an attach: answers what the stage has, and sends outputs above `consumed` again."""
        self.outputs.attach(consumed)
        fence = self.fence
        self.reply(
            attached=stage_pb2.Attached(
                epoch=fence.epoch,
                watermarks=self.watermarks(),
                first_kept=self.outputs.first_kept,
                last=self.outputs.last,
                input_generation=fence.input_generation,
            )
        )

    def watermarks(self) -> stage_pb2.Watermarks:
        """What was accepted."""
        return stage_pb2.Watermarks(edges=self.edges.snapshot(), command_number=self.fence.command_number)

    def reply(self, **event: Any) -> None:
        """Answers on the stream that holds the session, if one does."""
        if self.stream is not None:
            self.stream.reply(stage_pb2.FromStage(placement=self.fence.placement, **event))

    def is_answering(self) -> bool:
        """True while an open or close has not been answered."""
        return (self.opening or self.closing) and not self.ended.done()

    def has_output(self) -> bool:
        """True when an output may leave now."""
        return not self.opening and not self.closing and self.outputs.has_next()

    def take_output(self) -> stage_pb2.FromStage | None:
        """The next output to write."""
        if self.opening or self.closing:
            return None
        kept = self.outputs.kept_bytes
        output = self.outputs.next()
        # a receipt that left takes no room, and nobody acknowledges it
        self._freed(kept - self.outputs.kept_bytes)
        waits = output is None and self.outputs.is_waiting_for_credit()
        if waits and not self._waits_for_credit:
            self.host.metrics.credit_waits.inc()
        self._waits_for_credit = waits
        if output is None:
            return None
        self.host.observe_output(output)
        message = output.message()
        message.placement = self.fence.placement
        return message

    def take_receipt(self, *, riding: bool) -> stage_pb2.FromStage | None:
        """The cumulative receipt, when it is due or may ride ahead of something."""
        if self.opening or not self._unreported or not (riding or self._receipt_due):
            return None
        self._unreported = self._receipt_due = False
        self.host.receipts.settle(self)
        return stage_pb2.FromStage(placement=self.fence.placement, accepted=stage_pb2.Accepted(watermarks=self.watermarks()))

    def receipt_is_due(self) -> None:
        """It leaves by itself."""
        self._receipt_due = True
        self._wake()

    # ---- reports of the runner, on the event loop

    def opened(self, error: Exception | None) -> None:
        """Engine.open returned or raised."""
        self.opening = False
        self.host.session_opened(self, error)

    def closed(self, error: Exception | None) -> None:
        """Engine.close returned or raised."""
        self.host.session_closed(self, error)

    def broke(self, error: Exception) -> None:
        """The engine cannot go on with this session."""
        self.host.session_broke(self, error)

    def has_space(self, _: None) -> None:
        """The engine made room for appends that were turned back: each edge is told where to go on."""
        for edge, watermark in self.edges.resume():
            self.reply(gap=stage_pb2.Gap(edge=edge, watermark=watermark))

    def inspected(self) -> stage_pb2.HeldSession:
        """For operators and for reconciliation with the registry."""
        return stage_pb2.HeldSession(
            session_id=self.session_id,
            stage=self.host.card.stage,
            placement=self.fence.placement,
            attachment=self.fence.attachment,
            epoch=self.fence.epoch,
            attached=self.stream is not None,
            age_ms=int((time.monotonic() - self.opened_at) * 1000),
            waiting_appends=len(self.pending),
            kept_outputs=len(self.outputs),
            kept_bytes=self.outputs.kept_bytes,
        )

    def forget_all(self) -> None:
        """The session ends here: appends and outputs are dropped."""
        self.pending.clear()
        self.outputs = Outputs(self.credit)
        self.host.receipts.settle(self)

    # ---- inside

    def _deliver(self, output: Output) -> None:
        self.host.outbox.post(self._made, output)

    def _wake_engine(self) -> None:
        self.host.runner.appended(self)

    def _made(self, output: Output) -> None:
        if self.closing or output.below(self.fence.epoch):
            self._freed(output.size)
            return
        output.made_at = time.monotonic()
        if output.since:
            self.host.metrics.took(output, output.made_at - output.since)
        self.outputs.add(output)
        if self.stream is not None:
            self.stream.wake()

    def _raise_fences(self, append: stage_pb2.Append, label: Label) -> None:
        if append.lane == stage_pb2.LANE_RESPONSE:
            if self.fence.raise_epoch(label.epoch):
                self._enter_epoch()
                self.host.runner.control(Control.CANCEL, self)
        elif self.fence.raise_generation(append.input_generation):
            self.input_generation = self.fence.input_generation
            self.pending.drop_stale(self.fence.epoch, self.input_generation)

    def _enter_epoch(self) -> None:
        # seen at once by an engine in the middle of a step: what it emits from here on is dropped
        self.slot.epoch = self.fence.epoch
        self._freed(self.outputs.purge(self.fence.epoch))
        self.pending.drop_stale(self.fence.epoch, self.fence.input_generation)

    def _turn_back(self, message: stage_pb2.ToStage) -> None:
        edge = message.append.edge
        self.fence.turned_back(message.command_number)
        self.host.metrics.append("gap")
        # an edge that waits for room hears of it once there is some; until then its appends are dropped without a word
        if not self.edges.is_held(edge):
            self.reply(gap=stage_pb2.Gap(edge=edge, watermark=self.edges.watermark(edge)))

    def _hold(self, message: stage_pb2.ToStage) -> None:
        self.fence.turned_back(message.command_number)
        self.edges.hold(message.append.edge)
        self.pending.turned_back = True
        self.host.runner.appended(self)
        raise Refusal(Code.CODE_LIMIT_EXCEEDED, "the engine has too many appends waiting; wait for a gap", param="pending_append_bytes")

    def _freed(self, size: int) -> None:
        if size and self.slot.freed(size):
            self.host.runner.appended(self)

    def _report_accepted(self) -> None:
        if not self._unreported and self.stream is not None:
            self.host.receipts.owe(self)
        self._unreported = True

    def _wake(self) -> None:
        if self.stream is not None:
            self.stream.wake()

    def _format(self, update: stage_pb2.Update, field: str, rate: int) -> Format | None:
        # as at open: a format for audio that the stage does not have concerns others
        if not rate or not update.HasField(field):
            return None
        return Format.of(getattr(update, field), field)
