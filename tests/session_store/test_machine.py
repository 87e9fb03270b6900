"""Admission and records against a model of them, over any sequence of calls."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from session_store import (
    Commit,
    Committed,
    InvalidToken,
    Lease,
    LeaseForgotten,
    NoCheckpoint,
    ReplayGap,
    SequenceConflict,
    SessionClosed,
    SessionExists,
    SessionExpired,
    SessionMissing,
    StaleGeneration,
)
from session_store.tokens import digest
from tests.session_store.helpers import pass_deadline
from tests.session_store.machine_admission import AdmissionMachine
from tests.session_store.model import SESSIONS, STAGES, Kept, sessions


class StoreMachine(AdmissionMachine):
    """Runs each step on Valkey and on the model, and compares: the records, too."""

    @initialize()
    def begin(self) -> None:
        for session in SESSIONS[:2]:
            self.create(session, "h1")

    def _new_token(self) -> str:
        self.issued += 1
        return f"token{self.issued}"

    def _lease(self, data: st.DataObject, session: str) -> Lease:
        """Mostly the record's, else one of before or one that Redis never gave."""
        record = self.records.get(session)
        if not record:
            return Lease(session, 1, "h1")
        forged = (Lease(session, record.lease.attachment, "other"), Lease(session, record.lease.attachment + 1, record.lease.holder_id))
        return data.draw(st.sampled_from((*[record.lease] * 6, *record.leases, *forged)), label="lease")

    def _live(self) -> list[str]:
        return [session for session, record in self.records.items() if record.state != "closed"]

    @rule(session=sessions, holder=st.sampled_from(["h1", "h2"]))
    def create(self, session: str, holder: str) -> None:
        placed = {stage: self.plan[session, stage] for stage in STAGES if (session, stage) in self.plan}
        token = self._new_token()
        work = self.store.records.create(session, "g1", holder, "t1", "p", placed, token_digest=digest(token))
        record = self.records.get(session)
        if record is None:
            self.records[session] = Kept(self.do(work), placed, token)
        elif not record.open:
            with pytest.raises(SessionClosed):
                self.do(work)
        elif record.lease.holder_id == holder:
            assert self.do(work) == record.lease
        else:
            with pytest.raises(SessionExists):
                self.do(work)

    @rule(
        data=st.data(),
        token_age=st.sampled_from([0, 0, 0, 1, 2, 9]),
        tenant=st.sampled_from(["t1"] * 6 + ["t2"]),
        off=st.integers(-2, 7),
        accept_gap=st.booleans(),
    )
    def takeover(self, data: st.DataObject, token_age: int, tenant: str, off: int, accept_gap: bool) -> None:
        session = self.pick(data, self._live())
        record = self.records.get(session)
        known = record.tokens[-1 - token_age :] if record and token_age < len(record.tokens) else []
        token = known[0] if known else data.draw(st.sampled_from(record.revoked if record else [""]), label="revoked token")
        after_seq = (record.last if record else 0) - off
        new = self._new_token()
        names = {"tenant": tenant, "gateway_id": "g1", "holder_id": f"t{self.issued}"}
        work = self.store.records.takeover(
            session, token=token, new_digest=digest(new), after_seq=after_seq, accept_gap=accept_gap, **names
        )
        expected = self._refusal(record, token, tenant, after_seq, accept_gap)
        if expected:
            before = self.do(self.store.records.load(session)) if record else None
            with pytest.raises(expected):
                self.do(work)
            assert before is None or self.do(self.store.records.load(session)) == before
            return
        assert record is not None
        taken = self.do(work)
        assert taken.lease.attachment > record.lease.attachment
        assert taken.gap == (not record.first - 1 <= after_seq <= record.last)
        assert {entry.seq: entry.payload for entry in taken.stored.journal} == {n: p for n, p in record.journal.items() if n > after_seq}
        assert (taken.stored.fields, taken.stored.record.placements) == (record.fields, record.placed)
        # The token shown and the three newest of the others stay valid until one is settled.
        others = [one for one in record.tokens if one != token]
        record.revoked += others[:-3]
        record.tokens = [token, *others[-3:], new]
        record.state = "attached"
        record.take(taken.lease)

    def _refusal(self, record: Kept | None, token: str, tenant: str, after_seq: int, accept_gap: bool) -> type[Exception] | None:
        if record is None:
            return SessionMissing
        if tenant != "t1":
            return InvalidToken
        if not record.open:
            return SessionClosed
        if token not in record.tokens:
            return InvalidToken
        if record.expired:
            return SessionExpired
        if not record.has_checkpoint:
            return NoCheckpoint
        return None if accept_gap or record.first - 1 <= after_seq <= record.last else ReplayGap

    @rule(data=st.data())
    def settle_token(self, data: st.DataObject) -> None:
        session = self.pick(data, self._live())
        record, lease = self.records.get(session), self._lease(data, session)
        settled = self.do(self.store.records.settle_token(lease))
        assert settled == (record is not None and record.open and lease == record.lease)
        if settled and record:
            record.revoked += record.tokens[:-1]
            record.tokens = record.tokens[-1:]

    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        session = self.pick(data, self._live())
        record, lease = self.records.get(session), self._lease(data, session)
        detached = self.do(self.store.records.detach(lease))
        assert detached == (record is not None and record.state == "attached" and lease == record.lease)
        if detached and record:
            record.state = "detached"
            record.passed -= {"grace"}

    @rule(data=st.data(), newer=st.sampled_from([0, 0, 1]))
    def restore(self, data: st.DataObject, newer: int) -> None:
        """Only a lease that Redis gave and forgot may come back; here it is made up."""
        session = self.pick(data, self._live())
        record = self.records.get(session)
        if record is None:
            return
        lease = (
            Lease(session, record.lease.attachment + 1, "restored") if newer else data.draw(st.sampled_from(record.leases), label="lease")
        )
        token = self._new_token()
        work = self.store.records.restore(lease, "g1", "t1", "p", record.placed, token_digest=digest(token))
        if not record.open:
            with pytest.raises(SessionClosed):
                self.do(work)
        elif newer:
            with pytest.raises(LeaseForgotten):
                self.do(self.store.records.commit(Commit(lease, 1, [], b"hot")))
            self.do(work)
            record.revoked += record.tokens
            record.tokens, record.state = [token], "attached"
            record.take(lease)
        elif lease == record.lease:
            self.do(work)
        else:
            with pytest.raises(StaleGeneration):
                self.do(work)

    @rule(data=st.data(), reason=st.sampled_from(["a", "b"]))
    def begin_close(self, data: st.DataObject, reason: str) -> None:
        session = self.pick(data, self._live())
        record, lease = self.records.get(session), self._lease(data, session)
        began = self.do(self.store.records.begin_close(lease, reason))
        assert began == (record is not None and record.open and lease == record.lease)
        if began and record:
            record.end("closing", reason)

    @precondition(lambda self: self._live())
    @rule(data=st.data())
    def a_deadline_passes(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self._live())), label="session")
        name, _ = data.draw(st.sampled_from(self.records[session].deadlines), label="deadline")
        self.do(pass_deadline(self.url, session, name))
        self.records[session].passed.add(name)

    @rule(data=st.data())
    def reap(self, data: st.DataObject) -> None:
        session = self.pick(data, [session for session, record in self.records.items() if record.expired])
        record = self.records.get(session)
        reason = record.expired if record else None
        reaped = self.do(self.store.records.reap(session, "g3", f"reaper{self.issued}"))
        assert (reaped.reason if reaped else None) == reason
        if reaped and record and reason:
            assert reaped.lease.attachment > record.lease.attachment
            assert reaped.placements == record.placed
            record.end("closing", reason)
            record.take(reaped.lease)

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        session = self.pick(data, [session for session, record in self.records.items() if record.expired])
        record = self.records.get(session)
        reason = record.expired if record else None
        assert self.do(self.store.records.expire(session)) == reason
        if record and reason:
            record.end("closed", reason)

    @rule(
        data=st.data(),
        off=st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
        skip=st.sampled_from([0, 0, 0, 1, -1]),
        payloads=st.lists(st.binary(min_size=1, max_size=15), max_size=4),
        fields=st.dictionaries(st.sampled_from(["items", "config"]), st.none() | st.binary(max_size=8)),
        replace=st.sampled_from([False, False, False, True]),
    )
    def commit(
        self, data: st.DataObject, off: int, skip: int, payloads: list[bytes], fields: dict[str, bytes | None], replace: bool
    ) -> None:
        session = self.pick(data, self._live())
        record = self.records.get(session)
        lease = record.lease if record else Lease(session, 1, "h1")
        first_seq = (record.last if record else 0) + 1 + (skip if record and record.last else 0)
        moved = Lease(session, lease.attachment + off, lease.holder_id)
        work = self.store.records.commit(Commit(moved, first_seq, [(b"", p) for p in payloads], b"hot", fields, replace=replace))
        expected: type[Exception] | None = None
        if record is None:
            expected = SessionMissing
        elif record.state == "closed" or (record.state == "closing" and not off):
            expected = SessionClosed
        elif off:
            expected = LeaseForgotten if off > 0 else StaleGeneration
        elif not replace and first_seq != record.last + 1:
            expected = SequenceConflict
        if expected:
            with pytest.raises(expected):
                self.do(work)
            return
        assert record is not None
        record.passed -= {"lease", "idle"}
        record.has_checkpoint = True
        if replace:
            record.first, record.last, record.journal, record.fields = first_seq, first_seq - 1, {}, {}
        for payload in payloads:
            record.last += 1
            record.journal[record.last] = payload
        record.trim()
        record.fields |= {name: value for name, value in fields.items() if value is not None}
        record.fields = {name: value for name, value in record.fields.items() if fields.get(name, b"") is not None}
        assert self.do(work) == Committed(record.first, record.last)

    @rule(data=st.data(), reason=st.sampled_from(["a", "b"]))
    def close(self, data: st.DataObject, reason: str) -> None:
        session = self.pick(data, self._live())
        record, lease = self.records.get(session), self._lease(data, session)
        closed = self.do(self.store.records.close(lease, reason))
        assert closed == (record is not None and record.state != "closed" and lease == record.lease)
        if closed and record:
            record.end("closed", reason)

    @precondition(lambda self: self.records)
    @rule()
    def renew(self) -> None:
        every = [lease for record in self.records.values() for lease in record.leases]
        lost = self.do(self.store.records.renew("g1", every)).lost.keys()
        stale = {session for session, record in self.records.items() if len(record.leases) > 1}
        assert lost == stale | {session for session, record in self.records.items() if record.state == "closed"}
        for record in self.records.values():
            record.passed -= {"lease"}

    # -- what holds after every step

    @invariant()
    def records_are_the_models(self) -> None:
        for session, record in self.records.items():
            stored = self.do(self.store.records.load(session))
            assert (stored.record.state, stored.record.reason) == (record.state, record.reason)
            assert (stored.record.attachment, stored.record.holder_id) == (record.lease.attachment, record.lease.holder_id)
            assert {entry.seq: entry.payload for entry in stored.journal} == record.journal
            assert stored.fields == record.fields

    @invariant()
    def every_overdue_session_is_a_candidate(self) -> None:
        overdue = {session for session, record in self.records.items() if record.expired}
        assert overdue <= set(self.do(self.store.records.reapable()))


@pytest.mark.behaviour("L3", "L4", "L6", "R1", "R2", "R6", "X7")
def test_the_store_does_what_the_model_does(valkey_url: str) -> None:
    with asyncio.Runner() as runner:
        StoreMachine.url, StoreMachine.runner = valkey_url, runner
        run_state_machine_as_test(
            StoreMachine,
            settings=settings(max_examples=50, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)),
        )
