"""Applies the changes of a Plan in order, many at a time.

A write is repeated until the API server answers, so every write is idempotent: a creation that finds its object
checks the owner; a patch or deletion names the UID. Every Change gets an Outcome. Only an unreachable API server, or
one that rejects the credentials, ends the whole apply.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus

import structlog

from kwokfleet import errors
from kwokfleet.kube import client, objects, observed, parallel, requests, throttled_client
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.kube.requests import Response
from kwokfleet.reconcile import cluster_state, diff, drain, patches, shard_handover
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
                replaced = [change for change in phase_changes if change.action is ChangeAction.REPLACE]
                others = [change for change in phase_changes if change.action is not ChangeAction.REPLACE]
                outcomes += self._replace(replaced, inventory)
                title = f"{report.plural(kind)} {'deleted' if deletes else 'applied'}"
                applied = self._apply_with_handover(title, others, inventory)
                if kind == "Node" and not self.dry_run:
                    self._remove_taints(applied)
                outcomes += applied
        for outcome in outcomes:
            change = outcome.change
            log.debug("changed", action=change.action.value, key="/".join(change.key), result=outcome.result)
        return outcomes

    def _apply_with_handover(
        self, title: str, changes: Sequence[Change], inventory: observed.Inventory
    ) -> list[Outcome]:
        """Apply changes; nodes that move to another kwok are released by the current one first."""
        moves = [
            change for change in changes if shard_handover.changes_shard(change) and _may_change(change, change.live)
        ]
        if self.dry_run or not moves:
            return self.run_all(title, changes, self.change)
        handover = shard_handover.ShardHandover(self.sender, moves, inventory)
        handover.release()
        outcomes = self.run_all(title, changes, self.change)
        handover.complete({outcome.change.key.name for outcome in outcomes if outcome.is_applied})
        return outcomes

    def _remove_taints(self, outcomes: Sequence[Outcome]) -> None:
        """Remove the not-ready taint of nodes created Ready, newest first: the controller works oldest first."""
        work = []
        for outcome in reversed(outcomes):
            change, node = outcome.change, outcome.change.desired
            is_created = change.action is ChangeAction.CREATE and outcome.result is ChangeResult.DONE
            if is_created and node is not None and outcome.version and self._is_ready(node):
                work.append(requests.patch(change.key, patches.remove_not_ready_taint(node, outcome.version)))
        throttled_client.send_all(self.sender, work, lambda done: self.watch("nodes opened", done, len(work)))

    def _is_ready(self, node: Manifest) -> bool:
        return bool(self._new_object(node)["status"]["phase"] == "Running") and not node["spec"].get("unschedulable")

    def _replace(self, changes: Sequence[Change], inventory: observed.Inventory) -> list[Outcome]:
        """Drain, delete and recreate nodes."""
        if not changes:
            return []
        removed = drain.NodeDrainer(self, self._pools, inventory).remove(changes)
        if self.dry_run:  # the old nodes still exist, so a creation would conflict
            return removed
        deleted = [outcome.change for outcome in removed if outcome.is_applied]
        failed = [outcome for outcome in removed if not outcome.is_applied]
        return [*failed, *self.run_all("nodes replaced", deleted, self.create)]

    def run_all(self, title: str, changes: Sequence[Change], act: Callable[[Change], Outcome]) -> list[Outcome]:
        """Run *act* on all changes in parallel; an exception stops all of them."""
        if not changes:
            return []
        self.watch(title, 0, len(changes))
        limits, stop = self.sender.limits, self.sender.stop
        outcomes = parallel.run_all(
            act, changes, limits.max_inflight, stop, lambda done: self.watch(title, done, len(changes))
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
        response = self.sender.send(requests.create(self._new_object(change.desired), dry_run=self.dry_run))
        if response.status in _SUCCESS:
            return Outcome(change, ChangeResult.DONE, version=_version(response))
        if response.status == HTTPStatus.CONFLICT:
            return self.resolve_conflict(change)
        return _rejected_outcome(change, response)

    def resolve_conflict(self, change: Change) -> Outcome:
        """Handle a creation whose object exists: from a repeated request, another sync, or another owner."""
        live = cluster_state.get_object(self.sender, change.key)
        if live is None or live.deleting:
            return Outcome(change, ChangeResult.AGAIN, "an object with this name is being deleted")
        if not objects.is_managed(live.manifest) or live.fleet != change.fleet:
            why = "an object with this name exists and is not managed by kwokfleet"
            return Outcome(change, ChangeResult.CONFLICT, why)
        differences = diff.differences(change.desired or {}, live)
        return self.update(change, live, differences) if differences else Outcome(change, ChangeResult.ALREADY)

    def update(  # noqa: PLR0911  # one for each state of the live object
        self, change: Change, live: Observed | None, differences: Sequence[diff.Difference]
    ) -> Outcome:
        """Patch an object; compute the patch again if the object changed meanwhile."""
        for _ in range(MAX_PATCH_ATTEMPTS):
            if live is None:
                return Outcome(change, ChangeResult.AGAIN, "the object was deleted meanwhile")
            if not differences:
                return Outcome(change, ChangeResult.ALREADY)
            if not _may_change(change, live):
                return Outcome(change, ChangeResult.CONFLICT, "the object is no longer managed by kwokfleet")
            if diff.needs_replacement(change.key.kind, differences):
                return Outcome(change, ChangeResult.AGAIN, "the object must be replaced")
            response = self._patch(change.key, live, differences)
            if response.status in _SUCCESS:
                return Outcome(change, ChangeResult.DONE, version=_version(response))
            if not _is_stale(response):
                return _rejected_outcome(change, response)
            live = cluster_state.get_object(self.sender, change.key)
            differences = diff.differences(change.desired or {}, live) if live else ()
        return Outcome(change, ChangeResult.FAILED, f"gave up after {MAX_PATCH_ATTEMPTS} write conflicts")

    def _patch(self, key: ObjectKey, live: Observed, differences: Sequence[diff.Difference]) -> Response:
        response = Response(HTTPStatus.OK)
        for patch in patches.build_patches(live, differences):
            response = self.sender.send(requests.patch(key, patch, dry_run=self.dry_run))
            if response.status not in _SUCCESS:
                break
            if "resourceVersion" in patch.body["metadata"]:  # the next patch needs the new version
                live = observed.ObservedFactory().from_manifest(key.api_version, key.kind, response.json())
        return response

    def delete(self, change: Change) -> Outcome:
        """Delete one object, by UID."""
        live = change.live
        if live is None or not objects.is_managed(live.manifest):
            return Outcome(change, ChangeResult.CONFLICT, "the object is not managed by kwokfleet")
        response = self.sender.send(requests.delete(change.key, live.uid, dry_run=self.dry_run))
        if response.status in _SUCCESS:
            return Outcome(change, ChangeResult.DONE)
        if response.status == HTTPStatus.NOT_FOUND:
            return Outcome(change, ChangeResult.ALREADY)
        if response.status == HTTPStatus.CONFLICT:
            return Outcome(change, ChangeResult.AGAIN, "the object was recreated meanwhile")
        return _rejected_outcome(change, response)


def _phase(change: Change) -> tuple[bool, str]:
    return change.action is ChangeAction.DELETE, change.key.kind


def _may_change(change: Change, live: Observed | None) -> bool:
    """Return whether an object may be written: managed, or being adopted; of nodes, only fake ones."""
    if live is None or objects.is_managed(live.manifest):
        return live is not None
    if change.live is None or objects.is_managed(change.live.manifest) or live.uid != change.live.uid:
        return False
    return live.key.kind != "Node" or objects.is_fake_node(live.manifest)


def _is_stale(response: Response) -> bool:
    """Return whether a patch was rejected because the object changed since it was read."""
    if response.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
        return True
    return response.status == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid" in response.message


def _rejected_outcome(change: Change, response: Response) -> Outcome:
    is_retryable = response.status in throttled_client.RETRYABLE_STATUSES
    result = ChangeResult.FAILED if is_retryable else ChangeResult.REFUSED
    return Outcome(change, result, f"{response.status} {response.message}")


def _version(response: Response) -> int:
    # Parsing a whole node for its version costs more than sending it.
    return int(response.body.partition(b'"resourceVersion":"')[2].partition(b'"')[0] or 0)


def ensure_definitions(
    sender: throttled_client.ThrottledClient, definitions: Sequence[Manifest], timeout_s: float
) -> Iterator[str]:
    """Create missing CustomResourceDefinitions and wait until they are established; yield the names of new ones.

    An existing definition is replaced only if kwokfleet created it and its digest differs.
    """
    waiting: list[ObjectKey] = []
    for manifest in definitions:
        key = objects.key(manifest)
        response = sender.send(requests.get(key))
        if response.status == HTTPStatus.OK:
            _replace_outdated(sender, manifest, response.json())
            continue
        response = sender.send(requests.create(manifest))
        if response.status not in (*_SUCCESS, HTTPStatus.CONFLICT):
            error = client.rejection_error(sender.api, response, "create customresourcedefinitions")
            error.hint = "ask a cluster administrator to run kwokfleet install"
            raise error
        waiting.append(key)
        yield key.name
    wait_until_established(sender, waiting, timeout_s)


def wait_until_established(
    sender: throttled_client.ThrottledClient, definitions: Iterable[ObjectKey], timeout_s: float
) -> None:
    """Wait until the API server serves the kinds of CustomResourceDefinitions."""
    deadline = time.monotonic() + timeout_s
    for key in definitions:
        while not objects.has_condition(sender.send(requests.get(key)).json(), "Established"):
            if time.monotonic() > deadline or sender.stop.wait(throttled_client.FIRST_PAUSE_S):
                raise errors.DeadlineError(
                    f"{key.name} was not established within {timeout_s:g} s", hint="run the command again"
                )


def _replace_outdated(sender: throttled_client.ThrottledClient, manifest: Manifest, live: Manifest) -> None:
    """Replace a definition of ours whose digest differs."""
    digest, live_digest = (
        (definition["metadata"].get("annotations") or {}).get(objects.DIGEST) for definition in (manifest, live)
    )
    if digest and live_digest and digest != live_digest and objects.is_managed(live):
        version = live["metadata"]["resourceVersion"]
        sender.send(requests.replace({**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}))
