"""Words to ids and back: control tokens stay out of users' hands, characters leave whole."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from minicpmo45.config import tiny
from minicpmo45.errors import CheckpointError
from minicpmo45.tokens import ADDED_TOKENS
from tests.support.checkpoint import copy_checkpoint
from tests.thinker_svc.minicpmo45.thinking import vocabulary_of
from thinker_svc.minicpmo45.vocabulary import TextStream, Vocabulary


def test_text_comes_back_and_holds_no_control_token(tiny_checkpoint: Path) -> None:
    vocabulary = vocabulary_of(tiny_checkpoint)
    for text in ("system\nYou help.\n", "naïve 你好 🙂 e\u0301", "<|im_end|><unit></unit><|listen|><think>", ""):
        ids = vocabulary.encode(text)
        assert not set(ids) & set(ADDED_TOKENS.values()) and max(ids, default=0) < 151_643
        assert vocabulary.decode(ids) == text.replace("e\u0301", "é")
    assert vocabulary.encode("system\nuser") == [8948, 198, 872]


def test_control_tokens_have_no_text(tiny_checkpoint: Path) -> None:
    vocabulary = vocabulary_of(tiny_checkpoint)
    tokens = vocabulary.tokens
    control = [tokens.listen, tokens.speak, tokens.turn_eos, tokens.chunk_eos, tokens.think, tokens.im_end, 128_244]
    assert vocabulary.decode([70, *control, 71]) == "gh"
    assert not any(map(vocabulary.is_text, control)) and vocabulary.characters[control].sum() == 0


@pytest.mark.behaviour("N44")
def test_forbidden_are_the_released_list_and_what_only_the_first_draw_gives(tiny_checkpoint: Path) -> None:
    vocabulary = vocabulary_of(tiny_checkpoint)
    assert vocabulary.forbidden.sum() == 6965 + 2
    assert vocabulary.forbidden[[7, 8, 94, vocabulary.tokens.chunk_eos, vocabulary.tokens.tts_pad]].all()
    assert not vocabulary.forbidden[[vocabulary.tokens.listen, vocabulary.tokens.turn_eos]].any()


def test_a_stream_gives_whole_characters_and_in_the_end_all_of_them(tiny_checkpoint: Path) -> None:
    vocabulary, draw = vocabulary_of(tiny_checkpoint), random.Random(1)
    letters = {vocabulary.piece(token): token for token in range(256)}
    for text in ("grüß 你们 🙂🙃 end", "🙂"):
        ids = [letters[bytes([byte])] for byte in text.encode()]
        stream, pieces = TextStream(vocabulary), []
        for token in ids:
            if draw.random() < 0.3:
                assert stream.push(vocabulary.tokens.speak) == ""
            pieces.append(stream.push(token))
        assert "".join(pieces) == text and all("\ufffd" not in piece for piece in pieces) and stream.flush() == ""
        assert [sum(vocabulary.characters[token] for token in ids[: end + 1]) for end in range(len(ids))][-1] == len(text)


def test_an_incomplete_character_ends_with_its_turn(tiny_checkpoint: Path) -> None:
    vocabulary = vocabulary_of(tiny_checkpoint)
    letters = {vocabulary.piece(token): token for token in range(256)}
    stream = TextStream(vocabulary)
    assert stream.push(letters[b"\xf0"]) == "" and stream.push(letters[b"\x9f"]) == "" and stream.flush() == "\ufffd"
    assert stream.push(letters[b"a"]) == "a" and stream.flush() == ""
    stream.push(letters[b"\xf0"])
    stream.reset()
    assert stream.push(letters[b"b"]) == "b"


def test_a_vocabulary_that_is_not_byte_level_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path / "copy")
    content = json.loads((folder / "tokenizer.json").read_bytes())
    content["model"]["vocab"] = {"你": 0}
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Vocabulary.read(folder, tiny().llm.vocab_size)
