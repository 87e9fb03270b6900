"""What one client event may hold. Every bound is checked before the core hears of the event."""

from __future__ import annotations

from msgspec import Struct


class WireLimits(Struct, frozen=True):
    """Bounds of client events; a value at the bound is accepted, one more is refused with `limit_exceeded` or `event_too_large`."""

    max_event_bytes: int = 15 * 1024 * 1024
    """UTF-8 bytes of one event."""
    max_instructions_chars: int = 131_072
    """Characters of a session's or a response's instructions."""
    max_item_text_chars: int = 131_072
    """Characters of all text in one item: message parts, arguments, or output."""
    max_item_parts: int = 64
    """Content parts of one message."""
    max_input_items: int = 256
    """Items in response.create's `input`."""
    max_tools: int = 128
    """Functions of a session or a response."""
    max_tool_bytes: int = 65_536
    """JSON bytes of one function's parameters; also of each of tracing, prompt and truncation."""
    max_json_depth_levels: int = 32
    """Nesting of free-form JSON: function parameters, tracing metadata."""
    max_image_bytes: int = 200 * 1024
    """Of one picture's file; a stage takes it in one append."""
    max_reference_voice_bytes: int = 640_000
    """PCM16 of a voice to speak like."""
    max_output_tokens: int = 32_768
    """Largest token bound of a response; also what "inf" means within one response.create."""
