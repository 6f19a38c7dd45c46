"""All writes are made here: a Plan's changes in their order, many at once, each one guarded.

A write is repeated until the API server has answered it, so it must bear being repeated: a creation
that finds its object there looks whether it is ours; a patch or a delete names the UID. Whatever the
answer, the Change gets an Outcome; only an API server that stays away, or does not know us any
more, ends the whole.
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
"""How often a change is worked out anew on a state that somebody else has changed meanwhile."""
_MADE = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED)


NewObject = Callable[[Manifest], Manifest]
"""Makes of an object that is asked for the one that is to be created."""
ProgressCallback = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is."""


class Applier:
    """Makes the changes of plans."""

    def __init__(
        self,
        sender: throttled_client.ThrottledClient,
        birth: NewObject,
        pools: Mapping[str, FleetPolicy],
        watcher: ProgressCallback | None = None,
    ) -> None:
        self.sender = sender
        self._birth, self._pools = birth, pools
        self.watch: ProgressCallback = watcher or (lambda _title, _done, _total: None)
        self._projector = observed.ObservedFactory()
        self._projecting = threading.Lock()

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be kept."""
        return self.sender.limits.dry_run

    def apply(self, changes: Sequence[Change], inventory: observed.Inventory) -> list[Outcome]:
        """Make all changes, phase by phase, and return what became of each."""
        outcomes: list[Outcome] = []
        for (deletes, kind), phase in itertools.groupby(changes, key=_phase):
            mine = list(phase)
            if deletes and kind == "Node":
                outcomes += drain.NodeDrainer(self, self._pools, inventory).remove(mine)
            else:
                outcomes += self._replaced([each for each in mine if each.action is ChangeAction.REPLACE], inventory)
                title = f"{report.plural(kind)} {'deleted' if deletes else 'applied'}"
                made = self._moved(title, [each for each in mine if each.action is not ChangeAction.REPLACE], inventory)
                outcomes += self._opened(made) if kind == "Node" and not deletes else made
        for outcome in outcomes:
            log.debug(
                "changed", action=outcome.change.action.value, key="/".join(outcome.change.key), result=outcome.result
            )
        return outcomes

    def _moved(self, title: str, changes: Sequence[Change], inventory: observed.Inventory) -> list[Outcome]:
        """Make changes; nodes that another kwok is to drive are taken from the present one first."""
        moves = [
            each
            for each in changes
            if shard_handover.changes_shard(each) and each.live and _may_change(each, each.live)
        ]
        if self.dry_run or not moves:
            return self.each(title, changes, self.change)
        move = shard_handover.ShardHandover(self.sender, moves, inventory)
        move.leave()
        outcomes = self.each(title, changes, self.change)
        move.arrive(
            {each.change.key.name for each in outcomes if each.result in (ChangeResult.DONE, ChangeResult.ALREADY)}
        )
        return outcomes

    def _opened(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Let pods onto the nodes that were just born Ready, the last ones first: the first are others' work by now."""
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
        return bool(self._birth(node)["status"]["phase"] == "Running") and not node["spec"].get("unschedulable")

    def _replaced(self, changes: Sequence[Change], inventory: observed.Inventory) -> list[Outcome]:
        """Delete nodes in good order and create them anew."""
        if not changes:
            return []
        removed = drain.NodeDrainer(self, self._pools, inventory).remove(changes)
        gone = [each.change for each in removed if each.result in (ChangeResult.DONE, ChangeResult.ALREADY)]
        kept = [each for each in removed if each.result not in (ChangeResult.DONE, ChangeResult.ALREADY)]
        if self.dry_run:  # the old ones are still there, and the new ones would meet them
            return removed
        return [*kept, *self.each("nodes replaced", gone, self.create)]

    def each(self, title: str, changes: Sequence[Change], act: Callable[[Change], Outcome]) -> list[Outcome]:
        """Do one thing to each of many, many at once; stop all if one finds that the cluster is lost."""
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
            outcome or Outcome(change, ChangeResult.SKIPPED, "stopped before")
            for outcome, change in zip(outcomes, changes, strict=True)
        ]

    # one change

    def change(self, change: Change) -> Outcome:
        """Make one change."""
        match change.action:
            case ChangeAction.CREATE:
                return self.create(change)
            case ChangeAction.UPDATE:
                return self.update(change, change.live, change.differences)
            case _:
                return self.delete(change)

    def create(self, change: Change) -> Outcome:
        """Create an object; one that is there already is looked at."""
        if change.desired is None:
            raise ValueError(f"nothing to create: {change.key}")
        answer = self.sender.send(requests.create(self._birth(change.desired), dry_run=self.dry_run))
        if answer.status in _MADE:
            return Outcome(change, ChangeResult.DONE, version=_version(answer))
        if answer.status == HTTPStatus.CONFLICT:
            return self.resolve_conflict(change)
        return _rejected_outcome(change, answer)

    def resolve_conflict(self, change: Change) -> Outcome:
        """Deal with an object that came before ours: by ourselves a moment ago, by another sync, by somebody else."""
        there = self.fetch(change.key)
        if there is None or there.deleting:
            return Outcome(change, ChangeResult.AGAIN, "it is just being deleted")
        if not objects.is_managed(there.manifest) or there.fleet != change.fleet:
            return Outcome(change, ChangeResult.CONFLICT, "an object of that name is there, and is not ours")
        found = diff.differences(change.desired or {}, there)
        return self.update(change, there, found) if found else Outcome(change, ChangeResult.ALREADY)

    def update(  # noqa: PLR0911  # one for each thing that may have become of the object
        self, change: Change, have: Observed | None, found: Sequence[diff.Difference]
    ) -> Outcome:
        """Patch an object; on a state that is no longer the live one, work it out anew."""
        for _ in range(MAX_PATCH_ATTEMPTS):
            if have is None:
                return Outcome(change, ChangeResult.AGAIN, "it is gone")
            if not found:
                return Outcome(change, ChangeResult.ALREADY)
            if not _may_change(change, have):
                return Outcome(change, ChangeResult.CONFLICT, "it is not ours any more")
            if diff.needs_replacement(change.key.kind, found):
                return Outcome(change, ChangeResult.AGAIN, "it must be replaced")
            answer = self._patched(change.key, have, found)
            if answer.status in _MADE:
                return Outcome(change, ChangeResult.DONE, version=_version(answer))
            if not _is_stale(answer):
                return _rejected_outcome(change, answer)
            have = self.fetch(change.key)
            found = diff.differences(change.desired or {}, have) if have else ()
        return Outcome(change, ChangeResult.FAILED, f"somebody changed it {MAX_PATCH_ATTEMPTS} times while we did")

    def _patched(self, key: ObjectKey, have: Observed, found: Sequence[diff.Difference]) -> Response:
        answer = Response(HTTPStatus.OK)
        for each in patches.build_patches(have, found):
            answer = self.sender.send(requests.patch(key, each, dry_run=self.dry_run))
            if answer.status not in _MADE:
                break
            if "resourceVersion" in each.body["metadata"]:  # the next patch must not trip over this one
                have = self._observed(key, answer.json())
        return answer

    def delete(self, change: Change) -> Outcome:
        """Delete one object, and no namesake of it."""
        have = change.live
        if have is None or not objects.is_managed(have.manifest):
            return Outcome(change, ChangeResult.CONFLICT, "it is not ours")
        answer = self.sender.send(requests.delete(change.key, have.uid, dry_run=self.dry_run))
        if answer.status in _MADE:
            return Outcome(change, ChangeResult.DONE)
        if answer.status == HTTPStatus.NOT_FOUND:
            return Outcome(change, ChangeResult.ALREADY)
        if answer.status == HTTPStatus.CONFLICT:
            return Outcome(change, ChangeResult.AGAIN, "it is another object by now")
        return _rejected_outcome(change, answer)

    def fetch(self, key: ObjectKey) -> Observed | None:
        """Return an object as it is now, None if it is not there."""
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


def _may_change(change: Change, have: Observed) -> bool:
    """Return whether an object may be written to: ours, or a fake node or other object that is being adopted."""
    if objects.is_managed(have.manifest):
        return True
    adopting = change.live is not None and not objects.is_managed(change.live.manifest)
    return adopting and have.uid == change.live.uid and (have.key.kind != "Node" or objects.is_fake_node(have.manifest))  # type: ignore[union-attr]


def _is_stale(answer: Response) -> bool:
    """Return whether a patch was refused because the object is not the one that was read."""
    if answer.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
        return True
    return answer.status == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid" in answer.message


def _rejected_outcome(change: Change, answer: Response) -> Outcome:
    later = answer.status in throttled_client.RETRYABLE_STATUSES
    return Outcome(change, ChangeResult.FAILED if later else ChangeResult.REFUSED, f"{answer.status} {answer.message}")


def _version(answer: Response) -> int:
    # Parsing a whole node for its version costs more than sending it did.
    mark = b'"resourceVersion":"'
    start = answer.body.find(mark)
    if start < 0:
        return 0
    start += len(mark)
    return int(answer.body[start : answer.body.index(b'"', start)] or 0)


def ensure_definitions(
    sender: throttled_client.ThrottledClient, definitions: Sequence[Manifest], timeout_s: float
) -> Iterator[str]:
    """Put custom resource definitions in place, and wait until they can be used; yield the names of new ones.

    One that is there is left alone, whoever made it, unless we did, and it says something else by now.
    """
    waiting: list[ObjectKey] = []
    for manifest in definitions:
        key = objects.key(manifest)
        answer = sender.send(requests.get(key))
        if answer.status == HTTPStatus.OK:
            _renew(sender, manifest, answer.json())
            continue
        answer = sender.send(requests.create(manifest))
        if answer.status not in (*_MADE, HTTPStatus.CONFLICT):
            error = client.rejection_error(sender.api, answer, "create customresourcedefinitions")
            error.hint = "let somebody who may put the definitions there: kwokfleet install"
            raise error
        waiting.append(key)
        yield key.name
    deadline = time.monotonic() + timeout_s
    for key in waiting:
        while not _established(sender.send(requests.get(key)).json()):
            if time.monotonic() > deadline or sender.stop.wait(throttled_client.FIRST_PAUSE_S):
                raise errors.DeadlineError(f"{key.name} was not established within {timeout_s:g} s", hint="try again")


def _renew(sender: throttled_client.ThrottledClient, manifest: Manifest, there: Manifest) -> None:
    """Replace a definition that we made and that has another digest than this one; others keep up their own."""
    mine = manifest["metadata"].get("annotations", {}).get(objects.DIGEST)
    theirs = (there["metadata"].get("annotations") or {}).get(objects.DIGEST)
    if mine and theirs and mine != theirs and objects.labels(there).get(objects.MANAGED_BY) == objects.KWOKFLEET:
        version = there["metadata"]["resourceVersion"]
        sender.send(requests.replace({**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}))


def _established(definition: Manifest) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
