"""What any client may count on: a real, guarded, loopback-only control plane."""

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
    """Version stamps are set: not v0.0.0-master."""
    text = cluster.kubectl("version")
    assert f"Client Version: {versions.KUBERNETES}" in text
    assert f"Server Version: {versions.KUBERNETES}" in text


def test_every_listening_socket_is_on_loopback(cluster: ControlPlane) -> None:
    """Nobody on the network can reach any part of it: five sockets, all on 127.0.0.1."""
    sockets = [
        connection.laddr
        for each in processes.find_processes(cluster.where)
        for connection in psutil.Process(each.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(sockets) == 5
    assert {address.ip for address in sockets} == {"127.0.0.1"}


def test_anonymous_has_no_rights_beyond_discovery(cluster: ControlPlane) -> None:
    """RBAC is on: without a certificate only the version and health of the server can be seen."""
    listed = cluster.try_kubectl(
        "auth", "can-i", "--list", "--as=system:anonymous", "--as-group=system:unauthenticated"
    )
    assert listed.returncode != 0
    assert 'User "system:anonymous" cannot create resource "selfsubjectrulesreviews"' in listed.stderr
    answers = {
        path: _anonymous(cluster, path) for path in ("/version", "/livez", "/api", "/apis", "/metrics", "/api/v1/nodes")
    }
    assert answers == {"/version": 200, "/livez": 200, "/api": 403, "/apis": 403, "/metrics": 403, "/api/v1/nodes": 403}


def test_service_accounts_have_only_the_rights_they_were_given(cluster: ControlPlane, box: Sandbox) -> None:
    """A fresh service account may not so much as list nodes."""
    account = f"system:serviceaccount:{box.name}:default"
    answer = cluster.try_kubectl("auth", "can-i", "list", "nodes", "--as", account)
    assert (answer.returncode, answer.stdout.strip()) == (1, "no")


def test_admission_is_on(cluster: ControlPlane, box: Sandbox) -> None:
    """The default plug-ins act: a new node is tainted not-ready, a namespace that is not there is refused."""
    # As the API server answered, before any controller had a say.
    manifest = json.dumps(box.manifest("v1", "Node", "n"))
    node = json.loads(cluster.kubectl("create", "--filename", "-", "--output", "json", stdin=manifest))
    assert "node.kubernetes.io/not-ready" in {taint["key"] for taint in node["spec"]["taints"]}
    refused = cluster.try_kubectl("create", "configmap", "x", "--namespace", "no-such-namespace")
    assert "not found" in refused.stderr


def test_pods_are_scheduled_and_controllers_work(cluster: ControlPlane, box: Sandbox) -> None:
    """The scheduler binds a Deployment's pod to a fake node that is Ready."""
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
        with urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", context=context, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        exc.close()
        return exc.code
