"""What a chaos client says, turn by turn, and what must come of it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import numpy as np

from tests.chaos.client import ChaosClient
from tests.support.account import hush, voice

RATE = 24_000
WORDS = 3
SAID = "hello"
"""In every typed message."""
SILENCE_MS = 620
"""Ends a turn, which takes 500 ms of it, and leaves some that is heard afterwards."""
PIECE_MS = (20, 60, 100)
PACE = 3.0
"""Input is spoken that much faster than in life: the detectors count samples, not seconds."""


class Utterance(msgspec.Struct, frozen=True):
    """A stretch of voice in samples of the session."""

    start: int
    end: int


class Speaker:
    """One client and its script. Each turn is whole when its reply has ended."""

    def __init__(self, client: ChaosClient, rng: random.Random, words: int = WORDS) -> None:
        self.client, self._rng, self.default_words = client, rng, words
        self.utterances: list[Utterance] = []
        self.items: list[str] = []
        self.creates: list[str] = []
        """Numbers of the response.create commands, as told in their metadata."""
        self.cancels: list[str] = []
        """event ids of response.cancel commands."""
        self.asked: dict[str, str] = {}
        """event ids of the response.create commands, by number."""
        self.words: dict[str, int] = {}
        """Words that the reply to a response.create has, by its number."""
        self.recital = ""
        """Number of the response.create that asked the model for all it knows."""
        self._turned = asyncio.Event()

    async def turned(self) -> None:
        """Until a turn ends from now on."""
        self._turned.clear()
        await self._turned.wait()

    async def configure(self) -> None:
        transcribed = {"input": {"transcription": {"model": "scripted"}}}
        session = {"type": "realtime", "instructions": f"words={self.default_words}", "audio": transcribed}
        await self.client.command("session.update", session=session)
        await self.client.until(lambda: bool(self.client.of("session.updated")))

    async def typed(self, words: int | None = None, words_per_s: int = 0) -> None:
        """A typed message and the reply to it, or its refusal."""
        await self.ask(words, words_per_s)
        await self._ended_or_refused(self.creates[-1])
        self._turned.set()

    async def ask(self, words: int | None = None, words_per_s: int = 0) -> str | None:
        """As `typed`, up to the reply's beginning; its words come that fast, or all at once."""
        number = str(len(self.creates) + 1)
        item_id = f"{self.client.name}_item_{number}"
        self.items.append(item_id)
        self.words[number] = words or self.default_words
        item = {"id": item_id, "type": "message", "role": "user", "content": [{"type": "input_text", "text": SAID}]}
        await self.client.command("conversation.item.create", item=item)
        return await self._create(number, instructions=f"words={self.words[number]} words_per_s={words_per_s}")

    async def recite(self) -> None:
        """A written reply that is all the model knows of the conversation; see scripted_service."""
        self.recital = number = str(len(self.creates) + 1)
        await self._create(number, instructions="words=1 recite", output_modalities=["text"])
        await self._ended_or_refused(number)

    async def _create(self, number: str, **response: Any) -> str | None:
        self.creates.append(number)
        self.asked[number] = await self.client.command("response.create", response={"metadata": {"number": number}, **response})
        await self.client.until(lambda: self._numbered("response.created", number) is not None or self._is_refused(number))
        return self._numbered("response.created", number)

    async def _ended_or_refused(self, number: str) -> None:
        # by number: a server that forgot its last words may make the reply again, or refuse to
        await self.client.until(lambda: self._numbered("response.done", number) is not None or self._is_refused(number))
        if self._is_refused(number):
            # for the sake of a reply that goes on, and whose end the next turn would not wait for either
            await self.client.until(lambda: not self._replies())

    def _replies(self) -> set[str]:
        """Ids of replies that were begun and are to be told to their end."""
        begun, done = ({event["response"]["id"] for event in self.client.of(kind)} for kind in ("response.created", "response.done"))
        return begun - done - self.client.doubtful

    def _numbered(self, kind: str, number: str) -> str | None:
        """Id of the reply to the response.create of this number, once it was told so."""
        told = self.client.of(kind)
        return next((e["response"]["id"] for e in told if (e["response"]["metadata"] or {}).get("number") == number), None)

    def _is_refused(self, number: str) -> bool:
        return any(event["error"]["event_id"] == self.asked[number] for event in self.client.of("error"))

    async def spoken(self, voice_ms: int | None = None) -> str:
        """An utterance and the reply to it; returns the reply's id."""
        seen = len(self.client.of("response.created"))
        await self.say(voice_ms or self._rng.choice((240, 400, 700, 1100)))
        await self.client.until(lambda: len(self.client.of("response.created")) > seen)
        response_id: str = self.client.of("response.created")[seen]["response"]["id"]
        await self.ended(response_id)
        self._turned.set()
        return response_id

    async def say(self, voice_ms: int) -> None:
        """Some silence, voice, and the silence that ends a turn."""
        await self._utter(hush, self._rng.randint(0, 200))
        start = self.client.samples
        await self._utter(voice, voice_ms)
        self.utterances.append(Utterance(start, self.client.samples))
        await self._utter(hush, SILENCE_MS + self._rng.randint(0, 100))

    async def _utter(self, signal: Any, length_ms: int) -> None:
        left = length_ms * RATE // 1000
        while left:
            count = min(left, self._rng.choice(PIECE_MS) * RATE // 1000)
            samples = signal(self.client.session_id, self.client.samples, count)
            await self.client.sound(np.asarray(samples, "<i2").tobytes())
            left -= count
            await asyncio.sleep(count / RATE / PACE)

    async def interrupted(self) -> None:
        """A typed turn that is cancelled or talked over in its middle."""
        response_id = await self.ask(self.default_words * 2)
        assert response_id is not None
        await self._heard_some(response_id)
        if self._rng.random() < 0.5:
            self.cancels.append(await self.client.command("response.cancel", response_id=response_id))
        else:
            seen = len(self.client.of("response.created"))
            await self.say(300)
            await self.client.until(lambda: len(self.client.of("response.created")) > seen)
            await self.ended(self.client.of("response.created")[seen]["response"]["id"])
        await self.ended(response_id)
        self._turned.set()

    async def _heard_some(self, response_id: str) -> None:
        deltas = self._rng.randint(1, 6)

        def enough() -> bool:
            sounds = [e for e in self.client.of("response.output_audio.delta") if e["response_id"] == response_id]
            return len(sounds) >= deltas or self.is_done(response_id)

        await self.client.until(enough)

    def is_replied_to(self) -> bool:
        """A reply has begun and not ended."""
        return len(self.client.of("response.created")) > len(self.client.of("response.done"))

    def is_done(self, response_id: str) -> bool:
        return any(event["response"]["id"] == response_id for event in self.client.of("response.done"))

    async def ended(self, response_id: str) -> None:
        await self.client.until(lambda: self.is_done(response_id))
