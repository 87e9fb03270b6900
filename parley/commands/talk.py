"""`parley talk`: a recorded question in, the spoken answer out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from rich.console import Console

import parley
from parley.client.limits import Limits

from .camera import BadFrames, load_frames
from .conversation import Conversation, Turn
from .ending import Ending, Kind
from .latency import latency_table
from .screen import complain, give_up, out
from .sound import BadRecording, Recording, load_recording, write_wav

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_REPLY = Path("reply.wav")
REPLY_TIMEOUT_S = 60.0


class Server(Struct, frozen=True):
    """Where to speak."""

    url: str
    api_key: str | None = None
    model: str | None = None
    patience_s: float = 0.0


def talk(
    question: Annotated[Path, typer.Argument(help="WAV file with the question.")],
    reply: Annotated[Path, typer.Option("--output", "-o", help="Where the spoken answer is written.")] = DEFAULT_REPLY,
    url: Annotated[str, typer.Option(help="The server.", envvar="PARLEY_URL")] = DEFAULT_URL,
    turn: Annotated[Turn, typer.Option(help="Who finds the end of the turn: silence, the turn model, or this command.")] = "server",
    api_key: Annotated[str | None, typer.Option(help="API key.", envvar="PARLEY_API_KEY", show_envvar=True)] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask for.")] = None,
    patience_s: Annotated[float, typer.Option(min=0, help="Keep dialling this long while the server is full or not there yet.")] = 0.0,
    reply_timeout_s: Annotated[float, typer.Option(min=1, help="Longest wait for the answer.")] = REPLY_TIMEOUT_S,
    resume: Annotated[
        bool, typer.Option("--resume", help="Cut the connection once while the answer comes, and show that it is whole all the same.")
    ] = False,
    cut_after: Annotated[
        int | None, typer.Option(min=0, metavar="MS", help="The same, this many milliseconds after the answer's first sound.")
    ] = None,
    frames: Annotated[
        list[Path] | None,
        typer.Option(help="JPEG or PNG file, or a folder of them, shown to a model that sees: one a second, the last again. Repeatable."),
    ] = None,
) -> None:
    """Speaks a recording at real-time pace; prints what is heard and answered, and a latency table.

    Exit code 0: speech came back (its answer may go on); 3: nobody spoke in time; 1: something failed.
    """
    try:
        recording, pictures = load_recording(question), load_frames(frames or (), Limits())
    except (BadRecording, BadFrames) as error:
        give_up(error)
    server = Server(url, api_key, model, patience_s)
    try:
        cut_after_ms = (cut_after or 0) if resume or cut_after is not None else None
        ending = asyncio.run(hold(server, recording, reply, turn, out, reply_timeout_s, cut_after_ms=cut_after_ms, frames=pictures))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(ending.exit_code)


async def hold(
    server: Server,
    recording: Recording,
    reply: Path,
    turn: Turn,
    console: Console,
    reply_timeout_s: float = REPLY_TIMEOUT_S,
    *,
    cut_after_ms: int | None = None,
    frames: Sequence[bytes] = (),
) -> Ending:
    """Holds the conversation, writes the answer, and says how it ended: on standard error when no speech came back."""
    limits = Limits(patience_s=server.patience_s)
    try:
        async with parley.connect(server.url, server.api_key, server.model, limits=limits) as session:
            conversation = Conversation(session, recording, turn, console, cut_after_ms=cut_after_ms, frames=frames)
            outcome = await conversation.run(reply_timeout_s)
        if outcome.audio:
            write_wav(reply, outcome.audio)
            console.print(f"wrote {reply} ({len(outcome.audio) / 48_000:.2f} s)", markup=False)
    except (parley.ParleyError, OSError) as error:
        complain(error)
        return Ending(Kind.FAILED, str(error))
    console.print(latency_table(outcome.timeline))
    if outcome.ending.spoke:
        console.print(outcome.ending.words, markup=False)
    else:
        complain(outcome.ending.words)
    return outcome.ending
