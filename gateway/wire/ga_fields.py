"""Fields that several shapes share. See ga_shapes for how strict they are."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .problems import EVENT_ID_CHARS

EventId = Annotated[str, Meta(min_length=1, max_length=EVENT_ID_CHARS)]
Id = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[!-~]+\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[a-zA-Z0-9_-]+\Z")]
Short = Annotated[str, Meta(min_length=1, max_length=256)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
Tokens = Annotated[int, Meta(ge=1)] | Literal["inf"]
Modalities = list[Literal["audio", "text"]]
