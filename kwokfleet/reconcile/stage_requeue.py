"""Requeues the objects that changed Stages may act on: kwok does not look at them again by itself."""

from collections.abc import Iterable

from kwokfleet.kube import objects, requests, throttled_client
from kwokfleet.kube.objects import Manifest
from kwokfleet.kwok import requeue
from kwokfleet.reconcile import cluster_state
from kwokfleet.reconcile.changes import ChangeAction
from kwokfleet.reconcile.outcomes import ChangeResult, Outcome

STAGE_WATCH_DELAY_S = 0.3
"""Time until kwok has received a changed Stage."""


def requeue_objects(
    sender: throttled_client.ThrottledClient, cluster: cluster_state.LiveCluster, outcomes: Iterable[Outcome]
) -> None:
    """Requeue nodes and pods after created or updated Stages."""
    stages = _changed_stages(outcomes)
    node_stages, pod_stages = requeue.of_kind(stages, "Node"), requeue.of_kind(stages, "Pod")
    if not (node_stages or pod_stages):
        return
    inventory, _ = cluster.inventory()
    nodes = [live for live in inventory.values() if live.key.kind == "Node" and objects.is_managed(live.manifest)]
    if not nodes:
        return
    sender.stop.wait(STAGE_WATCH_DELAY_S)
    work = [(node.key, requeue.requeue_patch(node, node_stages)) for node in requeue.affected(node_stages, nodes)]
    if pod_stages:
        pods = cluster.pods_on({node.key.name for node in nodes})
        work += [(pod.key, requeue.requeue_patch(pod, pod_stages)) for pod in requeue.affected(pod_stages, pods)]
    throttled_client.send_all(sender, [requests.patch(key, patch) for key, patch in work])


def _changed_stages(outcomes: Iterable[Outcome]) -> list[Manifest]:
    return [
        outcome.change.desired
        for outcome in outcomes
        if outcome.change.key.kind == "Stage"
        and outcome.change.action is not ChangeAction.DELETE
        and outcome.result is ChangeResult.DONE
        and outcome.change.desired is not None
    ]
