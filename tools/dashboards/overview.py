"""Is it well? What is looked at first."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from tools.dashboards.panels import board, graph, latency, listing, number
from tools.dashboards.queries import WINDOW, of, quantile, rate, total

_SESSIONS = total("parley_gateway_sessions")
_TAKEN = of("parley:slots_taken:ratio")


def overview() -> Dashboard:
    return board(
        "parley-overview",
        "Parley / Overview",
        "Conversations, who gets in, how soon answers begin, and whether every process is well.",
        [
            (
                "Now",
                [
                    number("Conversations", "Sessions held by all gateways.", "none", _SESSIONS),
                    number("Waiting", "Sessions that wait for a slot.", "none", total("parley_gateway_sessions_queued"), good_below=1),
                    number("Room left", "Share of free slots at the fullest stage.", "percentunit", f"1 - max({_TAKEN})", good_above=0.1),
                    number(
                        "Answer begins (p95)",
                        "End of the user's turn decided to the first sound written.",
                        "s",
                        quantile(0.95, "parley_gateway_turn_seconds"),
                        good_below=1,
                    ),
                    number(
                        "Let in",
                        "Share of those who may come in that were let in, over an hour.",
                        "percentunit",
                        f"1 - max({of('parley:open_errors:ratio_rate1h')})",
                        good_above=0.99,
                    ),
                    number(
                        "Store reached",
                        "Share of gateways whose last beat the store took.",
                        "percentunit",
                        f"avg({of('parley_gateway_store_reachable')})",
                        good_above=1,
                    ),
                ],
            ),
            (
                "Conversations",
                [
                    graph(
                        "Sessions by state",
                        "live: with a client. detached: its client may come back. draining: of a gateway that leaves.",
                        "none",
                        (total("parley_gateway_sessions", "state"), "{{state}}"),
                        (total("parley_gateway_sessions_queued"), "queued"),
                        stacked=True,
                    ),
                    graph(
                        "Slots in use",
                        "Share of each stage's slots that sessions hold, replicas that drain or load left out. New ones wait at 100 %.",
                        "percentunit",
                        (f"max by (stage) ({_TAKEN})", "{{stage}}"),
                        limits=(0, 1),
                        good_below=0.9,
                    ),
                    graph(
                        "Who asks to come in",
                        "Upgrade requests by what became of them.",
                        "reqps",
                        (rate("parley_gateway_opens_total", "outcome"), "{{outcome}}"),
                        stacked=True,
                    ),
                    latency("Silence before an answer", "Decision to first sound.", "parley_gateway_turn_seconds", good_below=1),
                    graph("How conversations end", "By reason.", "cps", (rate("parley_gateway_closes_total", "reason"), "{{reason}}")),
                    graph("How answers end", "By status.", "cps", (rate("parley_gateway_responses_total", "status"), "{{status}}")),
                ],
            ),
            (
                "Service levels",
                [
                    graph(
                        "Refused at the door",
                        "Share of upgrades refused for the server's own reasons. The objective is 1 % at most.",
                        "percentunit",
                        (of("parley:open_errors:ratio_rate5m"), "5 minutes"),
                        (of("parley:open_errors:ratio_rate1h"), "1 hour"),
                        (of("parley:open_errors:ratio_rate6h"), "6 hours"),
                        good_below=0.01,
                    ),
                    graph(
                        "Answers that begin late",
                        "Share of answers whose first sound came more than a second after the decision. The objective is 5 % at most.",
                        "percentunit",
                        (of("parley:late_turns:ratio_rate5m"), "5 minutes"),
                        (of("parley:late_turns:ratio_rate1h"), "1 hour"),
                        (of("parley:late_turns:ratio_rate6h"), "6 hours"),
                        good_below=0.05,
                    ),
                    graph(
                        "Answers that fail",
                        "Share of answers that ended as failed.",
                        "percentunit",
                        (of("parley:failed_responses:ratio_rate5m"), "5 minutes"),
                        good_below=0.01,
                    ),
                ],
            ),
            (
                "Processes",
                [
                    graph(
                        "Event loop late (p99)",
                        "How late a timer of 100 ms rings. Everything waits for so long.",
                        "s",
                        (quantile(0.99, "parley_gateway_loop_lag_seconds", "instance"), "gateway {{instance}}"),
                        (quantile(0.99, "parley_stage_loop_lag_seconds", "job, instance"), "{{job}} {{instance}}"),
                        good_below=0.05,
                    ),
                    graph(
                        "Memory",
                        "Resident memory of each process of Parley.",
                        "bytes",
                        (_parley("process_resident_memory_bytes"), "{{job}} {{instance}}"),
                    ),
                    graph(
                        "Processor time",
                        "Cores that each process uses.",
                        "none",
                        (_parley("process_cpu_seconds_total", rated=True), "{{job}} {{instance}}"),
                    ),
                    graph("Open files", "Sockets among them.", "none", (_parley("process_open_fds"), "{{job}} {{instance}}")),
                    listing(
                        "Builds",
                        "What runs where.",
                        f"{of('parley_gateway_build_info')} or {of('parley_stage_build_info')}",
                    ),
                    graph(
                        "Leaving",
                        "Processes that take nobody new.",
                        "none",
                        (total("parley_gateway_draining"), "gateways"),
                        (total("parley_stage_draining", "stage"), "{{stage}}"),
                    ),
                ],
            ),
        ],
    )


def _parley(name: str, *, rated: bool = False) -> str:
    """Of Parley's own processes: every program that Prometheus looks at has metrics of these names."""
    series = f"rate({of(name)}[{WINDOW}])" if rated else of(name)
    ours = f"{of('parley_gateway_build_info')} or {of('parley_stage_build_info')}"
    return f"sum by (job, instance) ({series} and on (job, instance) ({ours}))"
