"""Other kwok controllers in the cluster: how they are told, how one is put to rest, and how it gets its due back."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.requests import Patch
from kwokfleet.kwok.node_leases import NodeLease

REPLICAS = f"{objects.PREFIX}/replicas"
"""The annotation that remembers, on a Deployment that we scaled down, how many replicas it had."""
_PROGRAM = re.compile(r"(?:^|/)kwok(?:-controller)?(?:[:@].*)?$")
_NAME = "kwok-controller"
SILENT = 0.5
"""The part of a lease's duration after which a holder that has renewed nothing is dead."""


@dataclass(frozen=True, slots=True)
class ForeignController:
    """A Deployment that runs kwok."""

    namespace: str
    name: str
    uid: str
    replicas: int
    remembered: int | None
    """How many replicas it had before we scaled it down."""

    def __str__(self) -> str:
        """Return it as people name it."""
        count = f"{self.replicas} replica{'' if self.replicas == 1 else 's'}"
        return f"Deployment {self.namespace}/{self.name} ({count})"

    @property
    def key(self) -> ObjectKey:
        """What tells it from all others."""
        return ObjectKey("apps/v1", "Deployment", self.namespace, self.name)


def from_deployment(deployment: Manifest) -> ForeignController:
    """Read a Deployment."""
    metadata, spec = deployment["metadata"], deployment.get("spec") or {}
    text = (metadata.get("annotations") or {}).get(REPLICAS, "")
    replicas = spec.get("replicas")
    return ForeignController(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        1 if replicas is None else int(replicas),
        int(text) if text.isdigit() else None,
    )


def runs_kwok(deployment: Manifest) -> bool:
    """Return whether a Deployment runs the kwok controller: by its name, its label, its image or its command."""
    metadata = deployment["metadata"]
    if _NAME in (metadata["name"], (metadata.get("labels") or {}).get("app")):
        return True
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    for container in pod.get("containers") or ():
        if _PROGRAM.search(container.get("image") or "") or any(map(_PROGRAM.search, container.get("command") or ())):
            return True
    return False


def scale_down_patch(one: ForeignController) -> Patch:
    """Scale it to 0, and remember in the cluster how many it had: a crash of ours must not lose that."""
    annotations = {REPLICAS: str(one.replicas)}
    return Patch("", {"metadata": {"uid": one.uid, "annotations": annotations}, "spec": {"replicas": 0}})


def restore_patch(one: ForeignController) -> Patch:
    """Give it back what it had; if somebody has scaled it meanwhile, that stays."""
    body: Manifest = {"metadata": {"uid": one.uid, "annotations": {REPLICAS: None}}}
    if one.replicas == 0 and one.remembered is not None:
        body["spec"] = {"replicas": one.remembered}
    return Patch("", body)


IsOwnHolder = Callable[[str], bool]
"""Tells whether the holder of a lease is a kwok of ours."""


def foreign_leases(held: Iterable[NodeLease], ours: IsOwnHolder, now: datetime) -> Mapping[str, list[NodeLease]]:
    """Return the leases that somebody else holds and may still renew, by holder.

    kwok renews each lease in a quarter of its duration. Who has renewed none of several for half of it is dead, and
    need not be waited for until they end: the nodes would hardly live that long.
    """
    found: dict[str, list[NodeLease]] = {}
    for lease in held:
        if not ours(lease.holder):
            found.setdefault(lease.holder, []).append(lease)
    return {holder: mine for holder, mine in found.items() if any(each.age_s(now) <= _silence_s(each) for each in mine)}


def _silence_s(lease: NodeLease) -> float:
    return SILENT * lease.duration_s
