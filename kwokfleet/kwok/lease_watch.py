"""Watch of a few node leases: a healthy fleet costs no requests.

A watch that broke unnoticed reports nothing either. So watched leases can prove that kwok is healthy, but not
that it is not: that needs a request.
"""

from collections.abc import Sequence

from kwokfleet.kube import requests
from kwokfleet.kube.informer import informer, reflector
from kwokfleet.kwok import node_leases

_LEASE = requests.in_namespace(requests.LEASE, node_leases.NAMESPACE)
"""Rights to leases in other namespaces are not needed."""


class LeaseWatch:
    """Watches some leases, each by its name. Close it."""

    def __init__(self, api: reflector.WatchApi) -> None:
        self._api = api
        self._informers: dict[str, informer.Informer] = {}

    def leases(self, nodes: Sequence[str]) -> list[node_leases.NodeLease] | None:
        """Return the leases of these nodes, None unless all are known; other leases are no longer watched."""
        for name in self._informers.keys() - set(nodes):
            self._informers.pop(name).close()
        for name in set(nodes) - self._informers.keys():
            watch = informer.Informer(self._api, (_LEASE,), "", f"metadata.name={name}")
            self._informers[name] = watch.__enter__()
        leases = [lease for watch in self._informers.values() if (lease := _lease(watch)) is not None]
        return leases if len(leases) == len(nodes) else None

    def close(self) -> None:
        """Stop all watches."""
        self.leases(())


def _lease(watch: informer.Informer) -> node_leases.NodeLease | None:
    view = watch.view()
    lease = next(iter(view.objects.values()), None) if view.settled and not view.unknown else None
    return node_leases.parse_lease(lease.manifest) if lease is not None else None
