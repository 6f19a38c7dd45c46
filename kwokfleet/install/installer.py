"""An installation in a cluster: looked at first, applied in order, and waited for.

Nothing is written before everything has been looked at: whose the objects are that have our names, and what the
API server would say to each of ours. Every step can be repeated, so that an interrupted installation is finished by
the next one, and the next version's is an upgrade.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus

from kwokfleet import errors
from kwokfleet.install import manifests, ownership, rollout
from kwokfleet.install.ownership import Ownership
from kwokfleet.kube import client, objects, requests, throttled_client
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.requests import Response

LOOK_S = 0.5
_MADE = (HTTPStatus.OK, HTTPStatus.CREATED)
_FEW = 5


class ApplyResult(StrEnum):
    """What became of one object."""

    CREATED = "created"
    CHANGED = "configured"
    SAME = "unchanged"
    LEFT = "left as it is"
    REMOVED = "removed"


Tell = Callable[[ObjectKey, ApplyResult], None]


@dataclass(slots=True)
class InstallState:
    """An installation, and what there is already of it."""

    namespace: str
    wanted: Sequence[Manifest]
    live: Mapping[ObjectKey, Manifest] = field(default_factory=dict)
    same: set[ObjectKey] = field(default_factory=set)
    """What is there as it should be, as far as it was tried out."""
    surplus: Sequence[tuple[requests.Kind, Manifest]] = ()
    """What another version, or other options, had installed and this one does not."""

    def is_left_unchanged(self, manifest: Manifest) -> bool:
        """Return whether an object is somebody else's and used as it is."""
        return ownership.is_left_unchanged(manifest, self.live.get(objects.key(manifest)), self.namespace)

    def result(self, manifest: Manifest, made: Manifest) -> ApplyResult:
        """Return what became of an object, or would."""
        before = self.live.get(objects.key(manifest))
        if before is None:
            return ApplyResult.CREATED
        return ApplyResult.SAME if ownership.is_unchanged(before, made) else ApplyResult.CHANGED


class Installer:
    """Puts an installation into a cluster."""

    def __init__(self, sender: throttled_client.ThrottledClient, *, force: bool = False) -> None:
        self._sender, self._force = sender, force

    def inspect(self, wanted: Sequence[Manifest], namespace: str) -> InstallState:
        """Look at what is there; raise if something is in the way."""
        live = {}
        for each in wanted:
            answer = self._sender.send(requests.get_any(ownership.kind(each), each))
            if answer.status == HTTPStatus.OK:
                live[objects.key(each)] = answer.json()
            elif answer.status != HTTPStatus.NOT_FOUND:
                raise _refusal(self._sender, [_said(objects.key(each), answer)])
        _refuse(ownership.ownership_conflicts(wanted, live, namespace, force=self._force))
        names = {objects.key(each) for each in wanted}
        surplus = [
            (kind, each)
            for kind, each in list_installed(self._sender, namespace)
            if kind.kind not in ownership.PERSISTENT_KINDS and key_of(kind, each) not in names
        ]
        return InstallState(namespace, wanted, live, surplus=surplus)

    def dry_run(self, survey: InstallState, tell: Tell | None = None) -> None:
        """Let the API server check everything, and keep nothing; raise with all that it has to say."""
        refused: list[str] = []
        for each in survey.wanted:
            key = objects.key(each)
            if survey.is_left_unchanged(each):
                what = ApplyResult.LEFT
            else:
                answer = self._sent(survey, each, dry_run=True)
                if answer.status not in _MADE and not _waits_for_namespace(answer):
                    refused.append(_said(key, answer))
                    continue
                what = ApplyResult.CREATED if answer.status not in _MADE else survey.result(each, answer.json())
                survey.same |= {key} if what is ApplyResult.SAME else set()
            if tell:
                tell(key, what)
        if refused:
            raise _refusal(self._sender, refused)

    def apply(self, survey: InstallState, tell: Tell, established_s: float) -> None:
        """Make everything as it should be, in order, and take away what is too much."""
        for each in survey.wanted:
            if survey.is_left_unchanged(each) or objects.key(each) in survey.same:
                tell(objects.key(each), ApplyResult.LEFT if survey.is_left_unchanged(each) else ApplyResult.SAME)
                continue
            answer = self._sent(survey, each)
            if answer.status not in _MADE:
                raise _refusal(self._sender, [_said(objects.key(each), answer)])
            tell(objects.key(each), survey.result(each, answer.json()))
        for kind, each in survey.surplus:
            delete_object(self._sender, kind, each)
            tell(key_of(kind, each), ApplyResult.REMOVED)
        self._wait_until_established(survey, established_s)

    def _sent(self, survey: InstallState, manifest: Manifest, *, dry_run: bool = False) -> Response:
        there = survey.live.get(objects.key(manifest))
        said = ownership.without_managed_fields(ownership.with_install_label(manifest, survey.namespace), there)
        request = requests.apply_any(
            ownership.kind(manifest), said, ownership.MANAGER, force=self._force, dry_run=dry_run
        )
        return self._sender.send(request)

    def _wait_until_established(self, survey: InstallState, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for each in survey.wanted:
            if each["kind"] != "CustomResourceDefinition":
                continue
            while not rollout.is_established(self._sender.send(requests.get_any(ownership.kind(each), each)).json()):
                if time.monotonic() > deadline or self._sender.stop.wait(throttled_client.FIRST_PAUSE_S):
                    raise errors.DeadlineError(
                        f"{each['metadata']['name']} was not established within {timeout_s:g} s", hint="try again"
                    )


# what there is


def list_installed(api: requests.RequestSender, namespace: str = "") -> list[tuple[requests.Kind, Manifest]]:
    """Return all that installations have made, or the one in a namespace; what to apply last comes last."""
    selector = f"{ownership.INSTALL_LABEL}={namespace}" if namespace else ownership.INSTALL_LABEL
    found: list[tuple[requests.Kind, Manifest]] = []
    for kind in ownership.KINDS:
        try:
            found += [(kind, each) for each in client.list_objects(api, kind, selector, metadata_only=True)]
        except errors.ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:  # a kind that this cluster does not know has no objects
                raise
    return found


def key_of(kind: requests.Kind, manifest: Manifest) -> ObjectKey:
    """Return what tells an object from all others; lists leave out what kind their items are of."""
    metadata = manifest["metadata"]
    return ObjectKey(kind.api_version, kind.kind, metadata.get("namespace", ""), metadata["name"])


def delete_object(api: requests.RequestSender, kind: requests.Kind, manifest: Manifest) -> None:
    """Delete one object, if it is still there."""
    answer = api.send(requests.delete_any(kind, manifest, manifest["metadata"]["uid"]))
    if answer.status not in (*_MADE, HTTPStatus.ACCEPTED, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        raise client.rejection_error(api, answer, f"delete {kind.plural}")


# what is in the way


def _refuse(found: Sequence[ownership.OwnershipConflict]) -> None:
    if not found:
        return
    first = found[0]
    match first.whose:
        case Ownership.ELSEWHERE:
            what = f"kwokfleet is installed in namespace {first.where} already: {display_name(first.key)} belongs to it"
            hint = f"upgrade that one with --namespace {first.where}, or kwokfleet uninstall it first"
        case Ownership.KIN:
            what = f"{_some(found)} was put in place by other means, such as kubectl apply -k or Helm"
            hint = "go on with those, remove it with them first, or take it over with --force"
        case _:
            what = f"{_some(found)} is there and is not kwokfleet's"
            hint = "rename or delete it, or install into another --namespace"
    raise errors.NotOursError(what, hint=hint)


def _some(found: Sequence[ownership.OwnershipConflict]) -> str:
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{display_name(found[0].key)}{more}"


def display_name(key: ObjectKey) -> str:
    """Return an object as kubectl names it."""
    return f"{key.kind.lower()}/{key.name}" + (f" in {key.namespace}" if key.namespace else "")


def _waits_for_namespace(answer: Response) -> bool:
    """Return whether a trial failed only because the namespace is not there yet."""
    about = answer.json().get("details") or {}
    return answer.status == HTTPStatus.NOT_FOUND and about.get("kind") == "namespaces"


def _said(key: ObjectKey, answer: Response) -> str:
    if answer.status == HTTPStatus.NOT_FOUND:
        return f"{display_name(key)}: the cluster knows no {key.kind} in {key.api_version}"
    return f"{display_name(key)}: {answer.status} {answer.message}"


def _refusal(sender: throttled_client.ThrottledClient, refused: Sequence[str]) -> errors.ClusterError:
    """Return all that the API server had to say, as one error."""
    whole = "; ".join(refused[:_FEW]) + (f"; and {len(refused) - _FEW} more" if len(refused) > _FEW else "")
    hint = "what was done stays, and another install goes on from there"
    if any(f": {HTTPStatus.FORBIDDEN.value} " in each for each in refused):
        hint = "an installation makes ClusterRoles and definitions: let a cluster administrator run it"
    elif any(f": {HTTPStatus.CONFLICT.value} " in each for each in refused):
        hint = "somebody else has changed these fields: say the same with an option, or take them with --force"
    elif any("the cluster knows no " in each for each in refused):
        hint = "leave out --monitoring, or install the Prometheus Operator first"
    return errors.ClusterError(f"the API server at {sender.host} refuses: {whole}", hint=hint)


# waiting


@dataclass(frozen=True, slots=True)
class ReadinessGoal:
    """What an installation waits for."""

    namespace: str
    fleets: frozenset[str] | None = None
    """Which Fleets must be Ready; None: whatever the files hold. Empty: none."""
    digest: str = ""
    """Of the files that they must have been made from."""


def wait_until_ready(
    sender: throttled_client.ThrottledClient, goal: ReadinessGoal, timeout_s: float, tell: Callable[[str], None]
) -> None:
    """Wait until the daemon runs and its Fleets are Ready; tell each thing that is waited for."""
    deadline, told = time.monotonic() + timeout_s, set[str]()
    while lacking := _lacking(sender, goal):
        if lacking not in told:  # a pod that crashes again and again is told of once
            tell(lacking)
            told.add(lacking)
        if time.monotonic() > deadline:
            raise errors.DeadlineError(
                f"not ready after {timeout_s:g} s: {lacking}",
                hint=f"{_where_to_look(lacking, goal)}; the same command once more goes on waiting",
            )
        if sender.stop.wait(LOOK_S):
            return


def _where_to_look(lacking: str, goal: ReadinessGoal) -> str:
    if lacking.startswith("fleet "):
        return "kubectl describe fleets says under Withheld what to do"
    return f"kubectl --namespace {goal.namespace} describe pods, or logs deployment/{manifests.NAME}"


def _lacking(sender: throttled_client.ThrottledClient, goal: ReadinessGoal) -> str:
    key = ObjectKey("apps/v1", "Deployment", goal.namespace, manifests.NAME)
    answer = sender.send(requests.get(key))
    if answer.status != HTTPStatus.OK:
        raise client.rejection_error(sender.api, answer, "get deployments")
    if lacking := rollout.daemon_pending(answer.json(), daemon_pods(sender, goal.namespace)):
        return f"deployment {manifests.NAME}: {lacking}"
    if goal.fleets is not None and not goal.fleets:
        return ""
    return rollout.fleets_pending(_fleets(sender), goal.fleets, goal.digest)


def daemon_pods(api: requests.RequestSender, namespace: str) -> list[Manifest]:
    """Return the daemon's pods."""
    selector = f"app.kubernetes.io/name={manifests.NAME},app.kubernetes.io/component=daemon"
    return list(client.list_objects(api, requests.POD, selector, namespace=namespace))


def _fleets(api: requests.RequestSender) -> Iterable[Manifest]:
    return client.list_objects(api, requests.FLEET)
