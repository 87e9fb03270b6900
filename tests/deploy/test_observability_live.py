"""A real Prometheus scrapes everything while it is talked to: each panel and each rule gets an answer, and nothing is exported unseen.

The cards of the GPU panels are not there: a stand-in exports the names that NVIDIA's DCGM exporter does.
"""

from __future__ import annotations

import asyncio
import fnmatch
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.support import promql
from tests.deploy.support.dcgm import VALUES, FakeDcgm
from tests.deploy.support.prometheus import Prometheus, install
from tests.deploy.support.watched import Watched
from tools.metrics_meaning import MEANINGS

pytestmark = [pytest.mark.models, pytest.mark.timeout(240)]

SETTLED_S = 30.0
OF_PROMETHEUS = ("up", "scrape_*", "ALERTS*", "parley:*")
"""Series that it makes itself."""
IGNORED = {
    "python_gc_*": "the collector's counts: what it costs is in the lag of the event loop",
    "python_info": "which Python runs is in parley_gateway_build_info",
    "process_virtual_memory_bytes": "address space costs nothing; resident memory is shown",
    "process_start_time_seconds": "a start is seen in the counters that begin anew",
    "process_max_fds": "a limit of the system's",
    "DCGM_FI_DEV_GPU_UTIL": "says nothing under MIG; the engine's activity is shown instead",
}
"""Exported, in no panel and in no rule, with the reason."""
NEVER_HERE = {
    "parley_gateway_queue_seconds": "nobody waits: there are slots enough",
    "parley_gateway_replace_seconds": "no stage is lost",
    "parley_gateway_move_seconds": "no replica drains",
}
"""Histograms of what does not happen in these minutes, so that their quantiles are no numbers. Everything else must be one."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Prometheus]:
    """Prometheus, after all was said."""
    install()
    folder = tmp_path_factory.mktemp("watched")
    houses = Watched(folder, tiny_checkpoint)
    houses.start()
    try:
        with FakeDcgm() as dcgm:
            prometheus = Prometheus(folder / "prometheus", {**houses.targets(), "dcgm": [dcgm.address]})
            prometheus.start()
            try:
                _until_scraped(prometheus)
                asyncio.run(houses.talk())
                asyncio.run(houses.stumble())
                _until_known(prometheus, 'sum(rate(parley_gateway_takeovers_total{outcome="taken"}[5m])) > 0')
                _until_known(prometheus, "parley:failed_resumes:ratio_rate5m and parley:open_errors:ratio_rate6h")
                yield prometheus
            finally:
                prometheus.stop()
    finally:
        houses.stop()


def _until_scraped(prometheus: Prometheus) -> None:
    """Twice, so that what happens from here on is seen to rise."""
    _until_known(prometheus, "min(count_over_time(up[1m])) >= 2 and min(up) == 1")


def _until_known(prometheus: Prometheus, expression: str) -> None:
    deadline = time.monotonic() + SETTLED_S
    while not prometheus.query(expression):
        assert time.monotonic() < deadline, (expression, prometheus.targets())
        time.sleep(0.2)


def test_every_process_is_scraped(watched: Prometheus) -> None:
    targets = watched.targets()
    assert len(targets) == 12 and set(targets.values()) == {""}, targets
    assert watched.query("min(parley_stage_registered) == 1 and min(parley_gateway_store_reachable) == 1")


@pytest.mark.parametrize("board", promql.boards())
def test_every_panel_has_data(watched: Prometheus, board: str) -> None:
    silent = {}
    for asked in promql.panel_queries():
        if asked.where.startswith(board):
            values = watched.query(asked.expression).values()
            rare = promql.metrics_of(asked.expression) <= NEVER_HERE.keys()
            if not values or (not rare and all(math.isnan(value) for value in values)):
                silent[asked.where] = asked.expression
    assert silent == {}


def test_every_recording_rule_has_data(watched: Prometheus) -> None:
    recorded = [rule["record"] for rule in promql.rules() if "record" in rule]
    assert len(recorded) == len(set(recorded))
    assert [name for name in recorded if not any(math.isfinite(value) for value in watched.query(name).values())] == []


def test_every_alert_looks_at_what_is_there_and_none_fires_but_for_cause(watched: Prometheus) -> None:
    unseen = {}
    for rule in promql.rules():
        for selector in promql.selectors(rule["expr"]) if "alert" in rule else ():
            if not watched.query(selector.prettify()):
                unseen[rule["alert"]] = selector.prettify()
    assert unseen == {}
    assert watched.query('ALERTS{alertname=~"ParleyStageMissing|ParleyUnregistered|ParleyEngineStuck|ParleyFenced|ParleyNoGateway"}') == {}
    failing = [rule for group in watched.get("rules")["groups"] for rule in group["rules"] if rule["health"] != "ok"]
    assert failing == []


def test_nothing_is_exported_that_nobody_looks_at(watched: Prometheus) -> None:
    exported = {promql.family(name) for name in watched.get("label/__name__/values") if not _is(name, OF_PROMETHEUS)}
    looked_at = {name for asked in (*promql.panel_queries(), *promql.rule_queries()) for name in promql.metrics_of(asked.expression)}
    assert MEANINGS.keys() - exported == set(), "described, and not exported"
    assert {name for name in exported - looked_at if not _is(name, IGNORED)} == set(), "in no panel, no rule, and not ignored"
    assert {pattern for pattern in IGNORED if not fnmatch.filter(exported - looked_at, pattern)} == set(), "ignored for nothing"
    assert set(VALUES) <= exported


def _is(name: str, patterns: tuple[str, ...] | dict[str, str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def test_labels_are_those_of_the_table_and_hold_no_ids(watched: Prometheus) -> None:
    scraped = {"__name__", "instance", "job", "le"}
    for name, meaning in MEANINGS.items():
        for series in watched.series(f'{{__name__=~"{name}(_bucket|_sum|_count)?"}}'):
            assert series.keys() - scraped == meaning.labels.keys(), series
            for label, values in meaning.labels.items():
                assert values.allowed is None or series[label] in values.allowed, (series, label)
    every = watched.series('{__name__=~"parley_.+"}')
    values = {value for series in every for label, value in series.items() if label not in scraped}
    assert not [value for value in values if value.startswith(("sess_", "resp_", "item_", "gw_"))]
    assert len(every) / len({series["instance"] for series in every}) < 1500, "series of one process"
