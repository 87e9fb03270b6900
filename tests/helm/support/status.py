"""What controllers would say of objects if all went well, at once."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Object = dict[str, Any]


def made_ready(found: Object) -> None:
    """Writes the status of an object, and what a cluster fills in."""
    generation, kind = found["metadata"]["generation"], found["kind"]
    if kind in ("Deployment", "StatefulSet"):
        count = found["spec"].setdefault("replicas", 1)
        found["status"] = {
            "observedGeneration": generation, "replicas": count, "readyReplicas": count,
            "updatedReplicas": count, "availableReplicas": count,
        }  # fmt: skip
        if kind == "Deployment":
            found["status"]["conditions"] = [_condition("Available"), _condition("Progressing", "NewReplicaSetAvailable")]
        else:
            found["status"] |= {"currentReplicas": count, "currentRevision": "r", "updateRevision": "r"}
            found["spec"].setdefault("updateStrategy", {"type": "RollingUpdate"})
    elif kind == "Service":
        found["spec"].setdefault("clusterIP", "10.96.0.10")
        if found["spec"].get("type") == "LoadBalancer":
            found["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
    elif kind == "PersistentVolumeClaim":
        found["status"] = {"phase": "Bound"}
    elif kind == "Job":
        times = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z"}
        found["status"] = {"succeeded": 1, **times, "conditions": [_condition("Complete")]}
    elif kind == "Pod":
        found["status"] = {"phase": "Succeeded", "conditions": [_condition("Ready", "PodCompleted")]}
    elif kind == "Namespace":
        found["status"] = {"phase": "Active"}
    elif kind == "PodDisruptionBudget":
        found["status"] = {
            "observedGeneration": generation,
            "currentHealthy": 2,
            "desiredHealthy": 1,
            "disruptionsAllowed": 1,
            "expectedPods": 2,
        }


def replica_set(deployment: Object) -> Object:
    """That of a Deployment's present template: helm 3 waits for its pods."""
    template = json.loads(json.dumps(deployment["spec"]["template"]))
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]
    template["metadata"]["labels"]["pod-template-hash"] = digest
    meta, count = deployment["metadata"], deployment["spec"]["replicas"]
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": meta["name"], "uid": meta["uid"], "controller": True}
    labels = template["metadata"]["labels"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": f"{meta['name']}-{digest}", "labels": labels, "ownerReferences": [owner]},
        "spec": {"replicas": count, "selector": {"matchLabels": labels}, "template": template},
        "status": {"replicas": count, "readyReplicas": count, "availableReplicas": count, "observedGeneration": 1},
    }


def _condition(kind: str, reason: str = "Done") -> Object:
    return {"type": kind, "status": "True", "reason": reason}
