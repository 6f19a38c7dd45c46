"""The test harness: quiet cluster, request counts, sandboxes."""

import json
import time

from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox


def test_an_idle_cluster_has_almost_no_writes(cluster: ControlPlane) -> None:
    """No writes of nodes and pods; only the API server renews its lease, every 10 s."""
    with cluster.counted_requests() as counted:
        time.sleep(6)  # an election would renew its lease three times
    assert (counted.writes("nodes"), counted.writes("pods")) == (0, 0), counted.all()
    assert counted.writes("leases") <= 1, counted.all()


def test_requests_are_counted_by_verb_and_resource(cluster: ControlPlane, box: Sandbox) -> None:
    """Three creations, one deletion and one list."""
    config_maps = [box.manifest("v1", "ConfigMap", str(number)) for number in range(3)]
    with cluster.counted_requests() as counted:
        for config_map in config_maps:
            cluster.kubectl("create", "--filename", "-", stdin=json.dumps(config_map))
        cluster.kubectl(
            "delete", "configmap", "--namespace", box.name, config_maps[0]["metadata"]["name"], "--wait=false"
        )
        cluster.kubectl("get", "configmaps", "--namespace", box.name)
    assert counted.of("POST", "configmaps") == 3, counted.all()
    assert counted.of("DELETE", "configmaps") == 1, counted.all()
    assert counted.of("LIST", "configmaps") >= 1, counted.all()
    assert counted.writes("configmaps") == 4, counted.all()


def test_sandboxes_are_isolated(cluster: ControlPlane, box: Sandbox) -> None:
    """The selector of a sandbox matches only its own objects."""
    own_node = box.manifest("v1", "Node", "n")
    cluster.apply(own_node)
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{box.name}-other"}})
    try:
        names = [item["metadata"]["name"] for item in cluster.get("nodes", "--selector", box.selector)["items"]]
        assert names == [own_node["metadata"]["name"]]
    finally:
        cluster.kubectl("delete", "node", f"{box.name}-other")
