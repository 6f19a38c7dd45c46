"""Applies the changes of a Plan in order, many at a time.

A write is repeated until the API server answers, so every write is idempotent: a creation that finds its object
checks the owner; a patch or deletion names the UID. Every Change gets an Outcome. Only an unreachable API server, or
one that rejects the credentials, ends the whole apply.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus

import structlog

from kwokfleet import errors
from kwokfleet.kube import client, objects, observed, parallel, requests, throttled_client
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.kube.requests import Response
from kwokfleet.reconcile import diff, drain, patches, shard_handover
from kwokfleet.reconcile import outcomes as report
from kwokfleet.reconcile.changes import Change, ChangeAction
from kwokfleet.reconcile.outcomes import ChangeResult, Outcome
from kwokfleet.reconcile.plan_input import FleetPolicy

log = structlog.get_logger()

MAX_PATCH_ATTEMPTS = 5
"""Attempts to patch an object that others change at the same time."""
_SUCCESS = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED)


NewObject = Callable[[Manifest], Manifest]
"""Returns the object to create for a desired object."""
ProgressCallback = Callable[[str, int, int], None]
"""Receives the step, and how many objects of how many are done."""


class Applier:
    """Applies changes."""

    def __init__(
        self,
        sender: throttled_client.ThrottledClient,
        new_object: NewObject,
        pools: Mapping[str, FleetPolicy],
        watcher: ProgressCallback | None = None,
    ) -> None:
        self.sender = sender
        self._new_object, self._pools = new_object, pools
        self.watch: ProgressCallback = watcher or (lambda _title, _done, _total: None)
        self._projector = observed.ObservedFactory()
        self._projecting = threading.Lock()

    @property
    def dry_run(self) -> bool:
        """Whether the API server persists nothing."""
        return self.sender.limits.dry_run

    def apply(self, changes: Sequence[Change], inventory: observed.Inventory) -> list[Outcome]:
        """Apply all changes, phase by phase; return one outcome each."""
        outcomes: list[Outcome] = []
        for (deletes, kind), phase in itertools.groupby(changes, key=_phase):
            phase_changes = list(phase)
            if deletes and kind == "Node":
                outcomes += drain.NodeDrainer(self, self._pools, inventory).remove(phase_changes)
            else:
                outcomes += self._replace(
                    [each for each in phase_changes if each.action is ChangeAction.REPLACE], inventory
                )
                title = f"{report.plural(kind)} {'deleted' if deletes else 'applied'}"
                made = self._apply_with_handover(
                    title, [each for each in phase_changes if each.action is not ChangeAction.REPLACE], inventory
                )
                outcomes += self._remove_taints(made) if kind == "Node" and not deletes else made
        for outcome in outcomes:
            log.debug(
                "changed", action=outcome.change.action.value, key="/".join(outcome.change.key), result=outcome.result
            )
        return outcomes

    def _apply_with_handover(
        self, title: str, changes: Sequence[Change], inventory: observed.Inventory
    ) -> list[Outcome]:
        """Apply changes; nodes that move to another kwok are released by the current one first."""
        moves = [
            each
            for each in changes
            if shard_handover.changes_shard(each) and each.live and _may_change(each, each.live)
        ]
        if self.dry_run or not moves:
            return self.run_all(title, changes, self.change)
        handover = shard_handover.ShardHandover(self.sender, moves, inventory)
        handover.release()
        outcomes = self.run_all(title, changes, self.change)
        handover.complete(
            {each.change.key.name for each in outcomes if each.result in (ChangeResult.DONE, ChangeResult.ALREADY)}
        )
        return outcomes

    def _remove_taints(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Remove the not-ready taint of nodes created Ready, newest first: the controller works oldest first."""
        born = [
            each for each in outcomes if each.change.action is ChangeAction.CREATE and each.result is ChangeResult.DONE
        ]
        if self.dry_run or not born:
            return outcomes
        work = [
            requests.patch(each.change.key, patches.remove_not_ready_taint(each.change.desired, each.version))
            for each in reversed(born)
            if each.change.desired is not None and each.version and self._is_ready(each.change.desired)
        ]
        throttled_client.send_all(self.sender, work, lambda done: self.watch("nodes opened", done, len(work)))
        return outcomes

    def _is_ready(self, node: Manifest) -> bool:
        return bool(self._new_object(node)["status"]["phase"] == "Running") and not node["spec"].get("unschedulable")

    def _replace(self, changes: Sequence[Change], inventory: observed.Inventory) -> list[Outcome]:
        """Drain, delete and recreate nodes."""
        if not changes:
            return []
        removed = drain.NodeDrainer(self, self._pools, inventory).remove(changes)
        gone = [each.change for each in removed if each.result in (ChangeResult.DONE, ChangeResult.ALREADY)]
        kept = [each for each in removed if each.result not in (ChangeResult.DONE, ChangeResult.ALREADY)]
        if self.dry_run:  # the old nodes still exist, so a creation would conflict
            return removed
        return [*kept, *self.run_all("nodes replaced", gone, self.create)]

    def run_all(self, title: str, changes: Sequence[Change], act: Callable[[Change], Outcome]) -> list[Outcome]:
        """Run *act* on all changes in parallel; an exception stops all of them."""
        if not changes:
            return []
        self.watch(title, 0, len(changes))
        outcomes = parallel.run_all(
            act,
            changes,
            self.sender.limits.max_inflight,
            self.sender.stop,
            lambda done: self.watch(title, done, len(changes)),
        )
        return [
            outcome or Outcome(change, ChangeResult.SKIPPED, "stopped before this change")
            for outcome, change in zip(outcomes, changes, strict=True)
        ]

    # one change

    def change(self, change: Change) -> Outcome:
        """Apply one change."""
        match change.action:
            case ChangeAction.CREATE:
                return self.create(change)
            case ChangeAction.UPDATE:
                return self.update(change, change.live, change.differences)
            case _:
                return self.delete(change)

    def create(self, change: Change) -> Outcome:
        """Create an object; an existing one is updated if it is managed by us."""
        if change.desired is None:
            raise ValueError(f"no desired object: {change.key}")
        answer = self.sender.send(requests.create(self._new_object(change.desired), dry_run=self.dry_run))
        if answer.status in _SUCCESS:
            return Outcome(change, ChangeResult.DONE, version=_version(answer))
        if answer.status == HTTPStatus.CONFLICT:
            return self.resolve_conflict(change)
        return _rejected_outcome(change, answer)

    def resolve_conflict(self, change: Change) -> Outcome:
        """Handle a creation whose object exists: from a repeated request, another sync, or another owner."""
        there = self.fetch(change.key)
        if there is None or there.deleting:
            return Outcome(change, ChangeResult.AGAIN, "an object with this name is being deleted")
        if not objects.is_managed(there.manifest) or there.fleet != change.fleet:
            return Outcome(
                change, ChangeResult.CONFLICT, "an object with this name exists and is not managed by kwokfleet"
            )
        found = diff.differences(change.desired or {}, there)
        return self.update(change, there, found) if found else Outcome(change, ChangeResult.ALREADY)

    def update(  # noqa: PLR0911  # one for each state of the live object
        self, change: Change, live: Observed | None, found: Sequence[diff.Difference]
    ) -> Outcome:
        """Patch an object; compute the patch again if the object changed meanwhile."""
        for _ in range(MAX_PATCH_ATTEMPTS):
            if live is None:
                return Outcome(change, ChangeResult.AGAIN, "the object was deleted meanwhile")
            if not found:
                return Outcome(change, ChangeResult.ALREADY)
            if not _may_change(change, live):
                return Outcome(change, ChangeResult.CONFLICT, "the object is no longer managed by kwokfleet")
            if diff.needs_replacement(change.key.kind, found):
                return Outcome(change, ChangeResult.AGAIN, "the object must be replaced")
            answer = self._patch(change.key, live, found)
            if answer.status in _SUCCESS:
                return Outcome(change, ChangeResult.DONE, version=_version(answer))
            if not _is_stale(answer):
                return _rejected_outcome(change, answer)
            live = self.fetch(change.key)
            found = diff.differences(change.desired or {}, live) if live else ()
        return Outcome(change, ChangeResult.FAILED, f"gave up after {MAX_PATCH_ATTEMPTS} write conflicts")

    def _patch(self, key: ObjectKey, live: Observed, found: Sequence[diff.Difference]) -> Response:
        answer = Response(HTTPStatus.OK)
        for each in patches.build_patches(live, found):
            answer = self.sender.send(requests.patch(key, each, dry_run=self.dry_run))
            if answer.status not in _SUCCESS:
                break
            if "resourceVersion" in each.body["metadata"]:  # the next patch needs the new version
                live = self._observed(key, answer.json())
        return answer

    def delete(self, change: Change) -> Outcome:
        """Delete one object, by UID."""
        live = change.live
        if live is None or not objects.is_managed(live.manifest):
            return Outcome(change, ChangeResult.CONFLICT, "the object is not managed by kwokfleet")
        answer = self.sender.send(requests.delete(change.key, live.uid, dry_run=self.dry_run))
        if answer.status in _SUCCESS:
            return Outcome(change, ChangeResult.DONE)
        if answer.status == HTTPStatus.NOT_FOUND:
            return Outcome(change, ChangeResult.ALREADY)
        if answer.status == HTTPStatus.CONFLICT:
            return Outcome(change, ChangeResult.AGAIN, "the object was recreated meanwhile")
        return _rejected_outcome(change, answer)

    def fetch(self, key: ObjectKey) -> Observed | None:
        """Return the live object; None if it does not exist."""
        answer = self.sender.send(requests.get(key))
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise client.rejection_error(self.sender.api, answer, f"get {key.kind.lower()}s")
        return self._observed(key, answer.json())

    def _observed(self, key: ObjectKey, manifest: Manifest) -> Observed:
        with self._projecting:
            return self._projector.from_manifest(key.api_version, key.kind, manifest)


def _phase(change: Change) -> tuple[bool, str]:
    return change.action is ChangeAction.DELETE, change.key.kind


def _may_change(change: Change, live: Observed) -> bool:
    """Return whether an object may be written: managed, or being adopted; of nodes, only fake ones."""
    if objects.is_managed(live.manifest):
        return True
    adopting = change.live is not None and not objects.is_managed(change.live.manifest)
    return adopting and live.uid == change.live.uid and (live.key.kind != "Node" or objects.is_fake_node(live.manifest))  # type: ignore[union-attr]


def _is_stale(answer: Response) -> bool:
    """Return whether a patch was rejected because the object changed since it was read."""
    if answer.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
        return True
    return answer.status == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid" in answer.message


def _rejected_outcome(change: Change, answer: Response) -> Outcome:
    later = answer.status in throttled_client.RETRYABLE_STATUSES
    return Outcome(change, ChangeResult.FAILED if later else ChangeResult.REFUSED, f"{answer.status} {answer.message}")


def _version(answer: Response) -> int:
    # Parsing a whole node for its version costs more than sending it.
    mark = b'"resourceVersion":"'
    start = answer.body.find(mark)
    if start < 0:
        return 0
    start += len(mark)
    return int(answer.body[start : answer.body.index(b'"', start)] or 0)


def ensure_definitions(
    sender: throttled_client.ThrottledClient, definitions: Sequence[Manifest], timeout_s: float
) -> Iterator[str]:
    """Create missing CustomResourceDefinitions and wait until they are established; yield the names of new ones.

    An existing definition is replaced only if kwokfleet created it and its digest differs.
    """
    waiting: list[ObjectKey] = []
    for manifest in definitions:
        key = objects.key(manifest)
        answer = sender.send(requests.get(key))
        if answer.status == HTTPStatus.OK:
            _replace_outdated(sender, manifest, answer.json())
            continue
        answer = sender.send(requests.create(manifest))
        if answer.status not in (*_SUCCESS, HTTPStatus.CONFLICT):
            error = client.rejection_error(sender.api, answer, "create customresourcedefinitions")
            error.hint = "ask a cluster administrator to run kwokfleet install"
            raise error
        waiting.append(key)
        yield key.name
    deadline = time.monotonic() + timeout_s
    for key in waiting:
        while not _established(sender.send(requests.get(key)).json()):
            if time.monotonic() > deadline or sender.stop.wait(throttled_client.FIRST_PAUSE_S):
                raise errors.DeadlineError(
                    f"{key.name} was not established within {timeout_s:g} s", hint="run the command again"
                )


def _replace_outdated(sender: throttled_client.ThrottledClient, manifest: Manifest, live: Manifest) -> None:
    """Replace a definition of ours whose digest differs."""
    digest = manifest["metadata"].get("annotations", {}).get(objects.DIGEST)
    live_digest = (live["metadata"].get("annotations") or {}).get(objects.DIGEST)
    if (
        digest
        and live_digest
        and digest != live_digest
        and objects.labels(live).get(objects.MANAGED_BY) == objects.KWOKFLEET
    ):
        version = live["metadata"]["resourceVersion"]
        sender.send(requests.replace({**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}))


def _established(definition: Manifest) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
