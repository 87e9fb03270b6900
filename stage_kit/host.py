"""One stage of a replica: its engine, its fence table, its sessions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from parley_stage.v1 import stage_pb2

from stage_kit.audio import CLIENT_FORMATS, Format, Formats
from stage_kit.engine import Engine, InvalidConfig, RemoteEngine, SessionOver
from stage_kit.errors import Code, Refusal, stale, unknown
from stage_kit.fence import Authority, FenceTable, Ruling
from stage_kit.logs import describe, logger
from stage_kit.loop import Control, EngineLoop, Runner
from stage_kit.metrics import Metrics, StageMetrics
from stage_kit.outbox import Outbox
from stage_kit.outputs import Output
from stage_kit.receipts import Receipts
from stage_kit.remote import RemoteLoop
from stage_kit.session import Session
from stage_kit.settings import Settings
from stage_kit.stream import Stream

CONTRACT_VERSION = 1


class Host:
    """Obeys commands for its sessions. Everything runs on the event loop, and nothing waits for the engine."""

    def __init__(self, engine: Engine | RemoteEngine, settings: Settings, metrics: Metrics) -> None:
        self.engine = engine
        self.card = engine.card
        self.settings = settings
        self.metrics = StageMetrics(metrics, self.card)
        self.outbox = Outbox(asyncio.get_running_loop())
        self.receipts = Receipts(settings.accepted_interval_ms)
        self.runner: Runner = (
            EngineLoop(engine, settings, self.metrics, self.outbox)
            if isinstance(engine, Engine)
            else RemoteLoop(engine, settings, self.metrics)
        )
        self.draining = False
        self._fences = FenceTable(settings.ended_placements_count)
        self._sessions: dict[str, Session] = {}
        self._closing: set[Session] = set()
        self._unclosable: set[Session] = set()
        self._log = logger(stage=self.card.stage)
        self._show()

    def __len__(self) -> int:
        return len(self._sessions) + len(self._closing)

    def held(self) -> Iterator[Session]:
        """Sessions that occupy a slot, those that are closing included."""
        yield from self._sessions.values()
        yield from self._closing

    def obey(self, stream: Stream, message: stage_pb2.ToStage) -> None:
        """Executes one message of a stream, or answers why not."""
        try:
            self._obey(stream, message)
        except InvalidConfig as error:
            self._refuse(stream, message, Refusal(Code.CODE_INVALID_ARGUMENT, error.why, param=error.param))
        except Refusal as refusal:
            self._refuse(stream, message, refusal)

    async def release(self, who: Authority, reason: str) -> bool:
        """Frees a session and waits until it is freed. True when there was one. Raises Refusal for a stale authority."""
        fence, session = self._fences.get(who.session_id), self._sessions.get(who.session_id)
        if fence is None or session is None:
            self._fences.end(who.session_id, who.placement)
            waiting = [each for each in self._closing if each.session_id == who.session_id]
            for each in waiting:
                await asyncio.shield(each.ended)
            return bool(waiting)
        if fence.release(who) is not Ruling.OBEY:
            raise stale()
        self.close(session, reason)
        self._fences.end(who.session_id, who.placement)
        await asyncio.shield(session.ended)
        return True

    def close(self, session: Session, reason: str) -> None:
        """Ends a session: its fence at once, its slot when the engine has let go of it."""
        if session.closing:
            return
        session.closing, session.close_reason = True, reason
        session.forget_all()
        self._fences.end(session.session_id, session.fence.placement)
        if self._sessions.get(session.session_id) is session:
            del self._sessions[session.session_id]
        self._closing.add(session)
        self.runner.control(Control.CLOSE, session)

    def free(self, session_id: str, reason: str) -> None:
        """Ends a session that nobody owns, if it is held."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._log.info("freed", session_id=session_id, reason=reason)
            self.close(session, reason)

    async def tidy(self, lives: Callable[[str], Awaitable[bool]]) -> None:
        """Frees sessions that were detached for too long and that `lives` denies; tries again to close what would not close."""
        for session in list(self._unclosable):
            self._unclosable.discard(session)
            self.runner.control(Control.CLOSE, session)
        now = time.monotonic()
        for session in [each for each in self._sessions.values() if each.stream is None and each.expires_at <= now]:
            if await lives(session.session_id):
                session.expires_at = time.monotonic() + self.settings.detached_recheck_s
            elif session.stream is None:
                self._log.info("detached session freed", session_id=session.session_id)
                self.close(session, "detached")

    def describe(self) -> stage_pb2.StageCard:
        """The card as a message."""
        card = self.card
        formats = [Format(encoding, rate).proto() for encoding, rate in CLIENT_FORMATS]
        return stage_pb2.StageCard(
            stage=card.stage,
            engine=card.engine,
            model=card.model,
            reads=card.reads,
            makes=card.makes,
            input_formats=formats if card.input_rate else (),
            output_formats=formats if card.output_rate else (),
            unit_ms=card.unit_ms,
            slots=card.slots,
            kv_bytes=card.kv_bytes,
            kv_bytes_per_session=card.kv_bytes_per_session,
            capabilities=card.capabilities,
        )

    def pulse(self) -> stage_pb2.StagePulse:
        """State of the engine right now."""
        free_kv = max(0, self.card.kv_bytes - len(self) * self.card.kv_bytes_per_session)
        free_slots = max(0, self.card.slots - len(self))
        age = self.runner.age_ms()
        return stage_pb2.StagePulse(stage=self.card.stage, engine_age_ms=age, free_slots=free_slots, free_kv_bytes=free_kv)

    def validated(self, config_json: str) -> Any:
        """The engine's typed configuration. Raises InvalidConfig."""
        try:
            config = json.loads(config_json or "{}")
        except ValueError:
            raise InvalidConfig("config_json", "not a JSON text") from None
        if not isinstance(config, dict):
            raise InvalidConfig("config_json", "not a JSON object")
        return self.engine.validate(config)

    def observe_output(self, output: Output) -> None:
        """An output leaves."""
        self.metrics.output(output.kind)
        if output.made_at:
            self.metrics.output_wait.observe(time.monotonic() - output.made_at)

    # ---- reports of sessions

    def session_opened(self, session: Session, error: Exception | None) -> None:
        """Engine.open returned or raised."""
        if session.closing:
            return
        if error is None:
            took_ms = int((time.monotonic() - session.opened_at) * 1000)
            session.reply(opened=stage_pb2.Opened(watermarks=session.watermarks(), took_ms=took_ms))
            return
        self._fences.forget(session.session_id, session.fence.placement)
        del self._sessions[session.session_id]
        session.closing = True
        session.forget_all()
        session.ended.set_result(None)
        if session.stream is not None:
            refusal = _open_failure(error)
            self.metrics.refuse(refusal.name)
            session.stream.refuse(refusal, session.fence.placement, None, session_ended=True)

    def session_closed(self, session: Session, error: Exception | None) -> None:
        """Engine.close returned or raised."""
        if error is not None:
            # the slot stays taken: whoever counts on it being free would overbook the engine
            self._unclosable.add(session)
            return
        self._closing.discard(session)
        session.reply(closed=stage_pb2.Closed(reason=session.close_reason))
        if session.stream is not None:
            session.stream.end()
        if not session.ended.done():
            session.ended.set_result(None)

    def session_broke(self, session: Session, error: Exception) -> None:
        """The engine cannot go on with this session."""
        if session.closing:
            return
        if isinstance(error, SessionOver):
            refusal = Refusal(error.code, f"{error.why}; the session is over", param=error.param)
        else:
            refusal = Refusal(Code.CODE_ENGINE_FAILED, f"the engine failed ({type(error).__name__}); the session is over")
        self.metrics.refuse(refusal.name)
        session.reply(error=refusal.proto(session_ended=True))
        self.close(session, "engine failed")

    # ---- inside

    def _show(self) -> None:
        """What operators see of it. Counted over a copy: the scraper has a thread of its own."""
        card = self.card
        self.metrics.observe(
            sessions=lambda: len(self),
            detached=lambda: sum(session.stream is None for session in list(self._sessions.values())),
            unclosable=lambda: len(self._unclosable),
            draining=lambda: self.draining,
            engine_age=lambda: self.runner.age_ms() / 1000,
            kept_bytes=lambda: sum(session.outputs.kept_bytes for session in list(self._sessions.values())),
            pending_bytes=lambda: sum(session.pending.bytes for session in list(self._sessions.values())),
        )
        if card.kv_bytes:
            self.metrics.observe(kv_reserved=lambda: len(self) * card.kv_bytes_per_session)
        if isinstance(self.engine, Engine) and type(self.engine).kv_pages is not Engine.kv_pages:
            self.metrics.observe_pages(self.engine.kv_pages)

    def _obey(self, stream: Stream, message: stage_pb2.ToStage) -> None:
        command, who = message.WhichOneof("command"), Authority.of(message.authority)
        if command == "open":
            self._open(stream, who, message)
        elif command == "attach":
            self._attach(stream, who, message)
        else:
            session = self._commanded(stream, who)
            if command == "append":
                session.append(message)
                return
            duplicate = session.fence.number(message.command_number) is Ruling.DUPLICATE
            if duplicate and command not in ("cancel", "update"):
                return
            # a cancel or update that comes again moves nothing, but its sender may have missed the answer
            self._execute(session, command, message)
        if command != "append" and stream.session is not None:
            stream.session.fence.obeyed(message.command_number)

    def _execute(self, session: Session, command: str | None, message: stage_pb2.ToStage) -> None:
        if command == "cancel":
            session.cancel(message.cancel)
        elif command == "credit":
            session.grant(message.credit)
        elif command == "ack":
            session.ack(message.ack)
        elif command == "update":
            session.update(message.update)
        elif command == "close":
            self.close(session, message.close.reason)
        else:
            raise Refusal(Code.CODE_INVALID_ARGUMENT, "no command", param="command")

    def _commanded(self, stream: Stream, who: Authority) -> Session:
        session = stream.session
        if session is None:
            raise Refusal(Code.CODE_FAILED_PRECONDITION, "open or attach comes first", ends_stream=True)
        if who.session_id != session.session_id:
            raise Refusal(Code.CODE_INVALID_ARGUMENT, "a stream carries one session", param="authority.session_id")
        ruling = session.fence.command(who)
        if ruling is Ruling.STALE:
            raise stale()
        if ruling is Ruling.NOT_ATTACHED:
            raise Refusal(Code.CODE_FAILED_PRECONDITION, "this attachment has not attached", param="authority.attachment")
        if session.closing:
            raise Refusal(Code.CODE_FAILED_PRECONDITION, "the session is closing")
        return session

    def _open(self, stream: Stream, who: Authority, message: stage_pb2.ToStage) -> None:
        request = message.open
        if not who.session_id or not who.placement:
            raise Refusal(Code.CODE_INVALID_ARGUMENT, "an open needs a session id and a placement", param="authority", ends_stream=True)
        _check_contract(request.contract_version)
        held = self._sessions.get(who.session_id)
        if stream.session is not None and (stream.session is not held or held.fence.placement != who.placement):
            raise Refusal(Code.CODE_INVALID_ARGUMENT, "a stream carries one session", param="authority")
        if held is None or held.fence.placement != who.placement:
            self._open_new(stream, who, request, held)
            return
        if self._fences.open(who)[0] is not Ruling.DUPLICATE:
            raise stale()
        self._take_over(held, stream)
        if not held.opening:
            held.outputs.attach(held.outputs.first_kept - 1)
            held.reply(opened=stage_pb2.Opened(watermarks=held.watermarks()))

    def _open_new(self, stream: Stream, who: Authority, request: stage_pb2.Open, held: Session | None) -> None:
        if self.draining:
            raise Refusal(Code.CODE_DRAINING, "the replica is draining", ends_stream=True)
        try:
            formats = self._formats(request)
            config = self.validated(request.config_json)
        except InvalidConfig as error:
            raise Refusal(Code.CODE_INVALID_ARGUMENT, error.why, param=error.param, ends_stream=True) from None
        if held is not None:
            if who.placement < held.fence.placement:
                raise stale("this placement is not the highest")
            self._supersede(held)
        ruling, fence = self._fences.open(who)
        if fence is None or ruling is not Ruling.OBEY:
            raise stale("this placement is not the highest")
        # the engine closes the superseded session before it opens this one, so its slot counts as free
        if len(self) - (held is not None) >= self.card.slots:
            self._fences.forget(who.session_id, who.placement)
            raise Refusal(Code.CODE_RESOURCE_EXHAUSTED, "no free slot", param="slots", ends_stream=True)
        session = Session(self, who.session_id, fence, request, config, formats)
        self._sessions[who.session_id] = session
        session.attach(stream)
        self.runner.control(Control.OPEN, session)

    def _supersede(self, held: Session) -> None:
        if held.stream is not None:
            held.stream.refuse(stale("the session was placed anew"), held.fence.placement, None)
        self.close(held, "superseded")

    def _attach(self, stream: Stream, who: Authority, message: stage_pb2.ToStage) -> None:
        _check_contract(message.attach.contract_version)
        session = self._sessions.get(who.session_id)
        ruling, _ = self._fences.attach(who)
        if ruling is Ruling.STALE:
            raise stale()
        if ruling is Ruling.UNKNOWN or session is None:
            raise unknown()
        self._take_over(session, stream)
        session.resend_above(message.attach.consumed)

    def _take_over(self, session: Session, stream: Stream) -> None:
        if stream.session is not None and stream.session is not session:
            raise Refusal(Code.CODE_INVALID_ARGUMENT, "a stream carries one session", param="authority.session_id")
        old = session.stream
        if old is not None and old is not stream:
            old.refuse(stale("another stream holds this session"), session.fence.placement, None)
        session.attach(stream)

    def _formats(self, request: stage_pb2.Open) -> Formats:
        def agreed(field: str, rate: int) -> Format | None:
            if not rate:
                return None
            if not request.HasField(field):
                raise Refusal(Code.CODE_INCOMPATIBLE, f"stage {self.card.stage} needs {field}", param=field, ends_stream=True)
            try:
                return Format.of(getattr(request, field), field)
            except InvalidConfig as error:
                raise Refusal(Code.CODE_INCOMPATIBLE, error.why, param=field, ends_stream=True) from None

        return Formats(agreed("input_format", self.card.input_rate), agreed("output_format", self.card.output_rate))

    def _refuse(self, stream: Stream, message: stage_pb2.ToStage, refusal: Refusal) -> None:
        self.metrics.refuse(refusal.name)
        session_id, command = message.authority.session_id, message.WhichOneof("command")
        self._log.info("refused", session_id=session_id, command=command, code=refusal.name, param=refusal.param)
        if command == "append":
            self.metrics.append("refused")
        placement = message.authority.placement
        if command == "update" and not refusal.ends_stream:
            updated = stage_pb2.Updated(config_generation=message.update.config_generation, error=refusal.proto(message.label))
            stream.reply(stage_pb2.FromStage(placement=placement, updated=updated))
            return
        stream.refuse(refusal, placement, message.label if message.HasField("label") else None)


def _check_contract(version: int) -> None:
    if version != CONTRACT_VERSION:
        raise Refusal(
            Code.CODE_INCOMPATIBLE, f"this replica speaks contract {CONTRACT_VERSION}", param="contract_version", ends_stream=True
        )


def _open_failure(error: Exception) -> Refusal:
    if isinstance(error, InvalidConfig):
        return Refusal(Code.CODE_INVALID_ARGUMENT, error.why, param=error.param, ends_stream=True)
    if isinstance(error, MemoryError):
        return Refusal(Code.CODE_RESOURCE_EXHAUSTED, "no memory for another session", ends_stream=True)
    return Refusal(Code.CODE_ENGINE_FAILED, f"the engine could not open ({describe(error)})", ends_stream=True)
