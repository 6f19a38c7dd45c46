"""The test kubelet: it runs the containers of pods as local processes."""

import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

from tests.harness import kubelet, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox

SERVER = 'exec python3 -m http.server --bind "$1" --directory "$2" 8080'


def _deployment(box: Sandbox) -> dict[str, Any]:
    labels = {**box.labels, "app": "web"}
    container = {
        "name": "web",
        "image": "none:1",
        "command": ["sh", "-c", SERVER, "--", "$(MY_IP)", "/pages"],
        "env": [{"name": "MY_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/page", "port": "http"}, "periodSeconds": 1},
        "volumeMounts": [{"name": "pages", "mountPath": "/pages"}],
    }
    pod = {"containers": [container], "volumes": [{"name": "pages", "configMap": {"name": f"{box.name}-pages"}}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return box.manifest("apps/v1", "Deployment", "web", spec=spec)


def _page(node_kubelet: kubelet.Kubelet) -> str:
    address = node_kubelet.pod("t-").address
    with urllib.request.urlopen(f"http://{address}:8080/page", timeout=5) as response:
        return str(response.read().decode())


def test_a_pod_of_a_deployment_becomes_ready_is_restarted_and_deleted(
    cluster: ControlPlane, box: Sandbox, tmp_path: Path
) -> None:
    """Its files follow the ConfigMap, a killed process is restarted, and a deletion ends the process."""
    cluster.apply(box.manifest("v1", "ConfigMap", "pages", data={"page": "first"}))
    deployment = _deployment(box)
    cluster.apply(deployment)
    name = deployment["metadata"]["name"]
    with kubelet.running(cluster, tmp_path, box.name) as node_kubelet:
        kubelet.wait_ready(cluster, box.name, "deployment", name)
        pod = node_kubelet.pod(name)
        assert _page(node_kubelet) == "first"
        cluster.apply(box.manifest("v1", "ConfigMap", "pages", data={"page": "second"}))
        waiting.until(lambda: _page(node_kubelet) == "second")
        os.kill(pid := pod.container().pid, signal.SIGKILL)
        waiting.until(lambda: _restarts(cluster, box) == [1])
        kubelet.wait_ready(cluster, box.name, "deployment", name)
        assert pod.container().pid != pid
        last = pod.container().process
        cluster.kubectl("scale", "deployment", name, "--replicas=0", "--namespace", box.name)
        waiting.until(lambda: not cluster.get("pods", "--namespace", box.name)["items"])
        assert last is not None
        assert last.poll() is not None


def test_a_pod_has_the_identity_of_its_service_account(cluster: ControlPlane, box: Sandbox, tmp_path: Path) -> None:
    """Its token comes from the TokenRequest API and is bound to the pod."""
    kubectl = str(cluster.tools.path("kubectl"))
    container = {"name": "who", "image": "none", "command": ["sh", "-c", f"{kubectl} auth whoami; sleep 600"]}
    cluster.kubectl("create", "serviceaccount", "me", "--namespace", box.name)
    spec = {"serviceAccountName": "me", "containers": [container], "terminationGracePeriodSeconds": 0}
    cluster.apply(box.manifest("v1", "Pod", "who", spec=spec))
    with kubelet.running(cluster, tmp_path, box.name) as node_kubelet:
        waiting.until(lambda: node_kubelet.running)
        waiting.until(lambda: f"system:serviceaccount:{box.name}:me" in "".join(node_kubelet.pod("t-").logs().values()))


def _restarts(cluster: ControlPlane, box: Sandbox) -> list[int]:
    pods = cluster.get("pods", "--namespace", box.name)["items"]
    return [status["restartCount"] for pod in pods for status in pod["status"].get("containerStatuses", ())]
