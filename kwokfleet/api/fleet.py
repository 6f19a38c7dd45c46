"""Models of the Fleet document, `kwokfleet.dev/v1alpha1`.

Field descriptions are user documentation: they appear in the JSON Schema, in editors and in docs/fleet-reference.md.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from kwokfleet.api import fields
from kwokfleet.api.kwok_controller import KwokController
from kwokfleet.api.lifecycle import Lifecycle
from kwokfleet.api.node_pool import NodePool
from kwokfleet.api.wave import Wave

GROUP = "kwokfleet.dev"
API_VERSION = f"{GROUP}/v1alpha1"


def _short_stage(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class StageReference(fields.OneOf):
    """Reference to kwok Stages: by name, or by file."""

    alternatives = ("name", "file")

    name: str | None = Field(
        default=None, min_length=1, description="Name of a library set, or of a Stage in the files."
    )
    file: str | None = Field(default=None, min_length=1, description="File with Stages, relative to this file.")


class KwokFile(fields.Model):
    """File with kwok resources."""

    file: str = Field(min_length=1, description="Path, relative to this file.")


class Prune(fields.Model):
    """Limit on deletions."""

    max_percent: fields.Percent = Field(
        default=25.0,
        description="Percentage of the Fleet's objects that one plan may delete after their removal from the files. A "
        "plan above the limit waits for approval.",
    )


class Window(fields.OneOf):
    """Sync window: when changes are allowed or denied."""

    alternatives = ("allow", "deny")

    allow: fields.Cron | None = Field(
        default=None,
        description="Cron expression of the minutes in which changes are allowed, for example `* 8-20 * * mon-fri`.",
    )
    deny: fields.Cron | None = Field(
        default=None, description="Cron expression of the minutes in which changes are denied. Overrides allow."
    )
    time_zone: fields.TimeZone = Field(default="UTC", description="Time zone of the window.")


DEFAULT_NODE_GROUP_LABEL = "kwok-nodegroup"


class NodeGroups(fields.Model):
    """Node groups of the cluster-autoscaler's kwok provider, and the location of its configuration."""

    namespace: str = Field(default="default", min_length=1, description="Namespace of the autoscaler's ConfigMaps.")
    label: str | None = Field(
        default=None,
        description=f"Node label with the group name. Default: `{DEFAULT_NODE_GROUP_LABEL}`, unless "
        "`annotation` is set.",
    )
    annotation: str | None = Field(default=None, description="Node annotation with the group name, instead of `label`.")
    gpu_label: str | None = Field(default=None, description="Node label with the GPU type.")
    gpu_types: fields.Items[str] = Field(default=(), description="Values of `gpuLabel`.")

    @model_validator(mode="after")
    def _consistent(self) -> "NodeGroups":
        if self.label is not None and self.annotation is not None:
            raise fields.invalid("cannot be combined with label; remove one of them", "annotation")
        if self.label == "kubernetes.io/hostname":
            raise fields.invalid(
                "must not be kubernetes.io/hostname: each node would be a group, and scale-up would not end", "label"
            )
        if bool(self.gpu_label) != bool(self.gpu_types):
            raise fields.invalid(
                "gpuLabel and gpuTypes must be set together", "gpuTypes" if self.gpu_types else "gpuLabel"
            )
        return self


class FleetSpec(fields.Model):
    """Desired state of a simulated cluster, and its workload."""

    seed: int = Field(default=0, description="Seed of all random values. The same file and seed give the same run.")
    suspend: bool = Field(default=False, description="Do not change any object of this Fleet.")
    adopt: bool = Field(default=False, description="Adopt existing objects with the same names.")
    prune: Prune = Field(default_factory=Prune.model_construct, description="Limit on deletions.")
    windows: fields.Items[Window] = Field(default=(), description="When changes are allowed. Default: always.")
    node_pools: fields.Items[NodePool] = Field(default=(), description="Pools of fake nodes.")
    lifecycles: fields.Items[Lifecycle] = Field(default=(), description="Lifecycles of pods and nodes.")
    stages: fields.Items[Annotated[StageReference, BeforeValidator(_short_stage)]] = Field(
        default=(), description="kwok Stages in addition to lifecycles: library sets by name, or {file: PATH}."
    )
    kwok_resources: fields.Items[KwokFile] = Field(
        default=(),
        description="Files with the kwok resources Logs, Exec, Attach, PortForward, ResourceUsage (and their Cluster "
        "kinds) or Metric. Exec runs commands on the host of kwok.",
    )
    waves: fields.Items[Wave] = Field(default=(), description="Workload.")
    node_groups: NodeGroups = Field(
        default_factory=NodeGroups.model_construct, description="Node groups of pools with `autoscaler`."
    )

    def lifecycle(self, name: str | None) -> Lifecycle | None:
        """Return a Lifecycle by its name."""
        return next((lifecycle for lifecycle in self.lifecycles if lifecycle.name == name), None)


class Fleet(fields.Model):
    """A simulated cluster: node pools, lifecycles and waves."""

    api_version: Literal["kwokfleet.dev/v1alpha1"] = Field(description="Always kwokfleet.dev/v1alpha1.")
    kind: Literal["Fleet"] = Field(description="Always Fleet.")
    metadata: fields.Metadata = Field(description="Name of the Fleet.")
    spec: FleetSpec = Field(description="Desired state.")

    @property
    def name(self) -> str:
        """metadata.name."""
        return self.metadata.name


KINDS: dict[str, type[Fleet] | type[KwokController]] = {"Fleet": Fleet, "KwokController": KwokController}
