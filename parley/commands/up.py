"""`parley up`: everything on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from msgspec import Struct

from parley.supervisor import (
    CPU,
    Machine,
    MissingBinary,
    Placement,
    RunFolder,
    Supervisor,
    SupervisorError,
    SupervisorSettings,
    check_port,
    devices,
    embedded_plan,
    find_profile,
    look,
    place,
)

from .board import Board
from .ending import EXIT_HELP, Ending
from .models import missing_models
from .screen import complain, give_up, out
from .sound import BadRecording, Recording, load_recording
from .talk import DEFAULT_REPLY, REPLY_TIMEOUT_S, Server, hold

QUESTION = Path(__file__).parents[1] / "assets" / "synthetic_question.wav"
EMBEDDED = "embedded"
DETECTORS = ("silero", "smart-turn")
"""Models of the service that every profile's house starts."""
STOPPED_EARLY = 130
SPEAK_PATIENCE_S = 5.0
T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Errand(Struct, frozen=True):
    """What is spoken once everything is up; once ends the run after it."""

    recording: Recording
    reply: Path
    reply_timeout_s: float
    once: bool


def up(
    profile: Annotated[str, typer.Option(help="Name of a profile, or a path to one.")] = EMBEDDED,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback is open to the network.", envvar="PARLEY_HOST")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway.", envvar="PARLEY_PORT")] = 8080,
    speak: Annotated[Path | None, typer.Option(help="WAV file to speak when all is up.")] = None,
    reply: Annotated[Path, typer.Option(help="Where the spoken answer is written.")] = DEFAULT_REPLY,
    once: Annotated[bool, typer.Option("--once", help=f"Speak (the shipped question, or --speak), then end. {EXIT_HELP}.")] = False,
    reply_timeout_s: Annotated[float, typer.Option(min=1, help="Longest wait for the end of the answer.")] = REPLY_TIMEOUT_S,
    gpus: Annotated[
        str,
        typer.Option(
            help="Cards for the services that run on a GPU, round robin: 0,1,2 (as nvidia-smi counts) or UUIDs.", envvar="PARLEY_GPUS"
        ),
    ] = "",
    mps: Annotated[
        bool, typer.Option(help="Whether services that share a card do so through a daemon that is started for them.", envvar="PARLEY_MPS")
    ] = True,
) -> None:
    """Starts the store, the services and the gateway, and serves until Ctrl-C."""
    try:
        errand = Errand(load_recording(speak or QUESTION), reply, reply_timeout_s, once) if once or speak else None
        settings = SupervisorSettings()
        check_port(host, port)
        path = find_profile(profile)
        if missing := missing_models(None if path.stem == EMBEDDED else DETECTORS):
            names = "" if path.stem == EMBEDDED else f" {' '.join(missing)}"
            raise MissingBinary(f"models are missing: {', '.join(missing)}: run `parley models fetch{names}`")
        placement = _placement(path, gpus, mps)
        folder = RunFolder.create(settings.run_dir)
    except (BadRecording, SupervisorError, OSError, ValueError) as error:
        give_up(error)
    try:
        plan = embedded_plan(folder, host=host, port=port, profile=path, placement=placement, settings=settings)
    except SupervisorError as error:
        folder.remove()
        give_up(error)
    board = Board(out)
    raise typer.Exit(asyncio.run(_Run(Supervisor(plan, folder, settings, board), folder, board, errand).serve()))


def _placement(profile: Path, gpus: str, mps: bool) -> Placement:
    """The machine is looked at only when something may run on a GPU. Raises SupervisorError."""
    wanted = devices(profile, os.environ.get("PARLEY_DEVICE"))
    machine = Machine() if all(device == CPU for device in wanted.values()) else look()
    named = [each.strip() for each in gpus.split(",")] if gpus else []
    return place(wanted, machine, named, mps=mps)


class _Run:
    """One run from the first process to the last."""

    def __init__(self, supervisor: Supervisor, folder: RunFolder, board: Board, errand: Errand | None) -> None:
        self._supervisor, self._folder, self._board, self._errand = supervisor, folder, board, errand
        self._stop = asyncio.Event()

    async def serve(self) -> int:
        """Returns the exit code; nothing that was started is left."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            # nohup asked to outlive the terminal
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._asked_to_stop)
        code = 1
        try:
            code = await self._until_over()
        except SupervisorError as error:
            complain(error)
        finally:
            begun = time.monotonic()
            await self._supervisor.stop()
            out.print(f"stopped everything in {time.monotonic() - begun:.1f} s")
            if code == 0 or self._stop.is_set():
                self._folder.remove()
            else:
                self._folder.keep_logs()
                out.print(f"logs are kept in {self._folder.path}")
        return code

    def _asked_to_stop(self) -> None:
        if self._stop.is_set():
            self._supervisor.hurry()
        self._stop.set()

    async def _until_over(self) -> int:
        begun = time.monotonic()
        with self._board:
            await self._unless_stopped(self._supervisor.start())
        if self._stop.is_set():
            return self._stopped_code()
        url = self._url()
        out.print(f"[bold]serving[/] {url}  (up in {time.monotonic() - begun:.1f} s; logs: {self._folder.path})")
        watching = asyncio.create_task(self._supervisor.watch())
        try:
            return await self._serve(url, watching)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _serve(self, url: str, watching: asyncio.Task[None]) -> int:
        if self._errand:
            ending = await self._unless_stopped(self._speak(self._errand, url), watching)
            if self._stop.is_set() or ending is None:
                return self._stopped_code()
            if self._errand.once:
                return ending.exit_code
        out.print(f"talk page {url}/   realtime {url.replace('http', 'ws', 1)}/v1/realtime   [bold]Ctrl-C[/] stops everything")
        await self._unless_stopped(self._stop.wait(), watching)
        return self._stopped_code()

    def _stopped_code(self) -> int:
        return STOPPED_EARLY if self._errand and self._errand.once else 0

    async def _speak(self, errand: Errand, url: str) -> Ending:
        server = Server(url, api_key=_own_key(), patience_s=SPEAK_PATIENCE_S)
        return await hold(server, errand.recording, errand.reply, "server", out, errand.reply_timeout_s)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T], watching: asyncio.Task[None] | None = None) -> T | None:
        """The result of work; None when a stop was asked for before. Raises what work or the watch raises."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        tasks = {working, stopping, *([watching] if watching else [])}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if watching and watching in done:
                await watching
            return working.result() if working in done else None
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    def _url(self) -> str:
        told = self._supervisor.told_by("gateway")
        if told is None or not told.http:
            raise SupervisorError("the gateway did not say where it listens")
        return reachable(told.http)


def reachable(address: str) -> str:
    """The URL at which this machine reaches a listening `host:port`."""
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _own_key() -> str | None:
    """A key that the gateway started here accepts; None when it lets everybody in."""
    return os.environ.get("PARLEY_API_KEY") or os.environ.get("PARLEY_API_KEYS", "").partition(",")[0].strip() or None
