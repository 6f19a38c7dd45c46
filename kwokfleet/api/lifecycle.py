"""Models of the lifecycles of a Fleet: how its pods and nodes change over time."""

from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from kwokfleet.api.delay import AnyDelay, fixed_delay
from kwokfleet.api.fields import Duration, Model, Name, OneOf, Share
from kwokfleet.documents import problems

_no_delay = partial(fixed_delay, "0s")


def _short_complete(value: object) -> object:
    is_long_form = isinstance(value, dict) and any(problems.closest_name(str(key), ("after", "when")) for key in value)
    return value if is_long_form else {"after": value}


class Complete(Model):
    """When a pod completes."""

    after: AnyDelay = Field(description="Time from container start to completion.")
    when: Literal["job", "always"] = Field(
        default="job", description="job: only pods of a Job complete; always: all pods complete."
    )


class Fail(Model):
    """Pod failures."""

    probability: Share = Field(description="Share of the pods that fail.")
    after: AnyDelay | None = Field(
        default=None, description="Time from container start to failure. Default: as `complete`."
    )
    reason: str = Field(
        default="Error", description="Reason of the terminated container, for example OOMKilled.", min_length=1
    )
    exit_code: int = Field(default=1, ge=1, le=255, description="Exit code of the terminated container.")
    message: str = Field(default="", description="Message of the terminated container.")


class Restart(Model):
    """Containers that crash and restart, as in CrashLoopBackOff."""

    every: AnyDelay = Field(description="Time from container start to crash.")
    backoff: AnyDelay = Field(default_factory=lambda: fixed_delay("10s"), description="Time from crash to restart.")
    reason: str = Field(default="Error", description="Reason of the terminated container.", min_length=1)
    exit_code: int = Field(default=1, ge=0, le=255, description="Exit code of the terminated container.")


class PodLifecycle(Model):
    """Lifecycle of a pod after it is bound to a node."""

    create: AnyDelay = Field(default_factory=_no_delay, description="Time from binding to ContainerCreating.")
    init: AnyDelay = Field(default_factory=_no_delay, description="Duration of the init containers, if any.")
    ready: AnyDelay = Field(default_factory=_no_delay, description="Time from ContainerCreating to Running and Ready.")
    complete: Annotated[Complete, BeforeValidator(_short_complete)] | None = Field(
        default=None, description="When the pod completes. Default: never."
    )
    fail: Fail | None = Field(default=None, description="Pod failures. Default: none.")
    restart: Restart | None = Field(default=None, description="Container crashes and restarts. Default: none.")
    delete: AnyDelay = Field(default_factory=_no_delay, description="Time from deletion request to removal.")


class NotReady(Model):
    """Temporary node failures."""

    every: Duration = Field(description="Mean time between failures of one node.")
    for_: AnyDelay = Field(alias="for", description="Duration of one failure.")
    reason: str = Field(default="KubeletNotReady", description="Reason of the Ready condition.", min_length=1)
    message: str = Field(default="the node has failed", description="Message of the Ready condition.")


class NodeLifecycle(Model):
    """Lifecycle of a node."""

    boot: AnyDelay | None = Field(
        default=None, description="Time from creation to Ready. Default: nodes are created Ready."
    )
    not_ready: NotReady | None = Field(default=None, description="Temporary failures. Default: none.")


class Lifecycle(OneOf):
    """Behavior of pods or nodes over time. Rendered as kwok Stages."""

    alternatives = ("pod", "node")

    name: Name = Field(description="Name within the Fleet, used by waves and pools.")
    pod: PodLifecycle | None = Field(default=None, description="Lifecycle of pods.")
    node: NodeLifecycle | None = Field(default=None, description="Lifecycle of nodes.")
