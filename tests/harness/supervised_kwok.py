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
from kwokfleet.kwok import backend, backend_selection, lease_client, shard, supervisor
from kwokfleet.reconcile import reconciler, sync
from kwokfleet.source import loader
from tests.harness import control_plane, kwok, waiting

READY_S = 60


@dataclass
class SupervisedKwok:
    """A keeper, and what it works with."""

    cluster: control_plane.ControlPlane
    api: client.KubeClient
    sender: throttled_client.ThrottledClient
    nodes: informer.Informer
    keeper: supervisor.Supervisor
    folder: Path

    def status(self, shard: int = 0) -> shard.ShardStatus:
        """Return how a shard fares."""
        return self.keeper.statuses()[shard]

    def identities(self) -> set[str]:
        """Return the lease holder identities of the running processes."""
        return {each.identity for each in self.keeper.statuses()}

    def wait_ready(self) -> None:
        """Wait until every shard is ready."""
        waiting.until(
            lambda: all(each.state is shard.ShardState.READY and each.identity for each in self.keeper.statuses()),
            deadline_s=READY_S,
        )

    def change(self, **fields: Any) -> bool:  # noqa: ANN401 - fields of the spec
        """Let kwok run in another way."""
        wanted = self.keeper.desired
        return self.keeper.change(replace(wanted, spec=wanted.spec.model_copy(update=fields)))

    def sync(self, text: str) -> sync.SyncReport:
        """Make the cluster what a fleet file says."""
        file = self.folder / "fleet.yaml"
        file.write_text(text)
        loaded = loader.Loader().load(file)
        assert loaded.usable, loaded.problems
        with informer.Informer(self.api) as follower:
            follower.wait_until_synced(READY_S)
            session = sync.Sync(
                self.api, follower, reconciler.ReconcileOptions(budget=False), throttled_client.ClientLimits()
            )
            return session.converge(loaded, session.plan(loaded))

    def leases(self) -> dict[str, str]:
        """Return the lease holder of each node of this test."""
        mine = {key.name for key in self.nodes.view().objects}
        return {lease.node: lease.holder for lease in lease_client.held_leases(self.sender) if lease.node in mine}


@contextmanager
def running(
    cluster: control_plane.ControlPlane,
    folder: Path,
    fleet: str,
    home: str = "",
    **fields: Any,  # noqa: ANN401 - fields of the spec
) -> Iterator[SupervisedKwok]:
    """Keep a kwok for the nodes of one fleet; *home* is where a StatefulSet is looked for."""
    folder.mkdir(parents=True, exist_ok=True)
    api = client.connect(kubeconfig=cluster.kubeconfig)
    sender = throttled_client.ThrottledClient(api, throttled_client.ClientLimits(retry_timeout_s=2), threading.Event())
    manage = {"label": f"{objects.FLEET}={fleet}"}
    spec = KwokControllerSpec.model_validate({"manage": manage, **fields})
    wanted = backend.DesiredKwok(cluster.tools.path("kwok"), spec, cluster.kubeconfig)
    with closing(api), informer.Informer(api, (requests.NODE,), f"{objects.FLEET}={fleet}") as nodes:
        nodes.wait_until_synced(READY_S)

        def names() -> list[tuple[str, str]]:
            found = nodes.view().objects.values()
            return sorted((each.key.name, objects.labels(each.manifest).get(objects.SHARD, "")) for each in found)

        site = backend_selection.select_backend(spec, home, folder / "kwok", sender, api)
        with supervisor.Supervisor(sender, wanted, folder / "kwok", names, api, site) as made:
            yield SupervisedKwok(cluster, api, sender, nodes, made, folder)


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
