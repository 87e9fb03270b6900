"""The response ledger: at most one live response, its output items, and its one terminal."""

from __future__ import annotations

from msgspec import Struct

from .commands import MarkOut, StageChunk
from .config import Modality, Tool
from .items import Item, Part, Response, ResponseStatus, Usage


class Asked(Struct, frozen=True):
    """What a response was asked to be: it never changes, and a checkpoint writes it once."""

    instructions: str = ""
    voice: str = ""
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    input_items: tuple[Item, ...] | None = None


class Live(Struct):
    """The response that is being made."""

    id: str
    item_id: str
    epoch: int
    turn: int
    modality: Modality
    asked: Asked
    out_of_band: bool = False
    prompted: bool = False
    text: str = ""
    text_ended: bool = False
    message_index: int | None = None
    """Output index of the message, once it was announced."""
    outputs: list[Item] = []
    """Finished and announced items by output index."""
    finish_reason: str = "stop"
    input_tokens: int = 0
    output_tokens: int = 0
    progress_at: int = 0
    owed_since: int | None = None
    """When something was handed to the audio stage that it has not answered yet."""
    sound_fed: bool = False
    """The audio stage has all of it: it owes sound until its own last."""
    made_as: str = ""
    """What stages call it: a turn of a native model, which is counted by the model. Empty: its id."""
    units: int = 0
    """Units in which it was made so far."""
    begun_ms: int = 0
    """End of the input that was heard when it began."""
    marks: list[MarkOut] = []
    """Where in its sound each unit's text ends, if the sound itself does not tell."""

    @property
    def label(self) -> str:
        return self.made_as or self.id

    def message(self, status: str, *, audio_ms: int = 0) -> Item:
        spoken = self.modality == "audio"
        part = Part("output_audio", transcript=self.text, audio_ms=audio_ms) if spoken else Part("output_text", text=self.text)
        return Item(self.item_id, role="assistant", status=status, content=(part,))  # type: ignore[arg-type]

    def snapshot(self, conversation_id: str, status: ResponseStatus = "in_progress", **end: object) -> Response:
        return Response(
            id=self.id,
            status=status,
            output=tuple(self.outputs) if status != "in_progress" else (),
            modalities=(self.modality,),
            voice=self.asked.voice,
            max_output_tokens=self.asked.max_output_tokens,
            metadata=self.asked.metadata,
            conversation_id=None if self.out_of_band else conversation_id,
            usage=None if status == "in_progress" else self.usage(),
            **end,  # type: ignore[arg-type]
        )

    def usage(self) -> Usage:
        return Usage(input_text=self.input_tokens, output_text=self.output_tokens)


class Responses(Struct):
    live: Live | None = None
    coming: list[Live] = []
    """Turns that a native model began while the sound of an earlier one still leaves: the client hears of them one after the other."""
    count: int = 0
    owed: bool = False
    """A user turn waits for a reply: until the live response ends, or the user pauses."""
    voice_used: bool = False

    def of(self, chunk: StageChunk) -> Live | None:
        """The response that it is made for, live or coming."""
        live = self.live
        if live is not None and live.label == chunk.response_id and live.epoch == chunk.epoch:
            return live
        return next((live for live in self.coming if live.label == chunk.response_id and live.epoch == chunk.epoch), None)
