"""kwok as the pods of a StatefulSet, purely: what the StatefulSet should be, and how one of its pods fares.

The StatefulSet and its ConfigMap, which has the same name, are installed by somebody else and say nothing of what
is set here: so they can be applied again without taking it back. What kwok is told stands in the ConfigMap and
in the flags of the container `kwok`; a digest of both in the pods' annotations lets Kubernetes replace them, one
after the other, when it changes.
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
"""The annotation of pods that says what they were started with."""
CONTAINER, HTTP, FILE = "kwok", "http", "kwok.yaml"
SELECTOR = "app.kubernetes.io/part-of=kwokfleet,app.kubernetes.io/component=kwok"
"""Finds the pods among others of the namespace."""
_HOLDER = re.compile(r"(.+)-\d+_[^_]+")


@dataclass(frozen=True, slots=True)
class StatefulSetName:
    """A StatefulSet by its name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return it as people name it."""
        return f"StatefulSet {self.namespace}/{self.name}"

    @property
    def key(self) -> ObjectKey:
        """What tells it from all others."""
        return ObjectKey(STATEFUL_SET.api_version, STATEFUL_SET.kind, self.namespace, self.name)

    @property
    def config(self) -> ObjectKey:
        """What tells its ConfigMap from all others."""
        return ObjectKey(CONFIG_MAP.api_version, CONFIG_MAP.kind, self.namespace, self.name)

    def pod(self, index: int) -> ObjectKey:
        """Return what tells one of its pods from all others."""
        return ObjectKey(POD.api_version, POD.kind, self.namespace, f"{self.name}-{index}")

    def holds(self, holder: str) -> bool:
        """Return whether a lease's holder is, or was, one of its pods: kwok's name begins with its host's."""
        match = _HOLDER.fullmatch(holder)
        return match is not None and match[1] == self.name


def from_spec(spec: KwokControllerSpec, home: str) -> StatefulSetName | None:
    """Return the StatefulSet that kwok runs as, None if it runs as processes of ours."""
    if spec.stateful_set is None:
        return None
    namespace, _, name = spec.stateful_set.rpartition("/")
    return StatefulSetName(namespace or home, name)


def from_holder(holder: str, home: str) -> StatefulSetName | None:
    """Return the StatefulSet at home that a lease's holder may be a pod of."""
    match = _HOLDER.fullmatch(holder)
    return StatefulSetName(home, match[1]) if match else None


# ----------------------------------------------------------------------------------------
# what it should be


@dataclass(frozen=True, slots=True)
class PodConfig:
    """How the pods should run."""

    flags: tuple[str, ...]
    config: str
    port: int
    mark: str = ""
    """What stands for everything else that kwok reads but once."""

    @property
    def digest(self) -> str:
        """What tells it from any other."""
        whole = orjson.dumps([self.flags, self.config, self.port, self.mark])
        return hashlib.blake2b(whole, digest_size=8).hexdigest()


def pod_config(spec: KwokControllerSpec, kinds: Sequence[str], mark: str) -> PodConfig:
    """Return how the files let pods run."""
    config = flags.config_file(spec, sharding.shard_spec(spec, 0), (), kinds)
    return PodConfig(tuple(flags.pod_arguments(spec, kinds)), config, spec.port or flags.POD_PORT, mark)


def replicas(stateful_set: Manifest) -> int:
    """Return how many pods it is to have."""
    count = (stateful_set.get("spec") or {}).get("replicas")
    return 1 if count is None else int(count)


def digest(stateful_set: Manifest) -> str:
    """Return what its pods are started with; empty if kwokfleet has never told it."""
    metadata = stateful_set["spec"]["template"].get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(DIGEST, ""))


def configmap_patch(name: StatefulSetName, how: PodConfig) -> Request:
    """Return the request that lets its pods, when they start, find their configuration."""
    body = orjson.dumps({"data": {FILE: how.config}})
    return Request("PATCH", f"{path(name.config)}?{write_query()}", body, STRATEGIC)


def scale_patch(name: StatefulSetName, count: int, how: PodConfig | None = None) -> Request:
    """Return the request that gives it so many pods and, if that is said, lets them run in a certain way."""
    spec: Manifest = {"replicas": count}
    if how is not None:
        ports = [{"$patch": "replace"}, {"name": HTTP, "containerPort": how.port, "protocol": "TCP"}]
        container = {"name": CONTAINER, "args": list(how.flags), "ports": ports}
        metadata = {"annotations": {DIGEST: how.digest}}
        spec["template"] = {"metadata": metadata, "spec": {"containers": [container]}}
    return Request("PATCH", f"{path(name.key)}?{write_query()}", orjson.dumps({"spec": spec}), STRATEGIC)


def node_address_patch(node: str, address: str) -> Request:
    """Return the request that lets a node show the address of the pod that is its kubelet.

    It is kwok's to say, not the files': so it is written in kwok's name, and no diff shows it.
    """
    where = path(ObjectKey("v1", "Node", "", node), "status")
    body = {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}
    return Request("PATCH", f"{where}?fieldManager=kwok", orjson.dumps(body), STRATEGIC)


# ----------------------------------------------------------------------------------------
# how a pod fares


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One life of a pod's container: the pod may be another one, or the container have been started again."""

    uid: str
    restarts: int
    began: datetime | None
    """When it started; None if it does not run."""
    ready: bool
    address: str
    deleting: bool
    grace_s: int
    code: int
    """With what the life before this one ended."""
    last_words: str
    lacks: str
    """Why it does not run."""

    def is_same(self, other: "ContainerRun") -> bool:
        """Return whether that is one life."""
        return (self.uid, self.restarts) == (other.uid, other.restarts)


def is_configured(pod: Manifest) -> bool:
    """Return whether a pod was made after kwokfleet said how it runs: one from before drives nothing."""
    return DIGEST in (pod["metadata"].get("annotations") or {})


def container_run(pod: Manifest) -> ContainerRun:
    """Read a pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    found: Manifest = next((each for each in status.get("containerStatuses") or () if each["name"] == CONTAINER), {})
    state, before = found.get("state") or {}, (found.get("lastState") or {}).get("terminated") or {}
    ended = state.get("terminated") or before
    started = (state.get("running") or {}).get("startedAt")
    return ContainerRun(
        metadata["uid"],
        int(found.get("restartCount") or 0),
        datetime.fromisoformat(started) if started else None,
        bool(found.get("ready")),
        status.get("podIP") or "",
        "deletionTimestamp" in metadata,
        int(metadata.get("deletionGracePeriodSeconds") or 0),
        int(ended.get("exitCode") or 0),
        (ended.get("message") or ended.get("reason") or "").strip(),
        "" if started else _lacks(status, state),
    )


def _lacks(status: Manifest, state: Manifest) -> str:
    """Return why a container does not run: what Kubernetes says of it, or else of the pod."""
    for each in (*state.values(), *(each for each in status.get("conditions") or () if each["status"] != "True")):
        if words := ": ".join(filter(None, (each.get("reason"), each.get("message")))):
            return words
    return str(status.get("phase") or "Pending")
