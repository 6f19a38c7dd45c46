"""Change, Withheld and Plan."""

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
"""Fleet name of shared objects: Stages of the library, namespaces."""
DIGEST_LENGTH = 16


class ChangeAction(StrEnum):
    """Action on one object."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    """Delete and create: an immutable field differs."""
    DELETE = "delete"


class WithheldCause(StrEnum):
    """Why changes are withheld."""

    APPROVAL = "approval"
    """The Fleet's prune budget is exceeded."""
    SUSPENDED = "suspended"
    WINDOW = "window"
    BROKEN = "broken"
    """The files that decide about it have errors."""
    FOLLOWS = "follows"
    """It depends on other withheld changes."""
    UNKNOWN = "unknown"
    """Objects of this kind could not be listed."""
    CONFLICT = "conflict"
    """An object with this name exists and is not managed by kwokfleet."""
    NOT_FAKE = "not-fake"
    """A node with kwokfleet's label, but without the fake-node annotation."""
    OCCUPIED = "occupied"
    """A namespace that contains foreign objects."""
    NO_PRUNE = "no-prune"
    STALLED = "stalled"
    """Another field manager keeps changing the field."""


@dataclass(frozen=True, slots=True)
class Change:
    """One object to create, update, replace or delete."""

    action: ChangeAction
    key: ObjectKey
    fleet: str
    pool: str
    reason: str
    desired: Manifest | None = None
    live: Observed | None = None
    differences: tuple[Difference, ...] = ()
    vanished: bool = False
    """Deleted because it is no longer declared, not because a pool was scaled down."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """Changes blocked by a guard."""

    cause: WithheldCause
    fleet: str
    why: str
    changes: tuple[Change, ...] = ()
    digest: str = ""
    """Digest to approve; empty if approval does not apply."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes in apply order, and withheld changes."""

    changes: tuple[Change, ...] = ()
    withheld: tuple[Withheld, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing differs."""
        return not self.changes and not self.withheld

    def counts(self) -> dict[str, int]:
        """Return the number of changes of each action, and of withheld changes."""
        counts = {action.value: sum(change.action is action for change in self.changes) for action in ChangeAction}
        return counts | {"withheld": sum(len(group.changes) for group in self.withheld)}


def owner(manifest: Manifest) -> tuple[str, str]:
    """Return the Fleet and pool of an object."""
    labels = objects.labels(manifest)
    return labels.get(objects.FLEET, SHARED), labels.get(objects.POOL, "")


def digest(changes: Iterable[Change]) -> str:
    """Return a digest of the changes, with the UIDs of their objects."""
    lines = sorted(orjson.dumps(_identity(change), option=orjson.OPT_SORT_KEYS, default=str) for change in changes)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:DIGEST_LENGTH]


def _identity(change: Change) -> tuple[object, ...]:
    content = change.desired if change.action is ChangeAction.CREATE else list(map(tuple, change.differences))
    return change.action, tuple(change.key), change.live.uid if change.live else "", content
