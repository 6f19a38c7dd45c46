"""The harness itself: the promises that later tests lean on."""

import json
import time

from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox


def test_a_quiet_cluster_costs_next_to_no_write(cluster: ControlPlane) -> None:
    """In the background nothing touches nodes and pods; leases are the API server's own, one every 10 s."""
    with cluster.counted_requests() as counted:
        time.sleep(6)  # an election would renew its lease three times
    assert (counted.writes("nodes"), counted.writes("pods")) == (0, 0), counted.all()
    assert counted.writes("leases") <= 1, counted.all()


def test_requests_are_counted_by_verb_and_resource(cluster: ControlPlane, box: Sandbox) -> None:
    """Three creations, one deletion and a list are exactly that."""
    maps = [box.manifest("v1", "ConfigMap", str(number)) for number in range(3)]
    with cluster.counted_requests() as counted:
        for each in maps:
            cluster.kubectl("create", "--filename", "-", stdin=json.dumps(each))
        cluster.kubectl("delete", "configmap", "--namespace", box.name, maps[0]["metadata"]["name"], "--wait=false")
        cluster.kubectl("get", "configmaps", "--namespace", box.name)
    assert counted.of("POST", "configmaps") == 3, counted.all()
    assert counted.of("DELETE", "configmaps") == 1, counted.all()
    assert counted.of("LIST", "configmaps") >= 1, counted.all()
    assert counted.writes("configmaps") == 4, counted.all()


def test_boxes_do_not_meet(cluster: ControlPlane, box: Sandbox) -> None:
    """A test finds its own objects by its selector, and nothing else."""
    mine = box.manifest("v1", "Node", "n")
    cluster.apply(mine)
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{box.name}-stranger"}})
    try:
        found = [item["metadata"]["name"] for item in cluster.get("nodes", "--selector", box.selector)["items"]]
        assert found == [mine["metadata"]["name"]]
    finally:
        cluster.kubectl("delete", "node", f"{box.name}-stranger")
