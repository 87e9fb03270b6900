"""What pods are like: how they are asked whether they live, how they leave, as whom they run, and what they get of a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helm.support.chart import CHART, EXAMPLES, Manifest, containers, deployment, environment, manifests, of_kind, pods, served
from tests.helm.test_rendering import each_example

STAGES = ("vad", "thinker", "talker", "vocoder")
NATIVE = STAGES[1:]


def example(name: str) -> Path:
    return CHART / "values-examples" / f"{name}.yaml"


@each_example
def test_stages_are_asked_for_startup_ready_and_live(values: Path) -> None:
    found = served(manifests(values))

    assert found.keys() == {"gateway", *STAGES}
    for name in STAGES:
        _, container = found[name]
        address = environment(container)["PARLEY_BIND"]
        for probe, service in (("startupProbe", "startup"), ("readinessProbe", "ready"), ("livenessProbe", "live")):
            if "PARLEY_TLS_CERTIFICATE" in environment(container):
                assert container[probe]["httpGet"]["path"] == f"/health/{service}", "the kubelet's gRPC probe speaks no TLS"
                ports = {port["name"]: port["containerPort"] for port in container["ports"]}
                assert environment(container)["PARLEY_HTTP_BIND"] == f"0.0.0.0:{ports[container[probe]['httpGet']['port']]}"
            else:
                assert container[probe]["grpc"] == {"port": int(address.rpartition(":")[2]), "service": service}


@each_example
def test_the_gateway_is_asked_over_http_where_it_serves_no_clients(values: Path) -> None:
    _, gateway = served(manifests(values))["gateway"]

    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    assert environment(gateway)["PARLEY_METRICS_BIND"] == f"0.0.0.0:{ports['metrics']}"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert gateway[probe]["httpGet"] == {"path": "/health", "port": "metrics"}, "plain HTTP, also where clients speak TLS"


@each_example
def test_a_start_may_take_as_long_as_a_model_takes(values: Path) -> None:
    for document in of_kind(manifests(values), "Deployment").values():
        budgets = [
            container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"]
            for container in document["spec"]["template"]["spec"]["containers"]
        ]
        grace = document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert document["spec"]["progressDeadlineSeconds"] > max(budgets) + grace, "its GPU is free when the pod before it has drained"
        if "native" in values.stem and document["metadata"]["name"].endswith(("thinker", "native")):
            assert min(budgets) >= 900


def test_a_native_model_has_the_time_it_takes_unless_it_is_said() -> None:
    native = ('profile={"name": "minicpmo45"}', 'checkpoint={"volume": {"existingClaim": "c"}}')

    def budget(container: Manifest) -> int:
        return int(container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"])

    assert [budget(served(manifests(*native))[name][1]) for name in STAGES] == [120, 900, 900, 900]
    assert [budget(served(manifests())[name][1]) for name in STAGES] == [120] * 4
    assert budget(served(manifests(*native, 'thinker={"startupSeconds": 60}'))["thinker"][1]) == 60


@each_example
def test_no_process_is_the_first_of_its_container(values: Path) -> None:
    """Which sleeps through a SIGTERM that it has no handler for, and would be waited for until the end of the grace, an hour maybe."""
    dockerfile = (CHART.parents[1] / "deploy" / "Dockerfile").read_text()
    stages = {stage.split()[-1]: text for stage, text in re.findall(r"^FROM (\S+ AS \S+)$(.*?)(?=^FROM |\Z)", dockerfile, re.M | re.S)}
    assert all('ENTRYPOINT ["tini", "--"]' in stages[target] for target in ("gateway", "stage"))
    for label, pod in pods(manifests(values)):
        for name, container in containers(pod).items():
            if name != "valkey":
                assert "command" not in container and container["args"], (label, name)


@each_example
def test_no_pod_is_killed_before_its_drain_is_over(values: Path) -> None:
    for pod, container in served(manifests(values)).values():
        env = environment(container)
        drain_s = int(env["PARLEY_DRAIN_S"]) if "PARLEY_DRAIN_S" in env else int(env["PARLEY_DRAIN_TIMEOUT_MS"]) // 1000
        command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        assert pod["spec"]["terminationGracePeriodSeconds"] >= int(command[1]) + drain_s + 5


def test_the_drain_may_be_as_long_as_the_longest_session() -> None:
    pod, container = served(manifests('thinker={"drain": {"seconds": 3600}}'))["thinker"]

    assert environment(container)["PARLEY_DRAIN_S"] == "3600"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 3615


def test_endpoints_forget_a_gateway_before_it_stops() -> None:
    _, container = served(manifests())["gateway"]

    assert container["lifecycle"] == {"preStop": {"exec": {"command": ["sleep", "5"]}}}


@each_example
def test_pods_run_without_rights(values: Path) -> None:
    for label, pod in pods(manifests(values)):
        spec = pod["spec"]
        security = spec["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"], security["runAsGroup"]) == (True, 10001, 10001), label
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, label
        assert spec["automountServiceAccountToken"] is (label == "Deployment/costs"), label
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), label
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume], label
        for container in containers(pod).values():
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "privileged": False,
                "readOnlyRootFilesystem": True,
            }, label
            assert "memory" in container["resources"]["limits"], label


@each_example
def test_no_service_becomes_a_setting(values: Path) -> None:
    """A Service called parley-... would be PARLEY_... in the environment of every pod that starts after it."""
    for label, pod in pods(manifests(values)):
        assert pod["spec"]["enableServiceLinks"] is False, label


@each_example
def test_what_is_written_to_is_mounted(values: Path) -> None:
    for label, pod in pods(manifests(values)):
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        for container in containers(pod).values():
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            assert {mount["name"] for mount in mounts.values()} <= volumes, label
            assert len(mounts) == len(container["volumeMounts"]), label
            for name, value in environment(container).items():
                if name == "HOME":
                    assert value in mounts, label
                elif value.startswith(("/models", "/checkpoint", "/etc/parley", "/mps")):
                    root = next(mount for mount in mounts if value == mount or value.startswith(f"{mount}/"))
                    fetches = "fetch" in str(container.get("args")) or label.startswith("Job/")
                    assert mounts[root].get("readOnly", False) is (not root.startswith("/mps") and not fetches), (label, name)


def test_a_budget_stands_where_more_than_one_replica_does() -> None:
    assert of_kind(manifests('gateway={"replicas": 1}'), "PodDisruptionBudget") == {}

    two = of_kind(manifests('thinker={"replicas": 2}'), "PodDisruptionBudget")
    assert two.keys() == {"gateway", "thinker"}
    assert two["gateway"]["spec"]["minAvailable"] == "50%"
    assert two["thinker"]["spec"]["maxUnavailable"] == 1
    for name, budget in two.items():
        labels = deployment(manifests('thinker={"replicas": 2}'), name)["spec"]["template"]["metadata"]["labels"]
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_a_budget_stands_where_a_scaler_may_make_more_than_one_replica() -> None:
    scaled = ('autoscaling={"mode": "hpa"}',)

    assert of_kind(manifests(*scaled), "PodDisruptionBudget").keys() == {"gateway", *STAGES}
    assert of_kind(manifests(*scaled, 'gateway={"autoscaling": {"min": 1}}'), "PodDisruptionBudget").keys() == set(STAGES), (
        "half of one gateway is one: its node could never be drained"
    )
    assert of_kind(manifests(*scaled, 'vad={"autoscaling": {"max": 1}}'), "PodDisruptionBudget").keys() == {"gateway", *STAGES[1:]}


@each_example
def test_selectors_find_their_pods_and_no_others(values: Path) -> None:
    documents = manifests(values)
    labels = {label: pod["metadata"]["labels"] for label, pod in pods(documents)}
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet"):
            wanted = document["spec"]["selector"]["matchLabels"].items()
            assert [label for label, has in labels.items() if wanted <= has.items()] == [next(
                label for label, pod in pods([document])
            )]  # fmt: skip


@each_example
def test_a_new_version_of_the_chart_alone_replaces_no_pod(values: Path) -> None:
    for label, pod in pods(manifests(values)):
        if not label.startswith("Pod/"):
            assert not {"helm.sh/chart", "app.kubernetes.io/version"} & pod["metadata"]["labels"].keys(), label


def test_replicas_spread_over_zones_and_hosts() -> None:
    for pod, _ in served(manifests()).values():
        spread = pod["spec"]["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
        assert {each["whenUnsatisfiable"] for each in spread} == {"ScheduleAnyway"}, "a laptop's cluster has one host"
        assert all(each["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items() for each in spread)


def test_the_conversation_of_helm_test_runs_where_its_image_does() -> None:
    said = '{"nodeSelector": {"kubernetes.io/arch": "amd64"}, "tolerations": [{"key": "voice", "operator": "Exists"}]}'
    (pod,) = of_kind(manifests(f"gateway={said}"), "Pod").values()

    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/arch": "amd64"} and pod["spec"]["tolerations"][0]["key"] == "voice"


def test_where_a_pod_runs_can_be_said() -> None:
    said = (
        '{"priorityClassName": "voice", "runtimeClassName": "nvidia", "nodeSelector": {"pool": "gpu"}, "affinity": {"nodeAffinity": {}}, '
        '"tolerations": [{"key": "gpu", "operator": "Exists"}], "topologySpreadConstraints": [], "podLabels": {"team": "voice"}}'
    )
    for name in ("gateway", *STAGES):
        pod, _ = served(manifests(f"{name}={said}"))[name]
        spec = pod["spec"]
        assert (spec["priorityClassName"], spec["runtimeClassName"], spec["nodeSelector"]) == ("voice", "nvidia", {"pool": "gpu"})
        assert spec["tolerations"] and spec["affinity"] == {"nodeAffinity": {}} and spec["topologySpreadConstraints"] == []
        assert pod["metadata"]["labels"]["team"] == "voice"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("native-gpus", {name: {"nvidia.com/gpu": 1} for name in NATIVE}),
        ("native-time-slicing", {name: {"nvidia.com/gpu.shared": 1} for name in NATIVE}),
        ("native-mps", {name: {"nvidia.com/gpu.shared": 1} for name in NATIVE}),
        (
            "native-mig",
            {"thinker": {"nvidia.com/mig-3g.71gb": 1}, "talker": {"nvidia.com/mig-2g.35gb": 1}, "vocoder": {"nvidia.com/mig-2g.35gb": 1}},
        ),
        ("native-one-gpu-node", {"thinker": {"nvidia.com/gpu": 1}, "talker": {}, "vocoder": {}}),
        ("native-one-gpu", {name: {} for name in NATIVE}),
        ("embedded", {name: {} for name in NATIVE}),
    ],
)
def test_gpus_are_asked_for_by_name_and_number(name: str, wanted: dict[str, dict[str, int]]) -> None:
    found = served(manifests(example(name)))

    for component, gpus in wanted.items():
        resources = found[component][1]["resources"]
        for part in ("requests", "limits"):
            assert {key: count for key, count in resources[part].items() if "/" in key} == gpus
    for component in ("gateway", "vad"):
        assert not [key for key in found[component][1]["resources"]["limits"] if "/" in key]


def _native() -> list[Path]:
    return [path for path in EXAMPLES if path.stem.startswith("native")]


@pytest.mark.parametrize("values", _native(), ids=lambda path: path.stem)
def test_native_services_run_on_their_cards(values: Path) -> None:
    found = served(manifests(values))

    for name in NATIVE:
        env = environment(found[name][1])
        assert (env[f"PARLEY_{name.upper()}"], env["PARLEY_DEVICE"]) == ("minicpmo45", "cuda")
        assert env["PARLEY_CHECKPOINT"] == "/checkpoint/minicpm-o-4.5"
        assert found[name][1]["image"].endswith("-gpu")
        shared = values.stem in ("native-one-gpu", "native-one-gpu-node", "native-time-slicing")
        assert env["PARLEY_STAGES_ON_CARD"] == (",".join(NATIVE) if shared else name)
    assert environment(found["gateway"][1])["PARLEY_STAGE_WAIT_MS"] == "120000", "the profile's own settings of services hold here, too"
    assert "PARLEY_DEVICE" not in environment(found["vad"][1])


def test_an_engine_without_a_gpu_runs_on_processors() -> None:
    one = served(manifests('profile={"name": "minicpmo45"}', 'checkpoint={"volume": {"existingClaim": "c"}}'))

    assert environment(one["thinker"][1])["PARLEY_DEVICE"] == "cpu"
    assert not one["thinker"][1]["image"].endswith("-gpu")


def test_no_surge_waits_for_a_gpu_that_is_taken() -> None:
    documents = manifests(example("native-gpus"))

    assert deployment(documents, "thinker")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert deployment(documents, "gateway")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_one_gpu_means_one_pod_with_three_containers() -> None:
    documents = manifests(example("native-one-gpu"))
    native = deployment(documents, "native")["spec"]["template"]["spec"]
    claim = of_kind(documents, "ResourceClaimTemplate")["gpu"]

    assert of_kind(documents, "Deployment").keys() == {"gateway", "vad", "native"}
    assert [container["name"] for container in native["containers"]] == list(NATIVE)
    assert native["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": claim["metadata"]["name"]}]
    assert claim["spec"]["spec"]["devices"]["requests"] == [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}]
    everybody = containers({"spec": native})
    assert everybody.keys() == {"mps", *NATIVE}
    assert all(container["resources"]["claims"] == [{"name": "gpu"}] for container in everybody.values())
    ports = [port["containerPort"] for name in NATIVE for port in everybody[name]["ports"]]
    assert len(set(ports)) == 6, "they share an address"


def test_the_daemon_starts_first_and_all_find_its_pipes() -> None:
    native = deployment(manifests(example("native-one-gpu")), "native")["spec"]["template"]["spec"]
    daemon, *others = containers({"spec": native}).values()

    assert (daemon["name"], daemon["restartPolicy"]) == ("mps", "Always")
    assert environment(daemon)["PARLEY_READY_FILE"] == daemon["startupProbe"]["exec"]["command"][-1]
    folder = daemon["args"][daemon["args"].index("nvidia-cuda-mps-control") + 1]
    for container in others:
        assert environment(container)["CUDA_MPS_PIPE_DIRECTORY"] == f"{folder}/pipe"
        assert {"/mps", "/dev/shm"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


@each_example
def test_who_serves_is_reached_at_the_ports_that_the_services_name(values: Path) -> None:
    documents = manifests(values)
    labels = dict(pods(documents))
    for name, service in of_kind(documents, "Service").items():
        selected = [pod for pod in labels.values() if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
        assert selected, name
        named = {port["name"] for pod in selected for container in pod["spec"]["containers"] for port in container.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= named, name


def test_one_that_drains_is_still_read() -> None:
    services: dict[str, Manifest] = of_kind(manifests(), "Service")

    for name in ("gateway-metrics", *STAGES):
        assert services[name]["spec"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in services["gateway"]["spec"], "clients come to gateways that are ready"
