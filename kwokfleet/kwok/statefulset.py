"""kwok as pods of a StatefulSet: its desired configuration, and the state of its pods.

The StatefulSet and its ConfigMap of the same name are installed separately. They do not set the fields that are
set here, so they can be applied again without a conflict. The configuration is in the ConfigMap and in the flags of
the container `kwok`. A digest of both is an annotation of the pods: when it changes, Kubernetes replaces the pods
one by one.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson

from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.requests import CONFIG_MAP, POD, STATEFUL_SET, Request, path, write_query
from kwokfleet.kwok import flags, sharding

STRATEGIC = "application/strategic-merge-patch+json"
DIGEST = f"{objects.PREFIX}/kwok-digest"
"""Annotation of pods: the digest of their configuration."""
CONTAINER, HTTP, FILE = "kwok", "http", "kwok.yaml"
SELECTOR = "app.kubernetes.io/part-of=kwokfleet,app.kubernetes.io/component=kwok"
"""Label selector of the pods."""
_HOLDER = re.compile(r"(.+)-\d+_[^_]+")


@dataclass(frozen=True, slots=True)
class StatefulSetName:
    """Namespace and name of a StatefulSet."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return kind, namespace and name."""
        return f"StatefulSet {self.namespace}/{self.name}"

    @property
    def key(self) -> ObjectKey:
        """The key of the StatefulSet."""
        return ObjectKey(STATEFUL_SET.api_version, STATEFUL_SET.kind, self.namespace, self.name)

    @property
    def config(self) -> ObjectKey:
        """The key of its ConfigMap."""
        return ObjectKey(CONFIG_MAP.api_version, CONFIG_MAP.kind, self.namespace, self.name)

    def pod(self, index: int) -> ObjectKey:
        """Return the key of one of its pods."""
        return ObjectKey(POD.api_version, POD.kind, self.namespace, f"{self.name}-{index}")

    def holds(self, holder: str) -> bool:
        """Return whether a lease holder is or was one of its pods: the identity starts with the host name."""
        match = _HOLDER.fullmatch(holder)
        return match is not None and match[1] == self.name


def from_spec(spec: KwokControllerSpec, home: str) -> StatefulSetName | None:
    """Return the StatefulSet of the spec; None if kwok runs as local processes."""
    if spec.stateful_set is None:
        return None
    namespace, _, name = spec.stateful_set.rpartition("/")
    return StatefulSetName(namespace or home, name)


def from_holder(holder: str, home: str) -> StatefulSetName | None:
    """Return the StatefulSet in namespace *home* that a lease holder may belong to."""
    match = _HOLDER.fullmatch(holder)
    return StatefulSetName(home, match[1]) if match else None


@dataclass(frozen=True, slots=True)
class PodConfig:
    """Desired configuration of the pods."""

    flags: tuple[str, ...]
    config: str
    port: int
    mark: str = ""
    """Digest of objects that kwok reads only once."""

    @property
    def digest(self) -> str:
        """Digest of the configuration."""
        content = orjson.dumps([self.flags, self.config, self.port, self.mark])
        return hashlib.blake2b(content, digest_size=8).hexdigest()


def pod_config(spec: KwokControllerSpec, kinds: Sequence[str], mark: str) -> PodConfig:
    """Return the desired configuration of the pods."""
    config = flags.config_file(spec, sharding.shard_spec(spec, 0), (), kinds)
    return PodConfig(tuple(flags.pod_arguments(spec, kinds)), config, spec.port or flags.POD_PORT, mark)


def replicas(stateful_set: Manifest) -> int:
    """Return the desired number of pods."""
    count = (stateful_set.get("spec") or {}).get("replicas")
    return 1 if count is None else int(count)


def digest(stateful_set: Manifest) -> str:
    """Return the digest of its configuration; empty before the first one."""
    metadata = stateful_set["spec"]["template"].get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(DIGEST, ""))


def configmap_patch(name: StatefulSetName, config: PodConfig) -> Request:
    """Return the request that writes the configuration file."""
    body = orjson.dumps({"data": {FILE: config.config}})
    return Request("PATCH", f"{path(name.config)}?{write_query()}", body, STRATEGIC)


def scale_patch(name: StatefulSetName, count: int, config: PodConfig | None = None) -> Request:
    """Return the request that sets the number of pods and, optionally, their configuration."""
    spec: Manifest = {"replicas": count}
    if config is not None:
        ports = [{"$patch": "replace"}, {"name": HTTP, "containerPort": config.port, "protocol": "TCP"}]
        container = {"name": CONTAINER, "args": list(config.flags), "ports": ports}
        metadata = {"annotations": {DIGEST: config.digest}}
        spec["template"] = {"metadata": metadata, "spec": {"containers": [container]}}
    return Request("PATCH", f"{path(name.key)}?{write_query()}", orjson.dumps({"spec": spec}), STRATEGIC)


def node_address_patch(node: str, address: str) -> Request:
    """Return the request that writes the address of its kwok pod to a node.

    kwok owns this field, not the files: the field manager is kwok, so that no diff shows it.
    """
    status_path = path(ObjectKey("v1", "Node", "", node), "status")
    body = {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}
    return Request("PATCH", f"{status_path}?fieldManager=kwok", orjson.dumps(body), STRATEGIC)


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One run of a pod's container; a restart or a new pod is another run."""

    uid: str
    restarts: int
    started_at: datetime | None
    """None if it does not run."""
    ready: bool
    address: str
    deleting: bool
    grace_s: int
    last_exit_code: int
    """Exit code of the run before."""
    last_log: str
    """End of the log of the run before."""
    not_running_reason: str

    def is_same(self, other: "ContainerRun") -> bool:
        """Return whether both are the same run."""
        return (self.uid, self.restarts) == (other.uid, other.restarts)


def is_configured(pod: Manifest) -> bool:
    """Return whether a pod has a configuration of kwokfleet; a pod without one drives no node."""
    return DIGEST in (pod["metadata"].get("annotations") or {})


def container_run(pod: Manifest) -> ContainerRun:
    """Return the current run of a pod's container."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    statuses = status.get("containerStatuses") or ()
    container: Manifest = next((status for status in statuses if status["name"] == CONTAINER), {})
    state, before = container.get("state") or {}, (container.get("lastState") or {}).get("terminated") or {}
    ended = state.get("terminated") or before
    started = (state.get("running") or {}).get("startedAt")
    return ContainerRun(
        metadata["uid"],
        int(container.get("restartCount") or 0),
        datetime.fromisoformat(started) if started else None,
        bool(container.get("ready")),
        status.get("podIP") or "",
        "deletionTimestamp" in metadata,
        int(metadata.get("deletionGracePeriodSeconds") or 0),
        int(ended.get("exitCode") or 0),
        (ended.get("message") or ended.get("reason") or "").strip(),
        "" if started else _not_running_reason(status, state),
    )


def _not_running_reason(status: Manifest, state: Manifest) -> str:
    """Return the reason of the container's state, or else of the pod's conditions."""
    conditions = (condition for condition in status.get("conditions") or () if condition["status"] != "True")
    for cause in (*state.values(), *conditions):
        if text := ": ".join(filter(None, (cause.get("reason"), cause.get("message")))):
            return text
    return str(status.get("phase") or "Pending")
