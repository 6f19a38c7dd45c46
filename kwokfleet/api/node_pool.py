"""Models of a Fleet's node pools: templates, taints, schedules, drain, autoscaler."""

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kwokfleet.api import fields
from kwokfleet.api.wave import PodUsage
from kwokfleet.kube.objects import Manifest

_TAINT = re.compile(r"([^=:\s]+)(?:=([^=:\s]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")


def _short_taint(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _TAINT.fullmatch(value)
    if not match:
        raise fields.invalid(
            f"must be key=value:EFFECT with effect NoSchedule, PreferNoSchedule or NoExecute, got {value!r}"
        )
    return {"key": match[1], "value": match[2] or "", "effect": match[3]}


class Taint(fields.Model):
    """Taint of a node. Short form: `key=value:Effect`."""

    key: str = Field(min_length=1, description="Taint key.")
    value: str = Field(default="", description="Taint value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(description="Taint effect.")


class Resize(fields.OneOf):
    """Scheduled change of a pool's replicas."""

    alternatives = ("cron", "at")

    cron: fields.Cron | None = Field(default=None, description="Cron expression of the times of the change.")
    at: fields.Instant | None = Field(default=None, description="Time of a single change.")
    time_zone: fields.TimeZone = Field(default="UTC", description="Time zone of `cron`.")
    replicas: fields.Count = Field(description="Number of nodes from that time on.")

    @model_validator(mode="after")
    def _consistent(self) -> "Resize":
        if self.cron is None and "time_zone" in self.model_fields_set:
            raise fields.invalid("requires cron; remove timeZone", "timeZone")
        return self


class NodeSelector(fields.Model):
    """Selects live nodes as templates."""

    match_labels: fields.Labels = Field(default={}, description="Required labels.")
    names: fields.Items[str] = Field(default=(), description="Node names, instead of labels.")


class TemplateFrom(fields.OneOf):
    """Source of a pool's node template: a file, or live nodes of a cluster."""

    alternatives = ("file", "nodes")

    file: str | None = Field(
        default=None,
        description="File with Nodes, a v1 List of Nodes, or the template ConfigMap of the cluster-autoscaler. "
        "Relative to this file.",
    )
    nodes: NodeSelector | None = Field(
        default=None, description="Live nodes of a cluster, without identity, conditions and images."
    )
    match_labels: fields.Labels = Field(default={}, description="Use only nodes of the file with these labels.")
    context: str | None = Field(
        default=None, description="Kubeconfig context of the live nodes. Default: the current context."
    )

    @model_validator(mode="after")
    def _consistent(self) -> "TemplateFrom":
        if self.file is not None and self.context is not None:
            raise fields.invalid("requires nodes, not file; remove context", "context")
        if self.nodes is not None and self.match_labels:
            raise fields.invalid("must be under nodes: move it to nodes.matchLabels", "matchLabels")
        return self


class Drain(fields.Model):
    """Treatment of the pods of a node before the node is deleted."""

    policy: Literal["evict", "delete", "none"] = Field(
        default="evict",
        description="evict: evict pods and respect PodDisruptionBudgets; delete: delete pods; none: leave pods to the "
        "garbage collector.",
    )
    timeout: fields.Duration = Field(
        default=timedelta(seconds=60), description="Maximum time to wait for the pods of a node."
    )


class Autoscaler(fields.Model):
    """Size limits of a pool that is scaled by the kwok provider of the cluster-autoscaler."""

    min: fields.Count = Field(default=0, description="Minimum number of nodes.")
    max: fields.Count = Field(default=200, description="Maximum number of nodes.")
    desired: fields.Count | None = Field(default=None, description="Initial number of nodes. Default: `min`.")

    @model_validator(mode="after")
    def _ordered(self) -> "Autoscaler":
        if self.max < self.min:
            raise fields.invalid(f"must be min ({self.min}) or more, got {self.max}", "max")
        if self.desired is not None and not self.min <= self.desired <= self.max:
            raise fields.invalid(
                f"must be between min ({self.min}) and max ({self.max}), got {self.desired}", "desired"
            )
        return self


_NODE_NAME = re.compile(r"(?:[-a-z0-9.]|\{(?:fleet|pool)\}|\{index(?::0[1-9])?\})+")


def _node_name(value: str) -> str:
    if not _NODE_NAME.fullmatch(value) or "{index" not in value:
        raise fields.invalid(
            "must contain {index} or {index:06}, and otherwise only {fleet}, {pool}, lower-case letters, "
            "digits, '-', '.'"
        )
    return value


class NodePool(fields.Model):
    """Fake nodes created from one template."""

    name: fields.Name = Field(description="Name within the Fleet.")
    suspend: bool = Field(default=False, description="Do not change the nodes of this pool.")
    replicas: fields.Count | None = Field(default=None, description="Number of nodes.")
    schedule: fields.Items[Resize] = Field(
        default=(), description="Scheduled changes of the number of nodes. `replicas` applies until the first change."
    )
    autoscaler: Autoscaler | None = Field(
        default=None, description="Let the cluster-autoscaler scale the pool, instead of `replicas`."
    )
    resources: fields.Resources = Field(
        default={},
        description="Capacity and allocatable of each node: cpu, memory, pods, and extended resources like "
        "nvidia.com/gpu.",
    )
    labels: fields.Labels = Field(default={}, description="Labels of each node.")
    annotations: fields.Annotations = Field(default={}, description="Annotations of each node.")
    taints: fields.Items[Annotated[Taint, BeforeValidator(_short_taint)]] = Field(
        default=(), description="Taints, in addition to the fake-node taint."
    )
    taint: bool = Field(
        default=True,
        description="Add the taint kwok.x-k8s.io/node=fake:NoSchedule, which keeps real pods off the nodes.",
    )
    spread: dict[str, Annotated[fields.Items[str], Field(min_length=1)]] = Field(
        default={},
        description="Labels with values that are distributed evenly over the nodes, for example zones or racks.",
    )
    template: Manifest = Field(default={}, description="Partial v1 Node, merged over `templateFrom`.")
    template_from: TemplateFrom | None = Field(default=None, description="Node template from a file or a live cluster.")
    node_name: Annotated[str, AfterValidator(_node_name)] = Field(
        default="{fleet}-{pool}-{index}", description="Pattern of the node names. {index:06} pads the index with zeros."
    )
    provider_id: bool = Field(
        default=True,
        alias="providerID",
        description="Set spec.providerID to kwok://NAME, so that cloud controllers do not delete the node.",
    )
    pod_cidr: fields.Cidr | None = Field(
        default=None, alias="podCIDR", description="Network that is divided into one podCIDR per node."
    )
    lifecycle: fields.Name | None = Field(
        default=None, description="Lifecycle of the nodes. Default: nodes are created Ready and stay Ready."
    )
    usage: PodUsage | None = Field(
        default=None,
        description="Resource usage of each pod on these nodes, unless set by its wave. Shown by kubectl top and "
        "dashboards.",
    )
    drain: Drain = Field(
        default_factory=Drain.model_construct, description="Treatment of the pods of a node before the node is deleted."
    )
    scale_down: Literal["highestIndex", "emptiest", "newest"] = Field(
        default="highestIndex", description="Which nodes are deleted first when the pool shrinks."
    )
    adopt: bool = Field(default=False, description="Adopt existing nodes with the same names.")

    @model_validator(mode="after")
    def _sized(self) -> "NodePool":
        if self.autoscaler is not None:
            if self.replicas is not None:
                raise fields.invalid("cannot be combined with autoscaler; remove one of them", "replicas")
            if self.schedule:
                raise fields.invalid("cannot be combined with autoscaler; remove one of them", "schedule")
        elif self.replicas is None:
            raise fields.invalid("replicas or autoscaler is required")
        return self
