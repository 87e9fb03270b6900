"""Pictures that a client sends: base64, or a data URL of it, of a JPEG or PNG file."""

from __future__ import annotations

import pybase64

from gateway.conversation.commands import Frame

from .limits import WireLimits
from .problems import WireRefusal, over_limit

_KINDS = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n\x1a\n": "image/png"}
_DATA_URL = "data:"


def frame(text: str, max_slices: int | None, limits: WireLimits, param: str) -> Frame:
    """What the text holds; its type is told by its first bytes. Raises WireRefusal."""
    if len(text) > 4 * (limits.max_image_bytes // 3 + 1):
        raise over_limit(param, limits.max_image_bytes, "bytes")
    try:
        data = pybase64.b64decode(text, validate=True)
    except ValueError as error:
        raise WireRefusal("invalid_image", param, why="it is not base64") from error
    if len(data) > limits.max_image_bytes:
        raise over_limit(param, limits.max_image_bytes, "bytes")
    kind = next((kind for magic, kind in _KINDS.items() if data.startswith(magic)), None)
    if kind is None:
        raise WireRefusal("invalid_image", param, why="it is neither JPEG nor PNG")
    return Frame(kind, data, max_slices or 0)


def from_url(url: str | None, limits: WireLimits, param: str) -> Frame:
    """The picture of an input_image part: only a data URL is taken, nothing is fetched. Raises WireRefusal."""
    head, comma, body = (url or "").partition(",")
    if not comma or not head.startswith(_DATA_URL) or not head.endswith(";base64"):
        raise WireRefusal("invalid_image", param, why="it is no data URL in base64")
    return frame(body, None, limits, param)
