"""Prometheus metrics of a service: one registry, one family of series for each stage."""

from __future__ import annotations

from collections.abc import Callable
from platform import python_version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from session_store.build import version
from stage_kit.engine import Card
from stage_kit.outputs import Output

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_UNIT = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
_LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SLOTS = (1, 2, 4, 8, 16, 32, 64, 128)
APPEND_OUTCOMES = ("accepted", "discarded", "duplicate", "gap", "refused")
KV_STATES = ("held", "free")
# a second series for each counter and histogram, of which nobody asks anything
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Families of the service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.build = self._gauge("build_info", "Always 1: what runs here", "version", "python", "service")
        self.engine = self._gauge("engine_info", "Always 1: what the stage runs", "stage", "engine", "model")
        self.loaded = self._gauge("loaded", "1 once the engines are loaded")
        self.registered = self._gauge("registered", "1 when the registry took the last beat")
        self.draining = self._gauge("draining", "1 while it takes no new sessions", "stage")
        self.detached = self._gauge("sessions_detached", "Sessions held that no gateway is connected for", "stage")
        self.unclosable = self._gauge("slots_unclosable", "Slots that the engine failed to close; tried again", "stage")
        self.engine_age = self._gauge(
            "engine_age_seconds", "Time since the engine's loop turned last; 0 when it has nothing to do", "stage"
        )
        self.unit_length = self._gauge("unit_length_seconds", "Length of a native unit, which is the deadline of its lag", "stage")
        self.kv_bytes = self._gauge("kv_bytes", "KV memory for all sessions", "stage")
        self.kv_reserved = self._gauge("kv_reserved_bytes", "KV memory that the sessions held have set aside", "stage")
        self.kv_pages = self._gauge("kv_pages", "Pages of the KV cache", "stage", "state")
        self.loop_lag = Histogram("parley_stage_loop_lag_seconds", "Lateness of a timer of 100 ms", buckets=_LAG, registry=self.registry)
        self.unit_lag = Histogram(
            "parley_stage_unit_lag_seconds",
            "Last sound of a native unit come to all that it made being ready to leave",
            ["stage"],
            buckets=_UNIT,
            registry=self.registry,
        )
        self.first_output = Histogram(
            "parley_stage_first_output_seconds",
            "First append of a response come to its first output being ready to leave",
            ["stage"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.sessions = Gauge("parley_stage_sessions", "Sessions held", ["stage"], registry=self.registry)
        self.slots = Gauge("parley_stage_slots", "Most sessions at once", ["stage"], registry=self.registry)
        self.kept_bytes = Gauge("parley_stage_kept_output_bytes", "Outputs made and not acknowledged", ["stage"], registry=self.registry)
        self.pending_bytes = Gauge("parley_stage_pending_append_bytes", "Appends waiting for the engine", ["stage"], registry=self.registry)
        self.appends = Counter("parley_stage_appends", "Appends by outcome", ["stage", "outcome"], registry=self.registry)
        self.outputs = Counter("parley_stage_outputs", "Outputs by kind", ["stage", "kind"], registry=self.registry)
        self.refused = Counter("parley_stage_refused", "Refusals by code", ["stage", "code"], registry=self.registry)
        self.faults = Counter("parley_stage_faults", "Exceptions of the engine", ["stage"], registry=self.registry)
        self.cancels = Counter("parley_stage_cancels", "Cancels executed", ["stage"], registry=self.registry)
        self.credit_waits = Counter(
            "parley_stage_credit_waits", "Times that output had to wait for credit", ["stage"], registry=self.registry
        )
        self.batch = Histogram("parley_stage_batch_slots", "Slots in one step", ["stage"], buckets=_SLOTS, registry=self.registry)
        self.step_seconds = Histogram("parley_stage_step_seconds", "One step", ["stage"], buckets=_SECONDS, registry=self.registry)
        self.append_wait = Histogram(
            "parley_stage_append_wait_seconds",
            "Age of an append when the engine takes it",
            ["stage"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.output_wait = Histogram(
            "parley_stage_output_wait_seconds", "Age of an output when it leaves", ["stage"], buckets=_SECONDS, registry=self.registry
        )

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"parley_stage_{name}", documentation, labels, registry=self.registry)

    def runs(self, service: str) -> None:
        """Says what this process is."""
        self.build.labels(version(), python_version(), service).set(1)


class StageMetrics:
    """The series of one stage. Counters begin at zero: the first of a rare event is seen to happen only beside a zero."""

    def __init__(self, metrics: Metrics, card: Card) -> None:
        self._metrics = metrics
        self._stage = stage = card.stage
        metrics.engine.labels(stage, card.engine, card.model).set(1)
        metrics.slots.labels(stage).set(card.slots)
        metrics.refused.labels(stage, "CODE_STALE_AUTHORITY")
        # kept: to find a series takes longer than to count
        self._appends = {outcome: metrics.appends.labels(stage, outcome) for outcome in APPEND_OUTCOMES}
        self._outputs: dict[str, Counter] = {}
        metrics.first_output.labels(stage)
        if card.unit_ms and card.input_rate:  # who hears tells when a unit is done
            metrics.unit_length.labels(stage).set(card.unit_ms / 1000)
            metrics.unit_lag.labels(stage)
        if card.kv_bytes:
            metrics.kv_bytes.labels(stage).set(card.kv_bytes)
        self.faults = metrics.faults.labels(stage)
        self.cancels = metrics.cancels.labels(stage)
        self.credit_waits = metrics.credit_waits.labels(stage)
        self.batch = metrics.batch.labels(stage)
        self.step_seconds = metrics.step_seconds.labels(stage)
        self.append_wait = metrics.append_wait.labels(stage)
        self.output_wait = metrics.output_wait.labels(stage)

    def observe(self, **read: Callable[[], float]) -> None:
        """Gauges, by their name in Metrics, that are read when they are scraped, on the scraper's thread."""
        for name, function in read.items():
            getattr(self._metrics, name).labels(self._stage).set_function(function)

    def observe_pages(self, read: Callable[[], tuple[int, int] | None]) -> None:
        """Of the KV cache: those held, and all."""
        held, free = (self._metrics.kv_pages.labels(self._stage, state) for state in KV_STATES)
        held.set_function(lambda: (read() or (0, 0))[0])
        free.set_function(lambda: _free(read() or (0, 0)))

    def took(self, output: Output, seconds: float) -> None:
        """What an output that is measured took to make."""
        family = self._metrics.first_output if output.unit is None else self._metrics.unit_lag
        family.labels(self._stage).observe(seconds)

    def append(self, outcome: str) -> None:
        """accepted, discarded, duplicate, gap, refused."""
        self._appends[outcome].inc()

    def output(self, kind: str) -> None:
        """Payload kind, "last" for a bare end, "unit_done"."""
        series = self._outputs.get(kind) or self._outputs.setdefault(kind, self._metrics.outputs.labels(self._stage, kind))
        series.inc()

    def refuse(self, code: str) -> None:
        """StageError.Code by name."""
        self._metrics.refused.labels(self._stage, code).inc()


def _free(pages: tuple[int, int]) -> int:
    held, every = pages
    return every - held
