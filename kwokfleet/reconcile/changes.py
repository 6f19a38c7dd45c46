"""Words for what is done to the cluster, for what is not done and why, and the plan of both."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import orjson

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile.diff import Difference

SHARED = ""
"""The Fleet of objects that belong to none alone: Stages of the library, namespaces."""
DIGEST_LENGTH = 16


class ChangeAction(StrEnum):
    """What is done to an object."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    """Deleted and created again, because a field differs that nobody can change."""
    DELETE = "delete"


class WithheldCause(StrEnum):
    """Why something is not done."""

    APPROVAL = "approval"
    """More would vanish than the Fleet allows at once."""
    SUSPENDED = "suspended"
    WINDOW = "window"
    BROKEN = "broken"
    """The files that would say whether this is right cannot be used."""
    FOLLOWS = "follows"
    """It goes with something that is withheld."""
    UNKNOWN = "unknown"
    """Objects of this kind could not be listed."""
    CONFLICT = "conflict"
    """An object of that name is there, and is not ours."""
    NOT_FAKE = "not-fake"
    """A node with our label that does not say it is fake."""
    OCCUPIED = "occupied"
    """A namespace in which others have objects."""
    NO_PRUNE = "no-prune"
    STALLED = "stalled"
    """Another manager keeps changing the same field back."""


@dataclass(frozen=True, slots=True)
class Change:
    """One object that is to be created, changed or deleted."""

    action: ChangeAction
    key: ObjectKey
    fleet: str
    pool: str
    reason: str
    desired: Manifest | None = None
    live: Observed | None = None
    differences: tuple[Difference, ...] = ()
    vanished: bool = False
    """Whether it goes because the files no longer speak of it, not because a number was written."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """Changes that are not made, and why."""

    cause: WithheldCause
    fleet: str
    why: str
    changes: tuple[Change, ...] = ()
    digest: str = ""
    """What an approval must name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes in the order in which they are made, and those that are withheld."""

    changes: tuple[Change, ...] = ()
    withheld: tuple[Withheld, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether everything is as the files say, as far as anybody can tell."""
        return not self.changes and not self.withheld


def owner(manifest: Manifest) -> tuple[str, str]:
    """Return the Fleet and the pool that an object belongs to."""
    labels = objects.labels(manifest)
    return labels.get(objects.FLEET, SHARED), labels.get(objects.POOL, "")


def digest(changes: Iterable[Change]) -> str:
    """Return what tells these changes, to these very objects, from all others."""
    lines = sorted(orjson.dumps(_identity(change), option=orjson.OPT_SORT_KEYS, default=str) for change in changes)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:DIGEST_LENGTH]


def _identity(change: Change) -> tuple[object, ...]:
    content = change.desired if change.action is ChangeAction.CREATE else [tuple(each) for each in change.differences]
    return change.action, tuple(change.key), change.live.uid if change.live else "", content
