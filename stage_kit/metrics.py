"""Prometheus metrics of a service: one registry, one family of series for each stage."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SLOTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Families of the service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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


class StageMetrics:
    """The series of one stage."""

    def __init__(self, metrics: Metrics, stage: str) -> None:
        self._metrics = metrics
        self._stage = stage
        self.faults = metrics.faults.labels(stage)
        self.cancels = metrics.cancels.labels(stage)
        self.credit_waits = metrics.credit_waits.labels(stage)
        self.batch = metrics.batch.labels(stage)
        self.step_seconds = metrics.step_seconds.labels(stage)
        self.append_wait = metrics.append_wait.labels(stage)
        self.output_wait = metrics.output_wait.labels(stage)

    def observe(
        self, slots: int, sessions: Callable[[], float], kept_bytes: Callable[[], float], pending_bytes: Callable[[], float]
    ) -> None:
        """Gauges that are read when they are scraped."""
        self._metrics.slots.labels(self._stage).set(slots)
        self._metrics.sessions.labels(self._stage).set_function(sessions)
        self._metrics.kept_bytes.labels(self._stage).set_function(kept_bytes)
        self._metrics.pending_bytes.labels(self._stage).set_function(pending_bytes)

    def append(self, outcome: str) -> None:
        """accepted, discarded, duplicate, gap, refused."""
        self._metrics.appends.labels(self._stage, outcome).inc()

    def output(self, kind: str) -> None:
        """Payload kind, "last" for a bare end, "unit_done"."""
        self._metrics.outputs.labels(self._stage, kind).inc()

    def refuse(self, code: str) -> None:
        """StageError.Code by name."""
        self._metrics.refused.labels(self._stage, code).inc()
