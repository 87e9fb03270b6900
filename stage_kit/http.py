"""/metrics and /health/{startup,ready,live} for scrapers and probes, on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

Answer = Callable[..., Any]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not news."""


class HttpServer:
    """Listens from the moment it is made; `address` is what to dial. Raises OSError when the address is taken."""

    def __init__(self, bind: str, registry: CollectorRegistry, serving: Callable[[str], bool]) -> None:
        host, _, port = bind.rpartition(":")
        self._metrics: Any = make_wsgi_app(registry)
        self._serving = serving
        self._server = make_server(host, int(port), self._answer, server_class=_Server, handler_class=_Quiet)
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Closes the socket."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Answer) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", ""))
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start)
            return answer
        root, _, name = path.strip("/").partition("/")
        if root != "health" or name not in ("", "startup", "ready", "live"):
            status, body = "404 Not Found", b"not found\n"
        elif self._serving(name):
            status, body = "200 OK", b"serving\n"
        else:
            status, body = "503 Service Unavailable", b"not serving\n"
        start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]
