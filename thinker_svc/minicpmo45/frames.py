"""Pictures to patches: decoding, the cut into slices, resizing."""

from __future__ import annotations

import io
import math
import struct
import zlib
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from minicpmo45.config import VisionConfig

MAX_ASPECT = 100
"""The longest side that is taken, in shortest sides: beyond it a picture would become a strip of thousands of patches."""
_FORMATS = {"image/jpeg": ("JPEG", "MPO"), "image/png": ("PNG",)}
"""What Pillow calls them; a JPEG file that holds further pictures is an MPO."""
_DECODE_ERRORS = (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)

Reason = Literal["media_type", "too_large", "undecodable", "shape", "max_slices"]


class BadFrame(ValueError):
    """A picture is refused. `reason` says of what kind the fault is, `param` names the field of the payload, `why` is one line."""

    def __init__(self, reason: Reason, param: str, why: str) -> None:
        super().__init__(f"{param}: {why}")
        self.reason = reason
        self.param = param
        self.why = why


class FrameLimits(msgspec.Struct, frozen=True):
    """What a picture may cost before it is decoded."""

    max_bytes: int = 8 << 20
    max_pixels: int = 16_000_000


class Slice(NamedTuple):
    """One image of the encoder: uint8 [rows x columns, 3 x patch x patch], row by row, each patch as channel, y, x."""

    rows: int
    columns: int
    patches: NDArray[np.uint8]


class Picture(NamedTuple):
    """The whole picture first, then its slices, row by row. `grid` is (columns, rows) of the slices, None where there are none."""

    slices: tuple[Slice, ...]
    grid: tuple[int, int] | None


def longest_side(config: VisionConfig) -> int:
    """The most patches that a side of a slice can have."""
    return math.ceil(config.scale_resolution * math.sqrt(MAX_ASPECT) / config.patch_size) + 1


def read_picture(data: bytes, media_type: str, max_slices: int, config: VisionConfig, limits: FrameLimits = FrameLimits()) -> Picture:
    """Decodes a JPEG or PNG file and cuts it into at most `max_slices` (1 to 9) slices and one overview. Raises BadFrame."""
    return cut(decode(data, media_type, limits), max_slices, config)


def decode(data: bytes, media_type: str, limits: FrameLimits = FrameLimits()) -> Image.Image:
    """The picture as RGB. Raises BadFrame; size and shape are judged before a pixel is decoded."""
    if media_type not in _FORMATS:
        raise BadFrame("media_type", "media_type", "not image/jpeg or image/png")
    if len(data) > limits.max_bytes:
        raise BadFrame("too_large", "data", f"{len(data)} bytes, at most {limits.max_bytes} are taken")
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as picture:
            if picture.format not in _FORMATS[media_type]:
                raise BadFrame("media_type", "media_type", f"says {media_type}, the file does not")
            _judge(*picture.size, limits)
            return picture.convert("RGB")
    except BadFrame:
        raise
    except Image.DecompressionBombError:
        raise BadFrame("too_large", "data", f"more than {limits.max_pixels} pixels") from None
    except _DECODE_ERRORS:
        raise BadFrame("undecodable", "data", f"no {media_type} that can be decoded") from None


def cut(picture: Image.Image, max_slices: int, config: VisionConfig) -> Picture:
    """The overview and the slices of a picture, each resized (bicubic) to about scale_resolution squared. Raises BadFrame for
    `max_slices`."""
    if not 1 <= max_slices <= config.max_slices:
        raise BadFrame("max_slices", "max_slices", f"{max_slices} is not within 1 to {config.max_slices}")
    grid = slice_grid(*picture.size, max_slices, config)
    overview = _patches(picture.resize(overview_size(*picture.size, config), Image.Resampling.BICUBIC), config)
    if grid is None:
        return Picture((overview,), None)
    columns, rows = grid
    width, height = slice_size(*picture.size, grid, config)
    resized = picture.resize((columns * width, rows * height), Image.Resampling.BICUBIC)
    boxes = [(column * width, row * height, (column + 1) * width, (row + 1) * height) for row in range(rows) for column in range(columns)]
    return Picture((overview, *(_patches(resized.crop(box), config) for box in boxes)), grid)


def slice_grid(width: int, height: int, max_slices: int, config: VisionConfig) -> tuple[int, int] | None:
    """(columns, rows) of the slices, or None where the overview says it all.

    Of all grids of n - 1, n or n + 1 slices (n: the picture's area in squares of scale_resolution, rounded up, at most `max_slices`), the
    one whose log aspect ratio is nearest to the picture's; of equals the one of fewer slices, then of fewer columns.
    """
    ideal = min(math.ceil(width * height / config.scale_resolution**2), max_slices)
    if ideal <= 1:
        return None
    counts = [count for count in (ideal - 1, ideal, ideal + 1) if 1 < count <= max_slices]
    grids = [(columns, count // columns) for count in counts for columns in range(1, count + 1) if count % columns == 0]
    wanted = math.log(width / height)
    return min(grids, key=lambda grid: abs(wanted - math.log(grid[0] / grid[1])))


def overview_size(width: int, height: int, config: VisionConfig) -> tuple[int, int]:
    """(width, height) to which a whole picture is resized: about scale_resolution squared, enlarged if need be, sides in whole patches."""
    return _fitted(width, height, config)


def slice_size(width: int, height: int, grid: tuple[int, int], config: VisionConfig) -> tuple[int, int]:
    """(width, height) of each slice of a picture that is cut by `grid`."""
    columns, rows = grid
    return _fitted(_nearest(width, columns) / columns, _nearest(height, rows) / rows, config)


def _fitted(width: float, height: float, config: VisionConfig) -> tuple[int, int]:
    """Sides of the same aspect ratio and an area of scale_resolution squared, both cut to whole pixels and rounded to whole patches."""
    ratio = width / height
    tall = int(config.scale_resolution / math.sqrt(ratio))
    return _nearest(int(tall * ratio), config.patch_size), _nearest(tall, config.patch_size)


def _nearest(length: float, unit: int) -> int:
    """The multiple of `unit` nearest to `length` (halves to the even one), at least `unit`."""
    return max(round(length / unit) * unit, unit)


def _judge(width: int, height: int, limits: FrameLimits) -> None:
    if width * height > limits.max_pixels:
        raise BadFrame("too_large", "data", f"{width} x {height} pixels, at most {limits.max_pixels} are taken")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise BadFrame("shape", "data", f"{width} x {height} pixels: one side is more than {MAX_ASPECT} times the other")


def _patches(picture: Image.Image, config: VisionConfig) -> Slice:
    patch = config.patch_size
    columns, rows = picture.width // patch, picture.height // patch
    pixels = np.asarray(picture).reshape(rows, patch, columns, patch, 3)
    return Slice(rows, columns, np.ascontiguousarray(pixels.transpose(0, 2, 4, 1, 3)).reshape(rows * columns, -1))
