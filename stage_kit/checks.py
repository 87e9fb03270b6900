"""What an append must look like, whatever the session's state."""

from __future__ import annotations

from collections.abc import Collection

from parley_stage.v1 import stage_pb2

from stage_kit.audio import WIDTH, Format
from stage_kit.engine import Card
from stage_kit.errors import Code, Refusal
from stage_kit.settings import Settings

_LANES = (stage_pb2.LANE_INPUT, stage_pb2.LANE_RESPONSE)


def check_append(append: stage_pb2.Append, card: Card, settings: Settings, formats: Collection[Format], edges: int, watermark: int) -> int:
    """Bytes of the append. Raises Refusal; `edges` counts the edges known so far, `watermark` is this edge's."""
    size = append.ByteSize()
    if size > settings.append_bytes:
        raise Refusal(Code.CODE_LIMIT_EXCEEDED, f"an append holds at most {settings.append_bytes} bytes", param="append_bytes")
    if not append.edge or not append.position:
        raise _invalid("an append needs an edge and a position from 1", "append.edge" if not append.edge else "append.position")
    if not watermark and edges >= settings.edges_count:
        raise Refusal(Code.CODE_LIMIT_EXCEEDED, "too many edges", param="edges_count")
    if append.lane not in _LANES:
        raise _invalid("no such lane", "append.lane")
    kind = append.payload.WhichOneof("value") if append.HasField("payload") else None
    if kind is None:
        if not append.last:
            raise _invalid("an append without payload must be the last", "append.payload")
    elif kind != "control" and kind not in card.reads:
        raise _invalid(f"stage {card.stage} does not read {kind}", "append.payload")
    elif kind == "audio" and card.input_rate:
        _check_audio(append.payload.audio, formats)
    return size


def _check_audio(audio: stage_pb2.Audio, formats: Collection[Format]) -> None:
    form = Format(int(audio.format.encoding), audio.format.sample_rate_hz)
    if form not in formats:
        raise _invalid("the audio is not in the session's input format", "audio.format")
    if audio.samples * WIDTH[form.encoding] != len(audio.data):
        raise _invalid("samples does not fit the length of data", "audio.samples")


def _invalid(message: str, param: str) -> Refusal:
    return Refusal(Code.CODE_INVALID_ARGUMENT, message, param=param)
