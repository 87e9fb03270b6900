"""The pod that keeps deletion costs: what it may do, whom it reaches, and that its command does it, by the chart's own labels and ports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from stage_kit.http import HttpServer
from tests.helm.support.chart import CHART, NAMESPACE, Manifest, deployment, manifests, of_kind, pods
from tests.helm.test_network import DNS, OUTSIDERS, Cluster, reached
from tests.support.pods_api import TOKEN, PodsApi, certificates

ON = 'deletionCost={"enabled": true}'
NATIVE = (str(CHART / "values-examples" / "native-one-gpu.yaml"), ON)
STAGES = ("vad", "thinker", "talker", "vocoder")
OWN = {"Deployment", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy"}


def own(documents: list[Manifest]) -> dict[str, Manifest]:
    """Kinds of what is called costs."""
    return {each["kind"]: each for each in documents if each["metadata"]["name"] == "t-parley-costs"}


def test_it_is_there_when_it_is_wanted() -> None:
    assert own(manifests()) == {} and not of_kind(manifests(), "Role")
    assert own(manifests(ON)).keys() == OWN
    assert own(manifests(ON, 'networkPolicy={"enabled": false}')).keys() == OWN - {"NetworkPolicy"}


def test_it_may_list_and_patch_pods_of_its_namespace_and_nothing_else() -> None:
    found = own(manifests(ON))
    assert found["Role"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]}]
    assert found["RoleBinding"]["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "t-parley-costs"}
    assert found["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": "t-parley-costs", "namespace": NAMESPACE}]
    assert found["ServiceAccount"]["automountServiceAccountToken"] is False, "a pod has to ask for the token"
    assert not of_kind(manifests(ON), "ClusterRole") and not of_kind(manifests(ON), "ClusterRoleBinding")


def test_no_other_pod_has_its_account_or_a_token() -> None:
    for label, pod in pods(manifests(ON)):
        spec = pod["spec"]
        mine = label == "Deployment/costs"
        assert (spec["automountServiceAccountToken"], spec.get("serviceAccountName") == "t-parley-costs") == (mine, mine), label


def test_an_account_with_rights_of_its_own_is_taken_as_it_is() -> None:
    found = own(manifests('deletionCost={"enabled": true, "serviceAccountName": "theirs"}'))
    assert found.keys() == {"Deployment", "NetworkPolicy"}
    assert found["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"


def test_there_is_never_a_second_one() -> None:
    spec = own(manifests(ON))["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_where_it_runs_can_be_said() -> None:
    said = (
        '{"enabled": true, "priorityClassName": "voice", "nodeSelector": {"pool": "cpu"}, "tolerations": [{"operator": "Exists"}], '
        '"affinity": {"nodeAffinity": {}}, "podLabels": {"team": "voice"}, "podAnnotations": {"a": "b"}}'
    )
    pod = deployment(manifests(f"deletionCost={said}", 'image={"pullSecrets": ["pull"]}'), "costs")["spec"]["template"]
    spec = pod["spec"]
    assert (spec["priorityClassName"], spec["nodeSelector"], spec["affinity"]) == ("voice", {"pool": "cpu"}, {"nodeAffinity": {}})
    assert (spec["tolerations"], spec["imagePullSecrets"]) == ([{"operator": "Exists"}], [{"name": "pull"}])
    assert (pod["metadata"]["labels"]["team"], pod["metadata"]["annotations"]) == ("voice", {"a": "b"})


def test_policies_let_it_reach_metrics_and_the_api() -> None:
    before, after = (Cluster(manifests(*values)).flows() for values in ((), (ON,)))
    assert after.pop("costs") == reached(("gateway", *STAGES), 9090) | reached(OUTSIDERS, 443)
    assert after == before, "nobody else reaches anything new"

    native = Cluster(manifests(*NATIVE)).flows()["costs"]
    assert native - reached(OUTSIDERS, 443) == {("gateway", 9090), ("vad", 9090), *(("native", 9090 + number) for number in range(3))}


def test_the_api_s_address_can_be_said() -> None:
    to = 'networkPolicy={"apiServerTo": [{"ipBlock": {"cidr": "10.96.0.1/32"}}], "apiServerPorts": [443]}'
    flows = Cluster(manifests(ON, to)).flows()["costs"]
    assert flows - reached(("gateway", *STAGES), 9090) == {("outside", 443)} and not flows & DNS


class Release:
    """Pods of the rendered Deployments at addresses of their own, where each container tells how many sessions it holds."""

    def __init__(self, documents: list[Manifest], stack: ExitStack) -> None:
        self.pods: dict[str, Manifest] = {}
        for number, (label, template) in enumerate(pods(documents), 1):
            if label.startswith("Deployment/"):
                name, ip = label.partition("/")[2], f"127.77.0.{number}"
                meta = {"name": name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"]}
                status = {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]}
                self.pods[name] = {"kind": "Pod", "metadata": meta, "spec": template["spec"], "status": status}
                self._serve(name, ip, template["spec"]["containers"], stack)

    def _serve(self, name: str, ip: str, containers: list[Any], stack: ExitStack) -> None:
        for at, container in enumerate(containers):
            for port in container.get("ports", []):
                if port["name"].startswith("metrics"):
                    registry, process = CollectorRegistry(), "gateway" if name == "gateway" else "stage"
                    Gauge(f"parley_{process}_sessions", "", registry=registry).set(3 + 4 * at)
                    stack.callback(HttpServer(f"{ip}:{port['containerPort']}", registry, lambda _: True).stop)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[PodsApi]:
    with PodsApi(certificates(tmp_path / "certificates")) as served:
        yield served


@pytest.mark.parametrize(
    ("values", "costs"),
    [((ON,), dict.fromkeys(("gateway", *STAGES), "4")), (NATIVE, {"gateway": "4", "vad": "4", "native": "12"})],
    ids=["a pod each", "one pod"],
)
def test_its_command_keeps_the_costs_of_the_release_s_pods(
    api: PodsApi, tmp_path: Path, values: tuple[str, ...], costs: dict[str, str]
) -> None:
    documents = manifests(*values)
    container = own(documents)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    alive = str(tmp_path / "alive")
    api.rights = {TOKEN: {verb for rule in own(documents)["Role"]["rules"] for verb in rule["verbs"]}}
    python, *arguments = [word.replace("/tmp/alive", alive) for word in container["args"]]
    command = [sys.executable, *arguments, "--account", str(api.account(tmp_path / "account"))]
    env = {**os.environ, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.server_port)}
    assert python == "python"
    with ExitStack() as stack:
        api.put(*Release(documents, stack).pods.values())
        with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
            assert api.until(lambda: api.costs() == costs), api.costs()
            probes = [container[name]["exec"]["command"] for name in ("startupProbe", "livenessProbe")]
            codes = [subprocess.run([word.replace("/tmp/alive", alive) for word in probe], check=False).returncode for probe in probes]
            process.send_signal(signal.SIGTERM)
            said, code = process.communicate(timeout=10)[1], process.returncode
    assert (codes, code, said) == ([0, 0], 0, "")


def test_one_that_hangs_is_found_out(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    alive.write_text("1700000000\n")
    container = own(manifests(ON))["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    probe = [word.replace("/tmp/alive", str(alive)) for word in container["livenessProbe"]["exec"]["command"]]
    assert subprocess.run(probe, check=False).returncode == 1
