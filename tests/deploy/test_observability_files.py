"""Dashboards, rules, alerts and their documents: made from code, consistent with each other, and judged by Prometheus' own tool."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import settings as gateway_settings
from minicpmo45.memory_plan import MARGIN
from stage_kit import settings as stage_settings
from tests.deploy.support import promql
from tests.deploy.support.prometheus import RULES, install
from tests.deploy.support.shell import Failed, run
from tests.support.process import ROOT
from tools import chart_files, metrics_table
from tools.dashboards.__main__ import differing

RUNBOOKS = ROOT / "docs" / "runbooks.md"
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
UNIT_TESTS = sorted((Path(__file__).parent / "prometheus").glob("*.yml"))
ALERTS = [rule for rule in promql.rules() if "alert" in rule]
CONFIG_MAP_BYTES = 1024 * 1024


@pytest.fixture(scope="module", autouse=True)
def promtool() -> None:
    install()


def test_the_table_of_metrics_is_current() -> None:
    assert metrics_table.TABLE.read_text() == metrics_table.table(), "python -m tools.metrics_table"


def test_the_dashboards_are_what_their_code_makes() -> None:
    assert differing() == [], "python -m tools.dashboards"


def test_the_chart_has_these_dashboards_and_rules() -> None:
    assert chart_files.differing() == [], "make chart-files"
    assert {"dashboards/parley-overview.json", "rules/alerts.yml", "rules/rules.yml"} <= chart_files.wanted().keys()


@pytest.mark.parametrize("board", promql.boards().values(), ids=promql.boards().keys())
def test_every_dashboard_is_fit_to_be_provisioned(board: dict[str, Any]) -> None:
    assert board["uid"].startswith("parley-") and board["description"] and board["editable"] is False
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "namespace"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) and all(ids)
    for panel in promql.panels(board):
        assert panel["title"] and panel["description"] and panel["targets"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert target["legendFormat"] or panel["type"] == "table", panel["title"]
            assert "rate(" not in target["expr"] or "[$__rate_interval]" in target["expr"], panel["title"]
        refs = Counter(target["refId"] for target in panel["targets"])
        assert max(refs.values()) == 1, panel["title"]
    titles = Counter(panel["title"] for panel in promql.panels(board))
    assert [title for title, count in titles.items() if count > 1] == []


@pytest.mark.parametrize("board", promql.boards().values(), ids=promql.boards().keys())
def test_no_two_panels_lie_on_each_other(board: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_dashboards_have_names_of_their_own_and_fit_a_config_map() -> None:
    uids = [board["uid"] for board in promql.boards().values()]
    assert len(set(uids)) == len(uids) == 4
    assert all(path.stat().st_size < CONFIG_MAP_BYTES for path in promql.BOARDS.glob("*.json"))


def test_grafana_is_provisioned_with_what_compose_mounts() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    mounts = dict(each.split(":")[:2] for each in compose["grafana"]["volumes"] if each.startswith("./"))
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "parley.yml").read_text())["providers"]
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    assert source["type"] == "prometheus" and source["url"] == "http://prometheus:9090" and "prometheus" in compose
    scraped = yaml.safe_load((RULES / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


def test_prometheus_of_compose_looks_for_services_that_there_are() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    aliases = {alias for service in compose.values() for alias in _aliases(service)} | compose.keys()
    config = yaml.safe_load((RULES / "prometheus.yml").read_text())
    names = {name for job in config["scrape_configs"] for dns in job["dns_sd_configs"] for name in dns["names"]}
    assert names - aliases == {"dcgm"}, "which an operator runs beside"
    mounted = dict(each.split(":")[:2] for each in compose["prometheus"]["volumes"] if each.startswith("./"))
    assert {Path(name).parent for name in config["rule_files"]} == {Path(mounted["./deploy/prometheus"])}
    assert all((RULES / Path(name).name).is_file() for name in config["rule_files"])


def _aliases(service: dict[str, Any]) -> list[str]:
    networks = service.get("networks", {})
    named = networks.values() if isinstance(networks, dict) else ()
    return [alias for network in named for alias in (network or {}).get("aliases", ())]


def test_the_configuration_and_the_rules_are_sound(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "rules.yml", "alerts.yml"):
        text = (RULES / name).read_text().replace("/etc/prometheus/", f"{tmp_path}/")
        (tmp_path / name).write_text(text)
    run("promtool", "check", "config", tmp_path / "prometheus.yml")
    run("promtool", "check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rules.yml", tmp_path / "alerts.yml")


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_rules_and_alerts_do_what_their_unit_tests_say(path: Path) -> None:
    run("promtool", "test", "rules", path)


def test_the_tool_fails_when_an_alert_does_not_fire(tmp_path: Path) -> None:
    broken = UNIT_TESTS[0].read_text().replace("../../../deploy", str(ROOT / "deploy")).replace("severity", "gravity", 1)
    (tmp_path / "broken.yml").write_text(broken)
    with pytest.raises(Failed, match="exp:"):
        run("promtool", "test", "rules", tmp_path / "broken.yml")


def test_every_alert_has_a_unit_test_in_which_it_fires() -> None:
    fired = set()
    for path in UNIT_TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            fired |= {each["alertname"] for each in test.get("alert_rule_test", ()) if each["exp_alerts"]}
    assert fired == {alert["alert"] for alert in ALERTS}


def test_every_alert_has_a_runbook_and_says_what_is_wrong() -> None:
    headings = re.findall(r"^## (.+)$", RUNBOOKS.read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(alert["alert"] for alert in ALERTS)
    for alert in ALERTS:
        notes = alert["annotations"]
        path, _, anchor = notes["runbook_url"].partition("#")
        assert path == "docs/runbooks.md" and anchor == alert["alert"].lower()
        assert notes["summary"] and notes["description"] and alert["labels"]["severity"] in ("critical", "warning")


def test_runbooks_name_settings_and_panels_that_there_are() -> None:
    text = RUNBOOKS.read_text()
    known = {f"PARLEY_{field.upper()}" for each in (gateway_settings.Settings, stage_settings.Settings) for field in each.model_fields}
    assert set(re.findall(r"PARLEY_\w+", text)) <= known
    titles = {panel["title"] for board in promql.boards().values() for panel in promql.panels(board)}
    rows = {panel["title"] for board in promql.boards().values() for panel in board["panels"] if panel["type"] == "row"}
    named = {" ".join(name.split()) for name in re.findall(r'"([A-Z][^"]+)"', text)}
    assert named <= titles | rows, sorted(named - titles - rows)
    anchors = {heading.lower() for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", text)) <= anchors


def test_every_rule_sees_two_scrapes_however_seldom_they_are() -> None:
    """A rate over less is no number, and its alert never fires."""
    interval = json.loads((ROOT / "helm" / "parley" / "values.schema.json").read_text())["properties"]["monitoring"]["properties"][
        "serviceMonitor"
    ]["properties"]["interval"]["pattern"]
    longest_s = max(second for second in range(1, 3600) if re.fullmatch(interval, f"{second}s"))
    windows = {window for asked in promql.rule_queries() for window in re.findall(r"\[(\w+)\]", asked.expression)}
    assert windows and min(_seconds(window) for window in windows) >= 2 * longest_s


def _seconds(window: str) -> int:
    return int(window[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[window[-1]]


def test_a_card_that_is_as_full_as_planned_raises_no_alert() -> None:
    (alert,) = (rule for rule in ALERTS if rule["alert"] == "ParleyGpuMemory")
    (panel,) = (each for board in promql.boards().values() for each in promql.panels(board) if each["title"] == "GPU memory in use")
    bound = float(alert["expr"].rpartition(">")[2])
    assert 1 - MARGIN < bound < 1
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"] == bound


def test_every_query_names_metrics_that_the_code_exports() -> None:
    known = set(metrics_table.exported()) | {rule["record"] for rule in promql.rules() if "record" in rule}
    for asked in (*promql.panel_queries(), *promql.rule_queries()):
        ours = {name for name in promql.metrics_of(asked.expression) if name.startswith("parley")}
        assert ours <= known, (asked.where, sorted(ours - known))
