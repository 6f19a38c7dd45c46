"""The renewals of a few nodes' leases, heard instead of asked for: a settled fleet costs no request.

A watch that has broken down unnoticed hears nothing either. So what is heard can say that all is well;
that something is wrong must be asked for.
"""

from collections.abc import Sequence

from kwokfleet.kube import requests
from kwokfleet.kube.informer import informer, reflector
from kwokfleet.kwok import node_leases

_LEASE = requests.in_namespace(requests.LEASE, node_leases.NAMESPACE)
"""Nobody needs rights to leases anywhere else."""


class LeaseWatch:
    """Watches some leases, each by its name. Close it."""

    def __init__(self, api: reflector.WatchApi) -> None:
        self._api = api
        self._watched: dict[str, informer.Informer] = {}

    def heard(self, nodes: Sequence[str]) -> list[node_leases.NodeLease] | None:
        """Return the leases of these nodes; None unless each is known. Others are no longer watched."""
        for name in self._watched.keys() - set(nodes):
            self._watched.pop(name).close()
        for name in set(nodes) - self._watched.keys():
            watch = informer.Informer(self._api, (_LEASE,), "", f"metadata.name={name}")
            self._watched[name] = watch.__enter__()
        found = [lease for each in self._watched.values() if (lease := _lease(each)) is not None]
        return found if len(found) == len(nodes) else None

    def close(self) -> None:
        """Watch nothing any more."""
        self.heard(())


def _lease(watch: informer.Informer) -> node_leases.NodeLease | None:
    view = watch.view()
    found = next(iter(view.objects.values()), None) if view.settled and not view.unknown else None
    return node_leases.parse_lease(found.manifest) if found is not None else None
