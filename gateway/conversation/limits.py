"""Every bound that the core enforces. The gateway's settings fill it; capabilities report it."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True):
    max_pending_input_bytes: int = 16 * 1024 * 1024
    """Audio accepted and not yet committed, bytes as the client sent them."""
    min_commit_ms: int = 100
    max_items: int = 2000
    max_item_chars: int = 65_536
    max_prompt_chars: int = 49_152
    """Text sent to the language model: the oldest messages are left out beyond it, the instructions never."""
    max_output_lead_ms: int = 1000
    credit_extra_ms: int = 500
    transcript_timeout_ms: int = 8000
    update_timeout_ms: int = 2000
    first_output_timeout_ms: int = 15_000
    """From a prompt to the language model's first text."""
    stall_timeout_ms: int = 2000
    """From latents handed over to the first sound of them, while there is credit."""
    response_timeout_ms: int = 120_000
    """A response without any progress at all."""
    max_session_ms: int = 3_600_000
    max_unit_frames: int = 4
    """Camera frames that a native unit takes."""
    max_held_commands: int = 256
    """Client commands waiting behind a session.update."""
