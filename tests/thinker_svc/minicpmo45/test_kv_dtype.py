"""The dtype of keys and values as the engine takes it from its setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from minicpmo45.memory_plan import PlanError
from tests.thinker_svc.minicpmo45.clients import Client, run
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings
from torch_kit.fp8 import FP8


def engine(checkpoint: Path, **options: Any) -> MiniCpmThinkerEngine:
    torch.set_num_threads(1)
    return MiniCpmThinkerEngine(MiniCpmThinkerSettings(checkpoint=checkpoint, slots=2, window_tokens=1024, **options))


@pytest.mark.parametrize(("name", "dtype", "vector"), [("auto", torch.float32, 64), ("bfloat16", torch.bfloat16, 32), ("fp8", FP8, 16 + 4)])
def test_a_session_takes_the_bytes_of_its_pages_and_is_served(
    name: str, dtype: torch.dtype, vector: int, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation through the plain networks: two units of sound, decided one by one."""
    monkeypatch.setenv("PARLEY_THINKER_KV_DTYPE", name)
    made = engine(tiny_checkpoint)
    assert made.card.kv_bytes_per_session == 17 * 64 * 2 * 2 * 2 * vector
    made.load()
    pool = made._pool
    assert (pool.dtype, made._model.dtype) == (dtype, torch.float32)
    assert pool.bytes - pool.page_bytes == made.card.kv_bytes
    pool._poison = True
    pool.spoil(list(range(1, pool.pages)))
    client = Client(made, "one", greedy=True)
    client.units(2)
    run(client)
    assert client.receipts() == [1030, 1000]
    made.close(client.slot)
    assert pool.held == 0


@pytest.mark.behaviour("X14")
def test_fused_kernels_need_a_card_that_rounds_to_fp8(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 149_000_000_000))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(PlanError, match=r"kv_dtype: fp8 with fused kernels needs compute capability 8\.9, cuda has 8\.6") as error:
        engine(tiny_checkpoint, kv_dtype="fp8", device="cuda", kernels="fused")
    assert error.value.param == "kv_dtype"
    # torch rounds in software
    assert engine(tiny_checkpoint, kv_dtype="fp8", device="cuda", kernels="plain")._kv_dtype == FP8
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert engine(tiny_checkpoint, kv_dtype="fp8", device="cuda", kernels="fused")._kv_dtype == FP8


def test_a_dtype_that_is_none_is_refused(tiny_checkpoint: Path) -> None:
    with pytest.raises(ValidationError, match="kv_dtype"):
        engine(tiny_checkpoint, kv_dtype="int8")
