"""What a gateway tells operators moves when what it tells of does."""

from __future__ import annotations

import asyncio

import pytest
from parley_stage.v1 import stage_pb2 as pb
from prometheus_client import REGISTRY, CollectorRegistry

from gateway import metrics
from gateway.actor import StaleLease
from gateway.census import Census, Holding
from gateway.conversation.checkpoint import Checkpoint
from gateway.durable import StoreLog
from gateway.live import LEAST_GAP_S, _observe
from gateway.opening import Opened
from gateway.outbound import Frame, Outbound
from gateway.queueing import Queueing
from gateway.stages import StageLink
from session_store import Store
from session_store.errors import AtCapacity, StoreUnavailable
from tests.gateway.shell.carried import replica
from tests.gateway.shell.test_durable import entries, opened, opener

__all__ = ["opened", "opener"]

BOUND = 1000


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"parley_gateway_{name}", labels) or 0.0


def filled(size: int) -> Outbound:
    outbound = Outbound(BOUND)
    outbound.put(Frame("x" * size, "", 0.0, "AnEvent"))
    return outbound


def test_sessions_are_counted_by_their_state_when_somebody_asks() -> None:
    registry = CollectorRegistry()
    census = Census(registry)
    held: list[Outbound | None] = [filled(10), filled(BOUND // 2), None]
    census.watch("gw_1", lambda: Holding(held, draining=False))

    def told(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"parley_gateway_{name}", labels)

    def states() -> list[float | None]:
        return [told("sessions", state=state) for state in ("live", "detached", "draining")]

    assert states() == [2, 1, 0] and told("draining") == 0
    assert told("output_waiting_bytes") == 510 and told("slow_readers") == 1
    held.pop()
    census.watch("gw_2", lambda: Holding([None, None], draining=True))
    assert states() == [2, 0, 2] and told("draining") == 1
    census.forget("gw_1")
    census.forget("gw_2")
    assert states() == [0, 0, 0]


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (None, "admitted"),
        (AtCapacity(1000, "asr", 1), "refused"),
        (asyncio.CancelledError(), "left"),
        (StoreUnavailable("away"), "failed"),
    ],
)
def test_who_waits_is_counted_until_it_is_known_what_became_of_it(failure: BaseException | None, outcome: str) -> None:
    before, queued = value("queue_seconds_count", outcome=outcome), value("sessions_queued")

    def wait() -> None:
        with Queueing() as queueing:
            queueing.position(2)
            queueing.position(1)
            assert value("sessions_queued") == queued + 1
            if failure is not None:
                raise failure

    if failure is None:
        wait()
    else:
        with pytest.raises(type(failure)):
            wait()
    assert value("sessions_queued") == queued
    assert value("queue_seconds_count", outcome=outcome) == before + 1


def test_who_does_not_wait_is_no_part_of_the_queue() -> None:
    before = [value("queue_seconds_count", outcome=outcome) for outcome in metrics.QUEUE_OUTCOMES]
    with Queueing():
        pass
    assert [value("queue_seconds_count", outcome=outcome) for outcome in metrics.QUEUE_OUTCOMES] == before


def test_a_gap_is_silence_within_a_reply_and_nothing_else() -> None:
    outbound = Outbound(BOUND)

    def sound(response_id: str, plays_s: float) -> Frame:
        return Frame("x", response_id, 0.0, "AudioDelta", plays_s=plays_s)

    assert outbound.gap_before(sound("one", 0.1), 10.0) == 0
    assert outbound.gap_before(sound("one", 0.5), 10.05) == pytest.approx(-0.05)
    assert outbound.gap_before(sound("one", 0.1), 11.0) == pytest.approx(0.4), "it had 0.6 s from 10.0 on"
    assert outbound.gap_before(sound("two", 0.1), 20.0) == 0, "another reply may begin when it likes"
    outbound.mute("two")
    assert outbound.gap_before(sound("three", 1.0), 20.1) == 0
    assert outbound.gap_before(sound("three", 1.0), 21.2) == pytest.approx(0.1), "what was muted plays no more"


def test_a_gap_that_can_be_heard_is_measured_where_sound_is_written() -> None:
    outbound, before = Outbound(BOUND), value("playback_gap_seconds_count")
    frame = Frame("x", "one", 1.0, "AudioDelta", plays_s=0.1)
    _observe(outbound, frame, 10.0)
    _observe(outbound, frame, 10.1 + LEAST_GAP_S / 2)
    assert value("playback_gap_seconds_count") == before
    _observe(outbound, frame, 10.6)
    assert value("playback_gap_seconds_count") == before + 1


async def test_a_stage_that_obeys_somebody_else_is_counted() -> None:
    before = value("fenced_total", by="stage")
    async with replica() as (_, address):
        link = StageLink("asr", address, pb.Authority(session_id="sess_1", placement=1, attachment=1, holder_id="h"))
        link._failed(pb.StageError(code=pb.StageError.CODE_STALE_AUTHORITY), 0.0)
    assert value("fenced_total", by="stage") == before + 1


def test_rare_series_begin_at_zero() -> None:
    metrics.prepare(("a stage of the test",), "a profile", "a model")
    for name in ("quarantined_total", "turned_back_total", "reattaches_total"):
        assert REGISTRY.get_sample_value(f"parley_gateway_{name}", {"stage": "a stage of the test"}) == 0
    assert REGISTRY.get_sample_value("parley_gateway_moves_total", {"stage": "a stage of the test", "outcome": "moved"}) == 0
    builds = [sample for family in REGISTRY.collect() if family.name == "parley_gateway_build_info" for sample in family.samples]
    assert [(sample.labels["profile"], sample.value) for sample in builds] == [("a profile", 1)]


async def test_what_a_commit_writes_is_measured_and_a_lost_lease_counted(store: Store, opener: object, opened: Opened) -> None:
    log = StoreLog(store, opener, opened, 60.0)  # type: ignore[arg-type]
    bytes_before, count_before = value("journal_bytes_sum"), value("journal_bytes_count")
    assert await log.commit(1, entries(1, 2, size=100), Checkpoint(b"12345", {"a": b"123", "gone": None}), 0)
    assert value("journal_bytes_count") == count_before + 1
    assert value("journal_bytes_sum") == bytes_before + 2 * (len(b"head 1") + 100) + 5 + 3
    fenced = value("fenced_total", by="store")
    await store.records.begin_close(opened.lease, "test")
    with pytest.raises(StaleLease):
        await log.commit(3, entries(3, 1), Checkpoint(b"", {}), 0)
    assert value("fenced_total", by="store") == fenced + 1
