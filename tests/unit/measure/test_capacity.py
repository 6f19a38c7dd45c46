"""Allocatable resources by Fleet and pool."""

from kwokfleet.kube import objects
from kwokfleet.kube.observed import Observed
from kwokfleet.measure import capacity
from tests.harness import manifests


def node(name: str, fleet: str, pool: str, **allocatable: str) -> Observed:
    """Return an observed node."""
    manifest = manifests.node(name, status={"allocatable": allocatable, "capacity": {"cpu": "999"}})
    manifest["metadata"]["labels"] = {objects.FLEET: fleet, objects.POOL: pool}
    return manifests.observe(manifest)


def test_pool_capacity_is_the_sum_of_its_nodes() -> None:
    """Allocatable counts; equal pool names in two Fleets are separate."""
    nodes = [
        node("a", "lab", "gpu", cpu="500m", memory="1Gi", **{"nvidia.com/gpu": "8"}),
        node("b", "lab", "gpu", cpu="1500m", memory="1Gi", **{"nvidia.com/gpu": "8"}),
        node("c", "lab", "small", cpu="1"),
        node("d", "other", "gpu", cpu="64"),
    ]
    capacities = capacity.pool_capacities({node.key: node for node in nodes})
    assert capacities["lab"] == {
        "gpu": {"cpu": 2.0, "memory": 2.0 * 2**30, "nvidia.com/gpu": 16.0},
        "small": {"cpu": 1.0},
    }
    assert capacities["other"] == {"gpu": {"cpu": 64.0}}


def test_node_pools_map_node_names_to_fleet_and_pool() -> None:
    """A pod refers to its node by name."""
    nodes = [node("a", "lab", "gpu"), node("d", "other", "gpu")]
    assert capacity.node_pools({node.key: node for node in nodes}) == {"a": ("lab", "gpu"), "d": ("other", "gpu")}


def test_an_invalid_quantity_counts_as_zero() -> None:
    """Invalid nodes do not raise."""
    broken = node("a", "lab", "gpu", cpu="lots", memory="1Gi")
    assert capacity.pool_capacities({broken.key: broken}) == {"lab": {"gpu": {"cpu": 0.0, "memory": float(2**30)}}}
