"""The part of the Kubernetes API that `parley costs` speaks, over real TLS: lists of pods page by page, merge patches, who may do what.

Verdicts, codes and pages follow the API's rules; no pod runs, and nothing is known of other kinds.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.helm.support.merging import merged
from tests.support.process import ROOT

Object = dict[str, Any]
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
NAMESPACE = "voice"
TOKEN = "first-token"
WAIT_S = 20.0


def pod(name: str, ports: Iterable[int] = (), ip: str = "127.0.0.1", component: str = "gateway", **status: Any) -> Object:
    """One that runs and is ready. ports: of metrics, a container each."""
    containers = [{"name": f"c{at}", "ports": [{"name": "http", "containerPort": 1}, _metrics(at, port)]} for at, port in enumerate(ports)]
    labels = {"app.kubernetes.io/instance": "t", "app.kubernetes.io/component": component}
    ready = {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"containers": containers or [{"name": "c"}]},
        "status": ready | status,
    }


def _metrics(at: int, port: int) -> Object:
    return {"name": f"metrics-{at}" if at else "metrics", "containerPort": port}


def certificates(folder: Path) -> Path:
    """http.pem and http.key for this machine, and their authority http-ca.pem."""
    subprocess.run(["sh", str(ROOT / "deploy" / "dev-certs.sh"), str(folder)], check=True, capture_output=True)
    return folder


class Fault:
    """What is answered instead: nothing and a cut without a code, nothing until the server stops with `hang`, no end with `drip`."""

    def __init__(
        self, code: int = 0, headers: dict[str, str] | None = None, body: bytes | None = None, *, hang: bool = False, drip: bool = False
    ) -> None:
        self.code, self.headers, self.hang, self.drip = code, headers or {}, hang, drip
        self.body = body if body is not None else json.dumps({"kind": "Status", "code": code, "reason": "Told"}).encode()


class PodsApi(ThreadingHTTPServer):
    """Serves on a free port of the loopback as long as it is entered. `rights`: verbs of each token that is known."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, certificates: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "http.pem", certificates / "http.key")
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.authority = certificates / "http-ca.pem"
        self.url = f"https://127.0.0.1:{self.server_port}"
        self.pods: dict[str, Object] = {}
        self.rights: dict[str, set[str]] = {TOKEN: {"list", "patch"}}
        self.faults: dict[str, deque[Fault]] = {"list": deque(), "patch": deque()}
        self.asked: list[tuple[str, str]] = []
        self.patched: list[tuple[str, str]] = []
        self.stopped, self.changed = threading.Event(), threading.Condition()

    def put(self, *pods: Object) -> None:
        self.pods |= {each["metadata"]["name"]: each for each in pods}

    def costs(self) -> dict[str, str]:
        """Annotations of those pods that have one."""
        found = {name: each["metadata"].get("annotations", {}).get(ANNOTATION) for name, each in self.pods.items()}
        return {name: cost for name, cost in found.items() if cost is not None}

    def until(self, true: Callable[[], bool]) -> bool:
        """Whether it became true after a request."""
        with self.changed:
            return self.changed.wait_for(true, WAIT_S)

    def account(self, folder: Path, token: str = TOKEN) -> Path:
        """The folder that a pod of the release has mounted."""
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(token)
        (folder / "namespace").write_text(NAMESPACE)
        (folder / "ca.crt").write_bytes(self.authority.read_bytes())
        return folder

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go in the middle, or do not trust the certificate, are not news."""

    def __enter__(self) -> PodsApi:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: PodsApi

    def do_GET(self) -> None:
        self._serve("list", self._list)

    def do_PATCH(self) -> None:
        self._serve("patch", self._patch)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: `asked` is what tests look at."""

    def _serve(self, verb: str, work: Callable[[list[str], dict[str, str], bytes], tuple[int, Object]]) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.changed:
            self.server.asked.append((verb, unquote(url.path)))
            fault = self.server.faults[verb].popleft() if self.server.faults[verb] else None
            self.server.changed.notify_all()
        if fault is not None:
            self._fail(fault)
            return
        refused = self._verdict(verb, url.path)
        with self.server.changed:
            code, answer = refused or work(url.path.strip("/").split("/"), query, body)
            self.server.changed.notify_all()
        self._send(code, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _verdict(self, verb: str, path: str) -> tuple[int, Object] | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.server.rights:
            return _status(401, "Unauthorized")
        if verb not in self.server.rights[token]:
            return _status(403, "Forbidden", f"cannot {verb} resource pods")
        return None if path.startswith(f"/api/v1/namespaces/{NAMESPACE}/pods") else _status(403, "Forbidden", "another namespace")

    def _list(self, path: list[str], query: dict[str, str], _: bytes) -> tuple[int, Object]:
        if len(path) != 5:
            return _status(404, "NotFound")
        wanted = re.split(r",(?![^(]*\))", query.get("labelSelector", ""))
        phase = query.get("fieldSelector", "").removeprefix("status.phase=")
        found = [
            each
            for _, each in sorted(self.server.pods.items())
            if each["status"]["phase"] == (phase or each["status"]["phase"])
            and all(_fits(each["metadata"]["labels"], one) for one in wanted)
        ]
        start, count = int(query.get("continue", "0")), int(query.get("limit") or len(found) or 1)
        page = found[start : start + count]
        meta: Object = {"resourceVersion": "1"}
        if start + count < len(found):
            meta |= {"continue": str(start + count), "remainingItemCount": len(found) - start - count}
        return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": page}

    def _patch(self, path: list[str], _: dict[str, str], body: bytes) -> tuple[int, Object]:
        if self.headers["Content-Type"] != "application/merge-patch+json":
            return _status(415, "UnsupportedMediaType")
        name = path[-1]
        if len(path) != 6 or name not in self.server.pods:
            return _status(404, "NotFound")
        after: Object = merged(self.server.pods[name], json.loads(body))
        cost = after["metadata"].get("annotations", {}).get(ANNOTATION, "0")
        if not re.fullmatch(r"0|-?[1-9][0-9]*", cost) or not -(2**31) <= int(cost) < 2**31:
            return _status(422, "Invalid", "must be a 32bit integer")
        if after | {"metadata": 0} != self.server.pods[name] | {"metadata": 0}:
            return _status(422, "Invalid", "nothing but metadata is to be changed here")
        self.server.pods[name] = after
        self.server.patched.append((name, cost))
        return 200, after

    def _fail(self, fault: Fault) -> None:
        if fault.hang:
            self.server.stopped.wait()
        if fault.hang or not fault.code:
            self.close_connection = True
            return
        if not fault.drip:
            self._send(fault.code, fault.body, fault.headers)
            return
        self._send(fault.code, b"", {"Transfer-Encoding": "chunked"})
        while not self.server.stopped.wait(0.02):
            self.wfile.write(b"1\r\n \r\n")

    def _send(self, code: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Transfer-Encoding" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _fits(labels: dict[str, str], requirement: str) -> bool:
    """`name=value` or `name in (a,b)`."""
    if (several := re.fullmatch(r"(\S+) in \(([^)]*)\)", requirement)) is not None:
        return labels.get(several[1]) in several[2].split(",")
    name, _, value = requirement.partition("=")
    return not requirement or labels.get(name) == value


def _status(code: int, reason: str, message: str = "") -> tuple[int, Object]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}
