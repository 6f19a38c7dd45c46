"""Many requests at once about leases and the pods below them: who holds what, let go, look again."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.kube import client, parallel, requests
from kwokfleet.kwok import node_leases, requeue

MAX_THREADS = 32
WATCH_DELAY_S = 0.5
"""How long a kwok may take to hear of a lease that has gone or come."""


def held_leases(api: requests.RequestSender) -> list[node_leases.NodeLease]:
    """Return all node leases that somebody holds."""
    found = client.list_objects(api, requests.LEASE, namespace=node_leases.NAMESPACE)
    return [each for each in map(node_leases.parse_lease, found) if each.holder]


def release_leases(api: requests.RequestSender, held: Sequence[node_leases.NodeLease]) -> None:
    """Let many leases go at once: each second counts for the nodes that nobody drives."""
    send_all(api, [node_leases.release_request(lease) for lease in held])


def requeue_pods(api: requests.RequestSender, nodes: AbstractSet[str], stamp: str) -> int:
    """Let kwok look at every pod on some nodes that has not ended; return how many there are.

    A kwok that starts sees pods before it holds their nodes' leases, and passes over them; when it has
    the leases it looks once more, but often before it has heard of that itself. Such pods would wait for ever.
    """
    found = [
        pod
        for pod in client.list_objects(api, requests.POD, fields="spec.nodeName!=")
        if pod["spec"].get("nodeName") in nodes
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    ]
    send_all(api, [requeue.requeue_request(pod["metadata"], stamp) for pod in found])
    return len(found)


def requeue_nodes(
    api: requests.RequestSender, nodes: AbstractSet[str], shard: str, wait: Callable[[float], object]
) -> None:
    """Take nodes away from a kwok that has not got hold of their leases, and show them to it once more.

    It looked for them when it had not heard yet that nobody held them, and would look again only after a quarter
    of their duration. Each node is left alone that is no longer that shard's.
    """
    names = sorted(nodes)
    answers = send_all(api, [requeue.unassign_request(each, shard) for each in names])
    wait(WATCH_DELAY_S)
    hidden = [name for name, answer in zip(names, answers, strict=True) if answer and answer.status == HTTPStatus.OK]
    send_all(api, [requeue.assign_request(each, shard) for each in hidden])


def send_all(api: requests.RequestSender, work: Sequence[requests.Request]) -> list[requests.Response | None]:
    """Send many requests in parallel; the response of a failed request is None."""

    def send(request: requests.Request) -> requests.Response | None:
        with suppress(errors.ClusterError):
            return api.send(request)
        return None

    return parallel.run_all(send, work, MAX_THREADS)
