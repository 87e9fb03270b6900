"""One step of many sessions: what each of them feeds, the networks that make it, what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from stage_kit import Slot
from stage_kit.logs import describe, logger
from thinker_svc.minicpmo45.camera import Frame
from thinker_svc.minicpmo45.model import ThinkerModel
from thinker_svc.minicpmo45.perception import Perception
from thinker_svc.minicpmo45.prefixes import Key, Prefixes
from thinker_svc.minicpmo45.row import Decisions, Row
from thinker_svc.minicpmo45.session import Kind, OpenUnit, Overflow, Session
from thinker_svc.minicpmo45.speaking import decided, finish_unit
from thinker_svc.minicpmo45.template import (
    AUDIO_ROWS,
    Plan,
    audio_rows,
    draft_row,
    joined,
    picture_rows,
    plan,
    prefix_head,
    prefix_tail,
    unit_opening,
)
from torch_kit.page_table import PageTable
from torch_kit.ragged import BUCKETS

MOST_TOKENS = BUCKETS[-1]
"""Of a step, unless one session alone feeds more: pictures and prefixes beyond wait for the next, so that no crowd of them asks for more
memory than a step may take, or keeps those who speak waiting."""
log = logger()
FRAME_ROWS = 16
"""More than stands round a prompt, a voice or a recap."""


class NotFinite(ArithmeticError):
    """Logits hold NaN or infinity."""


@dataclass(slots=True)
class Job:
    """One session's part of a step."""

    slot: Slot
    session: Session
    kind: Kind
    frames: Sequence[Frame] = ()
    voice: Tensor | None = None
    row: Row | None = None


class Stepper:
    """`queries`: tokens that a picture or slice becomes. `draft`: what decides feeds `<|speak|>` with its sound, before it is drawn."""

    def __init__(
        self,
        model: ThinkerModel,
        perception: Perception,
        prefixes: Prefixes,
        queries: int,
        clock: Callable[[], float],
        *,
        draft: bool = False,
    ) -> None:
        self._model = model
        self._perception = perception
        self._prefixes = prefixes
        self._queries = queries
        self._clock = clock
        self._draft = draft
        self._tokens = model.vocabulary.tokens

    def step(self, slots: list[Slot], waiting: Callable[[Callable[[], bool]], Iterable[Session]] = lambda _: ()) -> None:
        """Feeds what comes next in every session; one that cannot go on gets its `failure` set, and the others go on. `waiting` is called
        while the device works, and told how to ask whether it is done: sessions that have a unit now, whose sound is heard ahead of their
        own step.

        An exception leaves the contexts of all sessions as they were.
        """
        jobs = self._jobs(slots)
        busy = {job.session for job in jobs}
        beginning = [job for job in jobs if job.kind is not Kind.TOKEN]
        if beginning:
            self._perceive(beginning)
        rows: list[Job] = []
        try:
            for job in jobs:
                if self._place(job):
                    rows.append(job)
            if not rows:
                return
            decisions = self._model.step(
                [job.row for job in rows if job.row is not None],
                lambda done: self._hear_ahead(each for each in waiting(done) if each not in busy),
            )
        except Exception:
            for job in rows:
                _undo(job)
            raise
        for job, made in zip(rows, decisions, strict=True):
            self._fed(job, made)
        self._finish(rows, decisions)

    # ---- before the forward

    def _jobs(self, slots: list[Slot]) -> list[Job]:
        jobs: list[Job] = []
        heads: set[Key] = set()
        most = left = MOST_TOKENS - len(slots)
        for slot in slots:
            session: Session = slot.state
            unit = session.unit
            if unit is not None and unit.tokens and session.prefix is Kind.UNIT:
                # most sessions of most steps, in the words of `_settled`
                jobs.append(Job(slot, session, Kind.TOKEN))
                continue
            try:
                kind = self._settled(session)
            except Overflow as error:
                session.failure = error
                continue
            if kind is None or (kind is Kind.HEAD and session.prefix_key in heads):
                continue
            job = Job(slot, session, kind, self._frames(session, kind))
            # who comes first is taken in any case: then nobody waits for ever
            wanted = self._weight(job)
            if wanted > left < most:
                continue
            left -= wanted
            if kind is Kind.HEAD:
                heads.add(session.prefix_key)
            elif kind is Kind.UNIT:
                session.begin_sound(session.open_unit())
            jobs.append(job)
        return jobs

    def _frames(self, session: Session, kind: Kind) -> Sequence[Frame]:
        if kind is Kind.EARLY:
            return session.camera.before(session.gather.end_ms)[:1]
        heard = session.coming if kind is Kind.UNIT else None
        return () if heard is None else session.frames(heard)

    def _weight(self, job: Job) -> int:
        """Tokens that it feeds, or a few more."""
        session, config, unit = job.session, job.session.config, job.session.unit
        if job.kind is Kind.HEAD:
            # each token has a byte at least; a voice gives as many rows a second as the sound of units
            return FRAME_ROWS + len(config.instructions.encode()) + (0 if config.voice is None else int(AUDIO_ROWS * config.voice.seconds))
        if job.kind is Kind.TAIL:
            return FRAME_ROWS + len(session.window.previous)
        rows = len(session.close) + sum(frame.slices for frame in job.frames) * (self._queries + 2)
        if job.kind is Kind.FLUSH:
            return rows
        heard = session.coming if job.kind is Kind.UNIT else None
        # its opening, the end of a turn or a draft
        rows += unit is None or not unit.rows
        return rows if heard is None else rows + AUDIO_ROWS + (1 if heard.noted is None else len(heard.noted.fed))

    def _settled(self, session: Session) -> Kind | None:
        """What the session feeds, after all that needs no forward. Raises Overflow."""
        if session.prefix is Kind.HEAD:
            shared = self._prefixes.get(session.prefix_key)
            if shared is not None:
                pool = session.table.pool
                session.table.release()
                session.table = PageTable(pool, session.reserve - len(shared.pages))
                session.table.attach(shared)
                session.shared, session.prefix = shared, Kind.TAIL
        if session.leaving and not session.close and session.prefix is Kind.UNIT and not (session.unit and session.unit.decoding):
            session.flushed()
        return session.next()

    def _perceive(self, jobs: list[Job]) -> None:
        """Embeddings of all sounds, pictures and voices of the step."""
        for job in jobs:
            voice = job.session.config.voice
            if job.kind is Kind.HEAD and voice is not None:
                job.voice = self._perception.reference(voice.samples())
        fresh = [frame for job in jobs for frame in job.frames if frame.embeddings is None]
        if fresh:
            seen = self._perception.see([frame.decoded.result() for frame in fresh])
            for frame, embeddings in zip(fresh, seen, strict=True):
                frame.embeddings = embeddings
        self._hear([job.session for job in jobs if job.kind is Kind.UNIT])

    def _hear(self, sessions: Sequence[Session]) -> None:
        """The sound of their open units, unless it was heard."""
        units = [(session, session.unit) for session in sessions]
        unheard = [(session, unit) for session, unit in units if unit is not None and unit.audio is None]
        sounds = [(session.row, unit.heard) for session, unit in unheard if unit.heard is not None]
        if sounds:
            samples, first = [heard.samples for _, heard in sounds], [heard.first for _, heard in sounds]
            for (_, unit), audio in zip(unheard, self._perception.hear([row for row, _ in sounds], samples, first), strict=True):
                unit.audio = audio

    def _hear_ahead(self, sessions: Iterable[Session]) -> None:
        """Their next units are begun and heard, while the device has nothing else to do: when its answer is read and the next step made."""
        ahead = [session for session in sessions if session.failure is None and session.next() is Kind.UNIT]
        for session in ahead:
            session.begin_sound(session.open_unit())
        try:
            self._hear(ahead)
        except Exception as error:
            # their own step hears them, and fails where this did: the others have no part in it
            log.warning("not heard ahead", sessions=len(ahead), error=describe(error))

    def _place(self, job: Job) -> bool:
        """Gives the job's tokens places on pages. False: it feeds nothing in this step."""
        session, kind = job.session, job.kind
        try:
            if kind in (Kind.TOKEN, Kind.FLUSH):
                unit = session.unit if kind is Kind.TOKEN else None
                ids = np.array(session.close if unit is None else unit.tokens[-1:], np.int64)
                appended = session.append(len(ids))
                if appended is not None:
                    job.row = Row(session.row, appended, ids, (), -1 if unit is None else unit.number)
                return appended is not None
            if kind in (Kind.HEAD, Kind.TAIL):
                self._place_prefix(job)
                return True
            return self._place_unit(job)
        except MemoryError as error:
            session.failure = error if isinstance(error, Overflow) else Overflow(str(error))
            return False

    def _place_prefix(self, job: Job) -> None:
        session = job.session
        while not session.make_prefix_room((content := self._prefix_rows(job)).rows):
            pass
        embeddings = () if job.voice is None else (job.voice,)
        job.row = Row(session.row, session.table.append_prefix(content.rows), content.ids, embeddings)

    def _prefix_rows(self, job: Job) -> Plan:
        config, vocabulary = job.session.config, self._model.vocabulary
        if job.kind is Kind.HEAD:
            return prefix_head(vocabulary, config.instructions, 0 if job.voice is None else len(job.voice))
        return prefix_tail(vocabulary, job.session.window.previous, voice=config.voice is not None)

    def _place_unit(self, job: Job) -> bool:
        session = job.session
        unit = session.open_unit()
        content, embeddings = self._unit_rows(job, unit)
        if not session.make_room(content.rows):
            return False
        decides = job.kind is Kind.UNIT and not unit.listens and unit.noted is None
        if not decides:
            job.row = Row(session.row, session.table.append(content.rows), content.ids, embeddings)
            return True
        # there is room for it: it is one of the tokens that may be decided
        content = joined(content, draft_row(self._tokens)) if self._draft else content
        appended = session.table.append(content.rows)
        job.row = Row(session.row, appended, content.ids, embeddings, unit.number, session.fed_open, self._draft)
        return True

    def _unit_rows(self, job: Job, unit: OpenUnit) -> tuple[Plan, tuple[Tensor, ...]]:
        """The unit's next rows: its opening, unless that was fed; pictures; with its sound complete also that, and what is known to follow:
        the tokens of a unit of the log, the end of a turn that must not go on."""
        session = job.session
        parts: list[Plan] = [] if unit.rows else [unit_opening(self._tokens, session.close)]
        embeddings: list[Tensor] = []
        for frame in job.frames:
            assert frame.embeddings is not None
            parts.append(picture_rows(self._tokens, len(frame.embeddings), self._queries))
            embeddings.append(frame.embeddings.flatten(0, 1))
        if job.kind is Kind.UNIT and unit.audio is not None:
            parts.append(audio_rows())
            embeddings.append(unit.audio)
            if unit.noted is not None:
                parts.append(plan(("noted", unit.noted.fed)))
            elif unit.listens and session.fed_open:
                parts.append(plan(("turn_end", [self._tokens.turn_eos])))
        return joined(*parts), tuple(embeddings)

    # ---- after the forward

    def _fed(self, job: Job, decisions: Decisions) -> None:
        """The job's tokens are in the context; a draft only if a decision was made behind it."""
        session, kind = job.session, job.kind
        if kind is Kind.TOKEN:
            self._fed_token(session)
        elif kind is Kind.HEAD:
            session.shared = self._prefixes.publish(session.prefix_key, session.table)
            session.prefix = Kind.TAIL
        elif kind is Kind.TAIL:
            session.prefix = Kind.UNIT
        elif kind is Kind.FLUSH:
            session.flushed()
        else:
            self._fed_unit(job, accepted=len(decisions) > 1)
        for index, decision in enumerate(decisions):
            if index:
                self._fed_token(session)
            if not decision.finite:
                session.failure = NotFinite("the model's logits are not finite")
                return
            assert session.unit is not None
            if decision.drawn >= 0:
                session.unit.drawn.append(decision.drawn)
            decided(job.slot, session, decision.token, ended=decision.ended)

    def _fed_token(self, session: Session) -> None:
        """The token that was decided last."""
        unit = session.unit
        assert unit is not None
        token = unit.tokens[-1]
        session.fed_open = token != self._tokens.turn_eos
        unit.fed.append(token)
        unit.rows += 1

    def _fed_unit(self, job: Job, *, accepted: bool) -> None:
        session, row = job.session, job.row
        unit = session.unit
        assert unit is not None and row is not None
        if row.draft and not accepted:
            session.table.rewind(1)
        if not unit.rows:
            unit.closing = session.close
            unit.rows -= len(unit.closing)
        unit.rows += row.appended.count - row.draft
        unit.pictures += len(job.frames)
        session.close = ()
        session.camera.drop(job.frames)
        if unit.noted is not None:
            session.feed_noted(unit, unit.noted)
            self._model.recall(session.row, unit.noted.drawn)
        elif job.kind is Kind.UNIT and unit.listens:
            unit.fed += [self._tokens.turn_eos] if session.fed_open else []
            session.force_listen = session.fed_open = False
            decided(job.slot, session, self._tokens.listen, ended=True)

    def _finish(self, rows: list[Job], decisions: list[Decisions]) -> None:
        """Units that ended pass on what they said."""
        ended = [
            job
            for job, made in zip(rows, decisions, strict=True)
            if (made[-1].ended and made[-1].finite if made else job.kind is Kind.UNIT)
        ]
        if not ended:
            return
        units = [(job.session, job.session.unit) for job in ended]
        speaking = {session: len(unit.tokens) for session, unit in units if unit is not None and unit.speaks}
        states = self._said(speaking)
        now = self._clock()
        for job in ended:
            session = job.session
            assert session.unit is not None
            if session.failure is not None:
                continue
            unit = session.end_unit(tuple(session.unit.tokens[-1:]))
            if unit.noted is None:
                finish_unit(job.slot, session, unit, states.get(session), now)

    def _said(self, speaking: dict[Session, int]) -> dict[Session, Tensor]:
        """Hidden states of so many tokens of each. The decisions stand: whose states cannot be had is over."""
        if not speaking:
            return {}
        rows, count = [session.row for session in speaking], max(speaking.values())
        try:
            return dict(zip(speaking, self._model.said(rows, count), strict=True))
        except Exception as error:
            if len(speaking) == 1:
                next(iter(speaking)).failure = error
                return {}
        # fewer may be had where all are too much; the next call but one overwrites them
        return {session: states.clone() for each in speaking.items() for session, states in self._said(dict([each])).items()}


def _undo(job: Job) -> None:
    """Takes back the places of a forward that did not happen."""
    table, row = job.session.table, job.row
    assert row is not None
    if job.kind in (Kind.HEAD, Kind.TAIL):
        table.cut_prefix(table.prefix_length - row.appended.count)
    else:
        table.rewind(row.appended.count)
