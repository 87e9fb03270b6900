"""The chart as helm renders it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.helm.support.binaries import helm

CHART = Path(__file__).parents[3] / "helm" / "parley"
EXAMPLES = tuple(sorted((CHART / "values-examples").glob("*.yaml")))
RELEASE, NAMESPACE = "t", "voice"
NAME = f"{RELEASE}-parley"
NEWEST = "1.37.0"
Manifest = dict[str, Any]


class Strict(yaml.SafeLoader):
    """Takes no key twice: an API server would take the second and say nothing, or refuse both."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [each.value for each, _ in node.value if isinstance(each, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            raise yaml.constructor.ConstructorError(None, None, f"a key is there twice: {keys}", node.start_mark)
        return super().construct_mapping(node, deep)


def run(*arguments: str | Path, major: int = 4, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Whatever comes of it."""
    command = [str(helm(major)), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(env) if env is not None else None)


@cache
def rendered(*values: str, major: int = 4, kube: str = NEWEST, apis: tuple[str, ...] = ()) -> str:
    """values: what follows `--values` where it ends in .yaml, else `--set-json`."""
    options = [word for each in values for word in (("--values", each) if each.endswith(".yaml") else ("--set-json", each))]
    options += [word for api in apis for word in ("--api-versions", api)]
    done = run("template", RELEASE, CHART, "--namespace", NAMESPACE, "--kube-version", kube, *options, major=major)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(*values: str | Path, kube: str = NEWEST, major: int = 4, apis: tuple[str, ...] = ()) -> list[Manifest]:
    """All documents, hooks among them."""
    text = rendered(*map(str, values), kube=kube, major=major, apis=apis)
    return [document for document in yaml.load_all(text, Strict) if document]


def refusal(*values: str, major: int = 4, kube: str = NEWEST) -> str:
    """What helm says of values that it does not take."""
    options = [word for each in values for word in (("--values", each) if each.endswith(".yaml") else ("--set-json", each))]
    done = run("template", RELEASE, CHART, "--kube-version", kube, *options, major=major)
    assert done.returncode != 0, f"{values} were taken"
    return done.stderr


def of_kind(documents: list[Manifest], kind: str) -> dict[str, Manifest]:
    """By name, without the release's."""
    return {short(document): document for document in documents if document["kind"] == kind}


def short(document: Manifest) -> str:
    """Its name without the release's."""
    return str(document["metadata"]["name"]).removeprefix(NAME).removeprefix("-")


def pods(documents: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """(kind/name, pod with metadata and spec) of whatever starts pods."""
    for document in documents:
        label = f"{document['kind']}/{short(document)}"
        if document["kind"] == "Pod":
            yield label, document
        elif document["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield label, document["spec"]["template"]


def containers(pod: Manifest) -> dict[str, Manifest]:
    """All, those that run before the others among them."""
    spec = pod["spec"]
    return {container["name"]: container for container in [*spec.get("initContainers", []), *spec["containers"]]}


def environment(container: Manifest, pod_ip: str = "10.1.2.3") -> dict[str, str]:
    """Variables with a value of their own, with the pod's address in place."""
    return {each["name"]: each["value"].replace("$(POD_IP)", pod_ip) for each in container.get("env", []) if "value" in each}


def deployment(documents: list[Manifest], name: str) -> Manifest:
    return of_kind(documents, "Deployment")[name]


def served(documents: list[Manifest]) -> dict[str, tuple[Manifest, Manifest]]:
    """By component that others dial: (pod, its container)."""
    found = {}
    for label, pod in pods(documents):
        if label.startswith("Deployment/"):
            for container in pod["spec"]["containers"]:
                if container.get("ports"):
                    found[container["name"]] = (pod, container)
    return found
