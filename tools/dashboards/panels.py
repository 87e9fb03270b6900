"""The panels of all dashboards, and how they look. Built with Grafana's own typed SDK."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from tools.dashboards.queries import quantile

WIDTH = 24
"""Of the grid."""
GRAPH_W, GRAPH_H, STAT_W, STAT_H = 8, 8, 4, 4
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
Panel = timeseries.Panel | stat.Panel | table.Panel
Query = tuple[str, str]
"""(PromQL, legend)."""


def graph(
    title: str,
    about: str,
    unit: str,
    *queries: Query,
    stacked: bool = False,
    limits: tuple[float | None, float | None] = (0, None),
    good_below: float | None = None,
) -> timeseries.Panel:
    """Lines over time. `good_below`: where they should stay."""
    panel = timeseries.Panel().title(title).description(about).unit(unit).datasource(SOURCE).span(GRAPH_W).height(GRAPH_H)
    panel = panel.legend(
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
    ).tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING))
    panel = panel.fill_opacity(40 if stacked else 8).show_points(common_models.VisibilityMode.NEVER)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    least, most = limits
    panel = panel if least is None else panel.min(least)
    panel = panel if most is None else panel.max(most)
    if good_below is not None:
        panel = panel.thresholds(_bounds(good_below)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_models.GraphTresholdsStyleMode.DASHED)
        )
    for number, (expression, legend) in enumerate(queries):
        panel = panel.with_target(_query(expression, legend, number))
    return panel


def latency(title: str, about: str, metric: str, *, by: str = "", good_below: float | None = None) -> timeseries.Panel:
    """The median, the 95th and the 99th percentile of a histogram in seconds; of many series only the last two."""
    label = f"{{{{{by}}}}} " if by else ""
    shares = ((0.95, "p95"), (0.99, "p99")) if by else ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    return graph(title, about, "s", *((quantile(share, metric, by), label + name) for share, name in shares), good_below=good_below)


def number(
    title: str, about: str, unit: str, expression: str, *, good_below: float | None = None, good_above: float | None = None
) -> stat.Panel:
    """One value, now."""
    panel = stat.Panel().title(title).description(about).unit(unit).datasource(SOURCE).span(STAT_W).height(STAT_H)
    panel = panel.graph_mode(common_models.BigValueGraphMode.AREA).with_target(_query(expression, title, 0))
    if good_below is not None:
        panel = panel.thresholds(_bounds(good_below))
    if good_above is not None:
        panel = panel.thresholds(_steps((None, "red"), (good_above, "green")))
    return panel


def listing(title: str, about: str, expression: str) -> table.Panel:
    """The labels of each series as a row."""
    query = _query(expression, "", 0).format(PromQueryFormat.TABLE).instant()
    hidden = models.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True, "Value": True, "__name__": True}})
    panel = table.Panel().title(title).description(about).unit("none").datasource(SOURCE).span(GRAPH_W).height(GRAPH_H)
    return panel.with_target(query).with_transformation(hidden)


def board(uid: str, title: str, about: str, rows: Sequence[tuple[str, Sequence[Panel]]]) -> models.Dashboard:
    """Rows of panels, from left to right and from top to bottom."""
    built = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(about)
        .tags(["parley"])
        .readonly()
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_namespaces())
        .link(
            dashboard.DashboardLink("Parley").type(models.DashboardLinkType.DASHBOARDS).tags(["parley"]).include_vars(True).keep_time(True)
        )
    )
    ids = count(1)
    for name, panels in rows:
        built = built.with_row(dashboard.Row(name).id(next(ids)))
        for panel in panels:
            built = built.with_panel(panel.id(next(ids)))
    return built.build()


def _namespaces() -> dashboard.QueryVariable:
    every = models.VariableOption(text="All", value="$__all", selected=True)
    return (
        dashboard.QueryVariable("namespace")
        .label("Namespace")
        .datasource(SOURCE)
        .query("label_values(parley_gateway_build_info, namespace)")
        .include_all(True)
        .all_value(".*")
        .multi(True)
        .current(every)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _query(expression: str, legend: str, number: int) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number)).datasource(SOURCE).range()


def _bounds(good_below: float) -> dashboard.ThresholdsConfig:
    return _steps((None, "green"), (good_below, "red"))


def _steps(*steps: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    thresholds = [models.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(thresholds)
