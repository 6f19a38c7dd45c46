"""Creates many pods and holds them in an informer."""

import threading
import time
from pathlib import Path

import kubernetes  # noqa: F401 - also imported by the program it is compared with
import orjson

from kwokfleet.kube import client, objects, requests
from kwokfleet.kube.informer import informer
from tests.bench import benchmark_cluster

NAMESPACE = "bench-pods"
THREADS = 16


def create_pods(cluster: benchmark_cluster.BenchmarkCluster, count: int) -> None:
    """Create pods on the existing nodes; wait until they run."""
    cluster.plane.kubectl("create", "namespace", NAMESPACE)
    nodes = sorted(key.name for key in cluster.nodes.view().objects)
    numbers = iter(range(count))
    lock = threading.Lock()

    def post() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            body = orjson.dumps(_pod(number, nodes[number % len(nodes)]))
            response = cluster.api.send(requests.Request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body))
            assert response.status == 201, response.message

    threads = [threading.Thread(target=post) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _pod(number: int, node: str) -> objects.Manifest:
    labels = {objects.MANAGED_BY: objects.KWOKFLEET, objects.FLEET: "bench", objects.WAVE: "load", objects.RUN: "0"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "10m"}}}],
        },
    }


def hold(kubeconfig: str) -> None:
    """Run an informer of all managed nodes and pods, report it, and wait."""
    api = client.connect(kubeconfig=Path(kubeconfig))
    with informer.Informer(api, (*requests.MANAGED_KINDS, requests.POD), requests.MANAGED_SELECTOR) as follower:
        view = follower.wait_until_synced(120)
        print(f"ready: {len(view.objects)} objects", flush=True)
        time.sleep(600)
