"""The Stages in stages/, and nodes, pods and Jobs to test them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.harness import waiting
from tests.harness.sandbox import Sandbox

FOLDER = Path(__file__).parents[2] / "stages"
SETS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
QUICK = {
    f"pod-{step}.stage.kwok.x-k8s.io/delay": "100ms"
    for step in ("create", "init-container-running", "init-container-completed", "ready", "complete", "delete")
}
"""Annotations that shorten pod-general to half a second."""

Manifest = dict[str, Any]


def paths(*names: str) -> list[Path]:
    """Return the files of Stage sets."""
    return [FOLDER / f"{name}.yaml" for name in names]


def documents(name: str) -> list[Manifest]:
    """Return the documents of a Stage set."""
    return list(YAML(typ="safe").load_all(FOLDER / f"{name}.yaml"))


def stages(name: str) -> dict[str, Manifest]:
    """Return the specs of a set's Stages, by name."""
    return {
        document["metadata"]["name"]: document["spec"] for document in documents(name) if document["kind"] == "Stage"
    }


def add_node(box: Sandbox, name: str, labels: dict[str, str] | None = None, *, schedulable: bool = True) -> str:
    """Create a node; return its name, by default when it is schedulable."""
    node = box.manifest("v1", "Node", name)
    node["metadata"]["labels"] |= labels or {}
    box.cluster.apply(node)
    node_name = str(node["metadata"]["name"])
    if schedulable:
        waiting.until(
            lambda: ready(box, node_name) == "True" and not box.cluster.get("node", node_name)["spec"].get("taints")
        )
    return node_name


def ready(box: Sandbox, node: str) -> str:
    """Return the status of a node's Ready condition."""
    return str(conditions(box.cluster.get("node", node)).get("Ready", {}).get("status", "none"))


def conditions(manifest: Manifest) -> dict[str, Manifest]:
    """Return an object's conditions, by type."""
    return {condition["type"]: condition for condition in manifest["status"].get("conditions", ())}


def pod_spec(node: str, *names: str, **fields: Any) -> Manifest:  # noqa: ANN401 - a manifest
    """Return the spec of a pod that the scheduler binds to *node*."""
    containers = [{"name": name, "image": "registry/image:1"} for name in names]
    return {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": containers, **fields}


def add_pod(box: Sandbox, name: str, node: str, **parts: Any) -> str:  # noqa: ANN401 - a manifest
    """Create a pod with nodeName *node*; return its name. *parts*: labels, annotations, spec."""
    spec = {**pod_spec(node, "main"), **parts.get("spec", {}), "nodeName": node}
    del spec["nodeSelector"]
    pod = box.manifest("v1", "Pod", name, spec=spec)
    pod["metadata"] |= {"annotations": QUICK | parts.get("annotations", {})}
    pod["metadata"]["labels"] |= parts.get("labels", {})
    box.cluster.apply(pod)
    return str(pod["metadata"]["name"])


def add_job(box: Sandbox, name: str, part: dict[str, str], *arguments: str) -> str:
    """Create a one-pod Job for nodes with the labels *part*; return its name."""
    metadata = {"annotations": QUICK}
    container = {"name": "main", "image": "busybox", "args": list(arguments)}
    spec = {"nodeSelector": box.labels | part, "restartPolicy": "Never", "containers": [container]}
    job = box.manifest("batch/v1", "Job", name, spec={"template": {"metadata": metadata, "spec": spec}})
    box.cluster.apply(job)
    return str(job["metadata"]["name"])


def pod(box: Sandbox, name: str) -> Manifest:
    """Return the current pod."""
    return box.cluster.get("pod", name, "--namespace", box.name)


def wait_for_pod(box: Sandbox, name: str, check: Callable[[Manifest], bool], deadline_s: float = 30) -> Manifest:
    """Wait until a check holds for a pod; return that pod."""
    pods: list[Manifest] = []

    def is_fulfilled() -> bool:
        pods[:] = [pod(box, name)]
        return check(pods[0])

    waiting.until(is_fulfilled, deadline_s=deadline_s)
    return pods[0]


def is_ready(manifest: Manifest) -> bool:
    """Return whether a pod or node is Ready."""
    return bool(conditions(manifest).get("Ready", {}).get("status") == "True")


def wait_for_job(box: Sandbox, job: str) -> Manifest:
    """Wait until a Job is complete; return its pod."""
    waiting.until(lambda: "Complete" in conditions(box.cluster.get("job", job, "--namespace", box.name)))
    selector = ("--selector", f"batch.kubernetes.io/job-name={job}")
    pods: list[Manifest] = box.cluster.get("pods", "--namespace", box.name, *selector)["items"]
    return pods[0]


def phase(name: str) -> Callable[[Manifest], bool]:
    """Return a check for a pod's phase."""
    return lambda manifest: bool(manifest["status"].get("phase") == name)


def is_backing_off(manifest: Manifest) -> bool:
    """Return whether a pod's first container is backing off."""
    return bool(
        manifest["status"]["containerStatuses"][0]["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
