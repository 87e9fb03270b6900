"""What a process has of its card, to be told beside what was planned."""

from __future__ import annotations

import torch


def taken(device: torch.device | str) -> dict[str, int]:
    """Bytes that torch holds of the card, the most that it held while loading, and what is free of the card; nothing without CUDA."""
    device = torch.device(device)
    if device.type != "cuda":
        return {}
    return {
        "held_bytes": torch.cuda.memory_reserved(device),
        "most_bytes": torch.cuda.max_memory_reserved(device),
        "free_bytes": torch.cuda.mem_get_info(device)[0],
    }
