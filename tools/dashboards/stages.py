"""Do the stages keep up? Engines, batches, KV memory, and the cards below them."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from tools.dashboards.panels import Panel, board, graph, latency, listing
from tools.dashboards.queries import WINDOW, mean, of, quantile, rate, total

_CARD = "{{Hostname}} GPU {{gpu}}"


def stages() -> Dashboard:
    return board(
        "parley-stages",
        "Parley / Stages and GPU",
        "Each stage's load and lag, and the cards as NVIDIA's DCGM exporter tells of them.",
        [("Lag", _lag()), ("Load", _load()), ("Memory", _memory()), ("Faults", _faults()), ("GPU", _gpu())],
    )


def _lag() -> list[Panel]:
    return [
        graph(
            "Native units",
            "Last sound of a unit come to all that it made being ready, beside the unit's length, which is the deadline. "
            "Only of the stage that hears, of a native model.",
            "s",
            (quantile(0.5, "parley_stage_unit_lag_seconds", "stage"), "{{stage}} p50"),
            (quantile(0.99, "parley_stage_unit_lag_seconds", "stage"), "{{stage}} p99"),
            (f"max by (stage) ({of('parley_stage_unit_length_seconds')})", "{{stage}} deadline"),
        ),
        latency("Answers", "First append of an answer to its first output.", "parley_stage_first_output_seconds", by="stage"),
        latency("Input waits", "Age of an append when the engine takes it.", "parley_stage_append_wait_seconds", by="stage"),
        latency("Step", "One step of the engine for its whole batch.", "parley_stage_step_seconds", by="stage"),
        latency("Output waits", "Age of an output when it leaves.", "parley_stage_output_wait_seconds", by="stage"),
        graph(
            "Engine stands still",
            "Time since the engine's loop turned last, while it has work.",
            "s",
            (f"max by (stage, instance) ({of('parley_stage_engine_age_seconds')})", "{{stage}} {{instance}}"),
            good_below=10,
        ),
    ]


def _load() -> list[Panel]:
    return [
        graph(
            "Sessions and slots",
            "Slots taken beside all there are.",
            "none",
            (total("parley_stage_sessions", "stage"), "{{stage}} taken"),
            (total("parley_stage_slots", "stage"), "{{stage}} in all"),
        ),
        graph(
            "Batch size",
            "Sessions in one step.",
            "none",
            (mean("parley_stage_batch_slots", "stage"), "{{stage}} mean"),
            (quantile(0.95, "parley_stage_batch_slots", "stage"), "{{stage}} p95"),
        ),
        graph(
            "Steps",
            "In a second.",
            "ops",
            (rate("parley_stage_step_seconds_count", "stage"), "{{stage}}"),
        ),
        graph(
            "Engine busy",
            "Share of the time that is spent in steps, on average of the replicas.",
            "percentunit",
            (f"avg by (stage) (rate({of('parley_stage_step_seconds_sum')}[{WINDOW}]))", "{{stage}}"),
            limits=(0, 1),
        ),
        graph(
            "Appends",
            "By what became of them.",
            "cps",
            (rate("parley_stage_appends_total", "stage, outcome"), "{{stage}} {{outcome}}"),
        ),
        graph("Outputs", "By kind.", "cps", (rate("parley_stage_outputs_total", "stage, kind"), "{{stage}} {{kind}}")),
        graph(
            "Sound ahead of its time",
            "Outputs that had to wait for credit: the stage is ahead.",
            "cps",
            (rate("parley_stage_credit_waits_total", "stage"), "{{stage}}"),
        ),
        graph(
            "Sessions in a message",
            "Parcels in one batch between gateway and replica.",
            "none",
            (mean("parley_gateway_batch_parcels", "direction"), "{{direction}} mean"),
            (quantile(0.95, "parley_gateway_batch_parcels", "direction"), "{{direction}} p95"),
        ),
        listing("Engines", "What each stage runs.", of("parley_stage_engine_info")),
    ]


def _memory() -> list[Panel]:
    pages = total("parley_stage_kv_pages", "stage", 'state="held"')
    return [
        graph(
            "KV pages in use",
            "Share of the pages that sessions hold now. Empty for engines without a paged cache.",
            "percentunit",
            (f"{pages} / {total('parley_stage_kv_pages', 'stage')}", "{{stage}}"),
            limits=(0, 1),
        ),
        graph(
            "KV memory set aside",
            "For the sessions held, each at its longest, beside all there is.",
            "bytes",
            (total("parley_stage_kv_reserved_bytes", "stage"), "{{stage}} set aside"),
            (total("parley_stage_kv_bytes", "stage"), "{{stage}} in all"),
        ),
        graph(
            "Held for others",
            "Appends that wait for the engine, and outputs that nobody acknowledged yet.",
            "bytes",
            (total("parley_stage_pending_append_bytes", "stage"), "{{stage}} appends"),
            (total("parley_stage_kept_output_bytes", "stage"), "{{stage}} outputs"),
        ),
    ]


def _faults() -> list[Panel]:
    return [
        graph("Engine faults", "Exceptions of engines.", "cps", (rate("parley_stage_faults_total", "stage"), "{{stage}}")),
        graph(
            "Refused commands",
            "CODE_STALE_AUTHORITY: of a gateway that has the session no more.",
            "cps",
            (rate("parley_stage_refused_total", "stage, code"), "{{stage}} {{code}}"),
        ),
        graph(
            "Errors that gateways met",
            "By stage and code.",
            "cps",
            (rate("parley_gateway_stage_errors_total", "stage, code"), "{{stage}} {{code}}"),
        ),
        graph(
            "Turned back",
            "Appends that a stage had no room for yet.",
            "cps",
            (rate("parley_gateway_turned_back_total", "stage"), "{{stage}}"),
        ),
        graph(
            "Slots out of reach",
            "Sessions without a gateway, and slots that an engine failed to close.",
            "none",
            (total("parley_stage_sessions_detached", "stage"), "{{stage}} detached"),
            (total("parley_stage_slots_unclosable", "stage"), "{{stage}} unclosable"),
        ),
        graph(
            "Registered",
            "1 while the registry takes the replica's beat: its model is loaded, and the store is there.",
            "none",
            (f"min by (job, instance) ({of('parley_stage_registered')})", "{{job}} {{instance}}"),
            limits=(0, 1),
        ),
    ]


def _gpu() -> list[Panel]:
    return [
        graph(
            "Engine active",
            "Share of the time in which the card computes. Holds under MIG, where GPU_UTIL does not.",
            "percentunit",
            ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", _CARD),
            limits=(0, 1),
        ),
        graph(
            "Tensor cores and memory bus",
            "Share of the time in which they are active.",
            "percentunit",
            ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", f"{_CARD} tensor"),
            ("DCGM_FI_PROF_DRAM_ACTIVE", f"{_CARD} memory"),
            limits=(0, 1),
        ),
        graph(
            "GPU memory in use",
            "Share of the frame buffer.",
            "percentunit",
            ("DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)", _CARD),
            limits=(0, 1),
            good_below=0.985,
        ),
        graph("Power", "Drawn now.", "watt", ("DCGM_FI_DEV_POWER_USAGE", _CARD)),
        graph("Temperature", "Of the card.", "celsius", ("DCGM_FI_DEV_GPU_TEMP", _CARD)),
        graph(
            "Clock",
            "Of the multiprocessors: it falls when the card is too hot.",
            "rotmhz",
            ("DCGM_FI_DEV_SM_CLOCK", _CARD),
        ),
        graph("Last XID error", "0: none. See NVIDIA's table of them.", "none", ("DCGM_FI_DEV_XID_ERRORS", _CARD)),
    ]
