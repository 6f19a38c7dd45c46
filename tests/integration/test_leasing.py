"""Nodes shown to a kwok once more: it looks for their leases again, long before it would by itself."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwokfleet import leasing
from tests.harness import keeping, waiting
from tests.harness.control_plane import ControlPlane
from tests.integration.test_keeper import LONG_LEASE, fleet


@pytest.fixture
def name(cluster: ControlPlane) -> Iterator[str]:
    """Name a fleet, and remove what is left of it in the end."""
    yield from keeping.named(cluster)


def test_nodes_that_are_shown_again_are_held_again(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Leases that went behind kwok's back come back at once; a node that is another shard's stays as it is."""
    with keeping.kept(cluster, tmp_path, name, shards=2, leaseDuration=LONG_LEASE) as kept:
        kept.sync(fleet(name, 24, 2))
        kept.wait_ready()
        waiting.until(lambda: len(kept.leases()) == 24)
        whose = {key.name: each.manifest["metadata"]["labels"] for key, each in kept.nodes.view().objects.items()}
        mine = {node for node, labels in whose.items() if labels["kwokfleet.dev/shard"] == "0"}
        theirs = whose.keys() - mine
        leasing.release_all(kept.sender, [each for each in leasing.held(kept.sender) if each.node in whose])
        waiting.until(lambda: not kept.leases())
        time.sleep(leasing.HEARD_S)
        leasing.show_nodes_again(kept.sender, set(whose), "0", time.sleep)
        waiting.until(lambda: kept.leases().keys() == mine)
        leasing.show_nodes_again(kept.sender, theirs, "1", time.sleep)
        waiting.until(lambda: kept.leases().keys() == whose.keys())
        waiting.until(lambda: set(kept.leases().values()) == kept.identities())
        now = {key.name: each.manifest["metadata"]["labels"] for key, each in kept.nodes.view().objects.items()}
        assert now == whose
