"""Taking a session over: one script in the store, all stages at once, and a conversation that goes on as it was committed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from session_store import Entry, Store
from session_store.errors import InvalidToken, ReplayGap, SessionClosed, SessionExpired, SessionMissing, StoreError
from session_store.takeover import TakenOver
from session_store.tokens import digest, new_token

from . import crash, metrics
from .conversation import events
from .conversation.checkpoint import UnreadableCheckpoint, restore
from .conversation.commands import Resume, StageAttached
from .conversation.config import SessionConfig
from .conversation.errors import Refusal
from .conversation.failover import frames_position, input_position, is_rolled_back
from .conversation.limits import Limits
from .conversation.session import Conversation
from .graph import Graph
from .opening import Opened, Opener
from .settings import Settings
from .stages import StageRefused

log = structlog.get_logger()
FROM_THE_END = 2**53
Replay = list[tuple[int, events.Event | None]]


class ResumeAsk(msgspec.Struct, frozen=True):
    """What a client shows to have its session back.

    after_seq: how many events it has, those that came without a number counted in the places that they took; None: it did not count, and
    wants nothing again.
    """

    session_id: str
    token: str
    after_seq: int | None
    resends: bool = True
    """It is ours: it sends its input again from where it is told, and is told of what is lost. A stock client is not."""

    def __repr__(self) -> str:
        return f"ResumeAsk({self.session_id!r}, after_seq={self.after_seq})"


@dataclass(slots=True)
class Taken:
    """A session that is ours now: what to replay, and the first command of its second life."""

    opened: Opened
    conversation: Conversation
    replay: Replay
    """None: sound of a reply that was broken off, which nobody is to hear any more."""
    resume: Resume
    last_seq: int
    gap: bool
    """Events below the replay are kept no more."""
    config: SessionConfig
    client_seq: int
    input_samples: int
    """Of the client's audio, what every stage that hears has."""
    input_frames: int
    """Of its camera frames, what every stage that sees has."""


class Resumer:
    def __init__(self, store: Store, opener: Opener, graph: Graph, gateway_id: str, settings: Settings, limits: Limits) -> None:
        self._store, self._opener, self._graph = store, opener, graph
        self._gateway_id, self._settings, self._limits = gateway_id, settings, limits

    async def take(self, ask: ResumeAsk, tenant: str) -> Taken:
        """Raises Refusal: invalid_resume_token, session_resume_expired or stages_unavailable; the session is then as it was."""
        holder_id, token = uuid.uuid4().hex, new_token()
        try:
            taken = await self._take(ask, tenant, holder_id, token)
        except (InvalidToken, SessionMissing) as failure:
            if await self._may_be_forgotten():
                raise Refusal("stages_unavailable", None, stage="session store") from failure
            raise Refusal("invalid_resume_token" if isinstance(failure, InvalidToken) else "session_resume_expired") from failure
        except (SessionClosed, SessionExpired) as failure:
            raise Refusal("session_resume_expired") from failure
        except StoreError as failure:
            raise Refusal("stages_unavailable", None, stage="session store") from failure
        crash.here("after_cas")
        record, stored = taken.stored.record, taken.stored
        try:
            conversation = restore(ask.session_id, self._graph, self._limits, stored.hot, stored.fields)
        except (UnreadableCheckpoint, msgspec.MsgspecError, KeyError) as failure:
            log.error("checkpoint not readable", session=ask.session_id, why=type(failure).__name__)
            raise Refusal("session_resume_expired") from failure
        opened = Opened(ask.session_id, tenant, taken.lease, taken.lease.attachment, {}, dict(record.placements), token)
        resume = await self._attach(opened, conversation, ask)
        crash.here("after_attach")
        known = ask.after_seq or 0
        gap = ask.after_seq is not None and known < record.first_kept_seq - 1
        replay = list(_replayed(stored.journal, ask.after_seq))
        if gap and ask.resends:
            gap, replay = _told_once(replay, is_rolled_back(conversation, resume))
        return Taken(
            opened,
            conversation,
            replay,
            resume,
            last_seq=max(conversation.state.seq, known),
            gap=gap,
            config=conversation.config,
            client_seq=conversation.state.client_seq,
            input_samples=input_position(conversation, resume),
            input_frames=frames_position(conversation, resume),
        )

    async def _may_be_forgotten(self) -> bool:
        """The store lost writes a moment ago: what it does not know may be told to it again by whoever has the session."""
        try:
            return await self._store.registry.mute_ms() > 0
        except StoreError:
            return True

    async def _take(self, ask: ResumeAsk, tenant: str, holder_id: str, token: str) -> TakenOver:
        after = FROM_THE_END if ask.after_seq is None else ask.after_seq
        take = partial(
            self._store.records.takeover,
            ask.session_id,
            token=ask.token,
            new_digest=digest(token),
            tenant=tenant,
            gateway_id=self._gateway_id,
            holder_id=holder_id,
            after_seq=after,
        )
        try:
            return await take()
        except ReplayGap:
            return await take(accept_gap=True)

    async def _attach(self, opened: Opened, conversation: Conversation, ask: ResumeAsk) -> Resume:
        """All stages at once; one that does not answer in time, or does not know the session, is lost."""
        state = conversation.state
        opened.links.update({stage: self._opener.link(opened, stage, state.bases.get(stage, 0)) for stage in opened.placements})
        timeout = self._settings.attach_timeout_ms / 1000
        answers = await asyncio.gather(
            *(
                link.attach(conversation.edges.acknowledged(stage), timeout)
                for stage, link in opened.links.items()
                if stage not in state.lost
            ),
            return_exceptions=True,
        )
        asked = [stage for stage in opened.links if stage not in state.lost]
        attached, lost = [], []
        for stage, answer in zip(asked, answers, strict=True):
            if isinstance(answer, StageAttached):
                attached.append(answer)
            elif isinstance(answer, StageRefused) and answer.code == "STALE_AUTHORITY":
                metrics.TAKEOVERS.labels("overtaken").inc()
                await asyncio.gather(*(link.abandon() for link in opened.links.values()))
                raise Refusal("session_resume_conflict")
            else:
                log.warning("stage not there at takeover", session=opened.session_id, stage=stage)
                lost.append(stage)
        for stage in (*lost, *state.lost):
            await opened.links.pop(stage).abandon()
        return Resume(tuple(attached), tuple(lost), resends=ask.resends, known_seq=ask.after_seq or 0)


def _told_once(replay: Replay, is_rolled_back: bool) -> tuple[bool, Replay]:
    """Whether the gap before the replay is told, and the replay: a resync that is in it, or about to be told, says it all."""
    told = next((at for at, (_, event) in enumerate(replay) if isinstance(event, events.ResyncRequired)), None)
    if told is not None:
        return False, replay[told:]
    return (False, []) if is_rolled_back else (True, replay)


def _replayed(journal: list[Entry], after_seq: int | None) -> Iterator[tuple[int, events.Event | None]]:
    told = [(entry.seq, msgspec.msgpack.decode(entry.payload, type=events.Event)) for entry in journal]
    broken_off = {
        event.response.id
        for _, event in told
        if isinstance(event, events.ResponseDone) and event.response.status in ("cancelled", "failed")
    }
    for seq, event in told:
        if after_seq is not None and seq > after_seq:
            yield seq, None if isinstance(event, events.AudioDelta) and event.response_id in broken_off else event
