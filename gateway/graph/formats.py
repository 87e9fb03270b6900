"""What travels on the edges of a session graph."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal[
    "audio", "image", "text", "transcript", "messages", "thought", "codes", "latents", "tool", "control", "decision", "unit_note"
]  # fmt: skip
"""Payload kinds, by the field names of the stage contract."""

KINDS: tuple[str, ...] = get_args(Kind)

SESSION = "session"
"""What the dialog tells the client about items, turns and responses. Published only: no stage reads it."""

PROGRESS = "reply.progress"
"""How far the sound of a reply has come in its text: the marks of its audio."""

Event = Literal["commit", "clear", "end", "interrupt", "truncate", "reply.progress"]
"""What a control edge can carry besides a payload kind."""

EVENTS: tuple[str, ...] = get_args(Event)

INPUT = "input"
"""How a profile names the session's input: client media, and the controls that bound it."""

INPUT_MEDIA: tuple[str, ...] = ("audio", "image")
INPUT_MAKES: tuple[str, ...] = (*INPUT_MEDIA, "control")
INPUT_REPORTS: tuple[str, ...] = ("commit", "clear", "end", "interrupt", "truncate")

ALIASES = {"pcm16": "audio"}
"""Other spellings of a format in an input item."""

CLIENT, CAMERA, CORE = "client", "camera", "core"
"""Sources of edges that are not stages: the client's sound, its pictures, and what the core decides."""

MEDIA_SOURCES = {"audio": CLIENT, "image": CAMERA}
