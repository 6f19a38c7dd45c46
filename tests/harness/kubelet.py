"""Minimal kubelet: runs pods of the real API server as local processes.

The test control plane has no machines, so pods of a Deployment would stay Pending. This module registers one Node,
binds the pods of its namespaces to it and runs them with `tests.harness.pod_processes`. The node has a taint that
keeps pods of other tests away. Each pod has its own loopback address, and servers bound to 0.0.0.0 use that address,
so replicas do not conflict. The API server does not let a Service point to a loopback address.
"""

import itertools
import json
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kwokfleet import errors
from kwokfleet.kube import client
from kwokfleet.kube.requests import Request
from tests.harness import pod_processes, waiting
from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]
POLL_S = 0.2
LEASE_RENEWAL_S = 10
TAINT = "kwokfleet.dev/test-machine"
IMAGE = "ghcr.io/kwokfleet/kwokfleet"


@dataclass
class Kubelet:
    """One Node and its pods."""

    name: str
    folder: Path
    api: client.KubeClient
    namespaces: Sequence[str]
    programs: Mapping[str, Sequence[str]]
    """Local programs by the command's first word or, without a command, by image name."""
    paths: Mapping[str, str]
    """Local folders by folder of the image."""
    network: str = field(default_factory=lambda: f"127.{64 + secrets.randbelow(128)}.{secrets.randbelow(256)}")
    running: dict[str, pod_processes.PodProcess] = field(default_factory=dict)
    """By UID, including finished pods, for their logs."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _stop: threading.Event = field(default_factory=threading.Event)
    _loop: threading.Thread | None = None

    def pod(self, name: str) -> pod_processes.PodProcess:
        """Return the newest pod with a name prefix."""
        pods = [pod for pod in list(self.running.values()) if pod.name.startswith(name)]
        assert pods, f"no pod {name}*, only {sorted(pod.name for pod in self.running.values())}"
        return pods[-1]

    def pids(self) -> set[int]:
        """Return the process id of each running pod's first container."""
        processes = [pod.containers[0].process for pod in self.running.values() if pod.containers]
        return {process.pid for process in processes if process is not None and process.poll() is None}

    def log_tails(self) -> list[tuple[str, str]]:
        """Return all log tails."""
        return [(f"log of {log}", text[-4000:]) for pod in self.running.values() for log, text in pod.logs().items()]

    def register(self, address: str = "127.0.0.1") -> None:
        """Create the Node: Ready, with enough capacity for all pods."""
        capacity = {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", **_times()}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"},
            },
            "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
            "status": {
                "capacity": capacity,
                "allocatable": capacity,
                "conditions": [ready],
                "addresses": [{"type": "InternalIP", "address": address}],
            },
        }
        self._send("POST", "/api/v1/nodes", node)

    def start(self) -> None:
        """Run pods from now on."""
        self._loop = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._loop.start()

    def _end_loop(self) -> None:
        """End the loop before any pod is stopped: it would show the pods their old manifests again."""
        self._stop.set()
        if self._loop is not None:
            self._loop.join()

    def _run(self) -> None:
        ticks = itertools.count()
        while not self._stop.is_set():
            if next(ticks) % int(LEASE_RENEWAL_S / POLL_S) == 0:
                self._renew_lease()
            for namespace in self.namespaces:
                with suppress(errors.ClusterError):  # the API server may be unavailable
                    self._reconcile_pods(namespace)
            self._stop.wait(POLL_S)

    def _renew_lease(self) -> None:
        where = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": _now("microseconds")}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}, "spec": spec}
        with suppress(errors.ClusterError):
            if self.api.send(_request("PATCH", f"{where}/{self.name}", {"spec": spec})).status == 404:
                self._send("POST", where, lease)

    def _reconcile_pods(self, namespace: str) -> None:
        response = self.api.send(Request("GET", f"/api/v1/namespaces/{namespace}/pods"))
        if response.status != 200:
            return
        manifests = {pod["metadata"]["uid"]: pod for pod in response.json().get("items") or ()}
        for uid, manifest in manifests.items():
            if not manifest["spec"].get("nodeName"):
                self._bind(manifest)
            elif manifest["spec"]["nodeName"] == self.name and uid not in self.running:
                self._start_pod(manifest)
        for uid, pod in self.running.items():
            if pod.namespace == namespace:
                pod.update(manifests.get(uid))

    def _bind(self, pod: Manifest) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        target = {"apiVersion": "v1", "kind": "Node", "name": self.name}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.api.send(_request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body))

    def _start_pod(self, manifest: Manifest) -> None:
        uid = manifest["metadata"]["uid"]
        host = pod_processes.HostContext(
            self.api, self.folder / f"{manifest['metadata']['name']}-{uid[:4]}", self.programs, self.paths
        )
        self.running[uid] = pod_processes.PodProcess(manifest, f"{self.network}.{next(self._numbers)}", host)
        self.running[uid].start()

    def _send(self, method: str, path: str, body: Manifest) -> None:
        response = self.api.send(_request(method, path, body))
        assert response.status < 300, f"{method} {path}: {response.status} {response.message}"

    def power_off(self) -> None:
        """Kill all processes without reporting it, as in a power failure."""
        self._end_loop()
        for pod in self.running.values():
            pod.power_off()
        for pod in self.running.values():
            pod.join()

    def stop(self) -> None:
        """Stop all pods and delete the Node."""
        self._end_loop()
        for pod in self.running.values():
            pod.update(None)
        for pod in self.running.values():
            pod.join()
        self.api.send(Request("DELETE", f"/api/v1/nodes/{self.name}"))


@contextmanager
def running(
    cluster: ControlPlane,
    folder: Path,
    *namespaces: str,
    programs: Mapping[str, Sequence[str]] | None = None,
    name: str = "",
) -> Iterator[Kubelet]:
    """Run the pods of some namespaces until the block ends. Two kubelets must not share a namespace."""
    api = client.connect(kubeconfig=cluster.kubeconfig)
    kwokfleet, kwok = [sys.executable, "-m", "kwokfleet"], [str(cluster.tools.path("kwok"))]
    default_programs = {IMAGE: kwokfleet, "kwokfleet": kwokfleet, "kwok": kwok, "/usr/local/bin/kwok": kwok}
    default_programs |= {"/usr/local/bin/kwokfleet": kwokfleet}
    paths = {"/usr/local/bin": str(cluster.tools.path("kwok").parent)}
    all_programs = {**default_programs, **(programs or {})}
    kubelet = Kubelet(name or f"machine-{secrets.token_hex(3)}", folder, api, namespaces, all_programs, paths)
    kubelet.register()
    kubelet.start()
    try:
        yield kubelet
    except BaseException as exc:
        for title, text in kubelet.log_tails():
            exc.add_note(f"{title}:\n{text}")
        raise
    finally:
        kubelet.stop()
        api.close()


def wait_ready(cluster: ControlPlane, namespace: str, kind: str, name: str, *, deadline_s: float = 60) -> None:
    """Wait until all replicas of a Deployment or StatefulSet are ready and up to date."""

    def ready() -> bool:
        workload = cluster.get(kind, name, "--namespace", namespace)
        replicas, status = workload["spec"]["replicas"], workload.get("status", {})
        counts = [status.get(count, 0) for count in ("replicas", "readyReplicas", "updatedReplicas")]
        return counts == [replicas] * 3 and status.get("observedGeneration") == workload["metadata"]["generation"]

    waiting.until(ready, deadline_s=deadline_s)


def _request(method: str, path: str, body: Manifest) -> Request:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    return Request(method, path, json.dumps(body).encode(), kind)


def _times() -> dict[str, str]:
    return {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}


def _now(exactly: str = "seconds") -> str:
    return datetime.now(UTC).isoformat(timespec=exactly).replace("+00:00", "Z")
