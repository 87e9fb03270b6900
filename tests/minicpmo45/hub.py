"""A hub on this machine that serves a folder's files by HTTP, and can break off, forget, lie and refuse."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

REPO, REVISION = "owner/model-1", "abc123"
LARGE = 200_000
"""From this size on, a file is announced with a sha256, as large files are."""


class FakeHub:
    """`files`: path to content. Everything else says what goes wrong."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.breaks: dict[str, list[int]] = {}
        """Path to how many bytes each of the next answers gives before the connection ends."""
        self.statuses: dict[str, list[int]] = {}
        """Path to the codes of the next answers."""
        self.ignores_ranges = False
        self.announced: dict[str, bytes] = {}
        """Path to the content whose size and digest are announced instead of the real ones."""
        self.page = 1000
        self.requests: list[tuple[str, str | None]] = []
        """Path and Range of every request for a file."""
        self.lock = threading.Lock()

    def listing(self) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = [{"type": "directory", "path": "assets", "oid": "0" * 40, "size": 0}]
        for path, real in self.files.items():
            content = self.announced.get(path, real)
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, object] = {"type": "file", "path": path, "oid": git, "size": len(content)}
            if len(content) >= LARGE:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            entries.append(entry)
        return entries

    def asked(self) -> Counter[str]:
        return Counter(path for path, _ in self.requests)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_GET(self) -> None:
        path, _, query = unquote(self.path).partition("?")
        if path == f"/api/models/{REPO}/tree/{REVISION}":
            return self._list(query)
        prefix = f"/{REPO}/resolve/{REVISION}/"
        if path.startswith(prefix):
            # Real hubs send on to where large files lie.
            self.send_response(302)
            self.send_header("Location", "/cdn/" + path.removeprefix(prefix))
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if path.startswith("/cdn/"):
            return self._file(path.removeprefix("/cdn/"))
        return self.send_error(404)

    def _list(self, query: str) -> None:
        entries = self.hub.listing()
        begin = int(query.partition("cursor=")[2] or 0)
        body = json.dumps(entries[begin : begin + self.hub.page]).encode()
        self.send_response(200)
        if begin + self.hub.page < len(entries):
            host = f"http://{self.headers['Host']}"
            following = f"{host}/api/models/{REPO}/tree/{REVISION}?recursive=true&cursor={begin + self.hub.page}"
            self.send_header("Link", f'<{following}>; rel="next"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, path: str) -> None:
        hub, asked = self.hub, self.headers.get("Range")
        with hub.lock:
            hub.requests.append((path, asked))
            status = hub.statuses[path].pop(0) if hub.statuses.get(path) else 0
            limit = hub.breaks[path].pop(0) if hub.breaks.get(path) else None
        if status:
            return self.send_error(status)
        content, begin = hub.files[path], 0
        if asked and not hub.ignores_ranges:
            begin = int(asked.removeprefix("bytes=").rstrip("-"))
            if begin >= len(content):
                return self.send_error(416)
        self.send_response(206 if asked and not hub.ignores_ranges else 200)
        if asked and not hub.ignores_ranges:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        self.wfile.write(content[begin:][:limit])
        self.close_connection = limit is not None
        return None

    def log_message(self, *_: object) -> None:
        """Tests ask the hub itself."""


@contextmanager
def serving(hub: FakeHub) -> Iterator[str]:
    """The address of the hub while the context lasts."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
