"""The bench of the vocoder's kernels on a CPU: what it checks before it would time anything."""

from __future__ import annotations

import pytest
import torch

from benchmarks.native import card, flow_kernels, hift_windows
from minicpmo45.config import tiny
from tests.vocoder_svc.minicpmo45.kernels import DEVICE


def test_every_kernel_is_checked_against_the_truth_before_it_is_timed() -> None:
    device = torch.device(DEVICE)
    found = card.Card("any", "", "", "", 1e12, 1e12, 1e12, 1e12)
    rows = flow_kernels.measure(tiny().flow, [2], [30, 20], device, found, ["fp32"], copies=1)
    assert all(row["holds"] and row["floor_us"] > 0 for row in rows)
    assert [row["kernel"] for row in rows].count("attention") == 2 * len({row["kind"] for row in rows})
    assert len({row["kernel"] for row in rows}) == 10


def test_fused_hift_says_what_the_plain_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hift_windows, "CHUNK_FRAMES", 6)
    found = card.Card("any", "", "", "", 1e12, 1e12, 1e12, 1e12)
    plain, *fused = hift_windows.timed(tiny().hift, 1, found, torch.device(DEVICE))
    assert plain["error"] == 0 and len(fused) >= 2 and all(row["holds"] for row in fused)


def test_tables_name_what_was_found() -> None:
    raw = {"card": {"name": "any", "torch": "2", "date": "now"}, "lost": [{"kind": "a", "rms": 0.5}, {"kind": "b", "times": 2.0}]}
    assert flow_kernels.sections(raw)[1][1].splitlines()[2:] == ["| a | 0.5 |  |", "| b |  | 2 |"]
