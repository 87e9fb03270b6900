"""What the dashboards and rules ask of Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import promql_parser
import yaml

from tests.support.process import ROOT

BOARDS = ROOT / "deploy" / "grafana" / "dashboards"
RULES = ROOT / "deploy" / "prometheus"
WINDOW = "5m"
"""What the tests put for $__rate_interval: nothing that they do is older."""
_PARTS = ("lhs", "rhs", "expr", "args", "vector_selector", "param")
_ENDINGS = re.compile(r"_(bucket|sum|count)$")


class Asked(NamedTuple):
    """A query, and where it is asked."""

    where: str
    expression: str


def boards() -> dict[str, dict[str, Any]]:
    """The dashboards by file name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(BOARDS.glob("*.json"))}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All but rows, those within rows included."""
    for panel in board["panels"]:
        yield from (each for each in (panel, *panel.get("panels", ())) if each["type"] != "row")


def panel_queries() -> list[Asked]:
    """With Grafana's variables put in as for all namespaces."""
    return [
        Asked(f"{name}: {panel['title']}", target["expr"].replace("$__rate_interval", WINDOW).replace("$namespace", ".*"))
        for name, board in boards().items()
        for panel in panels(board)
        for target in panel["targets"]
    ]


def rules() -> list[dict[str, Any]]:
    """Recording rules and alerts."""
    files = (yaml.safe_load((RULES / name).read_text()) for name in ("rules.yml", "alerts.yml"))
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def rule_queries() -> list[Asked]:
    return [Asked(rule.get("record") or rule["alert"], rule["expr"]) for rule in rules()]


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    """Every series that it names. Raises ValueError when it does not parse."""
    yield from _selectors(promql_parser.parse(expression))


def _selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for part in _PARTS:
        inner = getattr(node, part, None)
        for each in inner if isinstance(inner, list) else [inner]:
            if each is not None and not isinstance(each, str | float | int):
                yield from _selectors(each)


def metrics_of(expression: str) -> set[str]:
    """Names of its metrics, those of a histogram's parts as the histogram's own."""
    return {family(selector.name) for selector in selectors(expression) if selector.name}


def family(series: str) -> str:
    return _ENDINGS.sub("", series)
