"""A headless Chromium whose microphone is a WAV file, and what its page did: frames, complaints, state."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import ConsoleMessage, Page, WebSocket, async_playwright

from tests.embedded.house import EmbeddedHouse

WAIT_MS = 45_000
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--use-fake-device-for-media-stream",
)  # fmt: skip
WATCH_POLICY = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


def find_chromium() -> str | None:
    """Path of the browser; None when there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class TalkPage:
    """One loaded page. `events` are the server's and `sent` the page's, as they went over its socket."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.events: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        page.on("websocket", self._watch)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))

    def _watch(self, socket: WebSocket) -> None:
        socket.on("framereceived", lambda payload: self.events.append(json.loads(payload)))
        socket.on("framesent", lambda payload: self.sent.append(json.loads(payload)))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    async def start(self) -> None:
        await self.page.get_by_role("button", name="Start the conversation").click()

    async def until(self, condition: str) -> None:
        """Until the JavaScript expression over `parley` (what the page tells of itself) is true. Raises playwright's TimeoutError."""
        await self.page.wait_for_function(f"(() => {{ const parley = window.__parley; return {condition}; }})", timeout=WAIT_MS)

    async def tell(self, name: str) -> Any:
        """One of the facts that the page tells of itself."""
        return await self.page.evaluate("(name) => window.__parley[name]", name)

    async def lines(self) -> list[tuple[str, str]]:
        """The transcript as it is shown: (class, text)."""
        shown = await self.page.locator("#transcript li").evaluate_all(
            "all => all.map(li => [li.className, li.querySelector('p').textContent])"
        )
        return [(line[0], line[1]) for line in shown]

    async def type_in(self, text: str) -> None:
        await self.page.get_by_label("Say it in writing").fill(text)
        await self.page.keyboard.press("Enter")

    def of(self, type: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == type]

    async def check_quiet(self) -> None:
        """Nothing in the console, no error from the server that the page would show, no breach of the content policy."""
        assert self.complaints == []
        assert [event["error"] for event in self.of("error") if not str(event["error"].get("event_id")).startswith("optional_")] == []
        assert await self.page.evaluate("window.violations") == []


@asynccontextmanager
async def talk_page(
    house: EmbeddedHouse, chromium: str, folder: Path, *, microphone: bytes | None, query: str = "?raw=1", **context: Any
) -> AsyncIterator[TalkPage]:
    """`microphone`: a WAV file that is played once, and must end in silence; None: the microphone is denied. `context`: see playwright."""
    flags = [*FLAGS]
    if microphone is not None:
        file = folder / "microphone.wav"
        file.write_bytes(microphone)
        flags += ["--use-fake-ui-for-media-stream", f"--use-file-for-fake-audio-capture={file}%noloop"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=flags)
        try:
            page = await (await browser.new_context(**context)).new_page()
            await page.add_init_script(WATCH_POLICY)
            talk = TalkPage(page)
            answer = await page.goto(f"{house.http}/{query}")
            assert answer is not None and answer.ok
            yield talk
            await talk.check_quiet()
        finally:
            await browser.close()
