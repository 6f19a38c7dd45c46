"""Requeued nodes: kwok tries their leases again at once."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwokfleet.kwok import lease_client, requeue
from tests.harness import supervised_kwok, waiting
from tests.harness.control_plane import ControlPlane
from tests.integration.test_supervisor import LONG_LEASE, fleet


@pytest.fixture
def name(cluster: ControlPlane) -> Iterator[str]:
    """Return the name of a new fleet; delete its objects at the end."""
    yield from supervised_kwok.temporary_fleet(cluster)


def test_requeued_nodes_get_their_leases_again(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Deleted leases are created again at once; a node of another shard is not changed."""
    with supervised_kwok.running(cluster, tmp_path, name, shards=2, leaseDuration=LONG_LEASE) as supervised:
        supervised.sync(fleet(name, 24, 2))
        supervised.wait_ready()
        waiting.until(lambda: len(supervised.leases()) == 24)
        labels_by_node = {
            key.name: node.manifest["metadata"]["labels"] for key, node in supervised.nodes.view().objects.items()
        }
        first_shard = {node for node, labels in labels_by_node.items() if labels["kwokfleet.dev/shard"] == "0"}
        second_shard = labels_by_node.keys() - first_shard
        lease_client.release_leases(
            supervised.throttled,
            [lease for lease in lease_client.held_leases(supervised.throttled) if lease.node in labels_by_node],
        )
        waiting.until(lambda: not supervised.leases())
        time.sleep(lease_client.WATCH_DELAY_S)
        lease_client.requeue_nodes(supervised.throttled, set(labels_by_node), "0", time.sleep)
        waiting.until(lambda: supervised.leases().keys() == first_shard)
        lease_client.requeue_nodes(supervised.throttled, second_shard, "1", time.sleep)
        waiting.until(lambda: supervised.leases().keys() == labels_by_node.keys())
        waiting.until(lambda: set(supervised.leases().values()) == supervised.identities())
        now = {key.name: node.manifest["metadata"]["labels"] for key, node in supervised.nodes.view().objects.items()}
        assert now == labels_by_node


def test_unmanaged_nodes_are_not_requeued(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Nor is a node with all our labels that lacks the fake annotation."""
    labels = {"app.kubernetes.io/managed-by": "kwokfleet", "kwokfleet.dev/fleet": name, "kwokfleet.dev/shard": "0"}
    nodes = {f"{name}-real": labels, f"{name}-other": {"kwokfleet.dev/shard": "0"}}
    with supervised_kwok.running(cluster, tmp_path, name) as supervised:
        for node, marks in nodes.items():
            fake = {"kwok.x-k8s.io/node": "fake"} if node.endswith("other") else {"kwok.x-k8s.io/node": "real"}
            metadata = {"name": node, "labels": marks, "annotations": fake}
            cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})

        def labelled() -> list[dict[str, str]]:
            return [cluster.get("node", node)["metadata"]["labels"] for node in nodes]

        before = labelled()
        lease_client.requeue_nodes(supervised.throttled, set(nodes), "0", lambda _s: None)
        lease_client.send_all(supervised.throttled, [requeue.unassign_request(node, "0") for node in nodes])
        assert labelled() == before
        lease_client.send_all(supervised.throttled, [requeue.assign_request(node, "1") for node in nodes])
        assert labelled() == before
        cluster.kubectl("delete", "node", *nodes)
