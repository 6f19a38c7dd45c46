"""Removes an installation: the daemon first, so that it recreates nothing, then its objects, then the rest.

Objects are found by labels and deleted by UID. An interrupted removal can be repeated, and foreign objects are never
touched. Objects that stay are reported with the reason.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.install import fleet_removal, installer, manifests, ownership
from kwokfleet.kube import client, discovery, objects, requests, throttled_client
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kwok import takeover
from kwokfleet.reconcile import cluster_state

POLL_S = 0.5
_WAVE_OBJECTS = f"{requests.MANAGED_SELECTOR},{objects.WAVE}"


@dataclass(slots=True)
class Uninstaller:
    """Removes an installation; reports removed objects and objects that stay."""

    sender: throttled_client.ThrottledClient
    namespace: str
    report: Callable[[str], None]
    report_left: Callable[[str], None]
    timeout_s: float
    _deadline: float = 0.0

    def run(self, *, keep_fleet: bool) -> bool:
        """Remove the installation; return whether nothing is left that should be removed."""
        self._deadline = time.monotonic() + self.timeout_s
        self._stop_daemon()
        for controller in takeover.restore(self.sender):
            name = f"deployment/{controller.name} in {controller.namespace}"
            self.report(f"{name} scaled back to {controller.remembered}")
        if keep_fleet:
            self._report_kept_fleet()
            self._remove_installed(definitions=False)
            return True
        self._remove_wave_objects()
        removal = fleet_removal.FleetRemoval(self.sender, self.report, self.report_left, self._wait)
        is_complete = removal.run()
        self._remove_installed(definitions=is_complete)
        return is_complete

    def _wait(self, what: str, is_done: Callable[[], bool]) -> None:
        reported = False
        while not is_done():
            if not reported:
                self.report(f"waiting for {what}")
                reported = True
            if time.monotonic() > self._deadline:
                raise errors.DeadlineError(
                    f"still waiting for {what} after {self.timeout_s:g} s",
                    hint="run uninstall again to continue; kubectl get pods --all-namespaces shows what still runs",
                )
            self.sender.stop.wait(POLL_S)

    # the daemon

    def _stop_daemon(self) -> None:
        """Delete the Deployment and wait for its pods, which stop kwok."""
        for kind, manifest in installer.list_installed(self.sender, self.namespace):
            if kind.kind == "Deployment":
                installer.delete_object(self.sender, kind, manifest)
                self.report(f"deployment/{manifest['metadata']['name']} removed")
        self._wait("the daemon to stop", lambda: not installer.list_pods(self.sender, self.namespace, "daemon"))
        # The daemon creates the leader Lease, so the Lease is not among the installed objects.
        lease = ObjectKey("coordination.k8s.io/v1", "Lease", self.namespace, manifests.NAME)
        metadata = self.sender.send(requests.get(lease)).json().get("metadata") or {}
        if metadata.get("uid"):
            self.sender.send(requests.delete(lease, metadata["uid"]))

    # objects of Fleets and Waves

    def _report_kept_fleet(self) -> None:
        listed = client.list_objects(self.sender, requests.NODE, requests.MANAGED_SELECTOR, metadata_only=True)
        nodes = len(list(listed))
        fleets = [fleet["metadata"]["name"] for fleet in cluster_state.list_fleets(self.sender)]
        if nodes or fleets:
            self.report_left(
                f"{nodes} fake nodes with their workloads and Stages, and the status of "
                f"{', '.join(fleets) or 'no fleet'}; the nodes become NotReady, because no kwok drives them: "
                "install again, or run kwokfleet delete FLEET"
            )

    def _remove_wave_objects(self) -> None:
        """Remove the objects of Waves, of every kind, and the namespaces created for them."""
        deletes: list[requests.Request] = []
        for kind in discovery.listable_kinds(self.sender, "delete"):
            if kind.kind in ("Event", "Namespace"):
                continue
            try:
                listed = client.list_objects(self.sender, kind, _WAVE_OBJECTS, metadata_only=True)
                deletes += [requests.delete_any(kind, item, item["metadata"]["uid"]) for item in listed]
            except errors.ClusterError as error:
                if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
                    self.report_left(f"{kind.plural} of waves, if any: {error}")
        throttled_client.send_all(self.sender, deletes)
        if deletes:
            self.report(f"{len(deletes)} objects of waves removed")
        self._remove_wave_namespaces()

    def _remove_wave_namespaces(self) -> None:
        listed = client.list_objects(self.sender, requests.NAMESPACE, _WAVE_OBJECTS, metadata_only=True)
        namespaces = {manifest["metadata"]["name"]: manifest for manifest in listed}
        occupied = discovery.occupied_namespaces(self.sender, namespaces.keys(), requests.UNMANAGED_SELECTOR)
        for name, manifest in sorted(namespaces.items()):
            if name in occupied:
                self.report_left(_occupied_message(name, occupied[name]))
            else:
                installer.delete_object(self.sender, requests.NAMESPACE, manifest)

    # the installation

    def _remove_installed(self, *, definitions: bool) -> None:
        """Remove the installed objects in reverse apply order; *definitions*: also CustomResourceDefinitions."""
        installed = list(reversed(installer.list_installed(self.sender, self.namespace)))
        # The aggregated role comes first: its controller would write it again while its parts are deleted.
        for kind, manifest in sorted(installed, key=lambda pair: not ownership.is_aggregated(*pair)):
            if kind.kind not in ownership.PERSISTENT_KINDS:
                self._delete(kind, manifest)
        self._wait("kwok to stop", lambda: not installer.list_pods(self.sender, self.namespace))
        persistent = installer.list_installed(self.sender, self.namespace)
        for kind, manifest in reversed([pair for pair in persistent if pair[0].kind == "CustomResourceDefinition"]):
            self._remove_definition(kind, manifest, allowed=definitions)
        for kind, manifest in [pair for pair in persistent if pair[0].kind == "Namespace"]:
            self._remove_namespace(kind, manifest)
        self._remove_recreated_role()

    def _remove_recreated_role(self) -> None:
        """Remove the aggregated role again, if its controller wrote it after the deletion."""
        kind = ownership.kind(ownership.AGGREGATED)
        self.sender.stop.wait(POLL_S)
        response = self.sender.send(requests.get_any(kind, ownership.AGGREGATED))
        if response.status == HTTPStatus.OK and ownership.is_recreated(response.json()):
            installer.delete_object(self.sender, kind, response.json())

    def _remove_definition(self, kind: requests.Kind, manifest: Manifest, *, allowed: bool) -> None:
        name = manifest["metadata"]["name"]
        if not allowed:
            self.report_left(f"customresourcedefinition/{name}: objects of the fleet still use it")
        elif names := self._objects_of(name):
            self.report_left(f"customresourcedefinition/{name}: used by {names[0]}, which is not managed by kwokfleet")
        else:
            self._delete(kind, manifest)

    def _delete(self, kind: requests.Kind, manifest: Manifest) -> None:
        installer.delete_object(self.sender, kind, manifest)
        self.report(f"{installer.display_name(requests.item_key(kind, manifest))} removed")

    def _objects_of(self, definition: str) -> Sequence[str]:
        """Return the names of the objects of a CustomResourceDefinition."""
        key = ObjectKey(requests.CRD_API_VERSION, "CustomResourceDefinition", "", definition)
        spec = self.sender.send(requests.get(key)).json().get("spec")
        if not spec:
            return ()
        version = next(entry["name"] for entry in spec["versions"] if entry["served"])
        kind = requests.Kind(f"{spec['group']}/{version}", spec["names"]["kind"], spec["names"]["plural"])
        try:
            listed = client.list_objects(self.sender, kind, metadata_only=True)
            return [manifest["metadata"]["name"] for manifest in listed]
        except errors.ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return ()

    def _remove_namespace(self, kind: requests.Kind, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        occupied = discovery.occupied_namespaces(self.sender, {name})
        if occupied:
            self.report_left(_occupied_message(name, occupied[name]))
            return
        installer.delete_object(self.sender, kind, manifest)
        get = requests.get_any(kind, manifest)
        self._wait(f"namespace {name} to be deleted", lambda: self.sender.send(get).status == HTTPStatus.NOT_FOUND)
        self.report(f"namespace/{name} removed")


def _occupied_message(namespace: str, occupant: str) -> str:
    return f"namespace/{namespace}: contains {occupant}, which is not managed by kwokfleet"
