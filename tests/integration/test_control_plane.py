"""The embedded control plane: real components, RBAC and admission, loopback only."""

import json
import ssl
import urllib.error
import urllib.request

import psutil

from kwokfleet.embedded import processes, state, versions
from tests.harness import waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox


def test_client_and_server_show_the_pinned_version(cluster: ControlPlane) -> None:
    """The version is stamped at build time: not v0.0.0-master."""
    text = cluster.kubectl("version")
    assert f"Client Version: {versions.KUBERNETES}" in text
    assert f"Server Version: {versions.KUBERNETES}" in text


def test_every_listening_socket_is_on_loopback(cluster: ControlPlane) -> None:
    """Five sockets, all on 127.0.0.1."""
    sockets = [
        connection.laddr
        for process in processes.find_processes(cluster.where)
        for connection in psutil.Process(process.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(sockets) == 5
    assert {address.ip for address in sockets} == {"127.0.0.1"}


def test_anonymous_has_no_rights_beyond_discovery(cluster: ControlPlane) -> None:
    """RBAC is on: without a certificate only version and health are readable."""
    listed = cluster.try_kubectl(
        "auth", "can-i", "--list", "--as=system:anonymous", "--as-group=system:unauthenticated"
    )
    assert listed.returncode != 0
    assert 'User "system:anonymous" cannot create resource "selfsubjectrulesreviews"' in listed.stderr
    statuses = {
        path: _anonymous(cluster, path) for path in ("/version", "/livez", "/api", "/apis", "/metrics", "/api/v1/nodes")
    }
    assert statuses == {
        "/version": 200,
        "/livez": 200,
        "/api": 403,
        "/apis": 403,
        "/metrics": 403,
        "/api/v1/nodes": 403,
    }


def test_a_new_service_account_cannot_list_nodes(cluster: ControlPlane, box: Sandbox) -> None:
    """It has no rights beyond discovery."""
    account = f"system:serviceaccount:{box.name}:default"
    completed = cluster.try_kubectl("auth", "can-i", "list", "nodes", "--as", account)
    assert (completed.returncode, completed.stdout.strip()) == (1, "no")


def test_admission_is_on(cluster: ControlPlane, box: Sandbox) -> None:
    """The default plug-ins run: a new node gets the not-ready taint, a missing namespace is rejected."""
    # The response to the create request: no controller has changed the node yet.
    manifest = json.dumps(box.manifest("v1", "Node", "n"))
    node = json.loads(cluster.kubectl("create", "--filename", "-", "--output", "json", stdin=manifest))
    assert "node.kubernetes.io/not-ready" in {taint["key"] for taint in node["spec"]["taints"]}
    refused = cluster.try_kubectl("create", "configmap", "x", "--namespace", "no-such-namespace")
    assert "not found" in refused.stderr


def test_pods_are_scheduled_and_controllers_work(cluster: ControlPlane, box: Sandbox) -> None:
    """The scheduler binds the pod of a Deployment to a Ready fake node."""
    node = box.manifest("v1", "Node", "n", status=_ready())
    cluster.apply(node)
    name = node["metadata"]["name"]
    template = {
        "metadata": {"labels": box.labels},
        "spec": {"nodeSelector": box.labels, "containers": [{"name": "c", "image": "none"}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": box.labels}, "template": template}
    cluster.apply(box.manifest("apps/v1", "Deployment", "d", spec=spec))

    def nodes_of_pods() -> list[str]:
        pods = cluster.get("pods", "--namespace", box.name)["items"]
        return [pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]]

    assert waiting.until(nodes_of_pods) == [name]


def _ready() -> dict[str, object]:
    return {
        "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "ready"}],
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"},
    }


def _anonymous(cluster: ControlPlane, path: str) -> int:
    port = state.read_record(cluster.where).ports.kube_apiserver
    context = ssl.create_default_context(cafile=str(cluster.where.pki("ca.crt")))
    try:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", context=context, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as exc:
        exc.close()
        return exc.code
