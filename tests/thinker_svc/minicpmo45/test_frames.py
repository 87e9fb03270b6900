"""Pictures: the reference's sizes and pixels, the order of patches, and what is refused."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from minicpmo45.config import VisionConfig
from tests.thinker_svc.minicpmo45.perception_support import FIXTURES, encoded, picture
from thinker_svc.minicpmo45.frames import (
    MAX_ASPECT,
    BadFrame,
    FrameLimits,
    cut,
    decode,
    longest_side,
    overview_size,
    read_picture,
    slice_grid,
    slice_size,
)

CONFIG = VisionConfig()


def png_header(width: int, height: int) -> bytes:
    """A PNG file that ends where its pixels would begin."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + struct.pack(">I", 9) + b"IDAT"


def test_grids_and_sizes_are_those_of_the_reference() -> None:
    table = np.load(FIXTURES / "sizes.npz")["table"].tolist()
    assert len(table) == 492 and {row[2] for row in table} == {1, 2, 3, 4, 6, 9}
    for width, height, most, *expected in table:
        grid = slice_grid(width, height, most, CONFIG)
        sizes = slice_size(width, height, grid, CONFIG) if grid else (0, 0)
        assert [*overview_size(width, height, CONFIG), *(grid or (0, 0)), *sizes] == expected, (width, height, most)


@pytest.mark.behaviour("N45")
def test_pixels_are_those_of_the_reference_overview_first() -> None:
    reference = np.load(FIXTURES / "vision.npz")
    for index, (width, height, most) in enumerate(reference["pictures"].tolist()):
        made = read_picture(encoded(picture(width, height, index)), "image/png", most, CONFIG)
        assert [(each.rows, each.columns) for each in made.slices] == [tuple(row) for row in reference[f"sizes{index}"].tolist()]
        for each, expected in zip(made.slices, reference[f"pixels{index}"], strict=True):
            strip = each.patches.reshape(-1, 3, 14, 14).transpose(1, 2, 0, 3).reshape(-1)[::997][:400]
            np.testing.assert_allclose(strip / 127.5 - 1, expected, atol=1e-6)


def test_a_patch_is_a_square_of_the_picture() -> None:
    image = picture(448, 448, 3)
    only = cut(image, 1, CONFIG).slices[0]
    assert (only.rows, only.columns, only.patches.dtype) == (32, 32, np.uint8)
    np.testing.assert_array_equal(only.patches[33].reshape(3, 14, 14), np.asarray(image)[14:28, 14:28].transpose(2, 0, 1))


def test_slices_lie_row_by_row() -> None:
    image = Image.new("RGB", (896, 896))
    for index, box in enumerate(((0, 0), (448, 0), (0, 448), (448, 448))):
        image.paste((60 * index, 0, 0), (*box, box[0] + 448, box[1] + 448))
    made = cut(image, 4, CONFIG)
    assert made.grid == (2, 2) and [int(each.patches[500, 0]) for each in made.slices[1:]] == [0, 60, 120, 180]


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "I;16", "1"])
def test_pictures_of_other_modes_become_rgb(mode: str) -> None:
    image = Image.new("I;16", (60, 50), 9000) if mode == "I;16" else picture(60, 50).convert(mode)
    made = decode(encoded(image), "image/png")
    assert (made.mode, made.size) == ("RGB", (60, 50))


def test_jpeg_is_read() -> None:
    made = decode(encoded(picture(320, 240), "JPEG"), "image/jpeg")
    assert np.abs(np.asarray(made, np.int16) - np.asarray(picture(320, 240), np.int16)).mean() < 15


@pytest.mark.behaviour("N45")
@pytest.mark.parametrize(
    ("data", "media_type", "most", "reason", "param"),
    [
        (encoded(picture(30, 30)), "image/gif", 1, "media_type", "media_type"),
        (encoded(picture(30, 30)), "image/jpeg", 1, "media_type", "media_type"),
        (encoded(picture(30, 30), "GIF"), "image/png", 1, "undecodable", "data"),
        (b"", "image/png", 1, "undecodable", "data"),
        (b"\xff\xd8\xff\xe0 not a picture", "image/jpeg", 1, "undecodable", "data"),
        (encoded(picture(300, 300), "JPEG")[:4000], "image/jpeg", 1, "undecodable", "data"),
        (encoded(picture(300, 300))[:9000], "image/png", 1, "undecodable", "data"),
        (png_header(300, 300), "image/png", 1, "undecodable", "data"),
        (encoded(picture(300, 300)), "image/png", 0, "max_slices", "max_slices"),
        (encoded(picture(300, 300)), "image/png", 10, "max_slices", "max_slices"),
        (bytes(9 << 20), "image/png", 1, "too_large", "data"),
        (png_header(4001, 4000), "image/png", 1, "too_large", "data"),
        (png_header(100_000, 100_000), "image/png", 1, "too_large", "data"),
        (png_header(1011, 10), "image/png", 1, "shape", "data"),
    ],
)
def test_what_is_refused(data: bytes, media_type: str, most: int, reason: str, param: str) -> None:
    with pytest.raises(BadFrame) as refused:
        read_picture(data, media_type, most, CONFIG)
    assert (refused.value.reason, refused.value.param) == (reason, param)
    assert "\n" not in str(refused.value)


def test_a_picture_with_damaged_bytes_is_refused_or_read_never_worse() -> None:
    rng = np.random.default_rng(1)
    for kind, media_type in (("PNG", "image/png"), ("JPEG", "image/jpeg")):
        good = np.frombuffer(encoded(picture(64, 48), kind), np.uint8)
        for _ in range(150):
            bad = good.copy()
            bad[rng.integers(0, len(bad), 6)] = rng.integers(0, 256, 6)
            with contextlib.suppress(BadFrame):
                assert decode(bad.tobytes(), media_type).mode == "RGB"


def test_a_jpeg_with_further_pictures_in_it_is_read() -> None:
    file = io.BytesIO()
    picture(50, 40).save(file, "MPO", save_all=True, append_images=[picture(25, 20)])
    assert decode(file.getvalue(), "image/jpeg").size == (50, 40)


def test_limits_are_the_callers() -> None:
    data = encoded(picture(200, 100))
    assert decode(data, "image/png", FrameLimits(max_bytes=len(data), max_pixels=20_000)).size == (200, 100)
    for limits in (FrameLimits(max_bytes=len(data) - 1), FrameLimits(max_pixels=19_999)):
        with pytest.raises(BadFrame):
            decode(data, "image/png", limits)


def test_no_side_is_longer_than_announced() -> None:
    for width, height in ((MAX_ASPECT, 1), (1, MAX_ASPECT), (MAX_ASPECT * 40, 40), (40_000, 400), (400, 40_000), (4001, 41)):
        for most in (1, 2, 9):
            grid = slice_grid(width, height, most, CONFIG)
            sizes = (*overview_size(width, height, CONFIG), *(slice_size(width, height, grid, CONFIG) if grid else ()))
            assert max(sizes) // CONFIG.patch_size <= longest_side(CONFIG)


def test_a_text_bomb_is_refused() -> None:
    file = io.BytesIO(encoded(picture(20, 20)))
    chunk = b"zTXtComment\x00\x00" + zlib.compress(bytes(70 << 20))
    bomb = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    with pytest.raises(BadFrame) as refused:
        decode(file.getvalue()[:33] + bomb + file.getvalue()[33:], "image/png")
    assert refused.value.reason == "undecodable"
