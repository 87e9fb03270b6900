"""PromQL of the panels. Every query keeps to the namespaces that were chosen; outside Kubernetes there is none, and all is shown."""

from __future__ import annotations

CHOSEN = 'namespace=~"$namespace"'
WINDOW = "$__rate_interval"


def of(name: str, matchers: str = "") -> str:
    """The series of a metric; `matchers` as in PromQL."""
    return f"{name}{{{CHOSEN}{', ' if matchers else ''}{matchers}}}"


def total(name: str, by: str = "", matchers: str = "") -> str:
    """Of a gauge, over all processes."""
    return f"sum{_by(by)}({of(name, matchers)})"


def rate(name: str, by: str = "", matchers: str = "") -> str:
    """Of a counter, in a second, over all processes."""
    return f"sum{_by(by)}(rate({of(name, matchers)}[{WINDOW}]))"


def quantile(share: float, name: str, by: str = "", matchers: str = "") -> str:
    """Of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', labels, matchers)})"


def mean(name: str, by: str = "", matchers: str = "") -> str:
    """Of a histogram."""
    return f"{rate(f'{name}_sum', by, matchers)} / {rate(f'{name}_count', by, matchers)}"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
