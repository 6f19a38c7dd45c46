"""Parallel requests about node leases and the pods on their nodes: list, release, requeue."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.kube import client, parallel, requests
from kwokfleet.kwok import node_leases, requeue

MAX_THREADS = 32
WATCH_DELAY_S = 0.5
"""Time until the watches of kwok have seen a created or deleted lease."""


def held_leases(api: requests.RequestSender) -> list[node_leases.NodeLease]:
    """Return all node leases with a holder."""
    manifests = client.list_objects(api, requests.LEASE, namespace=node_leases.NAMESPACE)
    return [lease for lease in map(node_leases.parse_lease, manifests) if lease.holder]


def release_leases(api: requests.RequestSender, leases: Sequence[node_leases.NodeLease]) -> None:
    """Release many leases at once, because their nodes are not driven meanwhile."""
    send_all(api, [node_leases.release_request(lease) for lease in leases])


def requeue_pods(api: requests.RequestSender, nodes: AbstractSet[str], stamp: str) -> int:
    """Let kwok process all unfinished pods of some nodes again; return their number.

    A new kwok sees pods before it holds the leases of their nodes, and skips them. When it has the leases it
    processes the pods again, but often before its own lease cache is current. Skipped pods would wait forever.
    """
    pods = [
        pod
        for pod in client.list_objects(api, requests.POD, fields="spec.nodeName!=")
        if pod["spec"].get("nodeName") in nodes
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    ]
    send_all(api, [requeue.requeue_request(pod["metadata"], stamp) for pod in pods])
    return len(pods)


def requeue_nodes(
    api: requests.RequestSender, nodes: AbstractSet[str], shard: str, wait: Callable[[float], object]
) -> None:
    """Unassign nodes from a shard whose kwok did not get their leases, and assign them again.

    kwok tried the leases before it knew that they were free, and would retry only after a quarter of their
    duration. A node that has left the shard is not changed.
    """
    names = sorted(nodes)
    responses = send_all(api, [requeue.unassign_request(name, shard) for name in names])
    wait(WATCH_DELAY_S)
    unassigned = [
        name for name, response in zip(names, responses, strict=True) if response and response.status == HTTPStatus.OK
    ]
    send_all(api, [requeue.assign_request(name, shard) for name in unassigned])


def send_all(api: requests.RequestSender, work: Sequence[requests.Request]) -> list[requests.Response | None]:
    """Send many requests in parallel; the response of a failed request is None."""

    def send(request: requests.Request) -> requests.Response | None:
        with suppress(errors.ClusterError):
            return api.send(request)
        return None

    return parallel.run_all(send, work, MAX_THREADS)
