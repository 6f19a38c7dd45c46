"""Other kwok controllers in the cluster: detection, scale-down and restore."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.requests import Patch
from kwokfleet.kwok.node_leases import NodeLease

REPLICAS = f"{objects.PREFIX}/replicas"
"""Annotation of a Deployment that was scaled down: its former replicas."""
_PROGRAM = re.compile(r"(?:^|/)kwok(?:-controller)?(?:[:@].*)?$")
_NAME = "kwok-controller"
DEAD_AFTER = 0.5
"""A holder without any renewal for this part of the lease duration is dead."""


@dataclass(frozen=True, slots=True)
class ForeignController:
    """A Deployment that runs kwok."""

    namespace: str
    name: str
    uid: str
    replicas: int
    remembered: int | None
    """Replicas before kwokfleet scaled it down."""

    def __str__(self) -> str:
        """Return kind, name and replicas."""
        count = f"{self.replicas} replica{'' if self.replicas == 1 else 's'}"
        return f"Deployment {self.namespace}/{self.name} ({count})"

    @property
    def key(self) -> ObjectKey:
        """The key of the Deployment."""
        return ObjectKey("apps/v1", "Deployment", self.namespace, self.name)


def from_deployment(deployment: Manifest) -> ForeignController:
    """Parse a Deployment."""
    metadata, spec = deployment["metadata"], deployment.get("spec") or {}
    remembered = (metadata.get("annotations") or {}).get(REPLICAS, "")
    replicas = spec.get("replicas")
    return ForeignController(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        1 if replicas is None else int(replicas),
        int(remembered) if remembered.isdigit() else None,
    )


def runs_kwok(deployment: Manifest) -> bool:
    """Return whether a Deployment runs kwok, by its name, label, image or command."""
    metadata = deployment["metadata"]
    if _NAME in (metadata["name"], (metadata.get("labels") or {}).get("app")):
        return True
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    for container in pod.get("containers") or ():
        if _PROGRAM.search(container.get("image") or "") or any(map(_PROGRAM.search, container.get("command") or ())):
            return True
    return False


def scale_down_patch(controller: ForeignController) -> Patch:
    """Return the patch to 0 replicas; the annotation keeps the former number, even if kwokfleet crashes."""
    annotations = {REPLICAS: str(controller.replicas)}
    return Patch("", {"metadata": {"uid": controller.uid, "annotations": annotations}, "spec": {"replicas": 0}})


def restore_patch(controller: ForeignController) -> Patch:
    """Return the patch to the former replicas; a Deployment that was scaled meanwhile keeps its size."""
    body: Manifest = {"metadata": {"uid": controller.uid, "annotations": {REPLICAS: None}}}
    if controller.replicas == 0 and controller.remembered is not None:
        body["spec"] = {"replicas": controller.remembered}
    return Patch("", body)


IsOwnHolder = Callable[[str], bool]
"""Returns whether a lease holder is our kwok."""


def foreign_leases(leases: Iterable[NodeLease], is_own: IsOwnHolder, now: datetime) -> Mapping[str, list[NodeLease]]:
    """Return the leases of foreign holders that are alive, by holder.

    kwok renews each lease after a quarter of its duration. A holder without any renewal for half of it is dead.
    Waiting until its leases expire would take longer than the nodes stay Ready.
    """
    by_holder: dict[str, list[NodeLease]] = {}
    for lease in leases:
        if not is_own(lease.holder):
            by_holder.setdefault(lease.holder, []).append(lease)
    return {
        holder: held
        for holder, held in by_holder.items()
        if any(lease.age_s(now) <= DEAD_AFTER * lease.duration_s for lease in held)
    }
