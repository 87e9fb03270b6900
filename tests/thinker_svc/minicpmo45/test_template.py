"""What stands where in prefix and unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.thinker_svc.minicpmo45.thinking import vocabulary_of
from thinker_svc.minicpmo45.template import EMBEDDED, audio_rows, joined, picture_rows, prefix_head, prefix_tail, unit_opening

Q = 3


def test_prefix_with_and_without_a_voice_and_a_recap(tiny_checkpoint: Path) -> None:
    vocabulary = vocabulary_of(tiny_checkpoint)
    tokens = vocabulary.tokens
    words = vocabulary.encode("system\nHello.\n")
    head = prefix_head(vocabulary, "Hello.", 2)
    assert head.ids.tolist() == [tokens.im_start, *words, tokens.audio_start, EMBEDDED, EMBEDDED]
    assert prefix_head(vocabulary, "Hello.", 0).ids.tolist() == [tokens.im_start, *words]
    assert prefix_tail(vocabulary, (), voice=True).ids.tolist() == [tokens.audio_end, tokens.im_end]
    recap = prefix_tail(vocabulary, (70, 71), voice=False)
    assert vocabulary.decode(recap.ids.tolist()) == "\n\nprevious: gh" and recap.ids[-1] == tokens.im_end
    assert [span.kind for span in recap.spans] == ["previous", "suffix"]


@pytest.mark.behaviour("N45")
def test_a_unit_is_the_end_of_the_last_then_pictures_each_with_its_slices_then_sound(tiny_checkpoint: Path) -> None:
    tokens = vocabulary_of(tiny_checkpoint).tokens
    close = (tokens.chunk_eos, tokens.unit_end)
    plan = joined(unit_opening(tokens, close), picture_rows(tokens, 3, Q), picture_rows(tokens, 1, Q), audio_rows())
    gap = [EMBEDDED] * Q
    image, detail = [tokens.image, *gap, tokens.image_end], [tokens.slice, *gap, tokens.slice_end]
    assert plan.ids.tolist() == [*close, tokens.unit, *image, *detail, *detail, *image, *[EMBEDDED] * 10]
    assert [span.kind for span in plan.spans] == ["close", "unit", "image", "slice", "slice", "image", "audio"]
    assert [span.start for span in plan.spans[1:]] == [span.stop for span in plan.spans[:-1]]
    assert plan.spans[0].start == 0 and plan.spans[-1].stop == plan.rows
    for kind, start, stop in plan.spans:
        inner = {"image": slice(start + 1, stop - 1), "slice": slice(start + 1, stop - 1), "audio": slice(start, stop)}.get(kind)
        assert inner is None or (plan.ids[inner] == EMBEDDED).all()
    assert [span.kind for span in unit_opening(tokens, ()).spans] == ["unit"]
