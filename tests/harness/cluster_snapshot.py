"""Snapshot of all objects in a cluster, for comparison before and after."""

import time
from typing import Any

from kwokfleet.kube import client, discovery
from tests.harness import waiting
from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]
QUIET_S = 1.0
_FLEETING = ("events",)
"""Resources that are created and deleted in an idle cluster."""
_RESTLESS = ("leases", "endpointslices", "endpoints")
"""Resources that change in an idle cluster; only their names are compared."""


def take(cluster: ControlPlane) -> dict[tuple[str, str, str], Manifest]:
    """Return every listable object; for changing resources only the names."""
    api = client.connect(kubeconfig=cluster.kubeconfig)
    try:
        return {
            (kind.plural, manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]): (
                {} if kind.plural in _RESTLESS else manifest
            )
            for kind in discovery.listable_kinds(api)
            if kind.plural not in _FLEETING
            for manifest in client.list_objects(api, kind)
        }
    finally:
        api.close()


def take_settled(cluster: ControlPlane) -> dict[tuple[str, str, str], Manifest]:
    """Return a snapshot after controllers have stopped changing objects."""
    snapshots = [take(cluster)]

    def is_quiet() -> bool:
        time.sleep(QUIET_S)
        snapshots.append(take(cluster))
        return snapshots[-1] == snapshots[-2]

    waiting.until(is_quiet)
    return snapshots[-1]


def wait_until_equal(
    cluster: ControlPlane, before: dict[tuple[str, str, str], Manifest], *, deadline_s: float = 30
) -> None:
    """Wait until the cluster equals *before*; fail with the differences."""
    changes: list[str] = []

    def is_same() -> bool:
        changes[:] = differences(before, take(cluster))
        return not changes

    try:
        waiting.until(is_same, deadline_s=deadline_s)
    except AssertionError as exc:
        raise AssertionError("\n".join(changes)) from exc


def differences(before: dict[tuple[str, str, str], Manifest], after: dict[tuple[str, str, str], Manifest]) -> list[str]:
    """Return created (+), deleted (-) and changed (~) objects."""
    created = [f"+ {'/'.join(key)}" for key in after.keys() - before.keys()]
    deleted = [f"- {'/'.join(key)}" for key in before.keys() - after.keys()]
    changed = [
        f"~ {'/'.join(key)}: {before[key]} -> {after[key]}"
        for key in before.keys() & after.keys()
        if before[key] != after[key]
    ]
    return sorted(created + deleted + changed)
