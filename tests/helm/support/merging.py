"""What the two kinds of merge patches mean."""

from __future__ import annotations

from typing import Any

KEYS = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "imagePullSecrets": "name", "resourceClaims": "name",
    "volumeMounts": "mountPath", "ports": "containerPort", "topologySpreadConstraints": "topologyKey", "conditions": "type",
    "ownerReferences": "uid",
}  # fmt: skip
"""By the name of a list that is merged: what tells its items apart. Services' ports have `port`. Other lists are replaced."""


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def strategically_merged(target: Any, patch: Any, field: str = "") -> Any:
    """Kubernetes' own: lists of KEYS are merged item by item, `$patch` deletes or replaces, `$setElementOrder` orders."""
    if isinstance(patch, list):
        return _merged_list(target or [], patch, field)
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if name.startswith(("$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/")):
            continue
        if value is None:
            result.pop(name, None)
        else:
            result[name] = strategically_merged(result.get(name), value, name)
    for name, kept in patch.items():
        if name == "$retainKeys":
            result = {each: value for each, value in result.items() if each in kept}
        elif name.startswith("$setElementOrder/"):
            _order(result, name.partition("/")[2], kept)
    return result


def _key(items: list[Any], field: str) -> str | None:
    key = KEYS.get(field)
    if field == "ports" and any("port" in item for item in items):
        return "port"
    return key if key and all(isinstance(item, dict) for item in items) else None


def _merged_list(target: list[Any], patch: list[Any], field: str) -> list[Any]:
    key = _key(patch, field)
    if key is None:
        return patch
    result = {item[key]: item for item in target}
    for item in patch:
        if item.get("$patch") == "delete":
            result.pop(item[key], None)
        else:
            result[item[key]] = strategically_merged(result.get(item[key]), item)
    return list(result.values())


def _order(result: dict[str, Any], field: str, order: list[Any]) -> None:
    key = _key(order, field)
    if key is not None and field in result:
        places = {item[key]: place for place, item in enumerate(order)}
        result[field].sort(key=lambda item: places.get(item[key], len(places)))
