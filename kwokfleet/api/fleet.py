"""The Fleet API, `kwokfleet.dev/v1alpha1`: everything a file can say, as frozen models.

Each field's description ends up in the JSON Schema, in editors and in docs/reference.md: it is
written for the person who writes the file.
"""

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kwokfleet.api.delay import AnyDelay, fixed_delay
from kwokfleet.api.fields import (
    Annotations,
    Cidr,
    Count,
    Cron,
    Duration,
    Instant,
    Items,
    Labels,
    Manifest,
    Metadata,
    Model,
    Name,
    Percent,
    Resources,
    Share,
    TimeZone,
    invalid,
)
from kwokfleet.api.kwok_controller import KwokController
from kwokfleet.api.wave import PodUsage, Wave, exactly_one
from kwokfleet.documents import problems

GROUP = "kwokfleet.dev"
API_VERSION = f"{GROUP}/v1alpha1"

# ----------------------------------------------------------------------------------------
# lifecycles


def _short_complete(value: object) -> object:
    long = isinstance(value, dict) and any(problems.closest_name(str(key), ("after", "when")) for key in value)
    return value if long else {"after": value}


class Complete(Model):
    """When a pod is done."""

    after: AnyDelay = Field(description="How long after its containers started.")
    when: Literal["job", "always"] = Field(default="job", description="job: only pods of a Job; always: every pod.")


class Fail(Model):
    """How a pod may fail instead."""

    probability: Share = Field(description="How many of the pods fail.")
    after: AnyDelay | None = Field(
        default=None, description="How long after its containers started; as `complete` without it."
    )
    reason: str = Field(default="Error", description="The container's reason, as in OOMKilled.", min_length=1)
    exit_code: int = Field(default=1, ge=1, le=255, description="The container's exit code.")
    message: str = Field(default="", description="The container's message.")


class Restart(Model):
    """Containers that crash and start again, as in CrashLoopBackOff."""

    every: AnyDelay = Field(description="How long a container runs until it crashes.")
    backoff: AnyDelay = Field(
        default_factory=lambda: fixed_delay("10s"), description="How long it waits until it starts again."
    )
    reason: str = Field(default="Error", description="The container's reason.", min_length=1)
    exit_code: int = Field(default=1, ge=0, le=255, description="The container's exit code.")


class PodLifecycle(Model):
    """What a pod goes through once it is bound to a node."""

    create: AnyDelay = Field(
        default_factory=lambda: fixed_delay("0s"), description="From its binding to ContainerCreating."
    )
    init: AnyDelay = Field(
        default_factory=lambda: fixed_delay("0s"),
        description="How long its init containers take, if it has any.",
    )
    ready: AnyDelay = Field(
        default_factory=lambda: fixed_delay("0s"), description="From ContainerCreating to Running and Ready."
    )
    complete: Annotated[Complete, BeforeValidator(_short_complete)] | None = Field(
        default=None, description="When it is done; without it, never."
    )
    fail: Fail | None = Field(default=None, description="How it may fail instead.")
    restart: Restart | None = Field(default=None, description="How its containers crash and start again.")
    delete: AnyDelay = Field(default_factory=lambda: fixed_delay("0s"), description="From its deletion to its end.")


class NotReady(Model):
    """Nodes that fail and come back."""

    every: Duration = Field(description="How often a node fails, on average.")
    for_: AnyDelay = Field(alias="for", description="How long it stays away.")
    reason: str = Field(default="KubeletNotReady", description="The condition's reason.", min_length=1)
    message: str = Field(default="the node has failed", description="The condition's message.")


class NodeLifecycle(Model):
    """What a node goes through."""

    boot: AnyDelay | None = Field(
        default=None, description="From its creation to Ready; without it, a node is born Ready."
    )
    not_ready: NotReady | None = Field(default=None, description="How it fails and comes back.")


class Lifecycle(Model):
    """Our short way to say what pods or nodes go through; it becomes kwok Stages."""

    name: Name = Field(description="Its name within the Fleet; Waves and pools refer to it.")
    pod: PodLifecycle | None = Field(default=None, description="What pods go through.")
    node: NodeLifecycle | None = Field(default=None, description="What nodes go through.")

    @model_validator(mode="after")
    def _one(self) -> "Lifecycle":
        exactly_one(self, "pod", "node")
        return self


# ----------------------------------------------------------------------------------------
# node pools


_TAINT = re.compile(r"([^=:\s]+)(?:=([^=:\s]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")


def _short_taint(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _TAINT.fullmatch(value)
    if not match:
        raise invalid("must be key=value:Effect, with NoSchedule, PreferNoSchedule or NoExecute as effect")
    return {"key": match[1], "value": match[2] or "", "effect": match[3]}


class Taint(Model):
    """A taint; `key=value:Effect` for short."""

    key: str = Field(min_length=1, description="Its key.")
    value: str = Field(default="", description="Its value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(description="What it does.")


class Resize(Model):
    """A number of nodes from a time on."""

    cron: Cron | None = Field(default=None, description="At these times.")
    at: Instant | None = Field(default=None, description="Once, at this time.")
    time_zone: TimeZone = Field(default="UTC", description="The time zone `cron` is meant in.")
    replicas: Count = Field(description="How many nodes there should be from then on.")

    @model_validator(mode="after")
    def _one(self) -> "Resize":
        exactly_one(self, "cron", "at")
        if self.cron is None and "time_zone" in self.model_fields_set:
            raise invalid("belongs to cron", "timeZone")
        return self


class NodeSelector(Model):
    """Which live nodes are taken as templates."""

    match_labels: Labels = Field(default={}, description="Labels they must have.")
    names: Items[str] = Field(default=(), description="Names, instead of labels.")


class TemplateFrom(Model):
    """Where a pool's template comes from: a file, or live nodes of a cluster."""

    file: str | None = Field(
        default=None,
        description="A file beside this one: Nodes, a v1 List of them, or the cluster-autoscaler's template ConfigMap.",
    )
    nodes: NodeSelector | None = Field(
        default=None, description="Live nodes of a cluster; identity, conditions and images are left out."
    )
    match_labels: Labels = Field(default={}, description="Of the file's nodes, only those with these labels.")
    context: str | None = Field(
        default=None, description="The kubeconfig context to read live nodes from; without it, the current one."
    )

    @model_validator(mode="after")
    def _one(self) -> "TemplateFrom":
        shape = exactly_one(self, "file", "nodes")
        if shape == "file" and self.context is not None:
            raise invalid("belongs to nodes, not to file", "context")
        if shape == "nodes" and self.match_labels:
            raise invalid("belongs under nodes", "matchLabels")
        return self


class Drain(Model):
    """What happens to the pods of a node before it goes."""

    policy: Literal["evict", "delete", "none"] = Field(
        default="evict",
        description="evict: respects PodDisruptionBudgets; delete: does not; none: the garbage collector will.",
    )
    timeout: Duration = Field(default=timedelta(seconds=60), description="How long to wait for them.")


class Autoscaler(Model):
    """A pool whose size belongs to the cluster-autoscaler's kwok provider."""

    min: Count = Field(default=0, description="The least number of nodes.")
    max: Count = Field(default=200, description="The greatest number of nodes.")
    desired: Count | None = Field(default=None, description="How many to start with; `min` without it.")

    @model_validator(mode="after")
    def _ordered(self) -> "Autoscaler":
        if self.max < self.min:
            raise invalid("must not be below min", "max")
        if self.desired is not None and not self.min <= self.desired <= self.max:
            raise invalid("must lie between min and max", "desired")
        return self


_NODE_NAME = re.compile(r"(?:[-a-z0-9.]|\{(?:fleet|pool)\}|\{index(?::0[1-9])?\})+")


def _node_name(value: str) -> str:
    if not _NODE_NAME.fullmatch(value) or "{index" not in value:
        raise invalid(
            "must contain {index} (or {index:06}); else only {fleet}, {pool}, lower-case letters, digits, '-', '.'"
        )
    return value


class NodePool(Model):
    """A number of fake nodes made from one template."""

    name: Name = Field(description="Its name within the Fleet.")
    suspend: bool = Field(default=False, description="Leave its nodes as they are.")
    replicas: Count | None = Field(default=None, description="How many nodes.")
    schedule: Items[Resize] = Field(
        default=(), description="Other numbers of nodes at other times; `replicas` holds until the first."
    )
    autoscaler: Autoscaler | None = Field(
        default=None, description="Leave the number to the cluster-autoscaler, instead of `replicas`."
    )
    resources: Resources = Field(
        default={},
        description="Capacity and allocatable of each node: cpu, memory, pods, nvidia.com/gpu, any extended resource.",
    )
    labels: Labels = Field(default={}, description="Labels for each node.")
    annotations: Annotations = Field(default={}, description="Annotations for each node.")
    taints: Items[Annotated[Taint, BeforeValidator(_short_taint)]] = Field(
        default=(), description="Taints beside the fake one."
    )
    taint: bool = Field(
        default=True, description="Taint each node kwok.x-k8s.io/node=fake:NoSchedule, so that no real pod lands there."
    )
    spread: dict[str, Annotated[Items[str], Field(min_length=1)]] = Field(
        default={}, description="Labels whose values are dealt out evenly, node by node; zones, racks."
    )
    template: Manifest = Field(default={}, description="A partial v1 Node, laid over `templateFrom`.")
    template_from: TemplateFrom | None = Field(default=None, description="A template from a file or a live cluster.")
    node_name: Annotated[str, AfterValidator(_node_name)] = Field(
        default="{fleet}-{pool}-{index}", description="How the nodes are called; {index:06} pads with zeros."
    )
    provider_id: bool = Field(
        default=True,
        alias="providerID",
        description="Give each node the providerID kwok://NAME, so that cloud controllers let it live.",
    )
    pod_cidr: Cidr | None = Field(
        default=None, alias="podCIDR", description="The network from which each node gets a podCIDR of its own."
    )
    lifecycle: Name | None = Field(
        default=None, description="The Lifecycle its nodes go through; without it, they are born Ready and stay so."
    )
    usage: PodUsage | None = Field(
        default=None,
        description="What each pod on its nodes uses, unless its Wave says; for kubectl top and dashboards.",
    )
    drain: Drain = Field(
        default_factory=Drain.model_construct, description="What happens to the pods of a node before it goes."
    )
    scale_down: Literal["highestIndex", "emptiest", "newest"] = Field(
        default="highestIndex", description="Which nodes go first."
    )
    adopt: bool = Field(default=False, description="Take over nodes of the same name that are there already.")

    @model_validator(mode="after")
    def _sized(self) -> "NodePool":
        if self.autoscaler is not None:
            if self.replicas is not None:
                raise invalid("belongs to the autoscaler in this pool, remove one of the two", "replicas")
            if self.schedule:
                raise invalid("belongs to the autoscaler in this pool, remove one of the two", "schedule")
        elif self.replicas is None:
            raise invalid("needs replicas (or autoscaler)")
        return self


# ----------------------------------------------------------------------------------------
# the Fleet


def _short_stage(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class StageReference(Model):
    """Raw kwok Stages: by name, or from a file."""

    name: str | None = Field(
        default=None, min_length=1, description="A set of the library, or a Stage of the tree, by name."
    )
    file: str | None = Field(default=None, min_length=1, description="A file with Stages, relative to this one.")

    @model_validator(mode="after")
    def _one(self) -> "StageReference":
        exactly_one(self, "name", "file")
        return self


class KwokFile(Model):
    """A file with kwok's own objects, as kwok documents them."""

    file: str = Field(min_length=1, description="The file, relative to this one.")


class Prune(Model):
    """How much may vanish at once."""

    max_percent: Percent = Field(
        default=25.0,
        description="A plan that deletes more of the Fleet because it vanished from the files waits for approval.",
    )


class Window(Model):
    """When changes may be made."""

    allow: Cron | None = Field(default=None, description="Minutes in which they may, as in `* 8-20 * * mon-fri`.")
    deny: Cron | None = Field(default=None, description="Minutes in which they may not; wins over allow.")
    time_zone: TimeZone = Field(default="UTC", description="The time zone it is meant in.")

    @model_validator(mode="after")
    def _one(self) -> "Window":
        exactly_one(self, "allow", "deny")
        return self


class NodeGroups(Model):
    """How the cluster-autoscaler's kwok provider finds its node groups, and where its configuration lives."""

    namespace: str = Field(
        default="default", min_length=1, description="The namespace that the autoscaler reads its ConfigMaps from."
    )
    label: str | None = Field(
        default=None, description="The node label that names the group; `kwok-nodegroup` unless `annotation` is given."
    )
    annotation: str | None = Field(default=None, description="The node annotation that names the group, instead.")
    gpu_label: str | None = Field(default=None, description="The label that tells a node's kind of GPU.")
    gpu_types: Items[str] = Field(default=(), description="The kinds of GPU there are.")

    @model_validator(mode="after")
    def _consistent(self) -> "NodeGroups":
        if self.label is not None and self.annotation is not None:
            raise invalid("takes only one of label or annotation", "annotation")
        if self.label == "kubernetes.io/hostname":
            raise invalid("must not be kubernetes.io/hostname: the autoscaler would scale up without end", "label")
        if bool(self.gpu_label) != bool(self.gpu_types):
            raise invalid("needs both gpuLabel and gpuTypes, or none", "gpuTypes" if self.gpu_types else "gpuLabel")
        return self


class FleetSpec(Model):
    """What a simulated cluster should look like, and what should happen on it."""

    seed: int = Field(default=0, description="Everything random follows from it: same file, same seed, same run.")
    suspend: bool = Field(default=False, description="Leave everything as it is.")
    adopt: bool = Field(default=False, description="Take over objects of the same names that are there already.")
    prune: Prune = Field(default_factory=Prune.model_construct, description="How much may vanish at once.")
    windows: Items[Window] = Field(default=(), description="When changes may be made; always, without it.")
    node_pools: Items[NodePool] = Field(default=(), description="The fake nodes.")
    lifecycles: Items[Lifecycle] = Field(default=(), description="What pods and nodes go through.")
    stages: Items[Annotated[StageReference, BeforeValidator(_short_stage)]] = Field(
        default=(), description="Raw kwok Stages beside the lifecycles: sets of the library by name, or {file: PATH}."
    )
    kwok_resources: Items[KwokFile] = Field(
        default=(),
        description="Files with kwok's Logs, Exec, Attach, PortForward (and Cluster forms), ResourceUsage or Metric. "
        "Exec runs commands on kwok's machine.",
    )
    waves: Items[Wave] = Field(default=(), description="The workload.")
    node_groups: NodeGroups = Field(
        default_factory=NodeGroups.model_construct,
        description="For pools with `autoscaler`: how it finds its node groups.",
    )


class Fleet(Model):
    """Node pools, lifecycles and waves: a simulated cluster and what happens on it."""

    api_version: Literal["kwokfleet.dev/v1alpha1"] = Field(description="Always kwokfleet.dev/v1alpha1.")
    kind: Literal["Fleet"] = Field(description="Always Fleet.")
    metadata: Metadata = Field(description="Its name.")
    spec: FleetSpec = Field(description="What it should look like.")

    @property
    def name(self) -> str:
        """Return its name."""
        return self.metadata.name


KINDS: dict[str, type[Fleet] | type[KwokController]] = {"Fleet": Fleet, "KwokController": KwokController}
