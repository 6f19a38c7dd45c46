"""Node selection when a pool is scaled."""

from datetime import UTC, datetime

import pytest

from kwokfleet.api import fleet as fleet_api
from kwokfleet.kube import objects
from kwokfleet.kube.observed import Inventory
from kwokfleet.reconcile import scaling
from kwokfleet.render import desired
from tests.harness import manifests

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
POOL = ("lab", "gpu")


def tree(replicas: int, scale_down: str) -> desired.Tree:
    """Return a tree of one Fleet with one pool."""
    pool = {"name": "gpu", "replicas": replicas, "scaleDown": scale_down}
    fleet = {
        "apiVersion": "kwokfleet.dev/v1alpha1",
        "kind": "Fleet",
        "metadata": {"name": "lab"},
        "spec": {"nodePools": [pool]},
    }
    return desired.Tree((fleet_api.Fleet.model_validate(fleet),))


def live(*indices: int, created: dict[int, str] | None = None) -> Inventory:
    """Return the live nodes of a pool."""
    nodes = [
        manifests.observe(
            manifests.node(f"lab-gpu-{index}", annotations={objects.INDEX: str(index)}),
            creationTimestamp=(created or {}).get(index, "2026-03-01T08:00:00Z"),
        )
        for index in indices
    ]
    return {node.key: node for node in nodes}


def members(
    replicas: int, scale_down: str, inventory: Inventory, pods: dict[int, int] | None = None
) -> tuple[int, ...] | None:
    """Return the desired indices of the pool; None: 0 to replicas - 1."""
    fleet_tree = tree(replicas, scale_down)
    counts = {f"lab-gpu-{index}": count for index, count in (pods or {}).items()}
    indices = scaling.desired_indices(fleet_tree, scaling.live_members(fleet_tree, inventory), counts, NOW).get(POOL)
    return None if indices is None else tuple(indices)


def test_by_default_the_lowest_indices_are_kept() -> None:
    """No cluster state is needed."""
    assert members(2, "highestIndex", live(0, 1, 2)) is None


def test_emptiest_removes_nodes_with_the_fewest_pods() -> None:
    """Ties remove the highest index."""
    assert members(2, "emptiest", live(0, 1, 2, 3), {0: 0, 1: 5, 2: 1, 3: 0}) == (1, 2)
    assert members(2, "emptiest", live(0, 1, 2, 3)) == (0, 1)


def test_newest_removes_the_latest_nodes() -> None:
    """By creationTimestamp."""
    created = {0: "2026-03-01T10:00:00Z", 1: "2026-03-01T09:00:00Z", 2: "2026-03-01T11:00:00Z"}
    assert members(2, "newest", live(0, 1, 2, created=created)) == (0, 1)
    assert members(1, "newest", live(0, 1, 2, created=created)) == (1,)


@pytest.mark.parametrize("scale_down", ["emptiest", "newest"])
@pytest.mark.parametrize(("existing", "size", "expected"), [
    ((1, 2), 4, (0, 1, 2, 3)),
    ((5, 9), 3, (0, 5, 9)),
    ((), 2, (0, 1)),
    ((3,), 0, ()),
    ((0, 2), 2, (0, 2)),
])  # fmt: skip
def test_a_pool_that_grows_fills_the_lowest_gaps(
    scale_down: str, existing: tuple[int, ...], size: int, expected: tuple[int, ...]
) -> None:
    """Existing nodes are kept, and a second pass changes nothing."""
    assert members(size, scale_down, live(*existing)) == expected
    assert members(size, scale_down, live(*expected)) == expected


def test_only_live_fake_nodes_with_a_valid_index_count() -> None:
    """Ignored: terminating nodes, real nodes, and nodes with another index than their name."""
    going = manifests.observe(
        manifests.node("lab-gpu-3", annotations={objects.INDEX: "3"}), deletionTimestamp="2026-03-01T08:00:00Z"
    )
    real = manifests.observe(manifests.node("lab-gpu-4", annotations={objects.INDEX: "4", objects.FAKE_NODE_KEY: "no"}))
    renamed = manifests.observe(manifests.node("lab-gpu-5", annotations={objects.INDEX: "7"}))
    odd = manifests.observe(manifests.node("lab-gpu-6", annotations={objects.INDEX: "²"}))
    inventory = dict(live(0)) | {node.key: node for node in (going, real, renamed, odd)}
    assert members(2, "newest", inventory) == (0, 1)


def test_pods_are_counted_only_where_a_pool_shrinks() -> None:
    """And only with scaleDown emptiest."""
    for scale_down, size, busy in (("emptiest", 1, 2), ("emptiest", 2, 0), ("newest", 1, 0), ("highestIndex", 1, 0)):
        fleet_tree = tree(size, scale_down)
        assert len(scaling.nodes_to_count(fleet_tree, scaling.live_members(fleet_tree, live(0, 1)), NOW)) == busy
