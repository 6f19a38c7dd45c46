"""Differences between a live and a desired object, in owned fields only.

A desired field is owned. Another field is owned, and therefore removed, if `managedFields` name our field manager.
All other fields stay. Exceptions:

- **Node status.** The API server stores the status of a POST without an owner. Status fields that no other manager
  claims are owned.
- **Stages.** An additional selector or step changes what a Stage does, so its whole spec is owned.
- **Taints** are one field with many writers, for example the node controllers. An annotation lists the owned ones.
- **Fields added by the API server** (defaults, a namespace's name label) have our field manager. They are listed here
  and never removed.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kwokfleet.api import units
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import TTL, Fields, Observed

Path = tuple[str, ...]


class Absent:
    """A missing value on one side of a Difference."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


class Difference(NamedTuple):
    """One field whose live value is not the desired one."""

    path: Path
    live: Any
    desired: Any


TAINTS: Path = ("spec", "taints")
ADDRESSES: Path = ("status", "addresses")
KUBELET: Path = ("status", "daemonEndpoints")
_TEXT_MAPS = {("metadata", "labels"), ("metadata", "annotations"), ("data",)}
"""Maps in which an empty string is a value."""
_AMOUNTS = {("status", "capacity"), ("status", "allocatable")}
_ADDED = {
    ("Namespace", ("metadata", "labels", "kubernetes.io/metadata.name")),
    ("Namespace", ("spec", "finalizers")),
    ("Node", ("metadata", "annotations", TTL)),
    ("Node", ("metadata", "annotations", objects.REQUEUE)),
}
"""Fields added by the API server or a controller, and our requeue annotation."""
_DEFAULTS: dict[tuple[str, Path], Any] = {
    ("Stage", ("spec", "weight")): 0,
    ("Stage", ("spec", "resourceRef", "apiGroup")): "v1",
    ("Stage", ("spec", "next", "statusSubresource")): "status",
}
"""Defaults of kwok's CRD for Stages; a test compares them with that CRD."""
_FIXED = {("Node", ("spec", "providerID")), ("Node", ("spec", "podCIDR")), ("Node", ("spec", "podCIDRs"))}
"""Fields that the API server does not let change once set."""


def differences(desired: Manifest, live: Observed) -> tuple[Difference, ...]:
    """Return every owned field of *live* that differs from *desired*."""
    return tuple(_Comparison(live).of(desired))


def needs_replacement(kind: str, differences: Iterable[Difference]) -> Difference | None:
    """Return the first difference that needs a new object."""
    set_differences = (difference for difference in differences if difference.live is not ABSENT)
    return next((difference for difference in set_differences if (kind, difference.path) in _FIXED), None)


def entry_name(path: Path, entry: Mapping[str, Any]) -> str:
    """Return the unique name of an entry in the list of taints or addresses."""
    return f"{entry['key']}:{entry.get('effect', '')}" if path == TAINTS else str(entry["type"])


class _Comparison:
    """Comparison of one live object."""

    def __init__(self, observed: Observed) -> None:
        self.observed = observed
        self.kind = observed.key.kind

    def of(self, desired: Manifest) -> Iterator[Difference]:
        live = self.observed.manifest
        for part in ("labels", "annotations"):
            yield from self.mapping(
                ("metadata", part),
                desired["metadata"].get(part) or {},
                live["metadata"].get(part) or {},
                self.owned("f:metadata", f"f:{part}"),
            )
        sections = {*desired, *live} - {"apiVersion", "kind", "metadata"}
        for name in sorted(sections):
            yield from self.value((name,), desired.get(name, ABSENT), live.get(name, ABSENT), self.owned(f"f:{name}"))

    def owned(self, *path: str) -> Fields | None:
        """Return the owned fields of a part; None if it has none."""
        fields: Any = self.observed.owned
        for step in path:
            fields = fields.get(step)
            if fields is None:
                return None
        return fields if isinstance(fields, Mapping) else None

    def value(self, path: Path, desired: Any, live: Any, owned: Fields | None) -> Iterator[Difference]:  # noqa: ANN401
        if path == TAINTS:
            yield from self.taints(desired, live)
        elif path == ADDRESSES:
            yield from self.addresses(desired, live)
        elif isinstance(desired, dict) and isinstance(live, dict):
            yield from self.mapping(path, desired, live, owned)
        elif desired is ABSENT:
            yield from self.removal(path, live, owned)
        elif not self.equal(path, desired, live):
            if isinstance(desired, dict) and live is ABSENT:
                yield from self.mapping(path, desired, {}, owned)
            else:
                yield Difference(path, live, desired)

    def mapping(self, path: Path, desired: Manifest, live: Manifest, owned: Fields | None) -> Iterator[Difference]:
        if desired == live:
            return
        for name, value in desired.items():
            live_value = live.get(name, ABSENT)
            if live_value is ABSENT or value != live_value:
                yield from self.value((*path, name), value, live_value, owned.get(f"f:{name}") if owned else None)
        for name, live_value in live.items():
            if name not in desired:
                yield from self.value((*path, name), ABSENT, live_value, owned.get(f"f:{name}") if owned else None)

    def equal(self, path: Path, desired: Any, live: Any) -> bool:  # noqa: ANN401  # any part of a manifest
        if desired == live and type(desired) is type(live):
            return True
        if path[:-1] in _AMOUNTS and live is not ABSENT:
            return _same_amount(desired, live)
        if live is ABSENT:
            if path[:-1] in _TEXT_MAPS:
                return False
            # Built-in kinds drop zero values; custom resources keep all but null.
            return desired is None if self.observed.key.api_version == objects.STAGE_API_VERSION else not desired
        if isinstance(desired, list) and self.observed.key.api_version != objects.STAGE_API_VERSION:
            return _equal_ignoring_zeros(desired, live)
        return bool(desired == live) and not isinstance(desired, bool) and not isinstance(live, bool)

    def removal(self, path: Path, live: Any, owned: Fields | None) -> Iterator[Difference]:  # noqa: ANN401
        """Yield owned fields that are not desired."""
        if live is ABSENT or (self.kind, path) in _ADDED:
            return
        if (self.kind, path) in _DEFAULTS and _DEFAULTS[self.kind, path] == live:
            return
        if path[0] == "status":
            yield from self.unclaimed(path, live)
        elif self.kind == "Stage" and path[0] == "spec":
            yield Difference(path, live, ABSENT)
        elif owned is not None:
            inside = [name for name in owned if name != "."]
            if not inside or not isinstance(live, dict):
                yield Difference(path, live, ABSENT)
                return
            parts = {
                name: list(self.removal((*path, name), live_value, owned.get(f"f:{name}")))
                for name, live_value in live.items()
            }
            if all(inner == [Difference((*path, name), live[name], ABSENT)] for name, inner in parts.items()):
                yield Difference(path, live, ABSENT)  # an empty map differs from an absent one
            else:
                yield from (difference for inner in parts.values() for difference in inner)

    def unclaimed(self, path: Path, live: Any) -> Iterator[Difference]:  # noqa: ANN401  # any part of a manifest
        """Yield status fields that no other manager claims, except zero values, which the API server adds."""
        claimed: Any = self.observed.claimed
        for step in path:
            claimed = claimed.get(f"f:{step}") if claimed is not None else None
        if claimed is None:
            if _is_nonzero(live):
                yield Difference(path, live, ABSENT)
        elif claimed and isinstance(live, dict):
            for name, live_value in live.items():
                yield from self.unclaimed((*path, name), live_value)

    def taints(self, desired: Any, live: Any) -> Iterator[Difference]:  # noqa: ANN401  # lists, or absent
        owned = self.observed.manifest["metadata"]["annotations"].get(objects.OWN_TAINTS, "").split(",")
        for difference in _entries(TAINTS, desired, live, "value"):
            name, is_desired = difference.path[-1], difference.desired is not ABSENT
            if is_desired or name in owned or difference.live["key"] == objects.FAKE_NODE_KEY:
                yield difference

    def addresses(self, desired: Any, live: Any) -> Iterator[Difference]:  # noqa: ANN401  # lists, or absent
        claimed = (self.observed.claimed.get("f:status") or {}).get("f:addresses") or {}
        for difference in _entries(ADDRESSES, desired, live, "address"):
            if difference.desired is not ABSENT or f'k:{{"type":"{difference.path[-1]}"}}' not in claimed:
                yield difference


def _entries(path: Path, desired: Any, live: Any, field: str) -> Iterator[Difference]:  # noqa: ANN401  # lists, or absent
    """Yield the entries that differ in a field, or are in one list only."""
    desired_entries, live_entries = (
        {entry_name(path, entry): entry for entry in (entries if isinstance(entries, list) else ())}
        for entries in (desired, live)
    )
    for name, entry in desired_entries.items():
        live_entry: Any = live_entries.get(name, ABSENT)
        if live_entry is ABSENT or (live_entry.get(field) or "") != (entry.get(field) or ""):
            yield Difference((*path, name), live_entry, entry)
    for name, live_entry in live_entries.items():
        if name not in desired_entries:
            yield Difference((*path, name), live_entry, ABSENT)


def _same_amount(desired: Any, live: Any) -> bool:  # noqa: ANN401  # quantities: texts or numbers
    try:
        return units.quantity_value(str(desired)) == units.quantity_value(str(live))
    except ValueError:
        return False


def _equal_ignoring_zeros(desired: Any, live: Any) -> bool:  # noqa: ANN401  # any part of a manifest
    """Return whether two values are equal; entries of lists may omit zero values."""
    if isinstance(desired, dict) and isinstance(live, dict):
        return all(_equal_ignoring_zeros(desired.get(name), live.get(name)) for name in {*desired, *live})
    if isinstance(desired, list) and isinstance(live, list):
        return len(desired) == len(live) and all(map(_equal_ignoring_zeros, desired, live))
    return bool(desired == live) or not (_is_nonzero(desired) or _is_nonzero(live))


def _is_nonzero(live: Any) -> bool:  # noqa: ANN401  # any part of a manifest
    """Return whether a value is not zero; the API server writes zero values for absent fields."""
    if isinstance(live, dict):
        return any(map(_is_nonzero, live.values()))
    return bool(live)
