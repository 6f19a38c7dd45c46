"""The sharding rule."""

from kwokfleet.kwok import sharding

NODES = [f"fleet-pool-{number}" for number in range(2000)]


def test_nodes_are_spread_evenly() -> None:
    """The largest of four shards has less than 1.5 times the nodes of the smallest."""
    sizes = [sum(sharding.shard_index(node, 4) == shard for node in NODES) for shard in range(4)]
    assert max(sizes) < 1.5 * min(sizes)


def test_a_new_shard_only_takes_nodes() -> None:
    """From three to four shards, every node that moves goes to the fourth."""
    indexes = {(sharding.shard_index(node, 3), sharding.shard_index(node, 4)) for node in NODES}
    assert {after for before, after in indexes if before != after} == {3}
