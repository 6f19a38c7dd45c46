"""Nodes shown to a kwok once more: it looks for their leases again, long before it would by itself."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwokfleet.kwok import lease_client, requeue
from tests.harness import supervised_kwok, waiting
from tests.harness.control_plane import ControlPlane
from tests.integration.test_keeper import LONG_LEASE, fleet


@pytest.fixture
def name(cluster: ControlPlane) -> Iterator[str]:
    """Name a fleet, and remove what is left of it in the end."""
    yield from supervised_kwok.temporary_fleet(cluster)


def test_nodes_that_are_shown_again_are_held_again(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Leases that went behind kwok's back come back at once; a node that is another shard's stays as it is."""
    with supervised_kwok.running(cluster, tmp_path, name, shards=2, leaseDuration=LONG_LEASE) as kept:
        kept.sync(fleet(name, 24, 2))
        kept.wait_ready()
        waiting.until(lambda: len(kept.leases()) == 24)
        whose = {key.name: each.manifest["metadata"]["labels"] for key, each in kept.nodes.view().objects.items()}
        mine = {node for node, labels in whose.items() if labels["kwokfleet.dev/shard"] == "0"}
        theirs = whose.keys() - mine
        lease_client.release_leases(
            kept.sender, [each for each in lease_client.held_leases(kept.sender) if each.node in whose]
        )
        waiting.until(lambda: not kept.leases())
        time.sleep(lease_client.WATCH_DELAY_S)
        lease_client.requeue_nodes(kept.sender, set(whose), "0", time.sleep)
        waiting.until(lambda: kept.leases().keys() == mine)
        lease_client.requeue_nodes(kept.sender, theirs, "1", time.sleep)
        waiting.until(lambda: kept.leases().keys() == whose.keys())
        waiting.until(lambda: set(kept.leases().values()) == kept.identities())
        now = {key.name: each.manifest["metadata"]["labels"] for key, each in kept.nodes.view().objects.items()}
        assert now == whose


def test_a_node_of_somebody_else_is_not_shown_or_hidden(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Nor one that has all our labels and is not fake: not a byte of it changes."""
    labels = {"app.kubernetes.io/managed-by": "kwokfleet", "kwokfleet.dev/fleet": name, "kwokfleet.dev/shard": "0"}
    nodes = {f"{name}-real": labels, f"{name}-other": {"kwokfleet.dev/shard": "0"}}
    with supervised_kwok.running(cluster, tmp_path, name) as kept:
        for node, marks in nodes.items():
            fake = {"kwok.x-k8s.io/node": "fake"} if node.endswith("other") else {"kwok.x-k8s.io/node": "real"}
            metadata = {"name": node, "labels": marks, "annotations": fake}
            cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})

        def labelled() -> list[dict[str, str]]:
            return [cluster.get("node", node)["metadata"]["labels"] for node in nodes]

        before = labelled()
        lease_client.requeue_nodes(kept.sender, set(nodes), "0", lambda _s: None)
        lease_client.send_all(kept.sender, [requeue.unassign_request(node, "0") for node in nodes])
        assert labelled() == before
        lease_client.send_all(kept.sender, [requeue.assign_request(node, "1") for node in nodes])
        assert labelled() == before
        cluster.kubectl("delete", "node", *nodes)
