"""Which nodes a pool keeps."""

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
    found = [
        manifests.observe(
            manifests.node(f"lab-gpu-{index}", annotations={objects.INDEX: str(index)}),
            creationTimestamp=(created or {}).get(index, "2026-03-01T08:00:00Z"),
        )
        for index in indices
    ]
    return {each.key: each for each in found}


def members(
    replicas: int, scale_down: str, inventory: Inventory, pods: dict[int, int] | None = None
) -> tuple[int, ...] | None:
    """Return the indices of the nodes that the pool should have; None: the first so many."""
    made = tree(replicas, scale_down)
    counts = {f"lab-gpu-{index}": count for index, count in (pods or {}).items()}
    found = scaling.desired_indices(made, scaling.live_members(made, inventory), counts, NOW).get(POOL)
    return None if found is None else tuple(found)


def test_by_default_the_first_so_many_stay() -> None:
    """Nobody has to look at the cluster for that."""
    assert members(2, "highestIndex", live(0, 1, 2)) is None


def test_the_emptiest_nodes_go_first() -> None:
    """Of equally busy ones the highest index."""
    assert members(2, "emptiest", live(0, 1, 2, 3), {0: 0, 1: 5, 2: 1, 3: 0}) == (1, 2)
    assert members(2, "emptiest", live(0, 1, 2, 3)) == (0, 1)


def test_the_newest_nodes_go_first() -> None:
    """By the time at which they were created."""
    created = {0: "2026-03-01T10:00:00Z", 1: "2026-03-01T09:00:00Z", 2: "2026-03-01T11:00:00Z"}
    assert members(2, "newest", live(0, 1, 2, created=created)) == (0, 1)
    assert members(1, "newest", live(0, 1, 2, created=created)) == (1,)


@pytest.mark.parametrize("how", ["emptiest", "newest"])
@pytest.mark.parametrize(("there", "size", "wanted"), [
    ((1, 2), 4, (0, 1, 2, 3)),
    ((5, 9), 3, (0, 5, 9)),
    ((), 2, (0, 1)),
    ((3,), 0, ()),
    ((0, 2), 2, (0, 2)),
])  # fmt: skip
def test_a_pool_that_grows_fills_the_lowest_gaps(
    how: str, there: tuple[int, ...], size: int, wanted: tuple[int, ...]
) -> None:
    """The ones that are there stay; asked again about the cluster that comes of it, the answer is the same."""
    assert members(size, how, live(*there)) == wanted
    assert members(size, how, live(*wanted)) == wanted


def test_nodes_that_are_not_a_pools_own_do_not_count() -> None:
    """One that goes already, one that is not fake, one whose index and name do not fit."""
    going = manifests.observe(
        manifests.node("lab-gpu-3", annotations={objects.INDEX: "3"}), deletionTimestamp="2026-03-01T08:00:00Z"
    )
    real = manifests.observe(manifests.node("lab-gpu-4", annotations={objects.INDEX: "4", objects.FAKE_NODE_KEY: "no"}))
    renamed = manifests.observe(manifests.node("lab-gpu-5", annotations={objects.INDEX: "7"}))
    odd = manifests.observe(manifests.node("lab-gpu-6", annotations={objects.INDEX: "²"}))
    inventory = dict(live(0)) | {each.key: each for each in (going, real, renamed, odd)}
    assert members(2, "newest", inventory) == (0, 1)


def test_pods_are_counted_only_where_a_pool_shrinks() -> None:
    """And only for pools that part with their emptiest nodes."""
    for how, size, busy in (("emptiest", 1, 2), ("emptiest", 2, 0), ("newest", 1, 0), ("highestIndex", 1, 0)):
        made = tree(size, how)
        assert len(scaling.nodes_to_count(made, scaling.live_members(made, live(0, 1)), NOW)) == busy
