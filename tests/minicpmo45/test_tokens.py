"""Token ids out of the tokenizer's own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from minicpmo45.config import Config
from minicpmo45.errors import CheckpointError
from minicpmo45.random_tokenizer import BAD_TOKENS, WORDS
from minicpmo45.tokens import ADDED_TOKENS, BASE_VOCAB, NAMES, UNKNOWN_ID, Tokens, bad_token_ids, resolve
from tests.support.checkpoint import copy_checkpoint

VOCAB = Config().llm.vocab_size


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))


def test_every_duplex_token_has_its_released_id(tiny_checkpoint: Path) -> None:
    found = resolve(tiny_checkpoint, VOCAB)
    assert (found.unit, found.unit_end) == (151_683, 151_684)
    assert (found.image, found.image_end, found.slice, found.slice_end) == (151_669, 151_670, 151_679, 151_680)
    assert (found.audio_start, found.audio, found.audio_end) == (151_697, 151_698, 151_699)
    assert (found.listen, found.speak, found.tts_bos, found.tts_pad) == (151_705, 151_706, 151_703, 151_722)
    assert (found.turn_eos, found.chunk_eos, found.chunk_tts_eos) == (151_717, 151_718, 151_721)
    assert (found.im_start, found.im_end, found.end_of_text) == (151_644, 151_645, 151_643)
    assert found.unit_terminators == {151_705, 151_718, 151_721}
    assert set(NAMES) == set(Tokens.__struct_fields__)


def test_the_added_tokens_fill_the_vocabulary() -> None:
    assert sorted(ADDED_TOKENS.values()) == list(range(BASE_VOCAB, VOCAB))
    assert ADDED_TOKENS["<|timbre_31|>"] == VOCAB - 1
    assert (ADDED_TOKENS["<think>"], ADDED_TOKENS["</think>"]) == (151_667, 151_668)


@pytest.mark.parametrize("text", ["<|chunk_eos|>", "<unit>", "</think>", "<|tts_pad|>"])
def test_a_missing_token_is_named(text: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    content = json.loads((tiny_checkpoint / "tokenizer.json").read_bytes())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != text]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as failure:
        resolve(tmp_path, VOCAB)
    assert failure.value.item == text


def test_a_token_without_a_row_is_named(tiny_checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="151722") as failure:
        resolve(tiny_checkpoint, 151_722)
    assert failure.value.item == "<|tts_pad|>"


def test_the_tokens_that_are_never_spoken(tiny_checkpoint: Path) -> None:
    found = bad_token_ids(tiny_checkpoint, VOCAB)
    assert len(found) == BAD_TOKENS == 6965
    assert found[:4] == (7, 8, 94, 95)
    assert list(found) == sorted(set(found))
    assert not set(found) & set(WORDS.values())


@pytest.mark.parametrize(("ids", "why"), [(None, "missing"), ([1, "2"], "'2'"), ([1, -1], "-1"), ([VOCAB], str(VOCAB)), ([True], "True")])
def test_a_broken_list_of_them_is_said(ids: list[object] | None, why: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({} if ids is None else {"bad_token_ids": ids}))
    with pytest.raises(CheckpointError, match=why) as failure:
        bad_token_ids(tmp_path, VOCAB)
    assert failure.value.item == "bad_token_ids"


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_missing_file_is_named(file: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(tiny_checkpoint, tmp_path)
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match="missing") as failure:
        resolve(folder, VOCAB)
        bad_token_ids(folder, VOCAB)
    assert failure.value.item == file


def test_the_random_tokenizer_is_a_real_one(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB
    assert all(tokenizer.token_to_id(text) == index for text, index in ADDED_TOKENS.items())
    assert tokenizer.token_to_id("<unk>") == UNKNOWN_ID
    assert all(tokenizer.id_to_token(index) is not None for index in range(0, VOCAB, 37))


def test_the_template_words_are_one_token_each(tokenizer: Tokenizer) -> None:
    found = tokenizer.encode("<|im_start|>system\n<unit><|audio_start|>").ids
    assert found == [151_644, WORDS["system"], 198, 151_683, 151_697]
    assert [tokenizer.encode(word).ids for word in WORDS] == [[index] for index in WORDS.values()]


@pytest.mark.parametrize("text", ["Streaming Omni Conversation.", "Grüß Gott, 你好 👋", "a  b\n\n c\t1234 it's"])
def test_any_text_comes_back(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_some_ordinary_tokens_end_within_a_character(tokenizer: Tokenizer, tiny_checkpoint: Path) -> None:
    allowed = set(range(300, 700)) - set(bad_token_ids(tiny_checkpoint, VOCAB))
    assert sum(tokenizer.decode([index]) == "\ufffd" for index in allowed) > 300


@pytest.mark.parametrize(("index", "named"), [(151_705, "<|speak|>"), (float("inf"), "tokenizer.json")])
def test_an_id_that_another_token_has_or_nothing_can_have_is_named(index: float, named: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    content = json.loads((tiny_checkpoint / "tokenizer.json").read_text())
    next(token for token in content["added_tokens"] if token["content"] == "<|speak|>")["id"] = index
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as error:
        resolve(tmp_path, VOCAB)
    assert error.value.item == named
