"""What the client takes for a camera frame, before it is sent."""

from __future__ import annotations

from .errors import BadPicture

MAX_SLICES = 9
_KINDS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


def check_picture(data: bytes, max_slices: int | None, limit_bytes: int) -> None:
    """Raises BadPicture unless it is a JPEG or PNG file of at most limit_bytes, and max_slices None or from 1 to 9."""
    if not isinstance(data, bytes):
        raise BadPicture("picture", f"is {type(data).__name__}, not bytes")
    if not data.startswith(_KINDS):
        raise BadPicture("picture", "is neither a JPEG nor a PNG file")
    if len(data) > limit_bytes:
        raise BadPicture("picture", f"has {len(data)} bytes, more than {limit_bytes}")
    if max_slices is not None and (isinstance(max_slices, bool) or not isinstance(max_slices, int) or not 1 <= max_slices <= MAX_SLICES):
        raise BadPicture("max_slices", f"is not a whole number from 1 to {MAX_SLICES}")
