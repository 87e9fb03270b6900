"""Who may command a session."""

from __future__ import annotations

import msgspec


class Lease(msgspec.Struct, frozen=True):
    """The right to command a session: its generation (rises at each takeover) and the holder's random id."""

    session_id: str
    attachment: int
    holder_id: str


class Renewed(msgspec.Struct, frozen=True):
    """What became of the leases of one gateway. Sessions of neither kind are its own as before.

    `lost` are not its own any more, with the reason for which they were closed (empty: somebody else took them over). `idle` are, but
    nobody used them for longer than a session may be idle: their holder is to end them. `forgotten` are, but Redis lost their record, or
    the writes that made the lease: they are to be restored.
    """

    lost: dict[str, str]
    idle: set[str]
    forgotten: set[str]
