"""Installs kwokfleet: inspect, server dry run, apply in order, wait.

Nothing is written before the owners of existing objects are known and the API server accepted a dry run of every
object. Every step is idempotent: the next install finishes an interrupted one, and upgrades an older version.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.install import manifests, ownership, rollout
from kwokfleet.install.ownership import Ownership
from kwokfleet.kube import client, objects, rejections, requests, throttled_client
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.requests import Response
from kwokfleet.reconcile import applier

POLL_S = 0.5
_SUCCESS = (HTTPStatus.OK, HTTPStatus.CREATED)
_FEW = 5


class ApplyResult(StrEnum):
    """Result of applying one object."""

    CREATED = "created"
    CHANGED = "configured"
    SAME = "unchanged"
    LEFT = "left as it is"
    REMOVED = "removed"


Report = Callable[[ObjectKey, ApplyResult], None]


@dataclass(slots=True)
class InstallState:
    """Objects of an installation, desired and live."""

    namespace: str
    desired: Sequence[Manifest]
    live: Mapping[ObjectKey, Manifest] = field(default_factory=dict)
    same: set[ObjectKey] = field(default_factory=set)
    """Objects that the dry run left unchanged."""
    surplus: Sequence[tuple[requests.Kind, Manifest]] = ()
    """Objects that another version, or other options, installed and this one does not."""

    def is_left_unchanged(self, manifest: Manifest) -> bool:
        """Return whether a foreign object is used unchanged."""
        return ownership.is_left_unchanged(manifest, self.live.get(objects.key(manifest)), self.namespace)

    def result(self, manifest: Manifest, applied: Manifest) -> ApplyResult:
        """Return the result of applying an object."""
        before = self.live.get(objects.key(manifest))
        if before is None:
            return ApplyResult.CREATED
        return ApplyResult.SAME if ownership.is_unchanged(before, applied) else ApplyResult.CHANGED


class Installer:
    """Installs objects into a cluster."""

    def __init__(self, sender: throttled_client.ThrottledClient, *, force: bool = False) -> None:
        self._sender, self._force = sender, force

    def inspect(self, desired: Sequence[Manifest], namespace: str) -> InstallState:
        """Read the live objects; raise on ownership conflicts."""
        live = {}
        for manifest in desired:
            response = self._sender.send(requests.get_any(ownership.kind(manifest), manifest))
            if response.status == HTTPStatus.OK:
                live[objects.key(manifest)] = response.json()
            elif response.status != HTTPStatus.NOT_FOUND:
                raise _rejection_error(self._sender, [_rejection(objects.key(manifest), response)])
        _raise_conflicts(ownership.ownership_conflicts(desired, live, namespace, force=self._force))
        keys = {objects.key(manifest) for manifest in desired}
        surplus = [
            (kind, manifest)
            for kind, manifest in list_installed(self._sender, namespace)
            if kind.kind not in ownership.PERSISTENT_KINDS and requests.item_key(kind, manifest) not in keys
        ]
        return InstallState(namespace, desired, live, surplus=surplus)

    def dry_run(self, state: InstallState, report: Report | None = None) -> None:
        """Run a server dry run of every object; raise with all rejections."""
        rejected: list[str] = []
        for manifest in state.desired:
            key = objects.key(manifest)
            if state.is_left_unchanged(manifest):
                result = ApplyResult.LEFT
            else:
                response = self._apply(state, manifest, dry_run=True)
                is_accepted = response.status in _SUCCESS
                if not is_accepted and not rejections.is_missing_namespace(response):
                    rejected.append(_rejection(key, response))
                    continue
                result = state.result(manifest, response.json()) if is_accepted else ApplyResult.CREATED
                state.same |= {key} if result is ApplyResult.SAME else set()
            if report:
                report(key, result)
        if rejected:
            raise _rejection_error(self._sender, rejected)

    def apply(self, state: InstallState, report: Report, established_s: float) -> None:
        """Apply every object in order, and delete surplus objects."""
        for manifest in state.desired:
            key = objects.key(manifest)
            if state.is_left_unchanged(manifest):
                result = ApplyResult.LEFT
            elif key in state.same:
                result = ApplyResult.SAME
            else:
                response = self._apply(state, manifest)
                if response.status not in _SUCCESS:
                    raise _rejection_error(self._sender, [_rejection(key, response)])
                result = state.result(manifest, response.json())
            report(key, result)
        for kind, manifest in state.surplus:
            delete_object(self._sender, kind, manifest)
            report(requests.item_key(kind, manifest), ApplyResult.REMOVED)
        definitions = [key for key in map(objects.key, state.desired) if key.kind == "CustomResourceDefinition"]
        applier.wait_until_established(self._sender, definitions, established_s)

    def _apply(self, state: InstallState, manifest: Manifest, *, dry_run: bool = False) -> Response:
        live = state.live.get(objects.key(manifest))
        applied = ownership.without_managed_fields(ownership.with_install_label(manifest, state.namespace), live)
        kind, options = ownership.kind(manifest), {"force": self._force, "dry_run": dry_run}
        return self._sender.send(requests.apply_any(kind, applied, ownership.MANAGER, **options))


# installed objects


def list_installed(api: requests.RequestSender, namespace: str = "") -> list[tuple[requests.Kind, Manifest]]:
    """Return the objects of all installations, or of the one in a namespace, in apply order."""
    selector = f"{ownership.INSTALL_LABEL}={namespace}" if namespace else ownership.INSTALL_LABEL
    installed: list[tuple[requests.Kind, Manifest]] = []
    for kind in ownership.KINDS:
        try:
            installed += [(kind, manifest) for manifest in client.list_objects(api, kind, selector, metadata_only=True)]
        except errors.ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:  # without its CRD a kind has no objects
                raise
    return installed


def delete_object(api: requests.RequestSender, kind: requests.Kind, manifest: Manifest) -> None:
    """Delete one object, if it still exists."""
    response = api.send(requests.delete_any(kind, manifest, manifest["metadata"]["uid"]))
    if response.status not in (*_SUCCESS, HTTPStatus.ACCEPTED, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        raise client.rejection_error(api, response, f"delete {kind.plural}")


# conflicts and rejections


def _raise_conflicts(conflicts: Sequence[ownership.OwnershipConflict]) -> None:
    if not conflicts:
        return
    first, name = conflicts[0], display_name(conflicts[0].key)
    more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
    match first.whose:
        case Ownership.OTHER_INSTALLATION:
            message = f"kwokfleet is already installed in namespace {first.where}: it owns {name}"
            hint = f"upgrade it with --namespace {first.where}, or run kwokfleet uninstall first"
        case Ownership.OTHER_TOOL:
            message = f"{name}{more} was installed by another tool, for example kubectl apply -k or Helm"
            hint = "upgrade or remove it with that tool, or take it over with --force"
        case _:
            message = f"{name}{more} already exists and does not belong to kwokfleet"
            hint = "rename or delete it, or choose another --namespace"
    raise errors.NotOursError(message, hint=hint)


def display_name(key: ObjectKey) -> str:
    """Return an object's name in kubectl's notation."""
    return f"{key.kind.lower()}/{key.name}" + (f" in {key.namespace}" if key.namespace else "")


def _rejection(key: ObjectKey, response: Response) -> str:
    if response.status == HTTPStatus.NOT_FOUND:
        return f"{display_name(key)}: the cluster has no kind {key.kind} in {key.api_version}"
    return f"{display_name(key)}: {response.status} {response.message}"


def _rejection_error(sender: throttled_client.ThrottledClient, reasons: Sequence[str]) -> errors.ClusterError:
    """Return all rejections as one error."""
    text = "; ".join(reasons[:_FEW]) + (f"; and {len(reasons) - _FEW} more" if len(reasons) > _FEW else "")
    hint = "applied objects stay; run install again to continue"
    if any(f": {HTTPStatus.FORBIDDEN.value} " in reason for reason in reasons):
        hint = "ask a cluster administrator to run it: install creates ClusterRoles and CustomResourceDefinitions"
    elif any(f": {HTTPStatus.CONFLICT.value} " in reason for reason in reasons):
        hint = (
            "another field manager changed these fields: set the same values by options, or overwrite them with --force"
        )
    elif any("the cluster has no kind " in reason for reason in reasons):
        hint = "install the Prometheus Operator first, or omit --monitoring"
    return errors.ClusterError(f"the API server at {sender.host} rejected: {text}", hint=hint)


# waiting


@dataclass(frozen=True, slots=True)
class ReadinessGoal:
    """Condition that ends the wait."""

    namespace: str
    fleets: frozenset[str] | None = None
    """Fleets that must be Ready; None: every Fleet, at least one; empty: none."""
    digest: str = ""
    """Digest of the files that they must have been synced from; empty: any."""


def wait_until_ready(
    sender: throttled_client.ThrottledClient, goal: ReadinessGoal, timeout_s: float, report: Callable[[str], None]
) -> None:
    """Wait until the daemon runs and its Fleets are Ready; report each reason to wait once."""
    deadline, reported = time.monotonic() + timeout_s, set[str]()
    while reason := _lacking(sender, goal):
        if reason not in reported:  # a crash loop is reported once
            report(reason)
            reported.add(reason)
        if time.monotonic() > deadline:
            raise errors.DeadlineError(
                f"not ready after {timeout_s:g} s: {reason}",
                hint=f"{_where_to_look(reason, goal)}; run the same command again to wait longer",
            )
        if sender.stop.wait(POLL_S):
            return


def _where_to_look(lacking: str, goal: ReadinessGoal) -> str:
    if lacking.startswith("fleet "):
        return "kubectl describe fleets shows the next steps under Withheld"
    return f"kubectl --namespace {goal.namespace} describe pods, or logs deployment/{manifests.NAME}"


def _lacking(sender: throttled_client.ThrottledClient, goal: ReadinessGoal) -> str:
    key = ObjectKey("apps/v1", "Deployment", goal.namespace, manifests.NAME)
    response = sender.send(requests.get(key))
    if response.status != HTTPStatus.OK:
        raise client.rejection_error(sender.api, response, "get deployments")
    if reason := rollout.daemon_pending(response.json(), list_pods(sender, goal.namespace, "daemon")):
        return f"deployment {manifests.NAME}: {reason}"
    if goal.fleets is not None and not goal.fleets:
        return ""
    return rollout.fleets_pending(client.list_objects(sender, requests.FLEET), goal.fleets, goal.digest)


def list_pods(api: requests.RequestSender, namespace: str, component: str = "") -> list[Manifest]:
    """Return the pods of an installation, or of one component."""
    of_component = f",app.kubernetes.io/component={component}" if component else ""
    selector = f"app.kubernetes.io/name={manifests.NAME}{of_component}"
    return list(client.list_objects(api, requests.POD, selector, namespace=namespace))
