"""Everything that is in a cluster, at one moment: what must be the same before and after."""

import time
from typing import Any

from kwokfleet.kube import client, discovery
from tests.harness import waiting
from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]
QUIET_S = 1.0
_FLEETING = ("events",)
"""What comes and goes while nobody does anything."""
_RESTLESS = ("leases", "endpointslices", "endpoints")
"""Kinds that change while nobody does anything; but they do not come or go."""


def take(cluster: ControlPlane) -> dict[tuple[str, str, str], Manifest]:
    """Return every object of every kind that can be listed, to the last field; of restless ones the names."""
    api = client.connect(kubeconfig=cluster.kubeconfig)
    try:
        return {
            (kind.plural, each["metadata"].get("namespace", ""), each["metadata"]["name"]): (
                {} if kind.plural in _RESTLESS else each
            )
            for kind in discovery.listable_kinds(api)
            if kind.plural not in _FLEETING
            for each in client.list_objects(api, kind)
        }
    finally:
        api.close()


def take_settled(cluster: ControlPlane) -> dict[tuple[str, str, str], Manifest]:
    """Return the same once nothing moves any more: controllers have done what they do about what was just made."""
    seen = [take(cluster)]

    def is_quiet() -> bool:
        time.sleep(QUIET_S)
        seen.append(take(cluster))
        return seen[-1] == seen[-2]

    waiting.until(is_quiet)
    return seen[-1]


def wait_until_equal(
    cluster: ControlPlane, before: dict[tuple[str, str, str], Manifest], *, deadline_s: float = 30
) -> None:
    """Wait until a cluster is as it was; fail with what differs."""
    found: list[str] = []

    def is_same() -> bool:
        found[:] = differences(before, take(cluster))
        return not found

    try:
        waiting.until(is_same, deadline_s=deadline_s)
    except AssertionError as exc:
        raise AssertionError("\n".join(found)) from exc


def differences(before: dict[tuple[str, str, str], Manifest], after: dict[tuple[str, str, str], Manifest]) -> list[str]:
    """Return what has come, gone or changed, by name."""
    come = [f"+ {'/'.join(key)}" for key in after.keys() - before.keys()]
    gone = [f"- {'/'.join(key)}" for key in before.keys() - after.keys()]
    changed = [
        f"~ {'/'.join(key)}: {before[key]} -> {after[key]}"
        for key in before.keys() & after.keys()
        if before[key] != after[key]
    ]
    return sorted(come + gone + changed)
