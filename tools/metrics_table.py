"""docs/metrics.md: every metric that the processes export, made from the code.

`python -m tools.metrics_table` writes it anew; with `--check` it changes nothing and exits with 1 if it is not current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from prometheus_client import REGISTRY, Metric

from stage_kit.metrics import Metrics
from tools.metrics_meaning import MEANINGS, Meaning

TABLE = Path(__file__).parents[1] / "docs" / "metrics.md"
UNITS = {"seconds": "s", "bytes": "bytes", "info": "1"}
_HEAD = """# Metrics

Made by `python -m tools.metrics_table` from the code: do not edit. The gateway shows them at `/metrics` of its own port, or of
`PARLEY_METRICS_BIND`; every stage service at `/metrics` of `PARLEY_HTTP_BIND`. No label ever holds an id, a key or what somebody said, and
every label has a bounded set of values. Beside these there are `process_*` (memory, processor time, open files), and of the gateway
`python_*`.

Counters and labelled series begin at zero where their labels are known beforehand; others appear when something happens first.
"""
_LAG = """
## Where the lag of a stage is measured

- **A native unit**: `parley_stage_unit_lag_seconds`, in the service that hears (`thinker`), from the arrival there of the append that
  completed the unit to all that the unit made being ready to leave. It holds the wait for the engine and the whole batch it was computed
  with. It does not hold the network before and after, nor what the client buffers. Units that are only heard again after a failover are not
  counted. The deadline is `parley_stage_unit_length_seconds`: a lag that stays above it can never be made up.
- **`talker` and `vocoder`** are not told of units, only of appends that follow each other, so there is no moment at which a unit of theirs
  is complete. What is measured there: `parley_stage_first_output_seconds` from the first append of a response to its first output,
  `parley_stage_append_wait_seconds` before the engine, `parley_stage_step_seconds`, and `parley_stage_output_wait_seconds` behind it.
- **All of it together**: `parley_gateway_turn_seconds`, from the decision that the user's turn is over to the first sound written to the
  client's socket.
"""


class Row(NamedTuple):
    name: str
    kind: str
    unit: str
    what: str
    meaning: Meaning


def exported() -> dict[str, Metric]:
    """By name, counters with their `_total`: all that the processes of Parley export of their own."""
    import gateway.metrics  # noqa: F401

    families: Iterable[Metric] = (*REGISTRY.collect(), *Metrics().registry.collect())
    return {_name(family): family for family in families if family.name.startswith("parley_")}


def rows() -> list[Row]:
    """In the order of MEANINGS. Raises KeyError with names that are exported without a meaning, or described and not exported."""
    found = exported()
    if differing := found.keys() ^ MEANINGS.keys():
        raise KeyError(f"exported or described, not both: {sorted(differing)}")
    return [Row(name, found[name].type, _unit(name, meaning), found[name].documentation, meaning) for name, meaning in MEANINGS.items()]


def table() -> str:
    """The whole page."""
    every = rows()
    parts = [_HEAD]
    for title, prefix in (("Gateway", "parley_gateway_"), ("Stage services", "parley_stage_")):
        parts += [f"\n## {title}\n\n| name | type | unit | labels | what it is | question |\n|---|---|---|---|---|---|\n"]
        parts += [_line(row) for row in every if row.name.startswith(prefix)]
    return "".join([*parts, _LAG])


def _name(family: Metric) -> str:
    return family.name + "_total" * (family.type == "counter")


def _unit(name: str, meaning: Meaning) -> str:
    return meaning.unit or UNITS.get(name.removesuffix("_total").rpartition("_")[2], "count")


def _line(row: Row) -> str:
    labels = "; ".join(f"`{name}`: {values.shown}" for name, values in row.meaning.labels.items()) or "–"
    return f"| `{row.name}` | {row.kind} | {row.unit} | {labels} | {row.what} | {row.meaning.question} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if it is not current")
    if not parser.parse_args().check:
        TABLE.write_text(table(), encoding="utf-8")
    elif not TABLE.exists() or TABLE.read_text(encoding="utf-8") != table():
        sys.exit(f"docs/{TABLE.name} is not current: python -m tools.metrics_table")


if __name__ == "__main__":
    main()
