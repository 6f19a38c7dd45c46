"""Round-robin scheduler for pods with its schedulerName. It emits no Events."""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kwokfleet.kube import client
from kwokfleet.kube.requests import Request

NAME = "tiny-scheduler"
POLL_S = 0.3


@contextmanager
def running(api: client.KubeClient, nodes: str) -> Iterator[None]:
    """Bind pods to the nodes of a label selector until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=_loop, args=(api, nodes, stop), name=NAME, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _loop(api: client.KubeClient, nodes: str, stop: threading.Event) -> None:
    turns = itertools.count()
    while not stop.wait(POLL_S):
        waiting = api.send(Request("GET", f"/api/v1/pods?fieldSelector=spec.schedulerName%3D{NAME},spec.nodeName%3D"))
        response = api.send(Request("GET", f"/api/v1/nodes?labelSelector={nodes}"))
        names = [node["metadata"]["name"] for node in response.json().get("items") or ()]
        for pod in waiting.json().get("items") or ():
            if names:
                _bind(api, pod["metadata"]["namespace"], pod["metadata"]["name"], names[next(turns) % len(names)])


def _bind(api: client.KubeClient, namespace: str, pod: str, node: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/binding"
    api.send(Request("POST", path, json.dumps(body).encode()))
