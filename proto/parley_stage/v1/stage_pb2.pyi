from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lane(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LANE_UNSPECIFIED: _ClassVar[Lane]
    LANE_INPUT: _ClassVar[Lane]
    LANE_RESPONSE: _ClassVar[Lane]

class AudioEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIO_ENCODING_UNSPECIFIED: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_PCM_S16LE: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_PCM_F32LE: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_G711_ULAW: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_G711_ALAW: _ClassVar[AudioEncoding]

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    D_TYPE_UNSPECIFIED: _ClassVar[DType]
    D_TYPE_F32: _ClassVar[DType]
    D_TYPE_F16: _ClassVar[DType]
    D_TYPE_BF16: _ClassVar[DType]
LANE_UNSPECIFIED: Lane
LANE_INPUT: Lane
LANE_RESPONSE: Lane
AUDIO_ENCODING_UNSPECIFIED: AudioEncoding
AUDIO_ENCODING_PCM_S16LE: AudioEncoding
AUDIO_ENCODING_PCM_F32LE: AudioEncoding
AUDIO_ENCODING_G711_ULAW: AudioEncoding
AUDIO_ENCODING_G711_ALAW: AudioEncoding
D_TYPE_UNSPECIFIED: DType
D_TYPE_F32: DType
D_TYPE_F16: DType
D_TYPE_BF16: DType

class Authority(_message.Message):
    __slots__ = ("session_id", "placement", "attachment", "holder_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    placement: int
    attachment: int
    holder_id: str
    def __init__(self, session_id: _Optional[str] = ..., placement: _Optional[int] = ..., attachment: _Optional[int] = ..., holder_id: _Optional[str] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("epoch", "turn", "response_id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    turn: int
    response_id: str
    def __init__(self, epoch: _Optional[int] = ..., turn: _Optional[int] = ..., response_id: _Optional[str] = ...) -> None: ...

class AudioFormat(_message.Message):
    __slots__ = ("encoding", "sample_rate_hz")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    encoding: AudioEncoding
    sample_rate_hz: int
    def __init__(self, encoding: _Optional[_Union[AudioEncoding, str]] = ..., sample_rate_hz: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("text_chars", "audio_ms", "sentence_end")
    TEXT_CHARS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_MS_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_END_FIELD_NUMBER: _ClassVar[int]
    text_chars: int
    audio_ms: int
    sentence_end: bool
    def __init__(self, text_chars: _Optional[int] = ..., audio_ms: _Optional[int] = ..., sentence_end: bool = ...) -> None: ...

class Audio(_message.Message):
    __slots__ = ("format", "data", "samples", "start_sample", "marks")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    START_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    format: AudioFormat
    data: bytes
    samples: int
    start_sample: int
    marks: _containers.RepeatedCompositeFieldContainer[Mark]
    def __init__(self, format: _Optional[_Union[AudioFormat, _Mapping]] = ..., data: _Optional[bytes] = ..., samples: _Optional[int] = ..., start_sample: _Optional[int] = ..., marks: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("media_type", "data", "t_ms", "max_slices")
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    T_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_SLICES_FIELD_NUMBER: _ClassVar[int]
    media_type: str
    data: bytes
    t_ms: int
    max_slices: int
    def __init__(self, media_type: _Optional[str] = ..., data: _Optional[bytes] = ..., t_ms: _Optional[int] = ..., max_slices: _Optional[int] = ...) -> None: ...

class Text(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Transcript(_message.Message):
    __slots__ = ("item_id", "text", "final", "audio_start_ms", "audio_end_ms", "language", "compute_ms")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    AUDIO_START_MS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_END_MS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MS_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    text: str
    final: bool
    audio_start_ms: int
    audio_end_ms: int
    language: str
    compute_ms: int
    def __init__(self, item_id: _Optional[str] = ..., text: _Optional[str] = ..., final: bool = ..., audio_start_ms: _Optional[int] = ..., audio_end_ms: _Optional[int] = ..., language: _Optional[str] = ..., compute_ms: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "call_id", "tool_calls")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    call_id: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., call_id: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("call_id", "name", "arguments_json")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    name: str
    arguments_json: str
    def __init__(self, call_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class ToolSpec(_message.Message):
    __slots__ = ("name", "description", "parameters_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_json: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_json: _Optional[str] = ...) -> None: ...

class Messages(_message.Message):
    __slots__ = ("messages", "max_tokens", "tools", "tool_choice")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    max_tokens: int
    tools: _containers.RepeatedCompositeFieldContainer[ToolSpec]
    tool_choice: str
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., max_tokens: _Optional[int] = ..., tools: _Optional[_Iterable[_Union[ToolSpec, _Mapping]]] = ..., tool_choice: _Optional[str] = ...) -> None: ...

class Thought(_message.Message):
    __slots__ = ("token_ids", "hidden", "turn_end")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    TURN_END_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    hidden: Tensor
    turn_end: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., hidden: _Optional[_Union[Tensor, _Mapping]] = ..., turn_end: bool = ...) -> None: ...

class Codes(_message.Message):
    __slots__ = ("codes", "rate_hz")
    CODES_FIELD_NUMBER: _ClassVar[int]
    RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    codes: _containers.RepeatedScalarFieldContainer[int]
    rate_hz: float
    def __init__(self, codes: _Optional[_Iterable[int]] = ..., rate_hz: _Optional[float] = ...) -> None: ...

class Latents(_message.Message):
    __slots__ = ("values", "rate_hz", "begins", "ends", "mark")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    values: Tensor
    rate_hz: float
    begins: bool
    ends: bool
    mark: Mark
    def __init__(self, values: _Optional[_Union[Tensor, _Mapping]] = ..., rate_hz: _Optional[float] = ..., begins: bool = ..., ends: bool = ..., mark: _Optional[_Union[Mark, _Mapping]] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("kind", "item_id", "start_ms", "end_ms")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Control.Kind]
        KIND_COMMIT: _ClassVar[Control.Kind]
        KIND_CLEAR: _ClassVar[Control.Kind]
        KIND_END: _ClassVar[Control.Kind]
        KIND_FINISH: _ClassVar[Control.Kind]
        KIND_CONTINUE: _ClassVar[Control.Kind]
        KIND_CLOSE_UNIT: _ClassVar[Control.Kind]
        KIND_SKIP_SILENCE: _ClassVar[Control.Kind]
    KIND_UNSPECIFIED: Control.Kind
    KIND_COMMIT: Control.Kind
    KIND_CLEAR: Control.Kind
    KIND_END: Control.Kind
    KIND_FINISH: Control.Kind
    KIND_CONTINUE: Control.Kind
    KIND_CLOSE_UNIT: Control.Kind
    KIND_SKIP_SILENCE: Control.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    kind: Control.Kind
    item_id: str
    start_ms: int
    end_ms: int
    def __init__(self, kind: _Optional[_Union[Control.Kind, str]] = ..., item_id: _Optional[str] = ..., start_ms: _Optional[int] = ..., end_ms: _Optional[int] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("audio", "image", "text", "transcript", "messages", "thought", "codes", "latents", "tool", "control", "decision", "unit_note")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    THOUGHT_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    LATENTS_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    UNIT_NOTE_FIELD_NUMBER: _ClassVar[int]
    audio: Audio
    image: Image
    text: Text
    transcript: Transcript
    messages: Messages
    thought: Thought
    codes: Codes
    latents: Latents
    tool: ToolCall
    control: Control
    decision: Decision
    unit_note: UnitNote
    def __init__(self, audio: _Optional[_Union[Audio, _Mapping]] = ..., image: _Optional[_Union[Image, _Mapping]] = ..., text: _Optional[_Union[Text, _Mapping]] = ..., transcript: _Optional[_Union[Transcript, _Mapping]] = ..., messages: _Optional[_Union[Messages, _Mapping]] = ..., thought: _Optional[_Union[Thought, _Mapping]] = ..., codes: _Optional[_Union[Codes, _Mapping]] = ..., latents: _Optional[_Union[Latents, _Mapping]] = ..., tool: _Optional[_Union[ToolCall, _Mapping]] = ..., control: _Optional[_Union[Control, _Mapping]] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ..., unit_note: _Optional[_Union[UnitNote, _Mapping]] = ...) -> None: ...

class UnitNote(_message.Message):
    __slots__ = ("start_ms", "end_ms", "data")
    START_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    start_ms: int
    end_ms: int
    data: bytes
    def __init__(self, start_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("kind", "t_ms", "decided_at_ms", "score", "reason")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Decision.Kind]
        KIND_SPEECH_STARTED: _ClassVar[Decision.Kind]
        KIND_PAUSE: _ClassVar[Decision.Kind]
        KIND_SPEECH_RESUMED: _ClassVar[Decision.Kind]
        KIND_SPEECH_STOPPED: _ClassVar[Decision.Kind]
        KIND_LISTEN: _ClassVar[Decision.Kind]
        KIND_SPEAK: _ClassVar[Decision.Kind]
        KIND_TURN_END: _ClassVar[Decision.Kind]
    KIND_UNSPECIFIED: Decision.Kind
    KIND_SPEECH_STARTED: Decision.Kind
    KIND_PAUSE: Decision.Kind
    KIND_SPEECH_RESUMED: Decision.Kind
    KIND_SPEECH_STOPPED: Decision.Kind
    KIND_LISTEN: Decision.Kind
    KIND_SPEAK: Decision.Kind
    KIND_TURN_END: Decision.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    T_MS_FIELD_NUMBER: _ClassVar[int]
    DECIDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: Decision.Kind
    t_ms: int
    decided_at_ms: int
    score: float
    reason: str
    def __init__(self, kind: _Optional[_Union[Decision.Kind, str]] = ..., t_ms: _Optional[int] = ..., decided_at_ms: _Optional[int] = ..., score: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class ToStage(_message.Message):
    __slots__ = ("authority", "label", "command_number", "open", "attach", "append", "update", "cancel", "credit", "ack", "close")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    COMMAND_NUMBER_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    label: Label
    command_number: int
    open: Open
    attach: Attach
    append: Append
    update: Update
    cancel: Cancel
    credit: Credit
    ack: Ack
    close: Close
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., label: _Optional[_Union[Label, _Mapping]] = ..., command_number: _Optional[int] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., update: _Optional[_Union[Update, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class ToStageBatch(_message.Message):
    __slots__ = ("parcels",)
    PARCELS_FIELD_NUMBER: _ClassVar[int]
    parcels: _containers.RepeatedCompositeFieldContainer[ToStageParcel]
    def __init__(self, parcels: _Optional[_Iterable[_Union[ToStageParcel, _Mapping]]] = ...) -> None: ...

class ToStageParcel(_message.Message):
    __slots__ = ("stream", "message", "end")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stream: int
    message: ToStage
    end: StreamEnd
    def __init__(self, stream: _Optional[int] = ..., message: _Optional[_Union[ToStage, _Mapping]] = ..., end: _Optional[_Union[StreamEnd, _Mapping]] = ...) -> None: ...

class FromStageBatch(_message.Message):
    __slots__ = ("parcels",)
    PARCELS_FIELD_NUMBER: _ClassVar[int]
    parcels: _containers.RepeatedCompositeFieldContainer[FromStageParcel]
    def __init__(self, parcels: _Optional[_Iterable[_Union[FromStageParcel, _Mapping]]] = ...) -> None: ...

class FromStageParcel(_message.Message):
    __slots__ = ("stream", "message", "end")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stream: int
    message: FromStage
    end: StreamEnd
    def __init__(self, stream: _Optional[int] = ..., message: _Optional[_Union[FromStage, _Mapping]] = ..., end: _Optional[_Union[StreamEnd, _Mapping]] = ...) -> None: ...

class StreamEnd(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Open(_message.Message):
    __slots__ = ("stage", "contract_version", "config_json", "input_format", "output_format", "edges", "resume_after")
    class ResumeAfterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    INPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    RESUME_AFTER_FIELD_NUMBER: _ClassVar[int]
    stage: str
    contract_version: int
    config_json: str
    input_format: AudioFormat
    output_format: AudioFormat
    edges: _containers.RepeatedScalarFieldContainer[str]
    resume_after: _containers.ScalarMap[str, int]
    def __init__(self, stage: _Optional[str] = ..., contract_version: _Optional[int] = ..., config_json: _Optional[str] = ..., input_format: _Optional[_Union[AudioFormat, _Mapping]] = ..., output_format: _Optional[_Union[AudioFormat, _Mapping]] = ..., edges: _Optional[_Iterable[str]] = ..., resume_after: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("stage", "contract_version", "consumed")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    stage: str
    contract_version: int
    consumed: int
    def __init__(self, stage: _Optional[str] = ..., contract_version: _Optional[int] = ..., consumed: _Optional[int] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("edge", "position", "previous", "lane", "input_generation", "config_generation", "checksum", "last", "payload")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    INPUT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    edge: str
    position: int
    previous: int
    lane: Lane
    input_generation: int
    config_generation: int
    checksum: int
    last: bool
    payload: Payload
    def __init__(self, edge: _Optional[str] = ..., position: _Optional[int] = ..., previous: _Optional[int] = ..., lane: _Optional[_Union[Lane, str]] = ..., input_generation: _Optional[int] = ..., config_generation: _Optional[int] = ..., checksum: _Optional[int] = ..., last: bool = ..., payload: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("config_generation", "config_json", "input_format", "output_format")
    CONFIG_GENERATION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    INPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    config_generation: int
    config_json: str
    input_format: AudioFormat
    output_format: AudioFormat
    def __init__(self, config_generation: _Optional[int] = ..., config_json: _Optional[str] = ..., input_format: _Optional[_Union[AudioFormat, _Mapping]] = ..., output_format: _Optional[_Union[AudioFormat, _Mapping]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("cancelled_epoch", "next_epoch", "reason")
    CANCELLED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    cancelled_epoch: int
    next_epoch: int
    reason: str
    def __init__(self, cancelled_epoch: _Optional[int] = ..., next_epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("granted_ms",)
    GRANTED_MS_FIELD_NUMBER: _ClassVar[int]
    granted_ms: int
    def __init__(self, granted_ms: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class FromStage(_message.Message):
    __slots__ = ("placement", "opened", "attached", "accepted", "chunk", "unit_done", "cancelled", "updated", "closed", "gap", "error")
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    UNIT_DONE_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    placement: int
    opened: Opened
    attached: Attached
    accepted: Accepted
    chunk: Chunk
    unit_done: UnitDone
    cancelled: Cancelled
    updated: Updated
    closed: Closed
    gap: Gap
    error: StageError
    def __init__(self, placement: _Optional[int] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., attached: _Optional[_Union[Attached, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., unit_done: _Optional[_Union[UnitDone, _Mapping]] = ..., cancelled: _Optional[_Union[Cancelled, _Mapping]] = ..., updated: _Optional[_Union[Updated, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ..., error: _Optional[_Union[StageError, _Mapping]] = ...) -> None: ...

class Watermarks(_message.Message):
    __slots__ = ("edges", "command_number")
    class EdgesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    EDGES_FIELD_NUMBER: _ClassVar[int]
    COMMAND_NUMBER_FIELD_NUMBER: _ClassVar[int]
    edges: _containers.ScalarMap[str, int]
    command_number: int
    def __init__(self, edges: _Optional[_Mapping[str, int]] = ..., command_number: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("watermarks", "took_ms")
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    watermarks: Watermarks
    took_ms: int
    def __init__(self, watermarks: _Optional[_Union[Watermarks, _Mapping]] = ..., took_ms: _Optional[int] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("epoch", "watermarks", "first_kept", "last", "input_generation")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    FIRST_KEPT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    INPUT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    watermarks: Watermarks
    first_kept: int
    last: int
    input_generation: int
    def __init__(self, epoch: _Optional[int] = ..., watermarks: _Optional[_Union[Watermarks, _Mapping]] = ..., first_kept: _Optional[int] = ..., last: _Optional[int] = ..., input_generation: _Optional[int] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("watermarks",)
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    watermarks: Watermarks
    def __init__(self, watermarks: _Optional[_Union[Watermarks, _Mapping]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("position", "label", "payload", "last", "finish")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    position: int
    label: Label
    payload: Payload
    last: bool
    finish: Finish
    def __init__(self, position: _Optional[int] = ..., label: _Optional[_Union[Label, _Mapping]] = ..., payload: _Optional[_Union[Payload, _Mapping]] = ..., last: bool = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "input_tokens", "output_tokens", "error")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Finish.Reason]
        REASON_STOP: _ClassVar[Finish.Reason]
        REASON_LENGTH: _ClassVar[Finish.Reason]
        REASON_FAILED: _ClassVar[Finish.Reason]
    REASON_UNSPECIFIED: Finish.Reason
    REASON_STOP: Finish.Reason
    REASON_LENGTH: Finish.Reason
    REASON_FAILED: Finish.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    reason: Finish.Reason
    input_tokens: int
    output_tokens: int
    error: StageError
    def __init__(self, reason: _Optional[_Union[Finish.Reason, str]] = ..., input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., error: _Optional[_Union[StageError, _Mapping]] = ...) -> None: ...

class UnitDone(_message.Message):
    __slots__ = ("unit", "consumed_ms", "position")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_MS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    unit: int
    consumed_ms: int
    position: int
    def __init__(self, unit: _Optional[int] = ..., consumed_ms: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class Cancelled(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Updated(_message.Message):
    __slots__ = ("config_generation", "error")
    CONFIG_GENERATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    config_generation: int
    error: StageError
    def __init__(self, config_generation: _Optional[int] = ..., error: _Optional[_Union[StageError, _Mapping]] = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("edge", "watermark")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    edge: str
    watermark: int
    def __init__(self, edge: _Optional[str] = ..., watermark: _Optional[int] = ...) -> None: ...

class StageError(_message.Message):
    __slots__ = ("code", "message", "param", "session_ended", "label")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CODE_UNSPECIFIED: _ClassVar[StageError.Code]
        CODE_INVALID_ARGUMENT: _ClassVar[StageError.Code]
        CODE_STALE_AUTHORITY: _ClassVar[StageError.Code]
        CODE_UNKNOWN_SESSION: _ClassVar[StageError.Code]
        CODE_RESOURCE_EXHAUSTED: _ClassVar[StageError.Code]
        CODE_INCOMPATIBLE: _ClassVar[StageError.Code]
        CODE_DRAINING: _ClassVar[StageError.Code]
        CODE_ENGINE_FAILED: _ClassVar[StageError.Code]
        CODE_FAILED_PRECONDITION: _ClassVar[StageError.Code]
        CODE_LIMIT_EXCEEDED: _ClassVar[StageError.Code]
        CODE_UPSTREAM_FAILED: _ClassVar[StageError.Code]
    CODE_UNSPECIFIED: StageError.Code
    CODE_INVALID_ARGUMENT: StageError.Code
    CODE_STALE_AUTHORITY: StageError.Code
    CODE_UNKNOWN_SESSION: StageError.Code
    CODE_RESOURCE_EXHAUSTED: StageError.Code
    CODE_INCOMPATIBLE: StageError.Code
    CODE_DRAINING: StageError.Code
    CODE_ENGINE_FAILED: StageError.Code
    CODE_FAILED_PRECONDITION: StageError.Code
    CODE_LIMIT_EXCEEDED: StageError.Code
    CODE_UPSTREAM_FAILED: StageError.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    SESSION_ENDED_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    code: StageError.Code
    message: str
    param: str
    session_ended: bool
    label: Label
    def __init__(self, code: _Optional[_Union[StageError.Code, str]] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., session_ended: bool = ..., label: _Optional[_Union[Label, _Mapping]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StageCard(_message.Message):
    __slots__ = ("stage", "engine", "model", "reads", "makes", "input_formats", "output_formats", "unit_ms", "slots", "kv_bytes", "kv_bytes_per_session", "capabilities")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    MAKES_FIELD_NUMBER: _ClassVar[int]
    INPUT_FORMATS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FORMATS_FIELD_NUMBER: _ClassVar[int]
    UNIT_MS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_SESSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    stage: str
    engine: str
    model: str
    reads: _containers.RepeatedScalarFieldContainer[str]
    makes: _containers.RepeatedScalarFieldContainer[str]
    input_formats: _containers.RepeatedCompositeFieldContainer[AudioFormat]
    output_formats: _containers.RepeatedCompositeFieldContainer[AudioFormat]
    unit_ms: int
    slots: int
    kv_bytes: int
    kv_bytes_per_session: int
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stage: _Optional[str] = ..., engine: _Optional[str] = ..., model: _Optional[str] = ..., reads: _Optional[_Iterable[str]] = ..., makes: _Optional[_Iterable[str]] = ..., input_formats: _Optional[_Iterable[_Union[AudioFormat, _Mapping]]] = ..., output_formats: _Optional[_Iterable[_Union[AudioFormat, _Mapping]]] = ..., unit_ms: _Optional[int] = ..., slots: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., kv_bytes_per_session: _Optional[int] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("contract_version", "replica_id", "service", "stages")
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    contract_version: int
    replica_id: str
    service: str
    stages: _containers.RepeatedCompositeFieldContainer[StageCard]
    def __init__(self, contract_version: _Optional[int] = ..., replica_id: _Optional[str] = ..., service: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[StageCard, _Mapping]]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("authority", "stage", "reason")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    stage: str
    reason: str
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., stage: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("released", "error")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    released: bool
    error: StageError
    def __init__(self, released: bool = ..., error: _Optional[_Union[StageError, _Mapping]] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class HeldSession(_message.Message):
    __slots__ = ("session_id", "stage", "placement", "attachment", "epoch", "attached", "age_ms", "waiting_appends", "kept_outputs", "kept_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    WAITING_APPENDS_FIELD_NUMBER: _ClassVar[int]
    KEPT_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    stage: str
    placement: int
    attachment: int
    epoch: int
    attached: bool
    age_ms: int
    waiting_appends: int
    kept_outputs: int
    kept_bytes: int
    def __init__(self, session_id: _Optional[str] = ..., stage: _Optional[str] = ..., placement: _Optional[int] = ..., attachment: _Optional[int] = ..., epoch: _Optional[int] = ..., attached: bool = ..., age_ms: _Optional[int] = ..., waiting_appends: _Optional[int] = ..., kept_outputs: _Optional[int] = ..., kept_bytes: _Optional[int] = ...) -> None: ...

class InspectResponse(_message.Message):
    __slots__ = ("replica_id", "sessions")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    sessions: _containers.RepeatedCompositeFieldContainer[HeldSession]
    def __init__(self, replica_id: _Optional[str] = ..., sessions: _Optional[_Iterable[_Union[HeldSession, _Mapping]]] = ...) -> None: ...

class PulseRequest(_message.Message):
    __slots__ = ("gateway_id", "period_ms")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    period_ms: int
    def __init__(self, gateway_id: _Optional[str] = ..., period_ms: _Optional[int] = ...) -> None: ...

class StagePulse(_message.Message):
    __slots__ = ("stage", "engine_age_ms", "free_slots", "free_kv_bytes")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    FREE_KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    stage: str
    engine_age_ms: int
    free_slots: int
    free_kv_bytes: int
    def __init__(self, stage: _Optional[str] = ..., engine_age_ms: _Optional[int] = ..., free_slots: _Optional[int] = ..., free_kv_bytes: _Optional[int] = ...) -> None: ...

class PulseResponse(_message.Message):
    __slots__ = ("replica_id", "draining", "stages")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    draining: bool
    stages: _containers.RepeatedCompositeFieldContainer[StagePulse]
    def __init__(self, replica_id: _Optional[str] = ..., draining: bool = ..., stages: _Optional[_Iterable[_Union[StagePulse, _Mapping]]] = ...) -> None: ...
