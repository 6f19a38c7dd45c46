"""Concurrent changes: deleted and relabelled nodes, a second sync, a conflicting field manager."""

import pytest

from tests.harness import faulty_proxy, sync_testbed, waiting
from tests.harness.faulty_proxy import Fault, ForwardThen, ProxiedRequest
from tests.harness.sync_testbed import SyncTestbed, output

SIZE = 200


def delete_and_relabel(testbed: SyncTestbed, *, deleted: str, relabelled: str) -> None:
    """Delete a node and relabel another one."""
    testbed.cluster.kubectl("delete", "node", deleted, "--wait=false")
    testbed.cluster.kubectl("label", "node", relabelled, "tier=silver", "--overwrite", "--field-manager=meddler")
    testbed.cluster.kubectl("label", "node", relabelled, "meddler/was=here", "--field-manager=meddler")


def test_foreign_changes_are_repaired(testbed: SyncTestbed) -> None:
    """A deleted node and a changed label are repaired, during and after a sync; a foreign label stays."""
    testbed.write({"name": "a", "replicas": SIZE, "labels": {"tier": "gold"}})
    process = testbed.start("--qps", "60")
    waiting.until(lambda: len(testbed.names()) > SIZE / 2)
    names = testbed.names()
    delete_and_relabel(testbed, deleted=names[0], relabelled=names[1])
    done = sync_testbed.wait_for_exit(process)
    assert done.returncode == 0, output(done)
    assert testbed.sync().returncode == 0
    testbed.assert_settled(a=SIZE)
    delete_and_relabel(testbed, deleted=names[2], relabelled=names[3])
    assert testbed.diff().returncode == 1
    assert testbed.sync().returncode == 0
    testbed.assert_settled(a=SIZE)
    nodes = testbed.nodes()
    assert all(node["metadata"]["labels"]["tier"] == "gold" for node in nodes.values())
    marked = [name for name, node in nodes.items() if "meddler/was" in node["metadata"]["labels"]]
    assert marked == sorted((names[1], names[3]))


def test_two_concurrent_syncs_make_each_change_once(testbed: SyncTestbed) -> None:
    """Both succeed; each node is created, changed and deleted once, and keeps its UID."""
    first: dict[str, str] = {}
    for size, labels in ((SIZE, {}), (SIZE, {"tier": "gold"}), (SIZE - 50, {"tier": "gold"})):
        testbed.write({"name": "a", "replicas": size, "labels": labels})
        both = [testbed.start(), testbed.start()]
        for done in map(sync_testbed.wait_for_exit, both):
            assert done.returncode == 0, output(done)
            assert "conflict" not in done.stderr
        testbed.assert_settled(a=size)
        uids = {name: node["metadata"]["uid"] for name, node in testbed.nodes().items()}
        first = first or uids
        assert uids.items() <= first.items()


@pytest.mark.parametrize("count", [1, 3])
def test_a_contested_field_is_given_up(
    testbed: SyncTestbed, proxy: faulty_proxy.FaultyProxy, through: dict[str, str], count: int
) -> None:
    """After some attempts, with the other manager's name and exit code 5; other changes are applied."""
    testbed.write({"name": "a", "replicas": 20, "labels": {"tier": "gold"}})
    assert testbed.sync().returncode == 0
    fought = [f"scene-a-{index}" for index in range(count)]

    def rival(name: str) -> None:
        testbed.cluster.kubectl("label", "node", name, "tier=mine", "--overwrite", "--field-manager=rival")

    def rule(request: ProxiedRequest) -> Fault | None:
        name = request.resource.rpartition("/")[2]
        return ForwardThen(lambda: rival(name)) if request.method == "PATCH" and name in fought else None

    for name in fought:
        rival(name)
    proxy.rule = rule
    testbed.write({"name": "a", "replicas": 25, "labels": {"tier": "gold", "new": "yes"}})
    done = testbed.sync(**through)
    assert done.returncode == 5, output(done)
    for name in fought:
        assert f"manager 'rival' keeps changing metadata.labels.tier of node {name}" in done.stderr
    nodes = testbed.nodes()
    assert sorted(nodes) == sync_testbed.node_names(a=25)
    assert all(node["metadata"]["labels"]["new"] == "yes" for node in nodes.values())
    assert sorted(name for name, node in nodes.items() if node["metadata"]["labels"]["tier"] != "gold") == fought
    assert len(proxy.faults) <= 5 * count, "the conflict is not retried for ever"
    assert testbed.sync().returncode == 0, "without the other manager the sync succeeds"
    testbed.assert_settled(a=25)
