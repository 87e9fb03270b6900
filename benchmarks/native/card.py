"""What the card can do, measured: the ceilings of every floor."""

from __future__ import annotations

import datetime
import statistics
from functools import partial
from pathlib import Path

import msgspec
import torch

from benchmarks.native.timing import timed

COPY_BYTES = 4 << 30
SIDE = 8192


class Card(msgspec.Struct, frozen=True):
    name: str
    torch: str
    driver: str
    date: str
    copy_bytes_s: float
    """Read plus written."""
    bf16_flops: float
    fp32_flops: float
    """Without TF32."""
    tf32_flops: float
    fp8_flops: float = 0.0
    """e4m3 on both sides; 0: not measured."""

    def flops(self, kind: str) -> float:
        return {"bf16": self.bf16_flops, "fp32": self.fp32_flops, "tf32": self.tf32_flops, "fp8": self.fp8_flops or 2 * self.bf16_flops}[
            kind
        ]


def measure(device: torch.device) -> Card:
    """On a CPU sizes are small, and the numbers mean that CPU."""
    on_gpu = device.type == "cuda"
    size = COPY_BYTES if on_gpu else 1 << 26
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    copy = statistics.median(timed(device, partial(torch.empty_like(source).copy_, source), 10)) / 1000
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    del source
    found = Card(
        name=torch.cuda.get_device_name(device) if on_gpu else "CPU",
        torch=str(torch.__version__),
        driver=_driver(),
        date=now,
        copy_bytes_s=2 * size / copy,
        bf16_flops=_rate(device, torch.bfloat16),
        fp32_flops=_rate(device, torch.float32),
        tf32_flops=_rate(device, torch.float32, tf32=True),
        fp8_flops=_fp8_rate(device),
    )
    if on_gpu:
        # the card is for those who are measured
        torch.cuda.empty_cache()
    return found


def _rate(device: torch.device, dtype: torch.dtype, *, tf32: bool = False) -> float:
    side = SIDE if device.type == "cuda" else 256
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        return 2.0 * side**3 / (statistics.median(timed(device, lambda: left @ right, 8)) / 1000)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _fp8_rate(device: torch.device) -> float:
    """With a scale a row, summed in fp32; 0 where the card has none."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        return 0.0
    left, right = (torch.randn(SIDE, SIDE, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    out, scales = torch.empty(SIDE, SIDE, dtype=torch.bfloat16, device=device), torch.ones(SIDE, 1, device=device)

    def call() -> object:
        return torch._scaled_mm(left, right.t(), scale_a=scales, scale_b=scales.t(), out_dtype=out.dtype, out=out)

    return 2.0 * SIDE**3 / (statistics.median(timed(device, call, 8)) / 1000)


def _driver() -> str:
    version = Path("/proc/driver/nvidia/version")
    line = version.read_text().splitlines()[0] if version.exists() else ""
    return next((word for word in line.split() if word[:1].isdigit() and "." in word), "")
