"""What the client keeps in case it must be said again: no more than it may, and nothing that was refused."""

from __future__ import annotations

from parley import Limits
from parley.client.entries import AudioFormat
from parley.client.outbox import Outbox

from .lasting import signal


def test_what_is_refused_while_it_is_written_takes_nothing_else_with_it() -> None:
    outbox = Outbox(AudioFormat(), Limits(), keeps=True)
    outbox.add_audio("a", signal(10))
    outbox.add_audio("b", signal(10))
    first = outbox.head()
    outbox.refused("a")
    assert first is not None
    outbox.written(first)
    second = outbox.head()
    assert second is not None
    assert second.event_id == "b"


def test_what_is_kept_is_bounded() -> None:
    limits = Limits(audio_ring_ms=1000, command_log_bytes=10_000)
    outbox = Outbox(AudioFormat(), limits, keeps=True)
    for number in range(2000):
        outbox.add_audio(f"a{number}", signal(240))
        outbox.add_command("conversation.item.create", f"c{number}", {"item": "x" * 500} if number % 2 else {})
        while (entry := outbox.head()) is not None:
            outbox.written(entry)
        assert outbox.held_bytes <= 48_000 + 10_000
    assert outbox.has_room()
    waiting = 0
    while outbox.has_room():
        outbox.add_audio("a", signal(240))
        waiting += 240
    assert waiting == 24_000
