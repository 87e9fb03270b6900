"""What to do. `Relay`, `Grant`, `Mute` and `Unhear` are performed at once; everything else only after the commit that carries it."""

from __future__ import annotations

from typing import Any

from .config import AudioFormat
from .events import Event
from .quiet import Quiet


class InputAudio(Quiet, frozen=True):
    """Client audio, whole samples; start_sample counts the session's samples before it, at the format's rate."""

    data: bytes
    samples: int
    format: AudioFormat
    start_sample: int


class InputImage(Quiet, frozen=True):
    """A frame of the client's camera, and when on the input timeline it was taken."""

    media_type: str
    data: bytes
    t_ms: int
    max_slices: int


class Relay(Quiet, frozen=True):
    """One append on an edge. payload: InputAudio, InputImage, the wire payload of a stage's chunk, or None with last."""

    stage: str
    edge: str
    position: int
    previous: int
    lane: str
    epoch: int
    turn: int
    response_id: str
    payload: Any
    last: bool = False
    input_generation: int = 0
    config_generation: int = 0


class Grant(Quiet, frozen=True):
    """Flow control of reply audio: a grand total of milliseconds since open."""

    stage: str
    granted_ms: int


class Mute(Quiet, frozen=True):
    """No audio of this response leaves any more, from now on."""

    response_id: str


class Unhear(Quiet, frozen=True):
    """The client's audio after this position is taken back: a stage that is placed anew hears silence in its place."""

    position: int


class Emit(Quiet, frozen=True):
    seq: int
    event: Event


# Orders: what the core tells a stage. Each carries a number; a stage obeys each number once.


class CommitOrder(Quiet, frozen=True, tag=True):
    """Recognise this span of input as one item."""

    item_id: str
    start_ms: int
    end_ms: int
    input_generation: int = 0


class ClearOrder(Quiet, frozen=True, tag=True):
    """Forget uncommitted input."""

    input_generation: int


class PromptMessage(Quiet, frozen=True):
    role: str
    content: str
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    """For role assistant with a call_id: a function call."""


class PromptTool(Quiet, frozen=True):
    name: str
    description: str
    parameters_json: str


class PromptOrder(Quiet, frozen=True, tag=True):
    """Continue this conversation."""

    messages: tuple[PromptMessage, ...]
    max_tokens: int
    tools: tuple[PromptTool, ...]
    tool_choice: str
    epoch: int
    turn: int
    response_id: str


class ContinueOrder(Quiet, frozen=True, tag=True):
    """Close the open unit with silence, should it end by end_ms and this turn of the model still go on."""

    end_ms: int
    epoch: int
    turn: int
    input_generation: int = 0


class CloseUnitOrder(Quiet, frozen=True, tag=True):
    """The user paused: close the open unit with silence now, should it end by end_ms and the model listen."""

    end_ms: int
    input_generation: int = 0


class SkipSilenceOrder(Quiet, frozen=True, tag=True):
    """Nobody speaks from start_ms, where the unit that was closed ends, to end_ms: no unit needs to hear it."""

    start_ms: int
    end_ms: int
    input_generation: int = 0


class CancelOrder(Quiet, frozen=True, tag=True):
    cancelled_epoch: int
    next_epoch: int
    reason: str


class UpdateOrder(Quiet, frozen=True, tag=True):
    config_generation: int
    config_json: str
    input_format: AudioFormat | None = None
    output_format: AudioFormat | None = None


OrderBody = CommitOrder | ClearOrder | PromptOrder | ContinueOrder | CloseUnitOrder | SkipSilenceOrder | CancelOrder | UpdateOrder


class Order(Quiet, frozen=True):
    """A numbered command to a stage; on edges, its position is its number and `previous` the number before it."""

    stage: str
    number: int
    previous: int
    epoch: int
    body: OrderBody
    config_generation: int = 1


class Replace(Quiet, frozen=True):
    """Place a stage anew. `resume_after`: the position of each edge up to which it needs nothing; client audio above is re-heard.

    `leaves`: it is not lost but moves, and where it was it still is, should there be no other place.
    """

    stage: str
    resume_after: dict[str, int]
    leaves: bool = False


class Vacate(Quiet, frozen=True):
    """The stage is at its new place: whatever held it before may let go."""

    stage: str


class Ack(Quiet, frozen=True):
    """Outputs of the stage up to position may be forgotten."""

    stage: str
    position: int


class Close(Quiet, frozen=True):
    """End the session: code is the WebSocket close code, reason one word."""

    code: int
    reason: str


Effect = Relay | Grant | Mute | Unhear | Emit | Order | Replace | Vacate | Ack | Close
