"""Models of the KwokController document: configuration of the kwok controller."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from kwokfleet.api.fields import Cidr, Duration, IpAddress, Metadata, Model, Quantity, invalid

LOOPBACK = "127.0.0.1"
DEFAULT_NODE_IP = "10.0.0.1"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
MAX_PORT = 65535


class Takeover(Model):
    """Treatment of a kwok controller that already runs in the cluster."""

    deployment: str | None = Field(
        default=None,
        pattern=r"^[-a-z0-9]+/[-a-z0-9.]+$",
        description="NAMESPACE/NAME of its Deployment. Default: discovered.",
    )
    policy: Literal["refuse", "scaleDown"] = Field(
        default="refuse", description="refuse: exit with an error; scaleDown: scale it to 0, and restore it on exit."
    )


class Parallelism(Model):
    """Parallelism of kwok."""

    nodes: int = Field(default=4, ge=1, le=1024, description="Node Stages played in parallel.")
    pods: int = Field(default=4, ge=1, le=1024, description="Pod Stages played in parallel.")
    leases: int = Field(default=16, ge=1, le=1024, description="Leases renewed in parallel.")


class Manage(Model):
    """Nodes that kwok manages."""

    annotation: str = Field(
        default="kwok.x-k8s.io/node=fake", description="Manage nodes with this annotation (key=value)."
    )
    label: str | None = Field(
        default=None, description="Manage nodes with this label (key=value). Cheaper for kwok than an annotation."
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether kwok manages a kwokfleet node with *labels*. All kwokfleet nodes have the annotation."""
        key, _, value = (self.label or "").partition("=")
        return not key or labels.get(key) == value


class KwokControllerSpec(Model):
    """Configuration of kwok."""

    mode: Literal["managed", "external"] = Field(
        default="managed",
        description="managed: kwokfleet starts and supervises kwok; external: kwokfleet only observes it.",
    )
    shards: int = Field(default=1, ge=1, le=256, description="Number of kwok processes that share the nodes.")
    stateful_set: str | None = Field(
        default=None,
        pattern=rf"^({_LABEL}/)?{_LABEL}$",
        description="NAME or NAMESPACE/NAME of an installed StatefulSet that runs kwok with one pod per shard. "
        "kwokfleet scales and configures it. Default: kwok runs as local processes. Default namespace: that of "
        "kwokfleet.",
    )
    manage: Manage = Field(default_factory=Manage.model_construct, description="Nodes that kwok manages.")
    lease_duration: Duration = Field(
        default=timedelta(seconds=40),
        description="Duration of the node leases. 0 disables leases; heartbeats replace them.",
    )
    cidr: Cidr = Field(default="10.0.0.0/24", description="Network of pod addresses on nodes without a podCIDR.")
    node_ip: IpAddress = Field(
        default=DEFAULT_NODE_IP,
        alias="nodeIP",
        description="Address of the fake nodes. Default with `port`: 127.0.0.1.",
    )
    port: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PORT,
        description="Port of kwok's kubelet API, published in the status of the nodes for kubectl logs and "
        "metrics-server. Each further local shard uses the next port; all pods of a `statefulSet` use this port. "
        "Default: a random port that is not published.",
    )
    listen: IpAddress | None = Field(
        default=None,
        description="Listen address of `port`, for example 0.0.0.0. Default: `nodeIP`. There is no authentication.",
    )
    parallelism: Parallelism = Field(default_factory=Parallelism.model_construct, description="Parallelism of kwok.")
    stages_as: Literal["resources", "file"] = Field(
        default="resources",
        description="resources: Stages and other kwok resources are objects in the cluster; file: they are local files "
        "of kwok.",
    )
    memory_limit: Quantity | None = Field(default=None, description="Restart kwok gracefully above this memory usage.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="warning", description="Log level of kwok.")
    takeover: Takeover = Field(
        default_factory=Takeover.model_construct,
        description="Treatment of a kwok controller that already runs in the cluster.",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_node_ip(cls, value: object) -> object:
        """Default nodeIP to loopback if a port is set: the general default is not reachable."""
        if isinstance(value, dict) and value.get("port") is not None and "nodeIP" not in value:
            return {**value, "nodeIP": LOOPBACK}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "KwokControllerSpec":
        if self.listen is not None and self.port is None:
            raise invalid("requires port; add port, or remove listen", "listen")
        if self.stateful_set is not None:
            self._check_pods()
        elif self.port is not None and self.port + self.shards - 1 > MAX_PORT:
            raise invalid(
                f"must be at most {MAX_PORT - self.shards + 1}: {self.shards} shards use one port each, up to "
                f"{MAX_PORT}",
                "port",
            )
        return self

    def _check_pods(self) -> None:
        """Reject fields that do not apply to the pods of a StatefulSet."""
        if self.mode == "external":
            raise invalid("requires mode managed: in mode external, kwokfleet does not run kwok", "statefulSet")
        if self.stages_as == "file":
            raise invalid("must be resources with statefulSet: its pods read Stages from the cluster", "stagesAs")
        if self.listen is not None:
            raise invalid("cannot be combined with statefulSet: each pod listens on the pod IP", "listen")
        if self.port is not None and self.node_ip != LOOPBACK:
            raise invalid(
                "cannot be combined with statefulSet and port: the nodes use the pod IP of their shard", "nodeIP"
            )


class KwokController(Model):
    """Configuration of the kwok controller. At most one document in all files."""

    api_version: Literal["kwokfleet.dev/v1alpha1"] = Field(description="Always kwokfleet.dev/v1alpha1.")
    kind: Literal["KwokController"] = Field(description="Always KwokController.")
    metadata: Metadata = Field(description="Name of the KwokController.")
    spec: KwokControllerSpec = Field(default_factory=KwokControllerSpec.model_construct, description="Configuration.")
