"""Flow control of audio: a grand total granted, a grand total sent. Pure."""

from __future__ import annotations


class Credit:
    """Milliseconds of audio sent since open, against milliseconds granted since open."""

    def __init__(self) -> None:
        self.granted_ms = 0
        self.sent_ms = 0.0
        self.window_ms = 0
        """What was granted first: so much may be on its way and unheard."""

    def grant(self, total_ms: int) -> bool:
        """A lower total than known is an old message and changes nothing. True when there is more room."""
        if total_ms <= self.granted_ms:
            return False
        self.granted_ms, self.window_ms = total_ms, self.window_ms or total_ms
        return True

    def allows(self, audio_ms: float) -> bool:
        """True when this much audio may leave now; outputs without audio always may."""
        return audio_ms <= 0 or self.sent_ms + audio_ms <= self.granted_ms + 1e-6

    def spend(self, audio_ms: float) -> None:
        """The audio got a position."""
        self.sent_ms += audio_ms

    def refund(self, audio_ms: float) -> None:
        """Audio that got a position, and that the reader will never see, because it was cancelled before it arrived."""
        self.sent_ms -= audio_ms
