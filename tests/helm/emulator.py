"""A Kubernetes API in memory, as far as helm and kubectl need one: discovery, objects, three kinds of patches, watches.

It proves that manifests are taken (core kinds are validated strictly), what a release writes, changes and removes, and that waiting ends.
It proves nothing of pods: nothing runs, and what is written is ready at once.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import yaml

from tests.helm.support.merging import merged, strategically_merged
from tests.helm.support.protobuf import secret
from tests.helm.support.status import made_ready, replica_set

Object = dict[str, Any]
Key = tuple[str, str, str, str]
"""(apiVersion, plural, namespace, name)"""

KINDS = {
    ("v1", "Namespace"): "namespaces",
    ("v1", "Pod"): "pods",
    ("v1", "Service"): "services",
    ("v1", "ServiceAccount"): "serviceaccounts",
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Secret"): "secrets",
    ("v1", "PersistentVolumeClaim"): "persistentvolumeclaims",
    ("apps/v1", "Deployment"): "deployments",
    ("apps/v1", "ReplicaSet"): "replicasets",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("batch/v1", "Job"): "jobs",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
    ("networking.k8s.io/v1", "Ingress"): "ingresses",
    ("autoscaling/v2", "HorizontalPodAutoscaler"): "horizontalpodautoscalers",
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): "resourceclaimtemplates",
    ("rbac.authorization.k8s.io/v1", "Role"): "roles",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "rolebindings",
    ("keda.sh/v1alpha1", "ScaledObject"): "scaledobjects",
    ("monitoring.coreos.com/v1", "ServiceMonitor"): "servicemonitors",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "prometheusrules",
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): "httproutes",
}
CUSTOM = {"keda.sh/v1alpha1", "monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1"}
VERSION = {"major": "1", "minor": "37", "gitVersion": "v1.37.0", "platform": "linux/amd64"}


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}


class Cluster:
    """What there is, and all that happened to it. Thread-safe."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.changed = threading.Condition()
        self.log: list[tuple[str, Key, Object]] = []

    def names(self, kind: str) -> set[str]:
        return {key[3] for key, found in self.objects.items() if found["kind"] == kind}

    def get(self, key: Key) -> Object:
        with self.changed:
            if key not in self.objects:
                raise Refused(404, "NotFound", f'{key[1]} "{key[3]}" not found')
            return self.objects[key]

    def list(self, api: str, plural: str, namespace: str, fits: Callable[[Object], bool]) -> tuple[list[Object], int]:
        with self.changed:
            every = [found for key, found in self.objects.items() if key[:2] == (api, plural) and namespace in ("", key[2]) and fits(found)]
            return every, len(self.log)

    def put(self, key: Key, found: Object, *, new: bool = False) -> Object:
        """Validated, made ready, and told to whoever watches."""
        with self.changed:
            before = self.objects.get(key)
            if new and before is not None:
                raise Refused(409, "AlreadyExists", f'{key[1]} "{key[3]}" already exists')
            _check_valid(found)
            _check_frozen(before, found)
            _name(before, found, key[2])
            made_ready(found)
            found["metadata"]["resourceVersion"] = str(len(self.log) + 1)
            self.objects[key] = found
            self._tell("MODIFIED" if before else "ADDED", key, found)
            if found["kind"] == "Deployment":
                for each in [each for each in self.objects if each[1] == "replicasets" and each[3].startswith(f"{key[3]}-")]:
                    self.delete(each)
                owned = replica_set(found)
                self.put(("apps/v1", "replicasets", key[2], owned["metadata"]["name"]), owned)
            return found

    def delete(self, key: Key) -> Object:
        with self.changed:
            found = self.get(key)
            del self.objects[key]
            self._tell("DELETED", key, found)
            for owned in [each for each, value in self.objects.items() if _is_owned(value, found)]:
                self.delete(owned)
            return found

    def events(self, after: int, stopped: threading.Event) -> Iterator[tuple[int, str, Key, Object]]:
        """From a point in the log on; ends when stopped."""
        while not stopped.is_set():
            with self.changed:
                self.changed.wait_for(lambda after=after: len(self.log) > after or stopped.is_set(), timeout=0.5)
                fresh = self.log[after:]
            for number, event in enumerate(fresh, after + 1):
                yield (number, *event)
            after += len(fresh)

    def _tell(self, what: str, key: Key, found: Object) -> None:
        self.log.append((what, key, json.loads(json.dumps(found))))
        self.changed.notify_all()


def _is_owned(found: Object, owner: Object) -> bool:
    return any(each["uid"] == owner["metadata"]["uid"] for each in found["metadata"].get("ownerReferences", []))


def _name(before: Object | None, found: Object, namespace: str) -> None:
    """What a cluster writes into an object's metadata."""
    now = {"uid": str(uuid.uuid4()), "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "generation": 0}
    known = before["metadata"] if before else now
    found["metadata"] |= {name: known[name] for name in now} | ({"namespace": namespace} if namespace else {})
    found["metadata"]["generation"] += before is None or before.get("spec") != found.get("spec")


def _check_valid(found: Object) -> None:
    if found["apiVersion"] in CUSTOM:
        return
    try:
        kubernetes_validate.validate({name: value for name, value in found.items() if name != "status"}, "1.37.0", strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Refused(422, "Invalid", str(error).splitlines()[0]) from None


def _check_frozen(before: Object | None, after: Object) -> None:
    """What a cluster does not let change: templates of Jobs, selectors of Deployments, most of a StatefulSet and of a claim."""
    frozen = {"Job": ("template",), "Deployment": ("selector",), "StatefulSet": ("selector", "serviceName", "volumeClaimTemplates"),
              "PersistentVolumeClaim": ("accessModes", "storageClassName")}  # fmt: skip
    for field in frozen.get(after["kind"], ()) if before else ():
        assert before is not None
        if before["spec"].get(field) != after["spec"].get(field):
            raise Refused(422, "Invalid", f"{after['kind']} {after['metadata']['name']}: spec.{field}: field is immutable")


def _kind(api: str, plural: str) -> str:
    found = [kind for (version, kind), each in KINDS.items() if (version, each) == (api, plural)]
    if not found:
        raise Refused(404, "NotFound", f"{api} {plural} are not served")
    return found[0]


def _discovery(path: list[str]) -> Object | None:
    """Answers to /version, /api, /apis, /api/v1 and /apis/GROUP/VERSION."""
    if path == ["version"]:
        return VERSION
    if path == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    apis = {api for api, _ in KINDS}
    if path == ["apis"]:
        versions = [{"groupVersion": api, "version": api.partition("/")[2]} for api in sorted(apis - {"v1"})]
        groups = [{"name": each["groupVersion"].partition("/")[0], "versions": [each], "preferredVersion": each} for each in versions]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    api = "/".join(path[1:])
    if api not in apis:
        return None
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    resources = [
        {"name": plural, "singularName": kind.lower(), "namespaced": kind != "Namespace", "kind": kind, "verbs": verbs}
        for (version, kind), plural in KINDS.items()
        if version == api
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": resources}


class Handler(BaseHTTPRequestHandler):
    """One request. The server has the cluster, and says when it stops."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Emulator

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = url.path.strip("/").split("/")
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if url.path == "/openapi/v2":
            # an empty document: helm and kubectl check nothing here, the cluster does
            self._send(200, b"", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        elif (found := _discovery(path)) is not None:
            self._json(200, found)
        else:
            self._try(lambda: self._read(path, query))

    def do_POST(self) -> None:
        self._try(lambda: (201, self.server.cluster.put(*self._named(self._body()), new=True)))

    def do_PUT(self) -> None:
        self._try(lambda: (200, self.server.cluster.put(*self._named(self._body()))))

    def do_PATCH(self) -> None:
        self._try(lambda: (200, self._patch(self._body())))

    def do_DELETE(self) -> None:
        self._read_all()
        self._try(lambda: (200, self.server.cluster.delete(self._key())))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the cluster's log is what tests look at."""

    def _read(self, path: list[str], query: dict[str, str]) -> tuple[int, Object] | None:
        api, plural, namespace, name = self._key()
        wanted = dict(each.replace("==", "=").split("=", 1) for each in query.get("labelSelector", "").split(",") if "=" in each)
        named = query.get("fieldSelector", "").removeprefix("metadata.name=")

        def fits(found: Object) -> bool:
            meta = found["metadata"]
            return wanted.items() <= meta.get("labels", {}).items() and (not named or meta["name"] == named)

        if name:
            return 200, self.server.cluster.get((api, plural, namespace, name))
        if query.get("watch") in ("true", "1"):
            self._watch((api, plural, namespace), query, fits)
            return None
        kind = _kind(api, plural)
        items, version = self.server.cluster.list(api, plural, namespace, fits)
        return 200, {"kind": f"{kind}List", "apiVersion": api, "metadata": {"resourceVersion": str(version or 1)}, "items": items}

    def _watch(self, where: tuple[str, str, str], query: dict[str, str], fits: Callable[[Object], bool]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        after = int(query.get("resourceVersion") or 0)
        api, plural, namespace = where
        try:
            if query.get("sendInitialEvents") == "true":
                items, after = self.server.cluster.list(api, plural, namespace, fits)
                for found in items:
                    self._chunk({"type": "ADDED", "object": found})
                end = {"resourceVersion": str(after or 1), "annotations": {"k8s.io/initial-events-end": "true"}}
                self._chunk({"type": "BOOKMARK", "object": {"kind": _kind(api, plural), "apiVersion": api, "metadata": end}})
            for number, what, key, found in self.server.cluster.events(after, self.server.stopped):
                if key[:2] == (api, plural) and namespace in ("", key[2]) and fits(found):
                    self._chunk({"type": what, "object": found | {"metadata": found["metadata"] | {"resourceVersion": str(number)}}})
        except OSError:
            pass  # who watched has seen enough
        self.close_connection = True

    def _patch(self, patch: Object) -> Object:
        key, kind = self._key(), self.headers["Content-Type"].partition(";")[0]
        if kind == "application/apply-patch+yaml":
            before = self.server.cluster.objects.get(key, {})
            # its one manager's fields are all that there are
            return self.server.cluster.put(key, patch | ({"status": before["status"]} if "status" in before else {}))
        before = self.server.cluster.get(key)
        merge = strategically_merged if kind == "application/strategic-merge-patch+json" else merged
        return self.server.cluster.put(key, merge(json.loads(json.dumps(before)), patch))

    def _key(self) -> Key:
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[0] not in ("api", "apis") or len(parts) < 3 + (parts[0] == "apis"):
            raise Refused(404, "NotFound", f"{self.path} is not served")
        api, rest = (parts[1], parts[2:]) if parts[0] == "api" else (f"{parts[1]}/{parts[2]}", parts[3:])
        if rest[0] == "namespaces" and len(rest) > 2:
            return api, rest[2], rest[1], rest[3] if len(rest) > 3 else ""
        return api, rest[0], "", rest[1] if len(rest) > 1 else ""

    def _named(self, found: Object) -> tuple[Key, Object]:
        api, plural, namespace, _ = self._key()
        return (api, plural, namespace, found["metadata"]["name"]), found

    def _body(self) -> Any:
        data = self._read_all()
        return secret(data) if data.startswith(b"k8s\0") else yaml.safe_load(data)

    def _read_all(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _try(self, work: Callable[[], tuple[int, Object] | None]) -> None:
        try:
            done = work()
        except Refused as refused:
            self._json(refused.code, refused.status)
        else:
            if done is not None:
                self._json(*done)

    def _json(self, code: int, content: Object) -> None:
        self._send(code, json.dumps(content).encode(), "application/json")

    def _send(self, code: int, data: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _chunk(self, event: Object) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class Emulator(ThreadingHTTPServer):
    """Serves a cluster on a free port of the loopback as long as it is entered; `kubeconfig` is what tells clients of it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cluster, self.stopped = Cluster(), threading.Event()
        server = {"server": f"http://127.0.0.1:{self.server_port}"}
        context = {"cluster": "e", "user": "e", "namespace": "voice"}
        self.kubeconfig = yaml.safe_dump(
            {"apiVersion": "v1", "kind": "Config", "current-context": "e", "clusters": [{"name": "e", "cluster": server}],
             "users": [{"name": "e", "user": {}}], "contexts": [{"name": "e", "context": context}]}
        )  # fmt: skip

    def __enter__(self) -> Emulator:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.shutdown()
        self.server_close()
