"""What of a live object differs from what the files ask for: only in fields that are ours.

A field that is asked for is ours. A field that is not asked for is ours if the API server's
`managedFields` say that we set it: then it is to be removed. All else belongs to others and stays.
Some things are not as simple:

- **Status of a node.** The API server keeps the status of a POST but notes no owner for it. Below
  `status`, what nobody else claims came with the creation and is ours.
- **A Stage** is a program: one more selector or step of somebody else's makes it another one, so all
  of its spec is ours.
- **Taints** are one field with many writers (the node controllers among them). An annotation of ours
  lists the ones we put there.
- **What the API server adds** by itself (defaults, a namespace's own label) counts as set by whoever
  created the object. It is known by name and never removed.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kwokfleet.api import units
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import TTL, Fields, Observed

Path = tuple[str, ...]


class Absent:
    """What stands on the side of a difference where there is nothing."""

    def __repr__(self) -> str:
        """Show it as what it is."""
        return "absent"


ABSENT = Absent()


class Difference(NamedTuple):
    """One field that is not as asked for."""

    path: Path
    live: Any
    desired: Any


TAINTS: Path = ("spec", "taints")
ADDRESSES: Path = ("status", "addresses")
KUBELET: Path = ("status", "daemonEndpoints")
_TEXT_MAPS = {("metadata", "labels"), ("metadata", "annotations"), ("data",)}
"""Maps in which an empty text is a value like any other."""
_AMOUNTS = {("status", "capacity"), ("status", "allocatable")}
_ADDED = {
    ("Namespace", ("metadata", "labels", "kubernetes.io/metadata.name")),
    ("Namespace", ("spec", "finalizers")),
    ("Node", ("metadata", "annotations", TTL)),
    ("Node", ("metadata", "annotations", objects.REQUEUE)),
}
"""What the API server or a controller adds whoever creates the object, and what we write only in passing."""
_DEFAULTS: dict[tuple[str, Path], Any] = {
    ("Stage", ("spec", "weight")): 0,
    ("Stage", ("spec", "resourceRef", "apiGroup")): "v1",
    ("Stage", ("spec", "next", "statusSubresource")): "status",
}
"""What kwok's own definition of a Stage fills in; a test compares it with that definition."""
_FIXED = {("Node", ("spec", "providerID")), ("Node", ("spec", "podCIDR")), ("Node", ("spec", "podCIDRs"))}
"""What the API server lets nobody change once it is set."""


def differences(want: Manifest, have: Observed) -> tuple[Difference, ...]:
    """Return every field of *have* that is to become as in *want*, or to go."""
    return tuple(_Comparison(have).of(want))


def needs_replacement(kind: str, found: Iterable[Difference]) -> Difference | None:
    """Return the first difference that only a new object can mend."""
    return next((each for each in found if (kind, each.path) in _FIXED and each.live is not ABSENT), None)


def _taint(taint: Mapping[str, Any]) -> tuple[str, str]:
    return taint["key"], taint.get("effect", "")


class _Comparison:
    """One object held against what it should be."""

    def __init__(self, have: Observed) -> None:
        self.have = have
        self.kind = have.key.kind

    def of(self, want: Manifest) -> Iterator[Difference]:
        live = self.have.manifest
        for part in ("labels", "annotations"):
            yield from self.mapping(
                ("metadata", part),
                want["metadata"].get(part) or {},
                live["metadata"].get(part) or {},
                self.owned("f:metadata", f"f:{part}"),
            )
        sections = {*want, *live} - {"apiVersion", "kind", "metadata"}
        for name in sorted(sections):
            wanted = want.get(name, ABSENT)
            yield from self.value((name,), wanted, live.get(name, ABSENT), self.owned(f"f:{name}"))

    def owned(self, *path: str) -> Fields | None:
        """Return what of a part is ours; None if nothing is."""
        found: Any = self.have.owned
        for step in path:
            found = found.get(step)
            if found is None:
                return None
        return found if isinstance(found, Mapping) else None

    def value(self, path: Path, want: Any, live: Any, owned: Fields | None) -> Iterator[Difference]:  # noqa: ANN401
        if path == TAINTS:
            yield from self.taints(want, live)
        elif path == ADDRESSES:
            yield from self.addresses(want, live)
        elif isinstance(want, dict) and isinstance(live, dict):
            yield from self.mapping(path, want, live, owned)
        elif want is ABSENT:
            yield from self.removal(path, live, owned)
        elif not self.equal(path, want, live):
            if isinstance(want, dict) and live is ABSENT:
                yield from self.mapping(path, want, {}, owned)
            else:
                yield Difference(path, live, want)

    def mapping(self, path: Path, want: Manifest, live: Manifest, owned: Fields | None) -> Iterator[Difference]:
        if want == live:
            return
        for name, wanted in want.items():
            found = live.get(name, ABSENT)
            if found is ABSENT or wanted != found:
                yield from self.value((*path, name), wanted, found, owned.get(f"f:{name}") if owned else None)
        for name, found in live.items():
            if name not in want:
                yield from self.value((*path, name), ABSENT, found, owned.get(f"f:{name}") if owned else None)

    def equal(self, path: Path, want: Any, live: Any) -> bool:  # noqa: ANN401  # any part of a manifest
        if want == live and type(want) is type(live):
            return True
        if path[:-1] in _AMOUNTS and live is not ABSENT:
            return _same_amount(want, live)
        if live is ABSENT:
            if path[:-1] in _TEXT_MAPS:
                return False
            # Built-in kinds drop zero values; custom resources keep all but null.
            return want is None if self.have.key.api_version == objects.STAGE_API_VERSION else not want
        if isinstance(want, list) and self.have.key.api_version != objects.STAGE_API_VERSION:
            return _alike(want, live)
        return bool(want == live) and not isinstance(want, bool) and not isinstance(live, bool)

    def removal(self, path: Path, live: Any, owned: Fields | None) -> Iterator[Difference]:  # noqa: ANN401
        """Yield what is there, is not asked for, and is ours."""
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
                name: list(self.removal((*path, name), found, owned.get(f"f:{name}"))) for name, found in live.items()
            }
            if all(found == [Difference((*path, name), live[name], ABSENT)] for name, found in parts.items()):
                yield Difference(path, live, ABSENT)  # an empty shell would mean something else than nothing
            else:
                yield from (each for found in parts.values() for each in found)

    def unclaimed(self, path: Path, live: Any) -> Iterator[Difference]:  # noqa: ANN401  # any part of a manifest
        """Yield what of a node's status nobody else lays claim to; zero values stand there by themselves."""
        claimed: Any = self.have.claimed
        for step in path:
            claimed = claimed.get(f"f:{step}") if claimed is not None else None
        if claimed is None:
            if _says_something(live):
                yield Difference(path, live, ABSENT)
        elif claimed and isinstance(live, dict):
            for name, found in live.items():
                yield from self.unclaimed((*path, name), found)

    def taints(self, want: Any, live: Any) -> Iterator[Difference]:  # noqa: ANN401  # lists, or absent
        wanted = {_taint(each): each for each in (want if isinstance(want, list) else ())}
        there = {_taint(each): each for each in (live if isinstance(live, list) else ())}
        for mark, each in wanted.items():
            found = there.get(mark)
            if found is None or (found.get("value") or "") != (each.get("value") or ""):
                yield Difference((*TAINTS, ":".join(mark)), ABSENT if found is None else found, each)
        ours = self.have.manifest["metadata"]["annotations"].get(objects.OWN_TAINTS, "").split(",")
        for mark, found in there.items():
            if mark not in wanted and (":".join(mark) in ours or mark[0] == objects.FAKE_NODE_KEY):
                yield Difference((*TAINTS, ":".join(mark)), found, ABSENT)

    def addresses(self, want: Any, live: Any) -> Iterator[Difference]:  # noqa: ANN401  # lists, or absent
        wanted = {each["type"]: each for each in (want if isinstance(want, list) else ())}
        there = {each["type"]: each for each in (live if isinstance(live, list) else ())}
        for kind, each in wanted.items():
            found = there.get(kind, ABSENT)
            if found != each:
                yield Difference((*ADDRESSES, kind), found, each)
        status = self.have.claimed.get("f:status") or {}
        claimed = status.get("f:addresses") or {}
        for kind, found in there.items():
            if kind not in wanted and f'k:{{"type":"{kind}"}}' not in claimed:
                yield Difference((*ADDRESSES, kind), found, ABSENT)


def _same_amount(want: Any, live: Any) -> bool:  # noqa: ANN401  # quantities: texts or numbers
    try:
        return units.quantity_value(str(want)) == units.quantity_value(str(live))
    except ValueError:
        return False


def _alike(want: Any, live: Any) -> bool:  # noqa: ANN401  # any part of a manifest
    """Return whether two values are the same but for zero values, which may be left out in what a list holds."""
    if isinstance(want, dict) and isinstance(live, dict):
        return all(_alike(want.get(name), live.get(name)) for name in {*want, *live})
    if isinstance(want, list) and isinstance(live, list):
        return len(want) == len(live) and all(map(_alike, want, live))
    return bool(want == live) or not (_says_something(want) or _says_something(live))


def _says_something(live: Any) -> bool:  # noqa: ANN401  # any part of a manifest
    """Return whether a value is more than zeros, which the API server writes where nothing was said."""
    if isinstance(live, dict):
        return any(map(_says_something, live.values()))
    return bool(live)
