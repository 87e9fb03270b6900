"""Who gets in, what survives, and how the store does, as the gateways see it."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from tools.dashboards.panels import Panel, board, graph, latency
from tools.dashboards.queries import mean, of, quantile, rate, total


def sessions() -> Dashboard:
    return board(
        "parley-sessions",
        "Parley / Sessions and Redis",
        "Admission and access, resumes and failover, and the store of sessions as the gateways see it.",
        [("Admission", _admission()), ("Access", _access()), ("Resumes and failover", _failover()), ("Store", _store())],
    )


def _admission() -> list[Panel]:
    return [
        graph(
            "On the way in",
            "Sessions that are being opened; of them, those that wait for a slot.",
            "none",
            (total("parley_gateway_sessions_opening"), "opening"),
            (total("parley_gateway_sessions_queued"), "queued"),
        ),
        graph(
            "Wait for a slot",
            "Of those who found none at once, by what became of them.",
            "s",
            (quantile(0.5, "parley_gateway_queue_seconds", "outcome"), "{{outcome}} p50"),
            (quantile(0.95, "parley_gateway_queue_seconds", "outcome"), "{{outcome}} p95"),
        ),
        graph(
            "Who waited",
            "By what became of them.",
            "cps",
            (rate("parley_gateway_queue_seconds_count", "outcome"), "{{outcome}}"),
        ),
        latency("Way in", "Admission, with its wait, and opening of all stages.", "parley_gateway_open_seconds"),
        graph(
            "Sessions by state",
            "As the gateways hold them.",
            "none",
            (total("parley_gateway_sessions", "state"), "{{state}}"),
            stacked=True,
        ),
        graph(
            "Slots lost",
            "Slots that a stage did not confirm to be free: taken until its beat says so.",
            "cps",
            (rate("parley_gateway_quarantined_total", "stage"), "{{stage}}"),
        ),
    ]


def _access() -> list[Panel]:
    return [
        graph("Kept out", "By why.", "cps", (rate("parley_gateway_access_refusals_total", "why"), "{{why}}")),
        graph(
            "Client secrets",
            "Asked for by servers on behalf of browsers.",
            "cps",
            (rate("parley_gateway_client_secrets_total", "outcome"), "{{outcome}}"),
        ),
        graph(
            "Key file read again",
            "When it had changed.",
            "cps",
            (rate("parley_gateway_key_file_reads_total", "outcome"), "{{outcome}}"),
        ),
    ]


def _failover() -> list[Panel]:
    return [
        graph("Resumes", "By what became of them.", "cps", (rate("parley_gateway_takeovers_total", "outcome"), "{{outcome}}")),
        latency("Resume", "Asked to told.", "parley_gateway_resume_seconds", good_below=1),
        graph(
            "Resumes with a gap",
            "Whose client had missed events that are kept no more.",
            "cps",
            (rate("parley_gateway_resume_gaps_total"), "with a gap"),
        ),
        graph(
            "Lost stages",
            "By what became of them.",
            "cps",
            (rate("parley_gateway_replacements_total", "stage, outcome"), "{{stage}} {{outcome}}"),
        ),
        latency("Without a stage", "Stage lost to placed anew.", "parley_gateway_replace_seconds", good_below=2),
        graph(
            "Stages that left draining replicas",
            "By what became of them.",
            "cps",
            (rate("parley_gateway_moves_total", "stage, outcome"), "{{stage}} {{outcome}}"),
        ),
        latency("Move", "Quiet point to the stage being elsewhere.", "parley_gateway_move_seconds", good_below=1),
        graph(
            "Broken connections",
            "Streams taken up again, and replicas given up for their silence.",
            "cps",
            (rate("parley_gateway_reattaches_total", "stage"), "{{stage}} taken up again"),
            (rate("parley_gateway_pulses_lost_total"), "given up"),
        ),
        graph(
            "Stale authority",
            "Sessions that were another gateway's by then; processes that stood still; sessions that nobody held.",
            "cps",
            (rate("parley_gateway_fenced_total", "by"), "told by the {{by}}"),
            (rate("parley_gateway_tenures_lapsed_total"), "stood still"),
            (rate("parley_gateway_reaped_total"), "reaped"),
        ),
    ]


def _store() -> list[Panel]:
    return [
        latency("Commits", "Commit of a turn to the store.", "parley_gateway_commit_seconds", good_below=0.05),
        graph("Commits in a second", "Of all conversations.", "ops", (rate("parley_gateway_commit_seconds_count"), "commits")),
        graph(
            "Commits that were not durable",
            "The conversation goes on without the store.",
            "cps",
            (rate("parley_gateway_undurable_commits_total"), "not durable"),
        ),
        graph(
            "Written to the store",
            "Journals and checkpoints of all conversations.",
            "Bps",
            (rate("parley_gateway_journal_bytes_sum"), "bytes"),
        ),
        graph(
            "Size of a commit",
            "Journal and checkpoint.",
            "bytes",
            (mean("parley_gateway_journal_bytes"), "mean"),
            (quantile(0.99, "parley_gateway_journal_bytes"), "p99"),
        ),
        graph(
            "Store reached",
            "1 while it takes the gateway's beat.",
            "none",
            (f"min by (instance) ({of('parley_gateway_store_reachable')})", "{{instance}}"),
            limits=(0, 1),
        ),
    ]
