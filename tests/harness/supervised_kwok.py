"""A kwok supervised by kwokfleet, for the nodes of one test."""

import json
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube import client, objects, requests, throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.kwok import backend, backend_selection, lease_client, shard
from kwokfleet.kwok.supervisor import Supervisor
from kwokfleet.reconcile import reconciler, sync
from kwokfleet.source import loader
from tests.harness import control_plane, kwok, waiting

READY_S = 60


@dataclass
class SupervisedKwok:
    """A Supervisor with its clients and its node informer."""

    cluster: control_plane.ControlPlane
    api: client.KubeClient
    throttled: throttled_client.ThrottledClient
    nodes: informer.Informer
    supervisor: Supervisor
    folder: Path

    def status(self, shard: int = 0) -> shard.ShardStatus:
        """Return the status of a shard."""
        return self.supervisor.statuses()[shard]

    def identities(self) -> set[str]:
        """Return the lease holder identities of the running processes."""
        return {status.identity for status in self.supervisor.statuses()}

    def wait_ready(self) -> None:
        """Wait until every shard is ready."""
        waiting.until(
            lambda: all(
                status.state is shard.ShardState.READY and status.identity for status in self.supervisor.statuses()
            ),
            deadline_s=READY_S,
        )

    def change(self, **fields: Any) -> bool:  # noqa: ANN401 - fields of the spec
        """Change fields of the KwokController spec."""
        desired = self.supervisor.desired
        return self.supervisor.change(replace(desired, spec=desired.spec.model_copy(update=fields)))

    def sync(self, text: str) -> sync.SyncReport:
        """Sync a fleet file."""
        file = self.folder / "fleet.yaml"
        file.write_text(text)
        loaded = loader.Loader().load(file)
        assert loaded.usable, loaded.problems
        with informer.Informer(self.api) as cache:
            cache.wait_until_synced(READY_S)
            session = sync.Sync(
                self.api, cache, reconciler.ReconcileOptions(budget=False), throttled_client.ClientLimits()
            )
            return session.converge(loaded, session.plan(loaded))

    def leases(self) -> dict[str, str]:
        """Return the lease holder of each node of this test."""
        names = {key.name for key in self.nodes.view().objects}
        return {lease.node: lease.holder for lease in lease_client.held_leases(self.throttled) if lease.node in names}


@contextmanager
def running(
    cluster: control_plane.ControlPlane,
    folder: Path,
    fleet: str,
    namespace: str = "",
    **fields: Any,  # noqa: ANN401 - fields of the spec
) -> Iterator[SupervisedKwok]:
    """Supervise kwok for the nodes of one fleet; *namespace* is the namespace of its StatefulSet."""
    folder.mkdir(parents=True, exist_ok=True)
    api = client.connect(kubeconfig=cluster.kubeconfig)
    throttled = throttled_client.ThrottledClient(
        api, throttled_client.ClientLimits(retry_timeout_s=2), threading.Event()
    )
    manage = {"label": f"{objects.FLEET}={fleet}"}
    spec = KwokControllerSpec.model_validate({"manage": manage, **fields})
    desired = backend.DesiredKwok(cluster.tools.path("kwok"), spec, cluster.kubeconfig)
    with closing(api), informer.Informer(api, (requests.NODE,), f"{objects.FLEET}={fleet}") as nodes:
        nodes.wait_until_synced(READY_S)

        def names() -> list[tuple[str, str]]:
            observed = nodes.view().objects.values()
            return sorted((node.key.name, objects.labels(node.manifest).get(objects.SHARD, "")) for node in observed)

        kwok_backend = backend_selection.select_backend(spec, namespace, folder / "kwok", throttled, api)
        with Supervisor(throttled, desired, folder / "kwok", names, api, kwok_backend) as supervisor:
            yield SupervisedKwok(cluster, api, throttled, nodes, supervisor, folder)


def temporary_fleet(cluster: control_plane.ControlPlane) -> Iterator[str]:
    """Yield the name of a new fleet, with a namespace; delete its objects at the end."""
    kwok.install_crds(cluster)
    name = f"kept-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "nodes", "--selector", f"kwokfleet.dev/fleet={name}", "--wait=false")
    cluster.kubectl("delete", "pods", "--all", "-n", name, "--force", "--grace-period=0", "--wait=false")
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    cluster.kubectl("delete", "stages.kwok.x-k8s.io", "--selector", "app.kubernetes.io/managed-by=kwokfleet")


def run_pod(cluster: control_plane.ControlPlane, namespace: str, pod: str, node: str) -> None:
    """Create a pod on a node."""
    spec = {
        "nodeName": node,
        "containers": [{"name": "main", "image": "busybox"}],
        "automountServiceAccountToken": False,
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": namespace}, "spec": spec}
    waiting.until(lambda: cluster.try_kubectl("get", "serviceaccount", "default", "-n", namespace).returncode == 0)
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(manifest))


def phase(cluster: control_plane.ControlPlane, namespace: str, pod: str) -> str:
    """Return a pod's phase."""
    return cluster.kubectl("get", "pod", pod, "-n", namespace, "-o", "jsonpath={.status.phase}")


def process_exists(pid: int) -> bool:
    """Return whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
