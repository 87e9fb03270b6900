"""The tokenizer of the language model, on the real tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinker_svc.embedded.models import ModelMissing, locate
from thinker_svc.embedded.tokenizer import Detokenizer, TextTokenizer

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(locate("smollm2-135m/tokenizer.json").parent)


def test_the_special_tokens_are_known(tokenizer: TextTokenizer) -> None:
    assert (tokenizer.meta.bos_token, tokenizer.meta.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert len(tokenizer.meta.special_tokens) == 17


def test_text_never_becomes_a_special_token(tokenizer: TextTokenizer) -> None:
    for special in tokenizer.meta.special_tokens:
        for text in (special, f"a{special}b", f" {special}\n", special * 3):
            tokens = tokenizer.tokens(text)
            assert not set(tokens) & set(tokenizer.meta.special_tokens)
            detokenizer = Detokenizer()
            assert "".join(map(detokenizer.push, tokens)) == text


def test_each_digit_stands_alone(tokenizer: TextTokenizer) -> None:
    assert tokenizer.tokens("year 2026!") == ["year", "Ġ", "2", "0", "2", "6", "!"]


def test_known_words(tokenizer: TextTokenizer) -> None:
    assert tokenizer.tokens("What is the capital of France?") == ["What", "Ġis", "Ġthe", "Ġcapital", "Ġof", "ĠFrance", "?"]


@given(text=st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn", "Co")), max_size=60))
def test_every_text_comes_back(tokenizer: TextTokenizer, text: str) -> None:
    # control bytes and lead bytes of unassigned planes are not in the model's vocabulary: they are left out, as in its original tokenizer
    detokenizer = Detokenizer()
    assert "".join(map(detokenizer.push, tokenizer.tokens(text))) == text


def test_no_character_is_ever_split(tokenizer: TextTokenizer) -> None:
    text = "Well 👩‍👩‍👧‍👦 🏳️‍🌈 é e\u0301 漢字 𝔘!"
    detokenizer, said = Detokenizer(), ""
    held_back = False
    for token in tokenizer.tokens(text):
        piece = detokenizer.push(token)
        held_back = held_back or piece == ""
        said += piece
        assert "\ufffd" not in piece and text.startswith(said)
    assert said == text
    assert held_back  # else the text would not have tried it


def test_bytes_that_are_no_text_do_not_stop_the_stream() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.push("ð") == ""
    assert detokenizer.push("ok") == "\ufffdok"


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"python -m parley\.models fetch"):
        locate("smollm2-135m/tokenizer.json", tmp_path)
