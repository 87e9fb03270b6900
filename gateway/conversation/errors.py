"""The one error table: every code that a client can meet, its type, and its message."""

from __future__ import annotations

from typing import Literal, NamedTuple

ErrorType = Literal["invalid_request_error", "server_error", "rate_limit_error"]


class ErrorKind(NamedTuple):
    type: ErrorType
    message: str
    """str.format template."""


_BAD: ErrorType = "invalid_request_error"

ERRORS: dict[str, ErrorKind] = {
    # what the wire refuses
    "invalid_json": ErrorKind(_BAD, "The event is not valid JSON."),
    "binary_frame_unsupported": ErrorKind(_BAD, "Binary frames are not supported: send JSON text frames."),
    "unknown_event_type": ErrorKind(_BAD, "Unknown event type '{type}'."),
    "missing_field": ErrorKind(_BAD, "Required field '{param}' is missing."),
    "invalid_field": ErrorKind(_BAD, "Field '{param}' is invalid: {why}."),
    "invalid_audio": ErrorKind(_BAD, "Field '{param}' is not valid base64."),
    "event_too_large": ErrorKind(_BAD, "The event has {size} bytes; at most {limit} are accepted."),
    "beta_api_unsupported": ErrorKind(_BAD, "The Realtime beta shape is not supported: use the general availability shape."),
    "nesting_too_deep": ErrorKind(_BAD, "The event is nested more deeply than is accepted."),
    "limit_exceeded": ErrorKind(_BAD, "Field '{param}' exceeds its limit: {limit} {unit}."),
    # what the session refuses
    "input_audio_buffer_full": ErrorKind(
        "rate_limit_error", "The input audio buffer holds {held} bytes; {limit} is the most. Commit or clear it."
    ),
    "input_audio_buffer_commit_empty": ErrorKind(
        _BAD, "The input audio buffer holds {held_ms} ms of audio; at least {needed_ms} ms are needed to commit."
    ),
    "item_not_found": ErrorKind(_BAD, "There is no item '{item_id}' in the conversation."),
    "item_already_exists": ErrorKind(_BAD, "An item '{item_id}' is already in the conversation."),
    "item_in_progress": ErrorKind(_BAD, "Item '{item_id}' is still being made."),
    "conversation_full": ErrorKind(_BAD, "The conversation holds {limit} items, the most it may."),
    "invalid_item": ErrorKind(_BAD, "The item cannot be created: {why}."),
    "invalid_truncate": ErrorKind(_BAD, "Item '{item_id}' cannot be truncated: {why}."),
    "invalid_content_index": ErrorKind(_BAD, "Item '{item_id}' has no content part {content_index}."),
    "response_already_active": ErrorKind(_BAD, "Response '{response_id}' is still active."),
    "response_cancel_not_active": ErrorKind(_BAD, "There is no active response to cancel."),
    "response_create_without_input": ErrorKind(_BAD, "There is nothing to respond to."),
    "model_update_unsupported": ErrorKind(_BAD, "The model cannot change within a session."),
    "voice_update_after_audio": ErrorKind(_BAD, "The voice cannot change after audio was made."),
    "format_update_during_speech": ErrorKind(_BAD, "The audio format cannot change while speech is in progress."),
    "unsupported_value": ErrorKind(_BAD, "Field '{param}' does not support this value: {why}."),
    "native_unsupported": ErrorKind(_BAD, "{what} is not offered here: the model itself decides when it speaks, and only listens."),
    "frozen_after_first_unit": ErrorKind(_BAD, "Field '{param}' cannot change any more: the model began to listen."),
    "invalid_image": ErrorKind(_BAD, "Field '{param}' is no picture that can be read: {why}."),
    "frame_out_of_time": ErrorKind(_BAD, "Field '{param}' is outside the open unit, which is from {start_ms} to {end_ms} ms."),
    "too_many_frames": ErrorKind(_BAD, "A unit takes {limit} frames; it has {held}."),
    "input_refused": ErrorKind(_BAD, "The {stage} service refused this input: {why}."),
    "update_refused": ErrorKind(_BAD, "The update was refused: {why}."),
    # what failed behind
    "stage_failed": ErrorKind("server_error", "The {stage} service failed."),
    "stage_lost": ErrorKind("server_error", "The {stage} service was lost."),
    "stage_timeout": ErrorKind("server_error", "The {stage} service did not answer in time."),
    "rolled_back": ErrorKind("server_error", "The session store lost what was said last."),
    "transcription_failed": ErrorKind("server_error", "The audio could not be transcribed."),
    "internal_error": ErrorKind("server_error", "Something failed in the gateway."),
    # what ends or refuses a connection
    "invalid_api_key": ErrorKind(_BAD, "The API key is missing or not valid."),
    "api_key_revoked": ErrorKind(_BAD, "The API key was revoked."),
    "origin_not_allowed": ErrorKind(_BAD, "Pages of this origin may not connect here."),
    "rate_limit_exceeded": ErrorKind("rate_limit_error", "Too many requests within a minute. Try again in {retry_after_s} s."),
    "body_too_large": ErrorKind(_BAD, "The body of the request may have {limit} bytes."),
    "body_timeout": ErrorKind(_BAD, "The body of the request did not come in time."),
    "model_not_found": ErrorKind(_BAD, "There is no model '{model}' here."),
    "unsupported_mode": ErrorKind(_BAD, "Query parameter '{param}' asks for something this server does not offer."),
    "at_capacity": ErrorKind("rate_limit_error", "Every place is taken. Try again in {retry_after_s} s."),
    "tenant_limit": ErrorKind("rate_limit_error", "This key has as many sessions as it may. Try again in {retry_after_s} s."),
    "stages_unavailable": ErrorKind("server_error", "A service that the conversation needs is not there: {stage}."),
    "invalid_resume_token": ErrorKind(_BAD, "The resume token is not the session's."),
    "session_resume_expired": ErrorKind(_BAD, "The session is over, or was never there."),
    "session_resume_conflict": ErrorKind(_BAD, "Another connection resumed the session at the same moment."),
    "resume_timeout": ErrorKind(_BAD, "No session.resume came in time."),
    "session_taken_over": ErrorKind(_BAD, "Another connection took this session over."),
    "session_expired": ErrorKind(_BAD, "The session reached its longest duration."),
    "idle_timeout": ErrorKind(_BAD, "The session was unused for too long."),
    "server_draining": ErrorKind("server_error", "The server is restarting. Connect again."),
}


class Refusal(Exception):
    """A command that changed nothing. Becomes an events.Error with the client's event_id."""

    def __init__(self, code: str, param: str | None = None, **details: object) -> None:
        self.code, self.param = code, param
        self.message = ERRORS[code].message.format(param=param, **details)
        super().__init__(self.message)
