"""What happened: everything the core can be told. Client commands carry the event_id that a refusal will name."""

from __future__ import annotations

from typing import Any

from .config import ResponseOptions, SessionPatch
from .items import Item
from .quiet import Quiet


class ClientCommand(Quiet, frozen=True, kw_only=True, tag=True):
    event_id: str | None = None
    client_seq: int | None = None
    """Numbers our client's commands: each is decided once, whatever is sent again."""


class Frame(Quiet, frozen=True):
    """A picture of the client's camera: an encoded file, image/jpeg or image/png. max_slices 0 leaves it to the stage."""

    media_type: str
    data: bytes
    max_slices: int = 0


class InputAppend(ClientCommand, frozen=True, kw_only=True, tag=True):
    """Client audio as decoded bytes; may split a sample. Its frames belong to the time `frames_t_ms`, or to where the audio begins."""

    audio: bytes
    frames: tuple[Frame, ...] = ()
    frames_t_ms: int | None = None


class InputCommit(ClientCommand, frozen=True, kw_only=True, tag=True):
    pass


class InputClear(ClientCommand, frozen=True, kw_only=True, tag=True):
    pass


class OutputClear(ClientCommand, frozen=True, kw_only=True, tag=True):
    pass


class ItemCreate(ClientCommand, frozen=True, kw_only=True, tag=True):
    item: Item
    """An empty id asks the core for one."""
    previous_item_id: str | None = None
    """None appends; "root" inserts at the head."""
    frames: tuple[Frame, ...] = ()
    """What its image parts show, in order."""


class ItemRetrieve(ClientCommand, frozen=True, kw_only=True, tag=True):
    item_id: str


class ItemDelete(ClientCommand, frozen=True, kw_only=True, tag=True):
    item_id: str


class ItemTruncate(ClientCommand, frozen=True, kw_only=True, tag=True):
    item_id: str
    content_index: int
    audio_end_ms: int


class ResponseCreate(ClientCommand, frozen=True, kw_only=True, tag=True):
    options: ResponseOptions = ResponseOptions()


class ResponseCancel(ClientCommand, frozen=True, kw_only=True, tag=True):
    response_id: str | None = None


class SessionUpdate(ClientCommand, frozen=True, kw_only=True, tag=True):
    patch: SessionPatch


class Refused(ClientCommand, frozen=True, kw_only=True, tag=True):
    """The wire refused an event: the client is told in its place among the others."""

    code: str
    message: str
    param: str | None = None


# What a stage put on its output, in domain terms; `wire` of the chunk is what an edge passes on untouched.


class TextOut(Quiet, frozen=True):
    text: str


class ToolOut(Quiet, frozen=True):
    call_id: str
    name: str
    arguments: str


class TranscriptOut(Quiet, frozen=True):
    item_id: str
    text: str
    final: bool
    audio_start_ms: int = 0
    audio_end_ms: int = 0


class MarkOut(Quiet, frozen=True):
    text_chars: int
    audio_ms: int
    sentence_end: bool = False


class AudioOut(Quiet, frozen=True):
    """Reply audio in the client's own format; `samples` at its rate."""

    data: bytes
    samples: int
    rate: int
    marks: tuple[MarkOut, ...] = ()


class DecisionOut(Quiet, frozen=True):
    """kind: speech_started, pause, speech_resumed, speech_stopped, listen, speak, turn_end."""

    kind: str
    t_ms: int
    decided_at_ms: int = 0
    reason: str = ""


class NoteOut(Quiet, frozen=True):
    """A native unit that is over, as its stage wants to be told of it where the session is placed anew. Times of the real input in it."""

    start_ms: int
    end_ms: int
    data: bytes


class OpaqueOut(Quiet, frozen=True):
    """Something that only another stage reads. `kind` is the payload's field name in the contract."""

    kind: str


class FinishOut(Quiet, frozen=True):
    """How a stage's work for a response ended. reason: stop, length or failed."""

    reason: str = "stop"
    input_tokens: int = 0
    output_tokens: int = 0
    error_message: str = ""
    error_param: str = ""
    """What the stage names as at fault, such as "camera[7].t_ms"."""


Output = TextOut | ToolOut | TranscriptOut | AudioOut | DecisionOut | NoteOut | OpaqueOut


class StageChunk(Quiet, frozen=True):
    stage: str
    position: int
    epoch: int
    response_id: str
    output: Output | None = None
    last: bool = False
    finish: FinishOut | None = None
    wire: Any = None
    """The payload as it came (a protobuf message): relayed, never read."""
    turn: int = 0
    """Of its label."""

    @property
    def failed(self) -> bool:
        return self.last and self.finish is not None and self.finish.reason == "failed"


class StageAccepted(Quiet, frozen=True):
    """Watermarks of a stage's input edges, cumulative, and its highest obeyed command number."""

    stage: str
    edges: dict[str, int]
    command_number: int


class StageUnit(Quiet, frozen=True):
    """The receipt of a native unit, counted from 0 at its placement; what it made came before."""

    stage: str
    unit: int


class StageUpdated(Quiet, frozen=True):
    stage: str
    config_generation: int
    error_message: str | None = None
    error_param: str | None = None


class StageFailed(Quiet, frozen=True):
    """An engine failed for one response (response_id set) or refused an input."""

    stage: str
    message: str
    epoch: int = 0
    response_id: str = ""


class StageLost(Quiet, frozen=True):
    """The stage no longer holds the session and cannot be reached."""

    stage: str
    message: str


class Tick(Quiet, frozen=True):
    """Time passed: the deadline that the core named has come."""


class Start(Quiet, frozen=True):
    """The stages are open and the client is there: the first command of every session."""


class StageAttached(Quiet, frozen=True):
    """What a stage said when a takeover attached to it."""

    stage: str
    epoch: int
    edges: dict[str, int]
    command_number: int
    first_kept: int = 0
    """Position of the first output that it still has; what lies below it and was not committed is lost."""


class Resume(Quiet, frozen=True):
    """A restored conversation goes on: these stages are attached, those are lost."""

    attached: tuple[StageAttached, ...]
    lost: tuple[str, ...] = ()
    resends: bool = True
    """The client sends again what not all stages have; one that does not goes on where the first of them is."""
    known_seq: int = 0
    """Events that the client has, counted with those that came without a number; 0 for one that does not say."""


class StageDraining(Quiet, frozen=True):
    """The stage's replica wants to be rid of it, and there is a place on another: it moves at its next quiet point."""

    stage: str


class StagePlaced(Quiet, frozen=True):
    """A stage that was lost, or left, is open on another replica. `back`: it could not leave, and is where it was."""

    stage: str
    back: bool = False


class StageGone(Quiet, frozen=True):
    """A lost stage could not be placed anew: the conversation cannot go on."""

    stage: str


class Idle(Quiet, frozen=True):
    """Nobody used the session for as long as one may be unused."""


class Drain(Quiet, frozen=True):
    """The gateway wants to stop: close at the next quiet point."""

    retry_after_ms: int = 1000


Client = (
    InputAppend | InputCommit | InputClear | OutputClear | ItemCreate | ItemRetrieve | ItemDelete | ItemTruncate
    | ResponseCreate | ResponseCancel | SessionUpdate | Refused
)  # fmt: skip

Command = (
    ClientCommand | StageChunk | StageUnit | StageAccepted | StageUpdated | StageFailed | StageLost | StageDraining | StagePlaced
    | StageGone | Tick | Start | Resume | Idle | Drain
)  # fmt: skip
