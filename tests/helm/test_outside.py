"""What other operators' kinds are given: KEDA, the Prometheus operator, Grafana's sidecar, Ingress and Gateway API."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY

from tests.helm.support.chart import CHART, Manifest, deployment, manifests, of_kind, pods, run

SCALED = ("gateway", "vad", "thinker", "talker", "vocoder")
PRODUCTION = CHART / "values-examples" / "production.yaml"
KEDA = ('autoscaling={"mode": "keda", "prometheus": {"serverAddress": "http://prometheus:9090"}}',)


def scalers() -> dict[str, Manifest]:
    return of_kind(manifests(*KEDA), "ScaledObject")


def test_keda_scales_every_deployment_on_those_who_speak_and_those_who_wait() -> None:
    found = scalers()

    assert found.keys() == set(SCALED)
    for name, scaler in found.items():
        (trigger,) = scaler["spec"]["triggers"]
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment(manifests(*KEDA), name)["metadata"]["name"]
        assert "replicas" not in deployment(manifests(*KEDA), name)["spec"], "the scaler owns the number"
        assert trigger["metricType"] == "AverageValue", "a fallback knows no other"
        assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes text only"
        assert float(trigger["metadata"]["threshold"]) > 0
    assert found["gateway"]["spec"]["triggers"][0]["metadata"]["query"] == (
        'sum(parley_gateway_sessions{namespace="voice",service="t-parley-gateway-metrics"})'
        ' + (sum(parley_gateway_sessions_queued{namespace="voice",service="t-parley-gateway-metrics"}) or vector(0))'
    )


def test_the_query_asks_for_metrics_that_there_are() -> None:
    for module in ("gateway.metrics", "gateway.census"):
        importlib.import_module(module)
    known = {sample.name for family in REGISTRY.collect() for sample in family.samples}

    query = scalers()["gateway"]["spec"]["triggers"][0]["metadata"]["query"]
    assert set(re.findall(r"parley_\w+", query)) <= known


def test_the_query_s_labels_are_those_that_the_operator_gives() -> None:
    """`service` is the Service's name."""
    documents = manifests(*KEDA, 'monitoring={"serviceMonitor": {"enabled": true}}')
    query = of_kind(documents, "ScaledObject")["gateway"]["spec"]["triggers"][0]["metadata"]["query"]

    (service,) = set(re.findall(r'service="([^"]+)"', query))
    assert "metrics" in [port["name"] for port in of_kind(documents, "Service")[service.removeprefix("t-parley-")]["spec"]["ports"]]


def test_a_prometheus_that_is_away_takes_no_replica() -> None:
    for name, scaler in scalers().items():
        spec = scaler["spec"]
        assert spec["fallback"] == {"failureThreshold": 3, "replicas": spec["minReplicaCount"], "behavior": "currentReplicasIfHigher"}, name
        assert spec["triggers"][0]["metadata"]["ignoreNullValues"] == "false", "nothing found is no demand of nothing"


@pytest.mark.parametrize("mode", ["keda", "hpa"])
def test_replicas_go_slowly_and_come_at_once(mode: str) -> None:
    documents = manifests(f'autoscaling={{"mode": "{mode}", "prometheus": {{"serverAddress": "http://prometheus:9090"}}}}')
    found = [each["spec"]["advanced"]["horizontalPodAutoscalerConfig"] for each in of_kind(documents, "ScaledObject").values()] or [
        each["spec"] for each in of_kind(documents, "HorizontalPodAutoscaler").values()
    ]
    assert len(found) == len(SCALED)
    for each in found:
        down = each["behavior"]["scaleDown"]
        assert down == {"stabilizationWindowSeconds": 600, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}]}
        assert each["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 0


def test_without_keda_processors_are_what_is_scaled_on() -> None:
    found = of_kind(manifests('autoscaling={"mode": "hpa"}'), "HorizontalPodAutoscaler")

    assert found.keys() == set(SCALED)
    target = {"type": "Utilization", "averageUtilization": 70}
    assert found["vad"]["spec"]["metrics"] == [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    by_sessions = of_kind(manifests('autoscaling={"mode": "hpa", "hpa": {"metric": "sessions"}}'), "HorizontalPodAutoscaler")
    (metric,) = by_sessions["talker"]["spec"]["metrics"]
    assert metric["pods"] == {"metric": {"name": "parley_stage_sessions"}, "target": {"type": "AverageValue", "averageValue": "24"}}


def test_auto_takes_keda_where_the_cluster_has_it() -> None:
    auto = ('autoscaling={"mode": "auto", "prometheus": {"serverAddress": "http://prometheus:9090"}}',)

    assert not of_kind(manifests(*auto), "ScaledObject") and of_kind(manifests(*auto), "HorizontalPodAutoscaler")
    with_keda = manifests(*auto, apis=("keda.sh/v1alpha1",))
    assert of_kind(with_keda, "ScaledObject") and not of_kind(with_keda, "HorizontalPodAutoscaler")


def test_the_one_pod_is_scaled_as_a_whole() -> None:
    documents = manifests(CHART / "values-examples" / "native-one-gpu.yaml", *KEDA)

    assert of_kind(documents, "ScaledObject").keys() == {"gateway", "vad", "native"}


@pytest.mark.parametrize("values", [PRODUCTION, CHART / "values-examples" / "native-one-gpu.yaml"], ids=lambda path: path.stem)
def test_every_process_is_scraped_at_a_port_of_its_service(values: Path) -> None:
    documents = manifests(values, 'monitoring={"serviceMonitor": {"enabled": true, "labels": {"release": "prometheus"}}}')
    scraped = set()
    for monitor in of_kind(documents, "ServiceMonitor").values():
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        for endpoint in monitor["spec"]["endpoints"]:
            chosen = [
                service
                for service in of_kind(documents, "Service").values()
                if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
                and endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
            ]
            assert len(chosen) == 1, "a pod that is scraped through two services counts twice"
            port = next(port for port in chosen[0]["spec"]["ports"] if port["name"] == endpoint["port"])
            scraped |= {
                container["name"]
                for _, pod in pods(documents)
                if chosen[0]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
                for container in pod["spec"]["containers"]
                if port["targetPort"] in [each["name"] for each in container["ports"]]
            }
    assert scraped == set(SCALED)


def in_a_copy(tmp_path: Path, files: dict[str, str]) -> Path:
    """The chart with these files in place of its own copies of rules and dashboards."""
    copy = tmp_path / "parley"
    shutil.copytree(CHART, copy)
    for name in ("rules", "dashboards"):
        shutil.rmtree(copy / "files" / name, ignore_errors=True)
    for name, text in files.items():
        (copy / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / "files" / name).write_text(text)
    return copy


@pytest.mark.parametrize("major", [4, 3])
def test_rules_and_dashboards_are_passed_on_word_for_word(tmp_path: Path, major: int) -> None:
    alert = {"alert": "Late", "expr": "up == 0", "annotations": {"summary": "{{ $labels.stage }} is {{ $value | humanizeDuration }} late"}}
    groups = [{"name": "parley", "rules": [alert]}]
    board = {"uid": "parley-overview", "panels": [{"targets": [{"expr": "rate(x[$__rate_interval])", "legendFormat": "{{stage}}"}]}]}
    copy = in_a_copy(
        tmp_path, {"rules/alerts.yml": yaml.safe_dump({"groups": groups}), "dashboards/Over_view.json": json.dumps(board, indent=2)}
    )

    done = run(
        "template",
        "t",
        copy,
        "--set-json",
        'monitoring={"prometheusRule": {"enabled": true}, "dashboards": {"enabled": true}}',
        major=major,
    )

    assert done.returncode == 0, done.stderr
    documents = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert of_kind(documents, "PrometheusRule")["alerts"]["spec"]["groups"] == groups
    dashboard = of_kind(documents, "ConfigMap")["dashboard-over-view"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["Over_view.json"]) == board


def test_dashboards_fit_their_config_maps() -> None:
    boards = [each for each in manifests(PRODUCTION) if each["kind"] == "ConfigMap" and "-dashboard-" in each["metadata"]["name"]]

    assert len(boards) == len(list((CHART / "files" / "dashboards").glob("*.json")))
    assert all(len(text.encode()) < 1_000_000 for board in boards for text in board["data"].values())


def test_alerts_lead_to_the_runbooks_where_they_are_published() -> None:
    where = "https://docs.example.com/parley/runbooks"
    rules = manifests(f'monitoring={{"prometheusRule": {{"enabled": true, "runbooks": "{where}"}}}}')

    alerts = [rule for group in of_kind(rules, "PrometheusRule")["alerts"]["spec"]["groups"] for rule in group["rules"]]
    assert {alert["annotations"]["runbook_url"].partition("#")[0] for alert in alerts} == {where}


def test_clients_keep_their_addresses_where_it_is_said() -> None:
    said = (
        '{"type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerClass": "example.com/internal", '
        '"loadBalancerSourceRanges": ["10.0.0.0/8"]}'
    )
    service = of_kind(manifests('auth={"anonymous": true}', f'gateway={{"service": {said}}}'), "Service")["gateway"]["spec"]

    assert (service["externalTrafficPolicy"], service["loadBalancerClass"]) == ("Local", "example.com/internal")
    assert service["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert "externalTrafficPolicy" not in of_kind(manifests(), "Service")["gateway"]["spec"]


def test_rules_are_those_of_the_chart() -> None:
    assert of_kind(manifests(PRODUCTION), "PrometheusRule").keys() == {path.stem for path in (CHART / "files" / "rules").glob("*.yml")}


def test_an_ingress_lets_a_conversation_last() -> None:
    ingress = of_kind(manifests(PRODUCTION), "Ingress")[""]
    annotations = {key.rpartition("/")[2]: value for key, value in ingress["metadata"]["annotations"].items()}

    assert int(annotations["proxy-read-timeout"]) > 3600 and int(annotations["proxy-send-timeout"]) > 3600, "longer than a session"
    assert annotations["proxy-buffering"] == "off"
    (rule,) = ingress["spec"]["rules"]
    assert [path["path"] for path in rule["http"]["paths"]] == ["/v1"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend["port"]["name"] in [port["name"] for port in of_kind(manifests(PRODUCTION), "Service")["gateway"]["spec"]["ports"]]
    assert backend["name"] == "t-parley-gateway"


def test_a_route_lets_a_conversation_last() -> None:
    documents = manifests(CHART / "values-examples" / "mtls-gateway-api.yaml")
    (rule,) = of_kind(documents, "HTTPRoute")[""]["spec"]["rules"]

    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    service = of_kind(documents, "Service")["gateway"]
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}]
    assert service["spec"]["ports"][0]["appProtocol"] == "https"
