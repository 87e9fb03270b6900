"""NetworkPolicies let through what must be let through, and nothing else: every pair of pods at every port is judged."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest

from tests.helm.support.chart import CHART, Manifest, manifests, of_kind, pods

OUTSIDERS = ("monitoring/prometheus", "kube-system/dns", "ingress/proxy", "elsewhere/anybody", "voice/stranger", "outside")
"""Pods that are none of the release's, and what is no pod."""
GRPC, HTTP = tuple(50051 + number for number in range(3)), tuple(9090 + number for number in range(3))
PORTS = (("UDP", 53), *(("TCP", port) for port in (53, 443, 6379, 8080, *HTTP, *GRPC)))
NO_FETCH = 'models={"fetch": "none", "volume": {"existingClaim": "m"}}'
DNS = {("kube-system/dns", 53)}


class Cluster:
    """Judges flows as the API defines it: who is selected by no policy is open, else the policies' rules add up."""

    def __init__(self, documents: list[Manifest]) -> None:
        self._policies = [document["spec"] for document in documents if document["kind"] == "NetworkPolicy"]
        self._labels = {
            pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["metadata"]["labels"] for _, pod in pods(documents)
        }  # fmt: skip
        self.members = frozenset(self._labels)

    def flows(self) -> dict[str, set[tuple[str, int]]]:
        """By member: (whom, port) that it reaches; and by outsider: which members it reaches."""
        everybody = (*self.members, *OUTSIDERS)
        found: dict[str, set[tuple[str, int]]] = {name: set() for name in everybody}
        for source, target, (protocol, port) in product(everybody, everybody, PORTS):
            inside = source in self.members or target in self.members
            if inside and source != target and self._passes(source, target, protocol, port):
                found[source].add((target, port))
        return found

    def _passes(self, source: str, target: str, protocol: str, port: int) -> bool:
        return self._allows(source, target, "Egress", protocol, port) and self._allows(target, source, "Ingress", protocol, port)

    def _allows(self, owner: str, other: str, direction: str, protocol: str, port: int) -> bool:
        if owner not in self.members:
            return True
        labels = self._labels[owner]
        mine = [each for each in self._policies if direction in each["policyTypes"] and _has(each["podSelector"], labels)]
        if not mine:
            return True
        side = "to" if direction == "Egress" else "from"
        return any(
            self._is_one_of(rule.get(side, []), other) and _covers(rule.get("ports", []), protocol, port)
            for policy in mine
            for rule in policy.get(direction.lower(), [])
        )

    def _is_one_of(self, peers: list[Manifest], name: str) -> bool:
        if not peers:
            return True
        namespace, _, _ = name.rpartition("/") if "/" in name else ("voice" if name in self.members else "", "", "")
        for peer in peers:
            if "ipBlock" in peer:
                if name == "outside":
                    return True
                continue
            pod_fits = "podSelector" not in peer or (name in self.members and _has(peer["podSelector"], self._labels[name]))
            wanted = peer.get("namespaceSelector")
            space_fits = namespace == "voice" if wanted is None else _has(wanted, {"kubernetes.io/metadata.name": namespace})
            if name != "outside" and pod_fits and space_fits:
                return True
        return False


def _has(selector: Manifest, labels: dict[str, str]) -> bool:
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def _covers(ports: list[Manifest], protocol: str, port: int) -> bool:
    return not ports or any((each.get("protocol", "TCP"), each["port"]) == (protocol, port) for each in ports)


def reached(names: Iterable[str], port: int) -> set[tuple[str, int]]:
    return {(name, port) for name in names}


STAGES = ("vad", "thinker", "talker", "vocoder")


def test_embedded_models_in_each_pod() -> None:
    flows = Cluster(manifests()).flows()
    store, downloads = {("valkey", 6379)}, reached(OUTSIDERS, 443)

    assert flows["gateway"] == store | DNS | reached(STAGES, 50051)
    for stage in STAGES:
        assert flows[stage] == store | DNS | downloads
    assert flows["valkey"] == set()
    assert flows["test"] == DNS | {("gateway", 8080)}
    assert flows["monitoring/prometheus"] == reached(("gateway", *STAGES), 9090) | {("gateway", 8080)}
    for outsider in ("ingress/proxy", "elsewhere/anybody", "voice/stranger", "outside"):
        assert flows[outsider] == {("gateway", 8080)}


def test_a_deployment_that_knows_its_visitors() -> None:
    flows = Cluster(manifests(CHART / "values-examples" / "production.yaml")).flows()
    store = {("valkey", 6379)}

    assert flows["gateway"] == store | DNS | reached(STAGES, 50051)
    for stage in STAGES:
        assert flows[stage] == store | DNS, "a Job fetches"
    assert flows["models"] == DNS | reached(OUTSIDERS, 443)
    assert flows["monitoring/prometheus"] == reached(("gateway", *STAGES), 9090)
    assert flows["ingress/proxy"] == flows["test"] - DNS == {("gateway", 8080)}
    assert flows["elsewhere/anybody"] == flows["voice/stranger"] == flows["outside"] == set()


def test_three_services_in_one_pod() -> None:
    flows = Cluster(manifests(CHART / "values-examples" / "native-one-gpu.yaml")).flows()

    native = {("native", 50051 + number) for number in range(3)}
    assert flows["gateway"] == {("valkey", 6379), ("vad", 50051)} | DNS | native
    assert flows["native"] == {("valkey", 6379)} | DNS
    assert flows["monitoring/prometheus"] == {
        ("gateway", 8080),
        *reached(("gateway", "vad"), 9090),
        *(("native", 9090 + n) for n in range(3)),
    }


def test_a_store_elsewhere() -> None:
    flows = Cluster(manifests(CHART / "values-examples" / "external-cluster-store.yaml", NO_FETCH)).flows()

    assert flows["vad"] == DNS | {("outside", 6379)}


def test_a_stage_that_calls_a_service_of_its_own() -> None:
    rule = '{"to": [{"ipBlock": {"cidr": "10.0.0.0/24"}}], "ports": [{"protocol": "TCP", "port": 443}]}'
    flows = Cluster(manifests(f'thinker={{"egress": [{rule}]}}', NO_FETCH)).flows()

    assert ("outside", 443) in flows["thinker"] and ("outside", 443) not in flows["talker"]


def test_without_them_all_is_open() -> None:
    """What the tests above are worth."""
    documents = manifests('networkPolicy={"enabled": false}')

    assert not of_kind(documents, "NetworkPolicy")
    assert ("valkey", 6379) in Cluster(documents).flows()["outside"]


def test_name_servers_that_listen_elsewhere() -> None:
    documents = manifests('networkPolicy={"dnsPorts": [53, 5353]}', NO_FETCH)
    asks = [rule["ports"] for each in of_kind(documents, "NetworkPolicy").values() for rule in each["spec"].get("egress", [])
            if {port["port"] for port in rule["ports"]} & {53, 5353}]  # fmt: skip

    assert asks and all(
        {(port["protocol"], port["port"]) for port in ports} == {("UDP", 53), ("TCP", 53), ("UDP", 5353), ("TCP", 5353)} for ports in asks
    )


@pytest.mark.parametrize("example", ["embedded", "production", "native-one-gpu"])
def test_ports_in_policies_are_ports_of_containers(example: str) -> None:
    documents = manifests(CHART / "values-examples" / f"{example}.yaml")
    named = {port["containerPort"] for _, pod in pods(documents) for each in pod["spec"]["containers"] for port in each.get("ports", [])}
    ingress = {
        port["port"]
        for policy in of_kind(documents, "NetworkPolicy").values()
        for rule in policy["spec"].get("ingress", [])
        for port in rule["ports"]
    }
    assert ingress == named
