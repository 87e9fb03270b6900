"""Stands for NVIDIA's DCGM exporter, which takes a GPU: the names and labels that it exports by default, with values of an idle card."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

LABELS = 'gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA H200",Hostname="fake"'
VALUES = {
    "DCGM_FI_DEV_SM_CLOCK": 1980.0,
    "DCGM_FI_DEV_GPU_TEMP": 31.0,
    "DCGM_FI_DEV_POWER_USAGE": 118.5,
    "DCGM_FI_DEV_GPU_UTIL": 0.0,
    "DCGM_FI_DEV_FB_USED": 1024.0,
    "DCGM_FI_DEV_FB_FREE": 141_000.0,
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.01,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.0,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.002,
}


class _Exporter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = "".join(f"# TYPE {name} gauge\n{name}{{{LABELS}}} {value}\n" for name, value in VALUES.items()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not news."""


class FakeDcgm:
    """Serves within `with`; `address` is what to scrape."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Exporter)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeDcgm:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
