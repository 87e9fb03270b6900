"""The chart's copies are what their sources are, and it holds no values of ours."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.helm.support.chart import CHART


@pytest.fixture(scope="module")
def copies() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_files", CHART.parents[1] / "tools" / "chart_files.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_copies_are_up_to_date(copies: ModuleType) -> None:
    assert copies.differing() == [], "make chart-files"


def test_copies_are_made_changed_and_removed(copies: ModuleType, tmp_path: Path) -> None:
    root, files = tmp_path / "root", tmp_path / "files"
    for name, text in {"profiles/a.yaml": "a", "deploy/prometheus/rules.yml": "r", "deploy/prometheus/prometheus.yml": "p"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (files / "dashboards").mkdir(parents=True)
    (files / "dashboards" / "old.json").write_text("{}")
    assert copies.differing(root, files) == ["dashboards/old.json", "profiles/a.yaml", "rules/rules.yml"]

    copies.copy(root, files)

    assert copies.differing(root, files) == []
    assert copies.present(files) == {"profiles/a.yaml": b"a", "rules/rules.yml": b"r"}


def test_the_chart_has_the_version_of_the_project() -> None:
    project = (CHART.parents[1] / "pyproject.toml").read_text()
    chart = (CHART / "Chart.yaml").read_text()

    version = project.split('version = "')[1].split('"')[0]
    assert f'appVersion: "{version}"' in chart
