"""Install, upgrade, roll back, test and uninstall, by real helm against an emulated cluster (`emulator.py` says what that is worth)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm.emulator import Cluster, Emulator
from tests.helm.support.binaries import helm, kubectl
from tests.helm.support.chart import CHART, EXAMPLES, manifests

EVERYTHING = {"Deployment", "StatefulSet", "Service", "ConfigMap", "NetworkPolicy", "ServiceAccount", "PodDisruptionBudget", "Job", "Pod",
              "Ingress", "HTTPRoute", "ScaledObject", "ServiceMonitor", "HorizontalPodAutoscaler", "ResourceClaimTemplate",
              "Role", "RoleBinding"}  # fmt: skip


ODD = {
    "image": {"pullSecrets": ["1e3"]},
    "serviceAccount": {"create": False, "name": "on"},
    "models": {"fetch": "job", "volume": {"size": "1Gi", "storageClassName": "1e3"}},
    "redis": {"existingSecret": "yes", "key": "1", "caSecret": "0x1"},
    "valkey": {"auth": {"existingSecret": "yes", "passwordKey": "2"}, "aof": True, "persistence": {"storageClassName": "null"}},
    "auth": {"keys": {"existingSecret": "off", "key": "3"}},
    "tls": {"existingSecret": "no"},
    "mtls": {"existingSecret": "n", "serverName": "1e3"},
    "commonLabels": {"cost-center": "4711", "y": "n"},
    "gateway": {
        "priorityClassName": "1e3", "runtimeClassName": "true", "nodeSelector": {"pool": "1"}, "tmpSize": "1000000",
        "podAnnotations": {"since": "2026-01-01", "load": "0.5"}, "service": {"appProtocol": "1e3", "annotations": {"port": "443"}},
    },
    "vad": {"shmSize": "64Mi", "settings": {"PARLEY_TURN_SLOTS": "0016"}, "extraEnv": [{"name": "X", "value": "1e3"}]},
    "ingress": {
        "enabled": True, "host": "1e3", "className": "123", "tlsSecret": "456", "paths": [{"path": "/v1: #", "pathType": "Prefix"}],
    },
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "1e3"}], "paths": [{"type": "Exact", "value": "/{a,b}"}]},
    "monitoring": {"serviceMonitor": {"enabled": True, "labels": {"a": "1"}}, "dashboards": {"enabled": True, "namespace": "123"}},
    "autoscaling": {
        "mode": "keda",
        "prometheus": {"serverAddress": "http://p:9090", "authenticationRef": "1e3", "metadata": {"ignoreNullValues": "true"}},
    },
    "test": {"apiKey": {"existingSecret": "1e3", "key": "4"}},
}  # fmt: skip
"""Names that YAML would take for numbers, truths and nothing, were they not quoted."""


class Operator:
    """helm and kubectl, told of an emulated cluster and of nothing else."""

    def __init__(self, major: int, emulator: Emulator, folder: Path) -> None:
        config = folder / "kubeconfig"
        config.write_text(emulator.kubeconfig)
        homes = {f"HELM_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        self._env = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(config), **homes}
        self._helm = helm(major)
        self.cluster: Cluster = emulator.cluster

    def helm(self, *arguments: str | Path, fails: bool = False) -> str:
        done = self._run(self._helm, *arguments)
        assert (done.returncode != 0) is fails, done.stderr + done.stdout
        return done.stderr if fails else done.stdout

    def release(self, verb: str, *values: str | Path, fails: bool = False) -> str:
        """verb: install or upgrade."""
        options = [word for each in values for word in (("--values", each) if isinstance(each, Path) else ("--set-json", each))]
        return self.helm(
            verb, "t", CHART, "--namespace", "voice", "--create-namespace", "--wait", "--timeout", "60s", *options, fails=fails
        )

    def read(self, *what: str) -> str:
        done = self._run(kubectl(), "--namespace", "voice", "get", *what)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, program: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(program), *map(str, arguments)], env=self._env, capture_output=True, text=True, timeout=90, check=False)


@pytest.fixture(params=[4, 3], ids=["helm4", "helm3"])
def operator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Operator]:
    with Emulator() as emulator:
        yield Operator(request.param, emulator, tmp_path)


def replicas(operator: Operator, name: str) -> str:
    return operator.read("deployment", f"t-parley-{name}", "-o", "jsonpath={.spec.replicas}")


def images(operator: Operator) -> set[str]:
    return set(operator.read("deployments", "-o", "jsonpath={.items[*].spec.template.spec.containers[*].image}").split())


def test_a_release_from_its_first_to_its_last_day(operator: Operator) -> None:
    operator.release("install")
    assert operator.cluster.names("Deployment") == {f"t-parley-{name}" for name in ("gateway", "vad", "thinker", "talker", "vocoder")}
    assert (replicas(operator, "gateway"), replicas(operator, "talker")) == ("2", "1")

    operator.release("upgrade", 'talker={"replicas": 3}', 'image={"tag": "0.1.1"}', 'gateway={"settings": {"PARLEY_GRACE_MS": "1"}}')
    assert replicas(operator, "talker") == "3"
    assert images(operator) == {f"parley/{name}:0.1.1" for name in ("gateway", "vad", "thinker", "talker", "vocoder")}
    assert "PARLEY_GRACE_MS" in operator.read("deployment", "t-parley-gateway", "-o", "json")

    operator.helm("rollback", "t", "1", "--namespace", "voice", "--wait", "--timeout", "60s")
    assert replicas(operator, "talker") == "1"
    assert images(operator) == {f"parley/{name}:0.1.0" for name in ("gateway", "vad", "thinker", "talker", "vocoder")}
    assert "PARLEY_GRACE_MS" not in operator.read("deployment", "t-parley-gateway", "-o", "json")

    history = json.loads(operator.helm("history", "t", "--namespace", "voice", "--output", "json"))
    assert [(each["revision"], each["status"]) for each in history] == [(1, "superseded"), (2, "superseded"), (3, "deployed")]

    operator.helm("uninstall", "t", "--namespace", "voice", "--wait", "--timeout", "60s")
    assert not any(operator.cluster.names(kind) for kind in (*EVERYTHING, "ReplicaSet", "Secret"))


def test_helm_test_speaks_to_the_gateway(operator: Operator) -> None:
    operator.release("install")
    assert not operator.cluster.names("Pod")

    said = operator.helm("test", "t", "--namespace", "voice", "--timeout", "60s")

    assert operator.cluster.names("Pod") == {"t-parley-test"}
    assert "Succeeded" in said


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_taken_whole(operator: Operator, values: Path) -> None:
    operator.release("install", values)

    made = {(found["kind"], found["metadata"]["name"]) for found in operator.cluster.objects.values()}
    assert {(each["kind"], each["metadata"]["name"]) for each in manifests(values)} - made <= {("Pod", "t-parley-test")}

    operator.release("upgrade", values)
    operator.helm("uninstall", "t", "--namespace", "voice", "--wait", "--timeout", "60s")
    left = {kind for kind in EVERYTHING if operator.cluster.names(kind)}
    assert left == set(), "only claims stay, which hold what took long to fetch"


def test_from_embedded_models_to_a_native_one_and_back(operator: Operator) -> None:
    """Nothing that a cluster freezes is changed on the way."""
    operator.release("install", CHART / "values-examples" / "production.yaml")
    operator.release("upgrade", CHART / "values-examples" / "native-gpus.yaml")
    assert any("checkpoint" in name for name in operator.cluster.names("Job"))
    assert "/gpu" in operator.read("deployment", "t-parley-thinker", "-o", "json")

    operator.release("upgrade", CHART / "values-examples" / "native-one-gpu.yaml")
    assert operator.cluster.names("Deployment") == {"t-parley-gateway", "t-parley-vad", "t-parley-native"}
    assert not operator.cluster.names("Job")

    operator.release("upgrade", CHART / "values-examples" / "embedded.yaml")
    assert operator.cluster.names("Deployment") == {f"t-parley-{name}" for name in ("gateway", "vad", "thinker", "talker", "vocoder")}


def test_whatever_things_are_called(operator: Operator, tmp_path: Path) -> None:
    values = tmp_path / "odd.yaml"
    values.write_text(json.dumps(ODD))

    operator.release("install", values)
    operator.helm("test", "t", "--namespace", "voice", "--timeout", "60s")
    operator.release("upgrade", values, 'commonLabels={"cost-center": "0815"}')

    found = {(each["kind"], each["metadata"]["name"]): each for each in operator.cluster.objects.values()}
    assert found["ScaledObject", "t-parley-vad"]["spec"]["triggers"][0]["authenticationRef"] == {"name": "1e3"}
    assert found["ScaledObject", "t-parley-vad"]["spec"]["triggers"][0]["metadata"]["ignoreNullValues"] == "true", "the operator's word"
    assert found["HTTPRoute", "t-parley"]["spec"]["rules"][0]["matches"][0]["path"] == {"type": "Exact", "value": "/{a,b}"}
    assert found["ConfigMap", "t-parley-dashboard-parley-overview"]["metadata"]["namespace"] == "123"


def test_wrong_values_leave_a_release_as_it_is(operator: Operator) -> None:
    operator.release("install")
    before = dict(operator.cluster.objects)

    assert "bogus" in operator.release("upgrade", "bogus=1", fails=True)

    assert operator.cluster.objects == before


def test_what_a_cluster_would_not_take_is_not_taken(operator: Operator) -> None:
    """What the tests above are worth."""
    said = operator.release("install", 'gateway={"extraVolumes": [{"name": "x", "emptyDirectory": {}}]}', fails=True)

    assert "emptyDirectory" in said
