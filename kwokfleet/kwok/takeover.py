"""Takeover: refuses to start beside another kwok, or scales it to 0 and restores it on exit."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from threading import Event

import structlog

from kwokfleet import errors
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube import client, requests
from kwokfleet.kube.objects import Manifest
from kwokfleet.kwok import backend, foreign_controllers, lease_client, node_leases, pod_backend, statefulset
from kwokfleet.kwok.foreign_controllers import ForeignController

log = structlog.get_logger()

SCALE_DOWN_S = 60.0
"""Time limit for the pods of a Deployment to end."""
POLL_S = 0.5
EXPIRY_FACTOR = 1.25
"""A holder without renewal for this multiple of the lease duration is dead."""


def take_over(  # noqa: PLR0913, PLR0917  # the cluster, the spec, and the own nodes and holders
    api: requests.RequestSender,
    spec: KwokControllerSpec,
    is_own: foreign_controllers.IsOwnHolder,
    nodes: backend.ListNodes,
    stop: Event,
    home: str,
) -> list[ForeignController]:
    """Make sure that no other kwok drives our nodes; return the Deployments to restore on exit.

    These include Deployments that an earlier kwokfleet scaled down and did not restore. *home* is the namespace of
    a StatefulSet that kwok may have run as.
    """
    controllers = foreign_deployments(api, spec.takeover.deployment)
    running = [controller for controller in controllers if controller.replicas]
    if running and spec.takeover.policy == "refuse":
        raise errors.NotOursError(
            f"another kwok controller runs in the cluster: {', '.join(map(str, running))}",
            hint="scale it to 0, or set takeover: {policy: scaleDown} in the KwokController document",
        )
    try:
        for controller in running:
            _scale_down(api, controller, stop)
        # The lease holders of our nodes name a StatefulSet that kwok ran as before.
        former = {statefulset.from_holder(holder, home) for holder in _foreign_leases(api, is_own, nodes)}
        ended = [pod_backend.scale_down_former(api, name, stop) for name in sorted(filter(None, former), key=str)]
        _release_foreign_leases(api, is_own, nodes, stop, waited=any(ended) or bool(running))
    except BaseException:  # our kwok does not start
        restore(api)
        raise
    return [controller for controller in controllers if controller.replicas or controller.remembered is not None]


def foreign_deployments(api: requests.RequestSender, only: str | None) -> list[ForeignController]:
    """Return the Deployments that run kwok, or only the named one."""
    namespace, _, name = (only or "").partition("/")
    return [
        foreign_controllers.from_deployment(deployment)
        for deployment in client.list_objects(api, requests.DEPLOYMENT, namespace=namespace)
        if (deployment["metadata"]["name"] == name if only else foreign_controllers.runs_kwok(deployment))
    ]


def _scale_down(api: requests.RequestSender, controller: ForeignController, stop: Event) -> None:
    patch = requests.patch(controller.key, foreign_controllers.scale_down_patch(controller))
    if _send(api, patch, "patch deployments") is None:
        return
    name = f"{controller.namespace}/{controller.name}"
    log.info("foreign_kwok_scaled_down", deployment=name, replicas=controller.replicas)
    deadline = time.monotonic() + SCALE_DOWN_S
    while ((_send(api, requests.get(controller.key), "get deployments") or {}).get("status") or {}).get("replicas"):
        if time.monotonic() > deadline or stop.wait(POLL_S):
            raise errors.DeadlineError(
                f"{controller} still has pods after {SCALE_DOWN_S:g} s",
                hint=f"check `kubectl describe deployment {controller.name} -n {controller.namespace}`",
            )


def _send(api: requests.RequestSender, request: requests.Request, what: str) -> Manifest | None:
    """Send a request for a Deployment; return the Deployment, None if it does not exist."""
    response = api.send(request)
    if response.status == HTTPStatus.NOT_FOUND:
        return None
    if response.status != HTTPStatus.OK:
        raise client.rejection_error(api, response, what)
    deployment: Manifest = response.json()
    return deployment


def _release_foreign_leases(
    api: requests.RequestSender,
    is_own: foreign_controllers.IsOwnHolder,
    nodes: backend.ListNodes,
    stop: Event,
    *,
    waited: bool,
) -> None:
    """Release the leases of dead holders; raise if a foreign holder is alive.

    A starting kwok that finds a held lease retries only after a quarter of its duration.
    """
    held = _foreign_leases(api, is_own, nodes)
    if held and not waited:  # otherwise the holder has just been scaled down
        _wait_for_expiry(api, is_own, nodes, held, stop)
    if not stop.is_set():
        lease_client.release_leases(api, [lease for lease in _leases_of(api, nodes) if not is_own(lease.holder)])


def _wait_for_expiry(
    api: requests.RequestSender,
    is_own: foreign_controllers.IsOwnHolder,
    nodes: backend.ListNodes,
    held: Mapping[str, Sequence[node_leases.NodeLease]],
    stop: Event,
) -> None:
    """Wait until all foreign holders are dead; raise if one renews a lease."""
    timeout_s = max(lease.duration_s for leases in held.values() for lease in leases) * EXPIRY_FACTOR
    deadline = time.monotonic() + timeout_s
    log.info("waiting_for_leases", holders=sorted(held), at_most_s=timeout_s)
    renewed = {lease.node: lease.renewed for leases in held.values() for lease in leases}
    while time.monotonic() < deadline and not stop.wait(POLL_S):
        now_held = _foreign_leases(api, is_own, nodes)
        if not now_held:
            return
        for holder, leases in now_held.items():
            if any(lease.renewed > renewed.get(lease.node, lease.renewed) for lease in leases):
                raise errors.NotOursError(
                    f"another kwok drives {len(leases)} of our nodes: {holder} renews their leases",
                    hint="stop it; its name begins with its host or pod",
                )


def _foreign_leases(
    api: requests.RequestSender, is_own: foreign_controllers.IsOwnHolder, nodes: backend.ListNodes
) -> Mapping[str, list[node_leases.NodeLease]]:
    return foreign_controllers.foreign_leases(_leases_of(api, nodes), is_own, datetime.now(UTC))


def _leases_of(api: requests.RequestSender, nodes: backend.ListNodes) -> list[node_leases.NodeLease]:
    names = {name for name, _ in nodes()}
    return [lease for lease in lease_client.held_leases(api) if lease.node in names]


def restore(api: requests.RequestSender) -> list[ForeignController]:
    """Restore the replicas of every Deployment that kwokfleet scaled down; return them."""
    deployments = map(foreign_controllers.from_deployment, client.list_objects(api, requests.DEPLOYMENT))
    controllers = [controller for controller in deployments if controller.remembered is not None]
    for controller in controllers:
        patch = requests.patch(controller.key, foreign_controllers.restore_patch(controller))
        if _send(api, patch, "patch deployments") is not None:
            name = f"{controller.namespace}/{controller.name}"
            log.info("foreign_kwok_restored", deployment=name, replicas=controller.remembered)
    return controllers
