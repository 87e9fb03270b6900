"""Structs that say what they are and never what was said: no audio, text or key gets into a log through a repr."""

from __future__ import annotations

from msgspec import Struct

SHOWN = frozenset(
    """id item_id response_id session_id event_id client_event_id previous_item_id call_id kind code param stage status reason edge lane
    role encoding type model eagerness""".split()  # noqa: SIM905
)
"""Text fields whose value is an identifier or a word of ours."""


class Quiet(Struct, frozen=True, gc=False):
    """A value: it refers to nothing that refers to it, so the collector need not know of it, however many are kept."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_shown(name, getattr(self, name))}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({shown})"


def _shown(name: str, value: object) -> str:
    match value:
        case str() if name not in SHOWN:
            return f"<{len(value)} chars>"
        case bytes():
            return f"<{len(value)} bytes>"
        case tuple() | list() | set() | frozenset():
            return "[" + ", ".join(_shown(name, each) for each in value) + "]"
        case dict():
            return f"<{len(value)} keys>"
        case str() | int() | float() | None | Quiet():
            return repr(value)
        case _:
            return f"<{type(value).__name__}>"
