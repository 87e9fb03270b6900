"""Windows of a stretch join to what one decode of the whole gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from parley_stage.v1 import stage_pb2

from vocoder_svc.embedded.decoder import CHANNELS, CONTEXT_FRAMES, HOP_SAMPLES, PiperDecoder
from vocoder_svc.stretch import Stretch, Window

pytestmark = pytest.mark.models


def _drain(stretch: Stretch, size: int) -> list[Window]:
    windows = []
    while (window := stretch.window(size)) is not None:
        stretch.advance(window.keep)
        windows.append(window)
    return windows


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_joined_windows_equal_the_whole_decode(
    decoder: PiperDecoder, latents: NDArray[np.float32], whole: NDArray[np.float32], data: st.DataObject
) -> None:
    arrived, stretch, sound = 0, Stretch(), []
    while arrived < latents.shape[1]:
        size = data.draw(st.integers(1, 120), "frames that arrive")
        stretch.add(latents[:, arrived : arrived + size])
        arrived += size
        if arrived >= latents.shape[1]:
            stretch.mark = stage_pb2.Mark()
        for window in _drain(stretch, data.draw(st.sampled_from([24, 48, 96]), "frames of a window")):
            decoded = decoder.decode(window.latents)
            sound.append(decoded[window.skip * HOP_SAMPLES : (window.skip + window.keep) * HOP_SAMPLES])
    assert not stretch.waiting
    joined = np.concatenate(sound)
    assert joined.shape == whole.shape
    assert np.abs(joined - whole).max() < 1e-5


@pytest.fixture(scope="module")
def whole(decoder: PiperDecoder, latents: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 samples of one decode."""
    return decoder.decode(latents)


@given(parts=st.lists(st.integers(0, 90), max_size=12), size=st.integers(1, 60))
def test_every_frame_is_kept_once_with_its_context(parts: list[int], size: int) -> None:
    total = sum(parts)
    frames = np.broadcast_to(np.arange(total, dtype=np.float32), (CHANNELS, total))
    stretch, at, windows = Stretch(), 0, []
    for part in parts:
        stretch.add(frames[:, at : at + part])
        at += part
        windows += _drain(stretch, size)
    stretch.mark = stage_pb2.Mark()
    windows += _drain(stretch, size)
    kept = [window.latents[0, window.skip : window.skip + window.keep] for window in windows]
    assert np.array_equal(np.concatenate([np.zeros(0), *kept]), np.arange(total))
    for window in windows:
        first, last = window.latents[0, window.skip], window.latents[0, window.skip + window.keep - 1]
        assert window.skip == min(CONTEXT_FRAMES, first)
        assert window.latents.shape[1] - window.skip - window.keep == min(CONTEXT_FRAMES, total - 1 - last)
