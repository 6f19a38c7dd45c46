"""Before kwok starts: is there another one? Refuse by name, or put it to rest and give back what it had when we go."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from threading import Event

import structlog

from kwokfleet import errors
from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube import client, requests
from kwokfleet.kwok import backend, foreign_controllers, lease_client, node_leases, pod_backend, statefulset
from kwokfleet.kwok.foreign_controllers import ForeignController

log = structlog.get_logger()

GONE_S = 60.0
"""How long the pods of a Deployment may take to go."""
LOOK_S = 0.5
PATIENCE_FACTOR = 1.25
"""A holder that has not renewed for a quarter longer than its lease lasts is dead."""


def take_over(  # noqa: PLR0913, PLR0917  # who is ours, and where
    api: requests.RequestSender,
    spec: KwokControllerSpec,
    ours: foreign_controllers.IsOwnHolder,
    nodes: backend.ListNodes,
    stop: Event,
    home: str,
) -> list[ForeignController]:
    """See to it that no other kwok drives our nodes; return the Deployments that are at rest for that.

    One that a kwokfleet before us has put to rest, and did not live to give back what it had, is ours to restore.
    *home* is the namespace in which kwok may have run as a StatefulSet of ours.
    """
    there = foreign_deployments(api, spec.takeover.deployment)
    found = [one for one in there if one.replicas]
    if found and spec.takeover.policy == "refuse":
        raise errors.NotOursError(
            f"another kwok controller runs in the cluster: {', '.join(map(str, found))}",
            hint="scale it to 0, or let us: takeover: {policy: scaleDown} in the KwokController document",
        )
    try:
        for one in found:
            _put_to_rest(api, one, stop)
        ended = _end_former(api, ours, nodes, stop, home)
        _refuse_strangers(api, ours, nodes, stop, waited=ended or bool(found))
    except BaseException:  # ours does not start, so theirs must not stay away
        restore(api)
        raise
    return [one for one in there if one.replicas or one.remembered is not None]


def foreign_deployments(api: requests.RequestSender, only: str | None) -> list[ForeignController]:
    """Return the Deployments that run kwok, or the one that was named."""
    namespace, _, name = (only or "").partition("/")
    return [
        foreign_controllers.from_deployment(each)
        for each in client.list_objects(api, requests.DEPLOYMENT, namespace=namespace)
        if (each["metadata"]["name"] == name if only else foreign_controllers.runs_kwok(each))
    ]


def _put_to_rest(api: requests.RequestSender, one: ForeignController, stop: Event) -> None:
    answer = api.send(requests.patch(one.key, foreign_controllers.scale_down_patch(one)))
    if answer.status == HTTPStatus.NOT_FOUND:
        return  # somebody has deleted it meanwhile
    if answer.status != HTTPStatus.OK:
        raise client.rejection_error(api, answer, "patch deployments")
    log.info("rival_scaled_down", deployment=f"{one.namespace}/{one.name}", replicas=one.replicas)
    deadline = time.monotonic() + GONE_S
    while _has_pods(api, one):
        if time.monotonic() > deadline or stop.wait(LOOK_S):
            raise errors.DeadlineError(f"{one} still has pods after {GONE_S:g} s", hint="kubectl describe it")


def _has_pods(api: requests.RequestSender, one: ForeignController) -> bool:
    answer = api.send(requests.get(one.key))
    if answer.status == HTTPStatus.NOT_FOUND:
        return False  # somebody has deleted it meanwhile
    if answer.status != HTTPStatus.OK:
        raise client.rejection_error(api, answer, "get deployments")
    return bool((answer.json().get("status") or {}).get("replicas"))


def _end_former(
    api: requests.RequestSender, ours: foreign_controllers.IsOwnHolder, nodes: backend.ListNodes, stop: Event, home: str
) -> bool:
    """End a StatefulSet as which kwok ran before the files said otherwise, told by who holds our nodes' leases."""
    held = foreign_controllers.foreign_leases(_held(api, {name for name, _ in nodes()}), ours, datetime.now(UTC))
    suspects = {statefulset.from_holder(holder, home) for holder in held}
    ended = [pod_backend.scale_down_former(api, name, stop) for name in sorted(filter(None, suspects), key=str)]
    return any(ended)


def _refuse_strangers(
    api: requests.RequestSender,
    ours: foreign_controllers.IsOwnHolder,
    nodes: backend.ListNodes,
    stop: Event,
    *,
    waited: bool,
) -> None:
    """Refuse if somebody renews the leases of our nodes; who does not renew any more is dead, and lets go of them."""
    mine = {name for name, _ in nodes()}
    first = foreign_controllers.foreign_leases(_held(api, mine), ours, datetime.now(UTC))
    if first and not waited:  # if so, whoever held them has just been put to rest by us
        _wait_for_silence(api, ours, mine, first, stop)
    if stop.is_set():
        return
    # A kwok that starts and meets a lease tries again only after a quarter of its duration.
    lease_client.release_leases(api, [lease for lease in _held(api, mine) if not ours(lease.holder)])


def _wait_for_silence(
    api: requests.RequestSender,
    ours: foreign_controllers.IsOwnHolder,
    mine: set[str],
    first: Mapping[str, Sequence[node_leases.NodeLease]],
    stop: Event,
) -> None:
    """Wait until nobody else may renew the leases of our nodes; refuse if somebody does."""
    longest = max(lease.duration_s for held in first.values() for lease in held)
    deadline = time.monotonic() + longest * PATIENCE_FACTOR
    log.info("waiting_for_leases", holders=sorted(first), at_most_s=longest * PATIENCE_FACTOR)
    renewed = {lease.node: lease.renewed for held in first.values() for lease in held}
    while time.monotonic() < deadline and not stop.wait(LOOK_S):
        now = foreign_controllers.foreign_leases(_held(api, mine), ours, datetime.now(UTC))
        if not now:
            return
        for holder, held in now.items():
            if any(lease.renewed > renewed.get(lease.node, lease.renewed) for lease in held):
                raise errors.NotOursError(
                    f"another kwok drives {len(held)} of our nodes: {holder} renews their leases",
                    hint="end it; its name begins with the host or pod it runs on",
                )


def _held(api: requests.RequestSender, nodes: set[str]) -> list[node_leases.NodeLease]:
    return [lease for lease in lease_client.held_leases(api) if lease.node in nodes]


def restore(api: requests.RequestSender) -> list[ForeignController]:
    """Give every Deployment that we put to rest what it had; return them."""
    found = [
        one
        for one in map(foreign_controllers.from_deployment, client.list_objects(api, requests.DEPLOYMENT))
        if one.remembered is not None
    ]
    for one in found:
        answer = api.send(requests.patch(one.key, foreign_controllers.restore_patch(one)))
        if answer.status == HTTPStatus.NOT_FOUND:
            continue  # somebody has deleted it meanwhile: there is nothing to give back
        if answer.status != HTTPStatus.OK:
            raise client.rejection_error(api, answer, "patch deployments")
        log.info("rival_restored", deployment=f"{one.namespace}/{one.name}", replicas=one.remembered)
    return found
