"""What our own client says and hears beyond the GA dialect: resume, acknowledgement, and what a resume has to announce.

Only connections that asked for it (`?parley=1`) hear these events; no other client meets an unknown type.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from gateway.conversation import commands
from gateway.conversation.config import SessionConfig

from .ga_events_out import SessionView, event_id
from .ga_objects_out import session_object
from .limits import WireLimits
from .openai_ga import parse as parse_ga
from .problems import WireRefusal, from_validation, read_head

_encode = msgspec.json.Encoder().encode
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**50)]


class ResumeShape(msgspec.Struct, tag_field="type", tag="session.resume"):
    """The first message on a connection that announced a resume."""

    session_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    resume_token: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    last_seq: _Number = 0
    """Number of the last event that has one."""
    unnumbered: _Number = 0
    """Events of the session that came after it without a number: each stands in the place of one."""
    event_id: str | None = None

    def __repr__(self) -> str:
        return f"ResumeShape({self.session_id!r}, last_seq={self.last_seq}, unnumbered={self.unnumbered})"


class AckShape(msgspec.Struct, tag_field="type", tag="session.event_ack"):
    seq: _Number
    event_id: str | None = None


class EventAck(msgspec.Struct, frozen=True):
    """The client has every server event up to seq."""

    seq: int


_resume = msgspec.json.Decoder(ResumeShape)
_ack = msgspec.json.Decoder(AckShape)


def parse_resume(frame: str | bytes) -> ResumeShape:
    """Raises WireRefusal: anything but a well-formed session.resume."""
    try:
        return _resume.decode(frame)
    except msgspec.ValidationError as error:
        raise from_validation(error) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WireRefusal("invalid_json") from error


def parse(frame: str | bytes, limits: WireLimits) -> commands.ClientCommand | EventAck:
    """A GA event or an acknowledgement. Raises WireRefusal."""
    if isinstance(frame, str) and len(frame) < 512 and '"session.event_ack"' in frame:
        try:
            return EventAck(_ack.decode(frame).seq)
        except msgspec.MsgspecError as error:
            head = read_head(frame)
            if head.type == AckShape.__struct_config__.tag and isinstance(error, msgspec.ValidationError):
                refusal = from_validation(error)
                refusal.client_event_id, refusal.client_seq = head.event_id, head.client_seq
                raise refusal from error
            # something else that quotes the name: the dialect judges
    return parse_ga(frame, limits)


def _text(name: str, view: SessionView, number: int | None, **body: Any) -> str:
    return _encode({"type": name, "event_id": event_id(number, view), **body}).decode()


def skipped(view: SessionView, seq: int | None) -> str:
    """Stands for a piece of audio that was muted before it left: its number is used up."""
    if seq is None:
        view.unsequenced -= 1  # it takes the place of the event that was rendered last
    return _text("session.skipped", view, seq)


def resumed(
    view: SessionView, config: SessionConfig, *, seq: int, input_samples: int, client_seq: int, first_seq: int, input_frames: int = 0
) -> str:
    """The session goes on: send again audio from input_samples on, commands above client_seq, camera frames above input_frames."""
    session = session_object(view.session_id, config, view.expires_at) | {"resume_token": view.resume_token}
    return _text(
        "session.resumed",
        view,
        None,
        session=session,
        resume_token=view.resume_token,
        seq=seq,
        input_samples=input_samples,
        input_frames=input_frames,
        client_seq=client_seq,
        first_seq=first_seq,
    )


def journal_gap(view: SessionView, first_seq: int) -> str:
    """Events below first_seq that the client does not have are not kept any more: it stands in the place of the last of them."""
    return _text("session.resync_required", view, first_seq - 1, reason="journal_gap", first_seq=first_seq)


def replaced(view: SessionView) -> str:
    """Another connection took the session over: this one ends."""
    return _text("session.replaced", view, None)


def durability(view: SessionView, durable: bool) -> str:
    """Whether a resume would find what is said now."""
    return _text("session.durability", view, None, durable=durable)
