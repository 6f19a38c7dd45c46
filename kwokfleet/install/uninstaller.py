"""An installation taken away: the daemon first, so that nothing is made again, then what it made, then the rest.

Everything is found by marks and labels and deleted by UID, so that it may be done again after half of it, and
nothing of anybody else's is touched. What stays, and why, is told.
"""

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.install import installer, manifests, ownership
from kwokfleet.kube import client, discovery, objects, requests, throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kwok import node_leases, takeover
from kwokfleet.reconcile import cluster_state, outcomes, patches, reconciler, status_writer, sync
from kwokfleet.source import loader

LOOK_S = 0.5
LISTED_S = 60.0
_PLAYED = f"{requests.MANAGED_SELECTOR},{objects.WAVE}"


@dataclass(slots=True)
class Uninstaller:
    """Takes an installation away; tells what it does, and what it leaves."""

    sender: throttled_client.ThrottledClient
    namespace: str
    tell: Callable[[str], None]
    left: Callable[[str], None]
    timeout_s: float
    _deadline: float = 0.0

    def run(self, *, keep_fleet: bool) -> bool:
        """Take it away; return whether all went that should go."""
        self._deadline = time.monotonic() + self.timeout_s
        self._stop_daemon()
        for rival in takeover.restore(self.sender):
            self.tell(f"deployment/{rival.name} in {rival.namespace} scaled back to {rival.remembered}")
        whole = True
        if keep_fleet:
            self._tell_kept()
        else:
            whole = self._remove_fleet()
        self._remove_installed(lasting=not keep_fleet and whole)
        return whole

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        told = False
        while not is_so():
            if not told:
                self.tell(f"waiting for {what}")
                told = True
            if time.monotonic() > self._deadline:
                raise errors.DeadlineError(
                    f"still waiting for {what} after {self.timeout_s:g} s",
                    hint="another uninstall goes on from there; see kubectl get pods --all-namespaces",
                )
            self.sender.stop.wait(LOOK_S)

    # the daemon

    def _stop_daemon(self) -> None:
        """Delete the Deployment and wait for its pods: they end in good order, and kwok with them."""
        for kind, each in installer.list_installed(self.sender, self.namespace):
            if kind.kind == "Deployment":
                installer.delete_object(self.sender, kind, each)
                self.tell(f"deployment/{each['metadata']['name']} removed")
        self._wait("the daemon to stop", lambda: not installer.daemon_pods(self.sender, self.namespace))
        # Whoever led has given it up by now; it is no object of the installation, because the daemon makes it.
        seat = ObjectKey("coordination.k8s.io/v1", "Lease", self.namespace, manifests.NAME)
        self._delete(seat)

    def _delete(self, key: ObjectKey) -> None:
        there = self.sender.send(requests.get(key)).json().get("metadata") or {}
        if there.get("uid"):
            self.sender.send(requests.delete(key, there["uid"]))

    # the fleet

    def _tell_kept(self) -> None:
        nodes = sum(
            1 for _ in client.list_objects(self.sender, requests.NODE, requests.MANAGED_SELECTOR, metadata_only=True)
        )
        fleets = [each["metadata"]["name"] for each in cluster_state.list_fleets(self.sender)]
        if nodes or fleets:
            self.left(
                f"{nodes} fake nodes, their workloads and Stages, and the record of {', '.join(fleets) or 'no fleet'}; "
                "nobody drives the nodes now, so they become NotReady: install again, or kwokfleet delete FLEET"
            )

    def _remove_fleet(self) -> bool:
        """Remove what the daemon made; return whether all of it went."""
        self._remove_played()
        with informer.Informer(self.sender.api, requests.MANAGED_KINDS) as follower:
            view = follower.wait_until_synced(LISTED_S)
            nodes = {
                key.name
                for key, each in view.objects.items()
                if key.kind == "Node" and objects.is_managed(each.manifest)
            }
            self._empty(view, nodes)
            names = {each.fleet for each in view.objects.values()}
            ordered = reconciler.ReconcileOptions(only=frozenset(names) | {""}, budget=False)
            session = sync.Sync(self.sender.api, follower, ordered, self.sender.limits)
            done = session.converge(loader.empty_tree(), session.plan(loader.empty_tree()))
        self._release(nodes)
        known = status_writer.StatusWriter(self.sender)
        for fleet in cluster_state.list_fleets(self.sender):
            known.delete(fleet["metadata"]["name"])
            self.tell(f"fleet {fleet['metadata']['name']} removed")
        self.tell(f"{sum(each.result in outcomes.SUCCESSFUL for each in done.outcomes)} objects of fleets removed")
        for each in outcomes.failures(done.outcomes):
            self.left(f"{installer.display_name(each.change.key)}: {each.message}")
        for held in done.left.withheld:
            self.left(f"{len(held.changes)} objects of fleet {held.fleet or '(shared)'}: {held.why}")
        return not outcomes.failures(done.outcomes) and not done.left.withheld

    def _remove_played(self) -> None:
        """Remove what Waves have made, of whatever kind it is, and the namespaces that were made for it."""
        work: list[requests.Request] = []
        for kind in discovery.listable_kinds(self.sender, "delete"):
            if kind.kind in ("Event", "Namespace"):
                continue
            try:
                found = list(client.list_objects(self.sender, kind, _PLAYED, metadata_only=True))
            except errors.ClusterError as error:
                if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
                    self.left(f"{kind.plural} that waves may have made: {error}")
                continue
            work += [requests.delete_any(kind, each, each["metadata"]["uid"]) for each in found]
        throttled_client.send_all(self.sender, work)
        if work:
            self.tell(f"{len(work)} objects that waves have made removed")
        self._remove_places()

    def _remove_places(self) -> None:
        found = client.list_objects(self.sender, requests.NAMESPACE, _PLAYED, metadata_only=True)
        places = {each["metadata"]["name"]: each for each in found}
        used = discovery.occupied_namespaces(self.sender, places.keys(), requests.UNMANAGED_SELECTOR)
        for name, each in sorted(places.items()):
            if name in used:
                self.left(f"namespace/{name}: {used[name]} is in it, which is not ours")
            else:
                installer.delete_object(self.sender, requests.NAMESPACE, each)

    def _empty(self, view: informer.CacheView, nodes: AbstractSet[str]) -> None:
        """Take all pods off nodes that are about to go. No kubelet and no kwok stops them: they exist on paper only."""
        if not self._pods_on(nodes):
            return
        closing = [
            requests.patch(each.key, patches.cordon(each))
            for each in view.objects.values()
            if each.key.kind == "Node" and each.key.name in nodes and not each.manifest["spec"].get("unschedulable")
        ]
        throttled_client.send_all(self.sender, closing)

        def is_so() -> bool:
            pods = self._pods_on(nodes)
            throttled_client.send_all(self.sender, [_forced(each) for each in pods])
            return not pods

        self._wait("pods to leave the fake nodes", is_so)

    def _pods_on(self, nodes: AbstractSet[str]) -> list[Manifest]:
        if not nodes:
            return []
        found = client.list_objects(self.sender, requests.POD, fields="spec.nodeName!=")
        return [each for each in found if each["spec"]["nodeName"] in nodes and not _stays(each)]

    def _release(self, nodes: AbstractSet[str]) -> None:
        """Remove the leases of nodes that are gone."""
        found = map(
            node_leases.parse_lease, client.list_objects(self.sender, requests.LEASE, namespace=node_leases.NAMESPACE)
        )
        throttled_client.send_all(
            self.sender, [node_leases.release_request(each) for each in found if each.node in nodes]
        )

    # the installation

    def _remove_installed(self, *, lasting: bool) -> None:
        """Remove what was installed, the last first; *lasting*: also what holds objects of others."""
        found = list(reversed(installer.list_installed(self.sender, self.namespace)))
        # The aggregated role goes first: while its parts go, its controller would write it anew.
        for kind, each in sorted(found, key=lambda pair: not ownership.is_aggregated(*pair)):
            if kind.kind not in ownership.PERSISTENT_KINDS:
                installer.delete_object(self.sender, kind, each)
                self.tell(f"{installer.display_name(installer.key_of(kind, each))} removed")
        self._wait("kwok to stop", lambda: not self._own_pods())
        rest = installer.list_installed(self.sender, self.namespace)
        for kind, each in reversed([pair for pair in rest if pair[0].kind == "CustomResourceDefinition"]):
            self._remove_definition(kind, each, lasting=lasting)
        for kind, each in [pair for pair in rest if pair[0].kind == "Namespace"]:
            self._remove_namespace(kind, each)
        self._bury()

    def _bury(self) -> None:
        """Remove the aggregated role for good, if its controller, told a moment late, has written it anew."""
        kind = ownership.kind(ownership.AGGREGATED)
        self.sender.stop.wait(LOOK_S)
        there = self.sender.send(requests.get_any(kind, ownership.AGGREGATED))
        if there.status == HTTPStatus.OK and ownership.is_recreated(there.json()):
            installer.delete_object(self.sender, kind, there.json())

    def _own_pods(self) -> list[Manifest]:
        selector = f"app.kubernetes.io/name={manifests.NAME}"
        return list(client.list_objects(self.sender, requests.POD, selector, namespace=self.namespace))

    def _remove_definition(self, kind: requests.Kind, manifest: Manifest, *, lasting: bool) -> None:
        name = manifest["metadata"]["name"]
        if not lasting:
            self.left(f"customresourcedefinition/{name}: what stays of the fleet needs it")
            return
        used = self._objects_of(name)
        if used:
            self.left(f"customresourcedefinition/{name}: {used[0]} is of this kind and is not ours")
            return
        installer.delete_object(self.sender, kind, manifest)
        self.tell(f"customresourcedefinition/{name} removed")

    def _objects_of(self, name: str) -> Sequence[str]:
        """Return the objects of a kind, by the name of its definition."""
        key = ObjectKey(requests.CRD_API_VERSION, "CustomResourceDefinition", "", name)
        spec = self.sender.send(requests.get(key)).json().get("spec")
        if not spec:
            return ()
        version = next(each["name"] for each in spec["versions"] if each["served"])
        kind = requests.Kind(f"{spec['group']}/{version}", spec["names"]["kind"], spec["names"]["plural"])
        try:
            found = client.list_objects(self.sender, kind, metadata_only=True)
            return [each["metadata"]["name"] for each in found]
        except errors.ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return ()

    def _remove_namespace(self, kind: requests.Kind, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        used = discovery.occupied_namespaces(self.sender, {name})
        if used:
            self.left(f"namespace/{name}: {used[name]} is in it, which is not ours")
            return
        installer.delete_object(self.sender, kind, manifest)
        key = installer.key_of(kind, manifest)
        gone = HTTPStatus.NOT_FOUND
        self._wait(f"namespace {name} to go", lambda: self.sender.send(requests.get(key)).status == gone)
        self.tell(f"namespace/{name} removed")


def _stays(pod: Manifest) -> bool:
    """Return whether a pod would come back at once: it goes after its node."""
    return any(each["kind"] == "DaemonSet" for each in pod["metadata"].get("ownerReferences") or ())


def _forced(pod: Manifest) -> requests.Request:
    metadata = pod["metadata"]
    key = ObjectKey("v1", "Pod", metadata["namespace"], metadata["name"])
    return requests.delete(key, metadata["uid"], grace_s=0)
