"""What nodes offer to pods, by Fleet and pool."""

from kwokfleet.kube import objects
from kwokfleet.kube.observed import Observed
from kwokfleet.measure import capacity
from tests.harness import manifests


def node(name: str, fleet: str, pool: str, **offers: str) -> Observed:
    """Return a node as a mirror shows it."""
    made = manifests.node(name, status={"allocatable": offers, "capacity": {"cpu": "999"}})
    made["metadata"]["labels"] = {objects.FLEET: fleet, objects.POOL: pool}
    return manifests.observe(made)


def test_what_a_pool_offers_is_the_sum_of_its_nodes() -> None:
    """What can be allocated, in cores, bytes and pieces; pools of one name in two fleets are two."""
    nodes = [
        node("a", "lab", "gpu", cpu="500m", memory="1Gi", **{"nvidia.com/gpu": "8"}),
        node("b", "lab", "gpu", cpu="1500m", memory="1Gi", **{"nvidia.com/gpu": "8"}),
        node("c", "lab", "small", cpu="1"),
        node("d", "other", "gpu", cpu="64"),
    ]
    found = capacity.pool_capacities({each.key: each for each in nodes})
    assert found["lab"] == {"gpu": {"cpu": 2.0, "memory": 2.0 * 2**30, "nvidia.com/gpu": 16.0}, "small": {"cpu": 1.0}}
    assert found["other"] == {"gpu": {"cpu": 64.0}}


def test_each_node_has_its_place() -> None:
    """By its name, which is what a pod knows of it."""
    nodes = [node("a", "lab", "gpu"), node("d", "other", "gpu")]
    assert capacity.node_pools({each.key: each for each in nodes}) == {"a": ("lab", "gpu"), "d": ("other", "gpu")}


def test_what_is_no_amount_offers_nothing() -> None:
    """A node that somebody wrote by hand ends nothing."""
    broken = node("a", "lab", "gpu", cpu="lots", memory="1Gi")
    assert capacity.pool_capacities({broken.key: broken}) == {"lab": {"gpu": {"cpu": 0.0, "memory": float(2**30)}}}
