"""The registry and admission against a model of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from redis.asyncio import ConnectionPool, Redis

from session_store import AtCapacity, Placement, ReplicaBeat, ReservationLost, StageOffer, StagesUnavailable, Store, TenantLimit
from session_store.keys import POOL
from tests.session_store.helpers import forget_silence, keys_without_ttl
from tests.session_store.model import LIMITS, REPLICAS, SESSIONS, STAGES, Kept, replicas, sessions, stages

T = TypeVar("T")


class AdmissionMachine(RuleBasedStateMachine):
    """Runs each step on Valkey and on the model, and compares: registry and admission."""

    url: str
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.store = self.do(self._empty_store())
        self.offers: dict[str, tuple[dict[str, int], bool]] = {}
        self.plan: dict[tuple[str, str], Placement] = {}
        self.reserved: set[tuple[str, str]] = set()
        self.lost: set[tuple[str, str]] = set()
        self.tenants: dict[str, str] = {}
        self.taken: dict[tuple[str, str], set[str]] = {}
        self.quarantined: set[tuple[str, str, str]] = set()
        self.records: dict[str, Kept] = {}
        self.highest = 0
        self.issued = 0

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def _empty_store(self) -> Store:
        self.connections = ConnectionPool.from_url(self.url, decode_responses=True)
        async with Redis(connection_pool=self.connections) as admin:
            await admin.flushall()
        return await Store.open(self.url, LIMITS)

    def teardown(self) -> None:
        assert self.do(keys_without_ttl(self.url)) == []
        self.do(self.store.close())
        self.do(self.connections.disconnect())

    def pick(self, data: st.DataObject, useful: Iterable[str]) -> str:
        """A session, mostly one at which the call has something to do."""
        return data.draw(st.sampled_from((*sorted(set(useful)) * 4, *SESSIONS)), label="session")

    def _planned(self) -> list[str]:
        return [session for session, _ in self.plan]

    # -- the model's own moves

    def _forget(self, session: str) -> None:
        if not any((session, stage) in self.plan for stage in STAGES):
            self.tenants.pop(session, None)
            self.lost -= {(session, stage) for stage in STAGES}

    def _withdraw(self, replica: str, stage: str) -> None:
        for session in self.taken.pop((replica, stage), set()):
            if (placed := self.plan.get((session, stage))) and placed.replica_id == replica:
                del self.plan[session, stage]
                if (session, stage) in self.reserved:
                    self.lost.add((session, stage))
                self.reserved.discard((session, stage))
            self.quarantined.discard((replica, stage, session))

    def _choices(self, session: str, stage: str) -> tuple[set[str], bool]:
        loads = {}
        offering = [r for r, (offer, draining) in self.offers.items() if stage in offer and not draining]
        for replica in offering:
            taken, slots = self.taken.setdefault((replica, stage), set()), self.offers[replica][0][stage]
            if len(taken) < slots and session not in taken:
                loads[replica] = len(taken) / slots
        return {replica for replica, load in loads.items() if load == min(loads.values())}, bool(offering)

    # -- registry

    @initialize()
    def start(self) -> None:
        for replica in REPLICAS:
            self.do(
                self.store.registry.beat(ReplicaBeat(replica, "svc", f"host:{replica}", tuple(StageOffer(stage, 2) for stage in STAGES)))
            )
            self.offers[replica] = (dict.fromkeys(STAGES, 2), False)
        self.do(forget_silence(self.url))
        for session in SESSIONS[:2]:
            self._reserve(session, list(STAGES), 0, 0)

    @rule(
        replica=replicas,
        slots=st.dictionaries(stages, st.integers(0, 3), min_size=1),
        draining=st.sampled_from([False, False, True]),
        data=st.data(),
    )
    def beat(self, replica: str, slots: dict[str, int], draining: bool, data: st.DataObject) -> None:
        truthful = data.draw(st.booleans(), label="truthful")
        held = {
            stage: set(self.taken.get((replica, stage), ())) if truthful else data.draw(st.sets(sessions), label=f"held at {stage}")
            for stage in slots
        }
        offers = tuple(StageOffer(stage, slots[stage], held=tuple(sorted(held[stage]))) for stage in slots)
        self.do(self.store.registry.beat(ReplicaBeat(replica, "svc", f"host:{replica}", offers, draining)))
        for stage in set(self.offers.get(replica, ({}, False))[0]) - set(slots):
            self._withdraw(replica, stage)
        self.offers[replica] = (dict(slots), draining)
        for stage in slots:
            taken = self.taken.setdefault((replica, stage), set())
            for session in list(taken - held[stage]):
                placed = self.plan.get((session, stage))
                if not placed or placed.replica_id != replica:
                    taken.discard(session)
                    self.quarantined.discard((replica, stage, session))
            for session in held[stage]:
                taken.add(session)
                self._adopt(replica, stage, session)

    def _adopt(self, replica: str, stage: str, session: str) -> None:
        record = self.records.get(session)
        if not record or record.state == "closed" or record.expired or (session, stage) in self.plan:
            return
        placed = record.placed.get(stage)
        if placed and placed.replica_id == replica:
            self.plan[session, stage] = placed
            self.lost.discard((session, stage))
            self.quarantined.discard((replica, stage, session))  # in use until its record says otherwise
            self.tenants[session] = "t1"

    @rule(replica=replicas)
    def remove(self, replica: str) -> None:
        self.do(self.store.registry.remove(replica))
        for stage in self.offers.pop(replica, ({}, False))[0]:
            self._withdraw(replica, stage)

    # -- admission

    @rule(session=sessions, wanted=st.lists(stages, min_size=1, unique=True), limit=st.sampled_from([0, 0, 1, 2]), seed=st.integers(0, 100))
    def reserve(self, session: str, wanted: list[str], limit: int, seed: int) -> None:
        self._reserve(session, wanted, limit, seed)

    def _reserve(self, session: str, wanted: list[str], limit: int, seed: int) -> None:
        work = self.store.admission.reserve(session, "t1", wanted, limit, seed=seed)
        if limit and session not in self.tenants and len(self.tenants) >= limit:
            with pytest.raises(TenantLimit):
                self.do(work)
            return
        possible = {stage: self._choices(session, stage) for stage in wanted if (session, stage) not in self.plan}
        for stage, (choices, offered) in possible.items():
            if not choices:
                with pytest.raises(AtCapacity if offered else StagesUnavailable) as refused:
                    self.do(work)
                assert refused.value.stage == stage
                return
        placements = self.do(work).placements
        assert list(placements) == wanted
        for stage, placed in placements.items():
            if (session, stage) in self.plan:
                assert (placed.replica_id, placed.placement) == (self.plan[session, stage].replica_id, self.plan[session, stage].placement)
                continue
            assert placed.replica_id in possible[stage][0]
            assert placed.placement > self.highest
            self.highest = placed.placement
            self.plan[session, stage] = placed
            self.reserved.add((session, stage))
            self.lost.discard((session, stage))
            self.taken[placed.replica_id, stage].add(session)
        self.tenants[session] = "t1"

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        session = self.pick(data, [session for session, _ in self.reserved | self.lost])
        mine = {(session, stage) for stage in STAGES}
        if not mine & self.plan.keys() or mine & self.lost:
            with pytest.raises(ReservationLost):
                self.do(self.store.admission.confirm(session))
            return
        self.do(self.store.admission.confirm(session))
        self.reserved -= mine

    @rule(data=st.data(), only=st.none() | st.lists(stages, min_size=1, unique=True))
    def release(self, data: st.DataObject, only: list[str] | None) -> None:
        session = self.pick(data, self._planned())
        self.do(self.store.admission.release(session, only))
        for stage in only or STAGES:
            if only:
                self.lost.discard((session, stage))
            if placed := self.plan.pop((session, stage), None):
                self.taken[placed.replica_id, stage].discard(session)
                self.reserved.discard((session, stage))
        self._forget(session)

    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        session, stage = data.draw(st.sampled_from((*sorted(self.plan) * 4, (SESSIONS[0], STAGES[0]))), label="slot")
        placed = self.plan.pop((session, stage), None)
        assert self.do(self.store.admission.quarantine(session, stage)) == (placed is not None)
        if placed:
            self.reserved.discard((session, stage))
            self.quarantined.add((placed.replica_id, stage, session))
            self._forget(session)

    # -- what holds after every step

    @invariant()
    def slots_are_the_models(self) -> None:
        seen = {(r.replica_id, s.stage): s.used for r in self.do(self.store.registry.replicas()) for s in r.stages}
        assert seen == {
            (replica, stage): len(self.taken.get((replica, stage), ())) for replica, (offer, _) in self.offers.items() for stage in offer
        }
        listed = {(q.replica_id, q.stage, q.session_id) for q in self.do(self.store.admission.quarantined())}
        assert listed == self.quarantined

    async def _stored_plan(self) -> tuple[set[str], dict[tuple[str, str], str], set[tuple[str, str]]]:
        async with Redis(connection_pool=self.connections) as admin:
            tenants = set(await admin.zrange(f"{POOL}:tenant:t1", 0, -1))
            hashes = {session: await admin.hgetall(f"{POOL}:session:{session}") for session in SESSIONS}
        plan = {(session, stage): h[f"replica:{stage}"] for session, h in hashes.items() for stage in STAGES if f"replica:{stage}" in h}
        reserved = {(session, stage) for session, h in hashes.items() for stage in STAGES if h.get(f"state:{stage}") == "reserved"}
        return tenants, plan, reserved

    @invariant()
    def the_plan_is_the_models(self) -> None:
        tenants, plan, reserved = self.do(self._stored_plan())
        assert tenants == self.tenants.keys()
        assert plan == {key: placed.replica_id for key, placed in self.plan.items()}
        assert reserved == self.reserved
