"""Notes of units, and how a log of them is read."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from stage_kit import InvalidConfig
from thinker_svc.minicpmo45.configuration import SessionConfig, frozen_changes, session_config
from thinker_svc.minicpmo45.note import MOST_BYTES, MOST_NOTES, Note, packed
from thinker_svc.minicpmo45.unit import MOST_UNIT_TOKENS

VOCABULARY = 151_748
NUMBER = (1 << 32) - 1


def _config(log: Any) -> SessionConfig:
    return session_config({"unit_log": log}, {}, 17.0, 1024, VOCABULARY)


def _text(*content: Any) -> str:
    return base64.b64encode(msgspec.msgpack.encode(content)).decode()


def _kept(start_ms: Any = 0, end_ms: Any = 1030, number: Any = 7, tokens: Any = (5, 9), drawn: Any = (5,)) -> str:
    return _text(start_ms, end_ms, packed(number, tokens, drawn))


def test_a_log_comes_back_as_it_was_noted() -> None:
    log = [_kept(), _kept(1030, 1330, 8, (9,), ()), _kept(1330, 1330, 9), _kept(5000, 6000, NUMBER, (VOCABULARY - 1,))]
    assert _config(log).unit_log == (
        Note(0, 1030, 7, (5, 9), (5,)),
        Note(1030, 1330, 8, (9,), ()),
        Note(1330, 1330, 9, (5, 9), (5,)),
        Note(5000, 6000, NUMBER, (VOCABULARY - 1,), (5,)),
    )
    assert _config(log).unit_log[0].fed == (5,) and _config([]).unit_log == session_config({}, {}, 17.0, 1024, VOCABULARY).unit_log == ()
    assert frozen_changes(_config(log), _config(log[1:])) == ["unit_log"] and not frozen_changes(_config(log), _config(log))


def test_the_largest_note_is_small_enough_and_the_longest_log_is_read() -> None:
    most = (VOCABULARY - 1,) * MOST_UNIT_TOKENS
    assert len(packed(NUMBER, most, most)) <= MOST_BYTES
    log = [_kept(NUMBER, NUMBER, NUMBER, most, most)] * MOST_NOTES
    assert len(_config(log).unit_log) == MOST_NOTES
    with pytest.raises(InvalidConfig, match="unit_log: must be a list of at most 600"):
        _config([*log, log[0]])


MALFORMED: tuple[Any, ...] = (
    *(None, "", {}, 3, _kept(), (_kept(),)),
    *([None], [3], [b"AAAA"], ["no base64!"], ["AAA"], ["\u00e9"], [""], ["A" * 5000], [_kept() + "="]),
    *([_text()], [_text(0, 1030)], [_text(0, 1030, packed(1, (5,), ()), 0)], [_text(0, 1030, "text")], [_text(0, 1030, b"")]),
    *([_text("0", 1030, packed(1, (5,), ()))], [_text(0, 1030, packed(1, (5,), ()) + b"\0")], [_text(0, 1030, bytes(MOST_BYTES + 1))]),
    *([_kept(start_ms=-1)], [_kept(end_ms=1 << 32)], [_kept(start_ms=1.5)], [_kept(start_ms=True)], [_kept(start_ms=1031)]),
    *([_kept(number=-1)], [_kept(number=1 << 32)], [_kept(number="1")], [_kept(number=None)]),
    *([_kept(tokens=())], [_kept(tokens=[5] * (MOST_UNIT_TOKENS + 1))], [_kept(tokens="5")], [_kept(tokens=["5"])], [_kept(tokens=[-1])]),
    *([_kept(tokens=[VOCABULARY])], [_kept(drawn=[VOCABULARY])], [_kept(drawn=[5] * (MOST_UNIT_TOKENS + 1))], [_kept(drawn=None)]),
    *([_kept(), _kept()], [_kept(2000, 3000), _kept(1000, 2000)], [_kept(), _kept(1029, 2000)]),
)


@pytest.mark.parametrize("log", MALFORMED)
def test_what_is_malformed_is_refused_by_name(log: Any) -> None:
    with pytest.raises(InvalidConfig) as refused:
        _config(log)
    assert refused.value.param == "unit_log" and "\n" not in refused.value.why
