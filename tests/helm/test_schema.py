"""What is no value is refused, with its place, before anything is rendered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.helm.support.chart import CHART, manifests, refusal

SCHEMA = json.loads((CHART / "values.schema.json").read_text())

WRONG = {
    "an unknown key": ('{"bogus": 1}', "bogus"),
    "an unknown key further in": ('{"thinker": {"replica": 2}}', "replica"),
    "a number as text": ('{"gateway": {"replicas": "2"}}', "replicas"),
    "a replica less than none": ('{"vad": {"replicas": -1}}', "replicas"),
    "a moving tag": ('{"image": {"tag": "latest"}}', "tag"),
    "a moving tag of a component": ('{"talker": {"image": {"repository": "x", "tag": "latest-gpu"}}}', "tag"),
    "an engine that is not there": ('{"models": {"fetch": "sometimes"}}', "fetch"),
    "a password in plain sight": ('{"redis": {"url": "redis://:secret@store:6379"}, "valkey": {"enabled": false}}', "url"),
    "the sentinels' password in plain sight": (
        '{"redis": {"url": "redis+sentinel://s:26379/parley?sentinel_password=secret"}, "valkey": {"enabled": false}}',
        "url",
    ),
    "a password in plain sight, further on": (
        '{"redis": {"url": "redis://store?db=1&password=secret"}, "valkey": {"enabled": false}}',
        "url",
    ),
    "sentinels of no service": ('{"redis": {"url": "redis+sentinel://store:26379"}, "valkey": {"enabled": false}}', "url"),
    "a password of the hub in plain sight": ('{"checkpoint": {"download": {"host": "https://me:secret@hub.example.com"}}}', "host"),
    "a socket of the host": ('{"redis": {"url": "unix:///run/redis.sock"}, "valkey": {"enabled": false}}', "url"),
    "a drain by another name": ('{"thinker": {"settings": {"PARLEY_DRAIN_S": "5"}}}', "PARLEY_DRAIN_S"),
    "a gateway's drain by another name": ('{"settings": {"PARLEY_DRAIN_TIMEOUT_MS": "5"}}', "PARLEY_DRAIN_TIMEOUT_MS"),
    "keys in plain sight": ('{"gateway": {"settings": {"PARLEY_API_KEYS": "k"}}}', "PARLEY_API_KEYS"),
    "a password of another service in plain sight": ('{"thinker": {"settings": {"OPENAI_API_KEY": "sk-x"}}}', "OPENAI_API_KEY"),
    "a token in plain sight": ('{"settings": {"HF_TOKEN": "x"}}', "HF_TOKEN"),
    "a name with capitals": ('{"nameOverride": "My App"}', "nameOverride"),
    "a name with dots": ('{"fullnameOverride": "voice.eu"}', "fullnameOverride"),
    "a budget that is a number as text": ('{"gateway": {"pdb": {"minAvailable": "1"}}}', "pdb"),
    "a surge that is a number as text": ('{"gateway": {"strategy": {"rollingUpdate": {"maxSurge": "1"}}}}', "maxSurge"),
    "so seldom a scrape that alerts are blind": ('{"monitoring": {"serviceMonitor": {"interval": "5m"}}}', "interval"),
    "a key in a list that is unknown": ('{"ingress": {"paths": [{"path": "/v1", "pathType": "Prefix", "port": 1}]}}', "port"),
    "a component that is taken away": ('{"thinker": null}', "thinker"),
    "a drain that is taken away": ('{"talker": {"drain": null}}', "drain"),
    "a setting that is no text": ('{"gateway": {"settings": {"PARLEY_GRACE_MS": 30000}}}', "PARLEY_GRACE_MS"),
    "a stage on the card that is none": (
        '{"talker": {"gpu": {"count": 1, "resourceName": "nvidia.com/gpu", "stagesOnCard": ["vad"]}}}',
        "stagesOnCard",
    ),
    "a GPU without a domain": ('{"talker": {"gpu": {"count": 1, "resourceName": "gpu"}}}', "resourceName"),
    "two budgets": ('{"gateway": {"pdb": {"minAvailable": 1, "maxUnavailable": 1}}}', "pdb"),
    "a root user": ('{"podSecurityContext": {"runAsUser": 0}}', "runAsUser"),
    "any user": ('{"podSecurityContext": {"runAsNonRoot": false}}', "runAsNonRoot"),
    "a privileged container": ('{"securityContext": {"privileged": true}}', "privileged"),
    "a mode that is none": ('{"autoscaling": {"mode": "vpa"}}', "mode"),
    "a quantity that is none": ('{"valkey": {"resources": {"limits": {"memory": "much"}}}}', "memory"),
    "an origin that is a page": ('{"auth": {"allowedOrigins": ["https://x.example.com/page"]}}', "allowedOrigins"),
    "a look at costs every second": ('{"deletionCost": {"everySeconds": 1}}', "everySeconds"),
    "a step of no sessions": ('{"deletionCost": {"stepSessions": 0}}', "stepSessions"),
    "an unknown key of costs": ('{"deletionCost": {"step": 4}}', "step"),
    "a path without a slash": ('{"ingress": {"paths": [{"path": "v1", "pathType": "Prefix"}]}}', "paths"),
}

CONTRADICTIONS = {
    "two stores": (('redis={"url": "redis://store:6379"}',), "redis.url"),
    "a store behind a closed port": (('redis={"url": "rediss://store.example.com:6380/0"}', 'valkey={"enabled": false}'), "redisPorts"),
    "sentinels behind a closed port": (('redis={"url": "redis+sentinel://a,b:6379/parley"}', 'valkey={"enabled": false}'), "port 26379"),
    "no store": (('valkey={"enabled": false}',), "redis.url or redis.existingSecret"),
    "a password that only the server knows": (('valkey={"auth": {"existingSecret": "s"}}',), "go together"),
    "a way in without keys": (('ingress={"enabled": true, "host": "x.example.com"}',), "auth.keys"),
    "a balancer without keys": (('gateway={"service": {"type": "LoadBalancer"}}',), "auth.keys"),
    "a route to nobody": (('httpRoute={"enabled": true}', 'auth={"anonymous": true}'), "httpRoute.parentRefs"),
    "an Ingress for no name": (('ingress={"enabled": true}', 'auth={"anonymous": true}'), "ingress.host"),
    "mTLS for no name": (('mtls={"existingSecret": "s"}',), "mtls.serverName"),
    "a grace that cuts the drain": (('thinker={"terminationGracePeriodSeconds": 60}',), "would kill a drain of 615 s"),
    "a gateway's grace that cuts its drain": (('gateway={"terminationGracePeriodSeconds": 49}',), "would kill a drain of 50 s"),
    "a native model without its checkpoint": (('profile={"name": "minicpmo45"}',), "checkpoint.volume"),
    "a download from nowhere": (('checkpoint={"download": {"enabled": true}}',), "checkpoint.download"),
    "one pod of embedded models": (('onePod={"enabled": true}',), "onePod.enabled"),
    "a claim for nobody": (('onePod={"claim": {"enabled": true}}',), "onePod.claim"),
    "two shares of a GPU": (('talker={"gpu": {"count": 2, "resourceName": "nvidia.com/gpu.shared"}}',), "talker.gpu.count"),
    "a job without a volume": (('models={"fetch": "job"}',), "models.volume"),
    "models from nowhere": (('models={"fetch": "none"}',), "models.volume"),
    "a profile that the chart does not hold": (('profile={"name": "unheard"}',), "profile.content"),
    "a profile that is no YAML": (('profile={"name": "own", "content": "nodes: ["}',), "profile.content"),
    "KEDA without a Prometheus": (('autoscaling={"mode": "keda"}',), "autoscaling.prometheus.serverAddress"),
    "a GPU among the resources": (('thinker={"resources": {"limits": {"nvidia.com/gpu": "1"}}}',), "thinker.gpu.resourceName"),
    "an instance of a GPU among the resources": (('talker={"resources": {"requests": {"nvidia.com/mig-1g.10gb": "1"}}}',), "talker.gpu"),
    "a name that no Service has": (('fullnameOverride="1st"',), "fullnameOverride"),
    "fewer at most than at least": (('vad={"autoscaling": {"min": 5}}',), "vad.autoscaling.max"),
}


@pytest.mark.parametrize("major", [4, 3])
@pytest.mark.parametrize(("values", "named"), WRONG.values(), ids=WRONG)
def test_wrong_values_are_refused_with_their_place(values: str, named: str, major: int) -> None:
    (key, value), *others = json.loads(values).items()
    options = [f"{key}={json.dumps(value)}", *(f"{name}={json.dumps(each)}" for name, each in others)]

    said = refusal(*options, major=major)

    assert "values don't meet the specifications of the schema" in said
    assert named in said


@pytest.mark.parametrize(("values", "named"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_refused_with_the_values_at_fault(values: tuple[str, ...], named: str) -> None:
    assert named in refusal(*values)


EMPTY = (
    *("commonLabels", "settings", "image.pullSecrets", "models.nodeSelector", "networkPolicy.gatewayFrom"),
    *(
        "gateway.podLabels",
        "gateway.affinity",
        "gateway.egress",
        "gateway.strategy",
        "vad.settings",
        "vad.extraEnv",
        "thinker.gpu.stagesOnCard",
    ),
)


def test_what_is_left_empty_is_as_if_it_were_not_said() -> None:
    """A key of a values file whose lines below are all commented out."""
    assert manifests(*(f"{place}=null" for place in EMPTY)) == manifests()


def test_the_grace_may_be_longer_than_the_drain() -> None:
    documents = manifests('thinker={"terminationGracePeriodSeconds": 615}', 'talker={"terminationGracePeriodSeconds": 7200}')

    graces = {document["metadata"]["name"]: document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
              for document in documents if document["kind"] == "Deployment"}  # fmt: skip
    assert (graces["t-parley-thinker"], graces["t-parley-talker"]) == (615, 7200)


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").removeprefix("#/definitions/")
    found: dict[str, Any] = SCHEMA["definitions"][name] if name else schema
    return found


def open_places(schema: dict[str, Any], values: Any, place: str = "") -> Iterator[str]:
    """Where the schema does not know a value of the chart, or would take an unknown key beside it."""
    schema = resolved(schema)
    if not isinstance(values, dict) or "properties" not in schema:
        return
    if schema.get("additionalProperties") is not False and place not in ("podSecurityContext", "securityContext"):
        yield place
    for name, value in values.items():
        if name in schema["properties"]:
            yield from open_places(schema["properties"][name], value, f"{place}.{name}".lstrip("."))
        elif schema.get("additionalProperties") is False:
            yield f"{place}.{name}"


def test_the_schema_is_closed_wherever_the_chart_has_values() -> None:
    """Kubernetes' own objects, which are passed on, it does not know."""
    assert list(open_places(SCHEMA, yaml.safe_load((CHART / "values.yaml").read_text()))) == []


def unset(schema: dict[str, Any], values: Any, place: str = "") -> Iterator[str]:
    properties = resolved(schema).get("properties", {})
    for name in properties:
        where = f"{place}.{name}".lstrip(".")
        if name not in values:
            yield where
        elif isinstance(values[name], dict):
            yield from unset(properties[name], values[name], where)


def test_every_key_of_the_schema_has_a_default() -> None:
    """So values.yaml tells all that can be said."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    missing = set(unset(SCHEMA, values)) - {"global", "podSecurityContext.runAsGroup"}

    assert not [place for place in missing if not place.endswith((".strategy.type", ".strategy.rollingUpdate", ".image.registry"))]
