"""As much of the Kubernetes API as costs need: pods by their labels, page by page, and one annotation."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_S = 10.0
PAGE = 100
_REASON = re.compile(r"[A-Za-z]{1,64}")
_COST = re.compile(r"0|-?[1-9][0-9]{0,9}")
_NONSENSE = (msgspec.MsgspecError, ValueError, RecursionError)


class Refused(Exception):
    """The API did not do what it was asked. Its text is ours: neither token nor content of an answer is in it."""

    def __init__(self, why: str, code: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.code, self.retry_after_s = code, retry_after_s


class Pod(msgspec.Struct, frozen=True):
    """One that runs. ports: where containers show metrics. cost: as annotated, 0 where nothing is; None for what is no number."""

    name: str
    ip: str
    ports: tuple[int, ...]
    ready: bool
    cost: int | None


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct):
    containers: list[_Container]


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: list[_Condition] | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)


class _Page(msgspec.Struct):
    more: str = msgspec.field(default="", name="continue")


class _Pods(msgspec.Struct):
    items: list[_Pod] | None
    metadata: _Page = msgspec.field(default_factory=_Page)


class _Failure(msgspec.Struct):
    reason: str = ""


def api_of_this_pod(environment: Mapping[str, str] = os.environ) -> str:
    """URL of the API, as every pod is told it; empty outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else ""


@asynccontextmanager
async def entered(api: str, account: Path) -> AsyncIterator[Cluster]:
    """With the token and the authority that lie there now, since both are renewed in place. Raises Refused."""
    try:
        token, namespace = ((account / name).read_text(encoding="ascii").strip() for name in ("token", "namespace"))
        trust = ssl.create_default_context(cafile=account / "ca.crt")
    except (OSError, ValueError):
        raise Refused("the account's files cannot be read") from None
    # authorities of clusters are often older than what RFC 5280 asks for, which Python 3.13 insists on
    trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "User-Agent": "parley-costs"}
    async with httpx.AsyncClient(base_url=api, verify=trust, headers=headers, timeout=REQUEST_S, trust_env=False) as client:
        yield Cluster(client, namespace)


class Cluster:
    """One namespace. Every method raises Refused."""

    def __init__(self, client: httpx.AsyncClient, namespace: str) -> None:
        self._client, self._pods = client, f"/api/v1/namespaces/{namespace}/pods"

    async def pods(self, selector: str, page: int = PAGE) -> list[Pod]:
        """Those that run and are not on their way out."""
        asked = {"labelSelector": selector, "fieldSelector": "status.phase=Running", "limit": str(page)}
        found: list[Pod] = []
        more = ""
        while True:
            answer = await self._ask("GET", self._pods, params=asked | ({"continue": more} if more else {}))
            try:
                pods = msgspec.json.decode(answer, type=_Pods)
            except _NONSENSE:
                raise Refused("the answer is no list of pods") from None
            found += [_pod(each) for each in pods.items or () if each.metadata.deletion_timestamp is None]
            more = pods.metadata.more
            if not more:
                return found

    async def annotate(self, name: str, cost: int) -> None:
        """Writes a pod's cost."""
        patch = msgspec.json.encode({"metadata": {"annotations": {ANNOTATION: str(cost)}}})
        headers = {"Content-Type": "application/merge-patch+json"}
        await self._ask("PATCH", f"{self._pods}/{name}", params={"fieldManager": "parley-costs"}, headers=headers, content=patch)

    async def _ask(
        self, method: str, path: str, *, params: dict[str, str], headers: dict[str, str] | None = None, content: bytes | None = None
    ) -> bytes:
        try:
            # httpx bounds each step, not all of them together
            async with asyncio.timeout(REQUEST_S):
                answer = await self._client.request(method, path, params=params, headers=headers, content=content)
        except TimeoutError:
            raise Refused("the API does not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Refused(f"the API is not reached: {type(error).__name__}") from None
        if answer.is_success:
            return answer.content
        raise Refused(f"{method} pods: {_reason(answer.content)}", answer.status_code, _seconds(answer.headers.get("Retry-After", "")))


def _pod(found: _Pod) -> Pod:
    meta, status = found.metadata, found.status
    ports = [port for container in found.spec.containers for port in container.ports or ()]
    return Pod(
        name=meta.name,
        ip=status.pod_ip,
        ports=tuple(port.container_port for port in ports if port.name == "metrics" or port.name.startswith("metrics-")),
        ready=any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()),
        cost=_number((meta.annotations or {}).get(ANNOTATION, "0")),
    )


def _number(text: str) -> int | None:
    """As Kubernetes reads it."""
    return int(text) if _COST.fullmatch(text) else None


def _seconds(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _reason(answer: bytes) -> str:
    """A word of the API's own list."""
    try:
        reason = msgspec.json.decode(answer, type=_Failure).reason
    except _NONSENSE:
        reason = ""
    return reason if _REASON.fullmatch(reason) else "refused"
