"""How is it to talk to? What clients wait for, and what they are told."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from tools.dashboards.panels import board, graph, latency
from tools.dashboards.queries import of, rate, total


def quality() -> Dashboard:
    return board(
        "parley-quality",
        "Parley / Conversation quality",
        "How soon answers begin, how soon an interruption is told, whether sound leaves on time, and what goes wrong within conversations.",
        [
            (
                "Answers",
                [
                    latency("Silence before an answer", "Decision to first sound written.", "parley_gateway_turn_seconds", good_below=1),
                    latency(
                        "Each stage's part of it",
                        "First append of an answer to the first output of the stage.",
                        "parley_stage_first_output_seconds",
                        by="stage",
                    ),
                    graph(
                        "How answers end",
                        "By status.",
                        "cps",
                        (rate("parley_gateway_responses_total", "status"), "{{status}}"),
                        stacked=True,
                    ),
                    latency(
                        "Speech starts told",
                        "Decision that the user speaks to the event being written, while an answer plays or not.",
                        "parley_gateway_barge_in_seconds",
                        good_below=0.1,
                    ),
                    graph(
                        "Gaps in answers",
                        "Silence within an answer, because its sound came too late; as the gateway can tell, the network apart.",
                        "cps",
                        (rate("parley_gateway_playback_gap_seconds_count"), "gaps"),
                        (rate("parley_gateway_playback_gap_seconds_sum"), "seconds of silence"),
                    ),
                    graph(
                        "Interrupted work",
                        "Cancels that stages carried out.",
                        "cps",
                        (rate("parley_stage_cancels_total", "stage"), "{{stage}}"),
                    ),
                    graph(
                        "Units done late",
                        "Share of native units that were not done before the next was complete. Empty without a native model.",
                        "percentunit",
                        (of("parley:late_units:ratio_rate5m"), "5 minutes"),
                        good_below=0.01,
                    ),
                ],
            ),
            (
                "Through the gateway",
                [
                    latency("Speech in", "Append received to written to the stage.", "parley_gateway_append_to_stage_seconds"),
                    latency("Sound out", "Sound due to written to the client.", "parley_gateway_chunk_to_client_seconds", good_below=0.01),
                    latency("Commits", "Commit of a turn to the store.", "parley_gateway_commit_seconds", good_below=0.05),
                ],
            ),
            (
                "Clients",
                [
                    graph(
                        "Errors told",
                        "Typed errors within conversations, by code.",
                        "cps",
                        (rate("parley_gateway_refusals_total", "code"), "{{code}}"),
                    ),
                    graph(
                        "What clients send",
                        "Events by the command they mean.",
                        "cps",
                        (rate("parley_gateway_client_events_total", "type"), "{{type}}"),
                    ),
                    graph(
                        "What clients are told", "Events by name.", "cps", (rate("parley_gateway_server_events_total", "type"), "{{type}}")
                    ),
                    graph(
                        "Unread",
                        "Events that wait for clients to read.",
                        "bytes",
                        (total("parley_gateway_output_waiting_bytes"), "waiting"),
                    ),
                    graph(
                        "Slow readers",
                        "Clients that leave half of their bound unread, and those that were cut off for it.",
                        "none",
                        (total("parley_gateway_slow_readers"), "slow"),
                        (rate("parley_gateway_output_overflows_total"), "cut off, a second"),
                    ),
                    graph(
                        "Left unused",
                        "Sessions found idle for too long.",
                        "cps",
                        (rate("parley_gateway_idle_sessions_total"), "idle"),
                    ),
                ],
            ),
        ],
    )
