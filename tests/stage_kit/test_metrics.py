"""What a stage service tells operators moves when what it tells of does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from parley_stage.v1 import stage_pb2

from session_store.loop_lag import watch_loop
from stage_kit import Append, Label, Service, Settings, Slot
from tests.stage_kit.support import INPUT, PCM_24K, WAIT_S, EchoService, Probe, positions, serving, until_set

LATE_S = 0.05


class Hearing(Probe):
    """A native engine: half a second of sound is a unit, and a step tells that it is done. It holds 3 of 8 pages."""

    def __init__(self) -> None:
        super().__init__(input_rate=16_000)
        self.card = type(self.card)(**{**_fields(self.card), "unit_ms": 500, "kv_bytes": 4000, "kv_bytes_per_session": 1000})
        self._complete_at = 0.0

    def kv_pages(self) -> tuple[int, int] | None:
        return 3, 8

    def receive(self, slot: Slot, append: Append) -> None:
        if append.samples is not None:
            self._complete_at = append.arrived
            slot.state.append((append.label, "done"))

    def _make(self, slot: Slot, label: Label, text: str) -> None:
        slot.unit_done(0, 500, label, complete_at=self._complete_at)


def _fields(card: Any) -> dict[str, Any]:
    return {name: getattr(card, name) for name in card.__struct_fields__}


def value(service: Service, name: str, **labels: str) -> float | None:
    return service.metrics.registry.get_sample_value(f"parley_stage_{name}", labels)


async def test_the_lag_of_a_unit_is_counted_from_the_arrival_of_its_last_sound() -> None:
    engine = Hearing()
    async with serving(engine) as (client, service):
        assert value(service, "unit_lag_seconds_count", stage="probe") == 0
        assert value(service, "unit_length_seconds", stage="probe") == 0.5
        talk = client.converse()
        await talk.open(input_format=PCM_24K)
        engine.gate.clear()
        began = time.monotonic()
        sound = stage_pb2.Payload(audio=stage_pb2.Audio(format=PCM_24K, data=bytes(24_000), samples=12_000))
        await talk.append(sound, Label(), edge="client", lane=INPUT, position=12_000, previous=0)
        await until_set(engine.busy)
        await asyncio.sleep(LATE_S)
        engine.gate.set()
        await talk.read("unit_done")
        assert value(service, "unit_lag_seconds_count", stage="probe") == 1
        lag = value(service, "unit_lag_seconds_sum", stage="probe")
        assert lag is not None and LATE_S <= lag <= time.monotonic() - began


async def test_kv_memory_is_shown_as_it_is_set_aside_and_as_it_is_used() -> None:
    async with serving(Hearing()) as (client, service):
        assert value(service, "kv_bytes", stage="probe") == 4000
        assert value(service, "kv_pages", stage="probe", state="held") == 3
        assert value(service, "kv_pages", stage="probe", state="free") == 5
        assert value(service, "kv_reserved_bytes", stage="probe") == 0
        await client.converse().open(input_format=PCM_24K)
        assert value(service, "kv_reserved_bytes", stage="probe") == 1000


async def test_the_first_output_of_each_response_is_timed_and_no_other() -> None:
    async with serving(Probe()) as (client, service):
        talk = client.converse()
        await talk.open()
        for response in ("one", "two"):
            for word in ("hello", "again"):
                await talk.text(word, response=response)
                await talk.read("chunk")
        assert value(service, "first_output_seconds_count", stage="probe") == 2


async def test_an_outside_service_s_first_output_is_timed() -> None:
    engine = EchoService()
    engine.gate.set()
    async with serving(engine) as (client, service):
        talk = client.converse(stage="remote")
        await talk.open()
        await talk.text("hello")
        await talk.read("chunk")
        assert value(service, "first_output_seconds_count", stage="remote") == 1


async def test_states_of_sessions_and_slots() -> None:
    engine = Probe()
    async with serving(engine) as (client, service):
        host = service.hosts["probe"]
        talk = client.converse()
        await talk.open()
        assert (value(service, "sessions", stage="probe"), value(service, "sessions_detached", stage="probe")) == (1, 0)
        host.draining = True
        assert value(service, "draining", stage="probe") == 1
        talk._call.cancel()
        await _until(lambda: value(service, "sessions_detached", stage="probe") == 1)
        engine.close_failures = 1_000_000
        host.free(talk.authority.session_id, "test")
        await _until(lambda: value(service, "slots_unclosable", stage="probe") == 1)
        engine.close_failures = 0
        await _until(lambda: value(service, "slots_unclosable", stage="probe") == 0 == value(service, "sessions", stage="probe"))


async def test_a_stale_command_is_counted_by_its_code() -> None:
    async with serving(Probe()) as (client, service):
        assert value(service, "refused_total", stage="probe", code="CODE_STALE_AUTHORITY") == 0
        talk = client.converse()
        await talk.open()
        old = stage_pb2.Authority(session_id=talk.authority.session_id, placement=talk.authority.placement, attachment=0, holder_id="x")
        await talk.cancel(0, 1, authority=old)
        await talk.read("error")
        assert value(service, "refused_total", stage="probe", code="CODE_STALE_AUTHORITY") == 1
        assert positions(talk.seen) == []


async def test_what_runs_here_is_told_from_the_start() -> None:
    async with serving(Probe()) as (_, service):
        samples = {sample.name: sample for family in service.metrics.registry.collect() for sample in family.samples}
        assert samples["parley_stage_engine_info"].labels == {"stage": "probe", "engine": "probe", "model": "none"}
        assert samples["parley_stage_build_info"].labels.keys() == {"version", "python", "service"}
        assert samples["parley_stage_slots"].value == 4 and samples["parley_stage_engine_age_seconds"].value >= 0
        assert samples["process_resident_memory_bytes"].value > 0
        assert not any(name.endswith("_created") for name in samples)


class Slow(Probe):
    """Loads as long as its gate is closed."""

    def load(self) -> None:
        self.busy.set()
        assert self.gate.wait(10)


async def test_who_loads_is_not_stuck() -> None:
    engine = Slow()
    engine.gate.clear()
    service = Service("test", [engine], Settings())
    starting = asyncio.create_task(service.start())
    try:
        await until_set(engine.busy)
        await asyncio.sleep(LATE_S)  # the time that a large model takes
        assert value(service, "loaded") == 0 == value(service, "engine_age_seconds", stage="probe")
    finally:
        engine.gate.set()
        await starting
    assert value(service, "loaded") == 1
    await service.stop()


async def test_the_lag_of_an_event_loop_is_how_late_it_is() -> None:
    lags: list[float] = []
    watching = asyncio.create_task(watch_loop(lags.append, time.monotonic, period_s=0.01))
    try:
        await _until(lambda: bool(lags))
        time.sleep(LATE_S)  # noqa: ASYNC251  (the fault itself)
        count = len(lags)
        await _until(lambda: len(lags) > count)
        assert min(lags) >= 0 and max(lags) >= LATE_S / 2
    finally:
        watching.cancel()


async def _until(test: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if test():
                return
            await asyncio.sleep(0.005)
