"""The type of the language model's matrices as the engine takes it from its setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from minicpmo45.memory_plan import PlanError
from minicpmo45.weights import thinker_weights
from tests.thinker_svc.minicpmo45.clients import Client, run
from thinker_svc.minicpmo45.engine import MiniCpmThinkerEngine
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings
from torch_kit.fp8 import FP8, narrowed


def engine(checkpoint: Path, **options: Any) -> MiniCpmThinkerEngine:
    torch.set_num_threads(1)
    return MiniCpmThinkerEngine(MiniCpmThinkerSettings(checkpoint=checkpoint, slots=2, window_tokens=1024, **options))


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_matrices_of_the_blocks_are_e4m3_and_nothing_else_is(kv_dtype: str, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation through the plain networks, with keys and values of either type."""
    monkeypatch.setenv("PARLEY_THINKER_WEIGHTS_DTYPE", "fp8")
    made = engine(tiny_checkpoint, kv_dtype=kv_dtype)
    made.load()
    stored, prefix = thinker_weights(tiny_checkpoint, dtype=torch.float32), "llm.model.layers.1."
    layer, parts = made._model._decoder._weights.layers[1], ("self_attn.qkv", "self_attn.o", "mlp.gate up", "mlp.down")
    for matrix, part in zip(layer.matrices, parts, strict=True):
        within, _, names = part.partition(".")
        each = list(names) if names == "qkv" else names.split()
        codes, scales = narrowed(torch.cat([stored[f"{prefix}{within}.{name}_proj.weight"] for name in each]))
        assert matrix.values.dtype == FP8 and torch.equal(matrix.values.float(), codes.float())
        assert matrix.scales is not None and torch.equal(matrix.scales, scales)
    assert torch.equal(layer.mlp_norm, stored[f"{prefix}post_attention_layernorm.weight"])
    assert torch.equal(made._model._head, stored["llm.lm_head.weight"]) and made._model.dtype == torch.float32
    client = Client(made, "one", greedy=True)
    client.units(2)
    run(client)
    assert client.receipts() == [1030, 1000]
    made.close(client.slot)
    assert made._pool.held == 0


def test_without_the_setting_matrices_are_as_they_were(tiny_checkpoint: Path) -> None:
    made = engine(tiny_checkpoint)
    made.load()
    assert all(matrix.scales is None for layer in made._model._decoder._weights.layers for matrix in layer.matrices)


@pytest.mark.behaviour("X14")
def test_fused_kernels_need_a_card_that_has_e4m3(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 149_000_000_000))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(PlanError, match=r"weights_dtype: fp8 with fused kernels needs compute capability 8\.9, cuda has 8\.6") as error:
        engine(tiny_checkpoint, weights_dtype="fp8", device="cuda", kernels="fused")
    assert error.value.param == "weights_dtype"
    assert engine(tiny_checkpoint, weights_dtype="fp8", device="cuda", kernels="plain")._settings.weights_dtype == "fp8"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert engine(tiny_checkpoint, weights_dtype="fp8", device="cuda", kernels="fused")._settings.weights_dtype == "fp8"


def test_a_type_that_is_none_is_refused(tiny_checkpoint: Path) -> None:
    with pytest.raises(ValidationError, match="weights_dtype"):
        engine(tiny_checkpoint, weights_dtype="bfloat16")
