"""What operators call things: releases, secrets, classes, labels and images. Whatever it is, a cluster takes it as it was meant."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.helm.support.chart import CHART, Manifest, Strict, containers, deployment, manifests, of_kind, pods, refusal, run
from tests.helm.test_rendering import each_example

SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035, as clusters demand it of Services."""
OURS = ("gateway", "vad", "thinker", "talker", "vocoder")


def released(name: str, *options: str) -> list[Manifest]:
    done = run("template", name, CHART, *options)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.load_all(done.stdout, Strict) if document]


@pytest.mark.parametrize("release", ["on", "true", "null", "voice.eu", "a" * 53, f"{'a-' * 26}b"])
def test_any_name_of_a_release_makes_names_and_labels_that_are_taken(release: str) -> None:
    for document in released(release):
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == release
        assert all(isinstance(value, str) and len(value) <= 63 for value in labels.values())
        assert len(document["metadata"]["name"]) <= 63 and not document["metadata"]["name"].endswith("-")
        if document["kind"] == "Service":
            assert SERVICE.fullmatch(document["metadata"]["name"])


@pytest.mark.parametrize("name", ["1st", "2nd.eu"])
def test_a_name_that_no_service_can_have_is_refused(name: str) -> None:
    done = run("template", name, CHART)
    assert done.returncode != 0 and "fullnameOverride" in done.stderr
    assert released(name, "--set", "fullnameOverride=voice")


def test_two_long_names_stay_two() -> None:
    """Of the same namespace: nothing of one may be taken for the other's."""
    blue, green = (released(f"production-eu-west-1-conversations-of-acme-{colour}") for colour in ("blue", "green"))
    names = [{(each["kind"], each["metadata"]["name"]) for each in documents} for documents in (blue, green)]
    assert not names[0] & names[1]
    pod = deployment(green, next(name for name in of_kind(green, "Deployment") if name.endswith("-talker")))["spec"]["template"]
    for document in blue:
        selector = document["spec"].get("selector", {}) if "spec" in document else {}
        wanted = selector.get("matchLabels", selector)
        assert not wanted or not wanted.items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("where", ["commonLabels", "gateway.podLabels"])
def test_labels_of_one_s_own_break_no_selector(where: str) -> None:
    own = {"app.kubernetes.io/component": "x", "app.kubernetes.io/instance": "y", "app.kubernetes.io/part-of": "z", "team": "1e3"}
    options = [word for key, value in own.items() for word in ("--set-string", f"{where}.{key.replace('.', chr(92) + '.')}={value}")]
    documents = released("t", *options)

    gateway = deployment(documents, "gateway")["spec"]
    labels = gateway["template"]["metadata"]["labels"]
    assert gateway["selector"]["matchLabels"].items() <= labels.items()
    assert (labels["app.kubernetes.io/part-of"], labels["team"]) == ("z", "1e3")
    for service in of_kind(documents, "Service").values():
        assert any(service["spec"]["selector"].items() <= pod["metadata"]["labels"].items() for _, pod in pods(documents))


def test_labels_by_which_monitors_are_found_win() -> None:
    labels = '{"release": "prometheus", "app.kubernetes.io/instance": "prometheus"}'
    documents = manifests(f'monitoring={{"serviceMonitor": {{"enabled": true, "labels": {labels}}}}}')

    for monitor in of_kind(documents, "ServiceMonitor").values():
        assert monitor["metadata"]["labels"]["app.kubernetes.io/instance"] == "prometheus"
        assert monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == "t"


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ('{"repository": "parley/gateway"}', "registry.example/team/parley/gateway:0.1.0"),
        ('{"repository": "gateway", "tag": "1.0"}', "registry.example/team/gateway:1.0"),
        ('{"repository": "other.example:5000/parley/gateway"}', "other.example:5000/parley/gateway:0.1.0"),
        ('{"repository": "localhost/gateway"}', "localhost/gateway:0.1.0"),
        ('{"repository": "parley/gateway", "registry": "own.example/"}', "own.example/parley/gateway:0.1.0"),
        (f'{{"repository": "parley/gateway", "digest": "sha256:{"0" * 64}"}}', f"registry.example/team/parley/gateway@sha256:{'0' * 64}"),
    ],
)
def test_an_image_comes_from_the_registry_that_is_named_for_it(image: str, wanted: str) -> None:
    documents = manifests('image={"registry": "registry.example/team/"}', f'gateway={{"image": {image}}}')

    assert containers(deployment(documents, "gateway")["spec"]["template"])["gateway"]["image"] == wanted
    assert containers(next(iter(of_kind(documents, "Pod").values())))["conversation"]["image"] == wanted


@each_example
def test_no_variable_is_there_twice(values: object) -> None:
    for label, pod in pods(manifests(str(values))):
        for container in containers(pod).values():
            names = [each["name"] for each in container.get("env", [])]
            assert len(set(names)) == len(names), (label, container["name"])


def test_a_variable_of_one_s_own_takes_the_place_of_the_chart_s() -> None:
    """Applied by the server, a name that is there twice is an error."""
    own = '[{"name": "OMP_NUM_THREADS", "value": "7"}, {"name": "HOME", "value": "/tmp/home"}]'
    documents = manifests(f'vad={{"extraEnv": {own}, "settings": {{"PYTHONUNBUFFERED": "0"}}}}')

    env = containers(deployment(documents, "vad")["spec"]["template"])["vad"]["env"]
    said = [(each["name"], each.get("value")) for each in env if each["name"] in ("OMP_NUM_THREADS", "HOME", "PYTHONUNBUFFERED")]
    assert sorted(said) == [("HOME", "/tmp/home"), ("OMP_NUM_THREADS", "7"), ("PYTHONUNBUFFERED", "0")]
    assert env[0]["name"] == "POD_IP", "before whatever names it"


def test_the_address_of_a_pod_is_nobody_s_to_say() -> None:
    assert "extraEnv" in refusal('vad={"extraEnv": [{"name": "POD_IP", "value": "1.2.3.4"}]}')
