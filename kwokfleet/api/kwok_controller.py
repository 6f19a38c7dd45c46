"""The KwokController document: how the kwok controller runs."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from kwokfleet.api.fields import Cidr, Duration, IpAddress, Metadata, Model, Quantity, invalid

LOOPBACK = "127.0.0.1"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
MAX_PORT = 65535


class Takeover(Model):
    """What to do with a kwok controller that is there already."""

    deployment: str | None = Field(
        default=None,
        pattern=r"^[-a-z0-9]+/[-a-z0-9.]+$",
        description="NAMESPACE/NAME of its Deployment; looked for without it.",
    )
    policy: Literal["refuse", "scaleDown"] = Field(
        default="refuse", description="refuse: say so and stop; scaleDown: to 0, and back when we go."
    )


class Parallelism(Model):
    """How much kwok does at once."""

    nodes: int = Field(default=4, ge=1, le=1024, description="Node Stages.")
    pods: int = Field(default=4, ge=1, le=1024, description="Pod Stages.")
    leases: int = Field(default=16, ge=1, le=1024, description="Lease renewals.")


class Manage(Model):
    """Which nodes kwok drives."""

    annotation: str = Field(default="kwok.x-k8s.io/node=fake", description="Nodes with this annotation, as key=value.")
    label: str | None = Field(
        default=None, description="Nodes with this label, as key=value; cheaper for kwok than an annotation."
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether one of our nodes is driven: they all have the annotation."""
        key, _, value = (self.label or "").partition("=")
        return not key or labels.get(key) == value


class KwokControllerSpec(Model):
    """How kwok runs."""

    mode: Literal["managed", "external"] = Field(
        default="managed", description="managed: we start it and look after it; external: we only look."
    )
    shards: int = Field(default=1, ge=1, le=256, description="How many kwok processes share the nodes.")
    stateful_set: str | None = Field(
        default=None,
        pattern=rf"^({_LABEL}/)?{_LABEL}$",
        description="NAME or NAMESPACE/NAME of an installed StatefulSet that runs kwok, a pod for each shard, on any "
        "machine of the cluster; kwokfleet sizes and configures it. Without it, kwok runs as processes beside "
        "kwokfleet. The namespace is kwokfleet's own, unless given.",
    )
    manage: Manage = Field(default_factory=Manage.model_construct, description="Which nodes it drives.")
    lease_duration: Duration = Field(
        default=timedelta(seconds=40),
        description="The node leases' duration; 0 for none, then heartbeats replace them.",
    )
    cidr: Cidr = Field(default="10.0.0.0/24", description="Pod addresses on nodes without a podCIDR.")
    node_ip: IpAddress = Field(
        default="10.0.0.1",
        alias="nodeIP",
        description="The address fake nodes show; 127.0.0.1 unless given, if there is a `port`.",
    )
    port: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PORT,
        description="Where kwok answers as the nodes' kubelet: kubectl logs and metrics-server find it by the nodes' "
        "status. Each further shard takes the next port; pods of a `statefulSet` have addresses of their own and "
        "share it. Without it, kwok takes any, and nodes point nowhere.",
    )
    listen: IpAddress | None = Field(
        default=None,
        description="The address that `port` is opened at, as in 0.0.0.0; `nodeIP` without it. There is no login.",
    )
    parallelism: Parallelism = Field(
        default_factory=Parallelism.model_construct, description="How much it does at once."
    )
    stages_as: Literal["resources", "file"] = Field(
        default="resources",
        description="resources: Stages and kwok's other objects live in the cluster and can be edited there; "
        "file: kwok alone has them.",
    )
    memory_limit: Quantity | None = Field(default=None, description="Restart it, in good order, when it uses more.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="warning", description="What it logs.")
    takeover: Takeover = Field(
        default_factory=Takeover.model_construct, description="What to do with a kwok controller that is there already."
    )

    @model_validator(mode="before")
    @classmethod
    def _reachable(cls, value: object) -> object:
        """Let nodes with a port show an address at which it answers: the default one is made up."""
        if isinstance(value, dict) and value.get("port") is not None and "nodeIP" not in value:
            return {**value, "nodeIP": LOOPBACK}
        return value

    @model_validator(mode="after")
    def _fitting(self) -> "KwokControllerSpec":
        if self.listen is not None and self.port is None:
            raise invalid("belongs to port", "listen")
        if self.stateful_set is not None:
            self._check_pods()
        elif self.port is not None and self.port + self.shards - 1 > MAX_PORT:
            raise invalid(f"must leave room for {self.shards} shards, one port each, up to {MAX_PORT}", "port")
        return self

    def _check_pods(self) -> None:
        """Refuse what pods cannot be told, or know better themselves."""
        if self.mode == "external":
            raise invalid("belongs to mode managed: in mode external somebody else runs kwok", "statefulSet")
        if self.stages_as == "file":
            raise invalid("must be resources with a statefulSet: its pods find Stages in the cluster", "stagesAs")
        if self.listen is not None:
            raise invalid("must be left out with a statefulSet: each pod listens at its own address", "listen")
        if self.port is not None and self.node_ip != LOOPBACK:
            raise invalid(
                "must be left out with a statefulSet and a port: it is the address of each shard's pod", "nodeIP"
            )


class KwokController(Model):
    """How the kwok controller runs: one document for a whole tree."""

    api_version: Literal["kwokfleet.dev/v1alpha1"] = Field(description="Always kwokfleet.dev/v1alpha1.")
    kind: Literal["KwokController"] = Field(description="Always KwokController.")
    metadata: Metadata = Field(description="Its name.")
    spec: KwokControllerSpec = Field(default_factory=KwokControllerSpec.model_construct, description="How it runs.")
