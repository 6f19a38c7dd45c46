"""Applies plans until the cluster matches the files.

One pass is usually enough. Another follows if an object changed meanwhile: it was deleted, or a creation had to wait
for the deletion of an object with the same name. A field that another manager changes back every time is stalled.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kwokfleet import errors
from kwokfleet.kube import throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.reconcile import applier as apply
from kwokfleet.reconcile import cluster_state, fleet_status, reconciler, stage_requeue, status_writer
from kwokfleet.reconcile import outcomes as report
from kwokfleet.reconcile.changes import Change, ChangeAction, Plan, WithheldCause
from kwokfleet.reconcile.outcomes import ChangeResult, Outcome
from kwokfleet.reconcile.plan_input import FleetPolicy
from kwokfleet.render import desired
from kwokfleet.source import loader

MAX_PASSES = 5
NOT_OURS = {WithheldCause.CONFLICT, WithheldCause.NOT_FAKE, WithheldCause.STALLED}
CACHE_SYNC_TIMEOUT_S = 10.0
"""Maximum wait until the cache shows written objects."""


@dataclass(slots=True)
class SyncReport:
    """Result of a sync."""

    outcomes: list[Outcome] = field(default_factory=list)
    """The last outcome of each object, over all passes."""
    left: Plan = field(default_factory=Plan)
    """Plan after the last pass."""
    passes: int = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Add the outcomes of one pass."""
        newer = {outcome.change.key: outcome for outcome in outcomes}
        self.outcomes = [outcome for outcome in self.outcomes if outcome.change.key not in newer] + list(newer.values())
        self.passes += 1


@dataclass(slots=True)
class _Written:
    """Writes of a pass that the cache must show before the next plan."""

    versions: dict[str, int] = field(default_factory=dict)
    """Highest written resourceVersion of each kind."""
    deleted: dict[ObjectKey, str] = field(default_factory=dict)
    """UIDs of deleted objects."""
    awaited: set[ObjectKey] = field(default_factory=set)
    """Names not created yet, because an object with the same name is being deleted."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> "_Written":
        written = cls()
        for outcome in outcomes:
            change = outcome.change
            if outcome.result is ChangeResult.AGAIN and change.action is ChangeAction.CREATE:
                written.awaited.add(change.key)
            elif outcome.is_applied and change.action is ChangeAction.DELETE and change.live is not None:
                written.deleted[change.key] = change.live.uid
            elif outcome.is_applied and outcome.version:
                written.versions[change.key.kind] = max(outcome.version, written.versions.get(change.key.kind, 0))
        return written

    def known_to(self, view: informer.CacheView) -> bool:
        """Return whether the cache knows all written kinds; listing one may be forbidden."""
        kinds = {*self.versions, *(key.kind for key in (*self.deleted, *self.awaited))}
        return kinds.isdisjoint(view.unknown)

    def visible_in(self, view: informer.CacheView) -> bool:
        """Return whether the cache shows every write."""
        if not self.known_to(view) or any(view.versions[kind] < version for kind, version in self.versions.items()):
            return False
        remaining = [live for key, uid in self.deleted.items() if (live := view.objects.get(key)) and live.uid == uid]
        blocked = any((live := view.objects.get(key)) and live.deleting for key in self.awaited)
        return not blocked and all(live.deleting for live in remaining)


class Sync:
    """Plans and applies changes to one cluster."""

    def __init__(
        self,
        api: throttled_client.SendApi,
        follower: informer.Informer,
        options: reconciler.ReconcileOptions,
        limits: throttled_client.ClientLimits,
        stale_grace_s: float = cluster_state.STALE_CACHE_GRACE_S,
    ) -> None:
        self.stop = threading.Event()
        self.api, self.informer = api, follower
        self.sender = throttled_client.ThrottledClient(api, limits, self.stop)
        self.watcher: apply.ProgressCallback = lambda _title, _done, _total: None
        self._cluster = cluster_state.LiveCluster(self.sender, follower, stale_grace_s)
        self._reconciler = reconciler.Reconciler(self._cluster, options)

    @property
    def policies(self) -> Mapping[str, FleetPolicy]:
        """Policies of the last plan."""
        return self._reconciler.policies

    def plan(self, loaded: loader.Loaded) -> Plan:
        """Return the Plan of the current files and cluster."""
        return self._reconciler.plan(loaded, datetime.now(UTC))

    def converge(self, loaded: loader.Loaded, first: Plan) -> SyncReport:
        """Apply a plan, and plan and apply again until nothing is left that can be applied."""
        done = SyncReport(left=first)
        while done.left.changes and done.passes < MAX_PASSES:
            outcomes = self.apply_changes(loaded, done.left.changes)
            done.add(outcomes)
            if self.sender.limits.dry_run:
                done.left = Plan(withheld=done.left.withheld)
                break
            self.record_outcomes(outcomes)
            failed = {outcome.change.key for outcome in report.failures(outcomes)}
            done.left = self.plan(loaded)
            if {change.key for change in done.left.changes} <= failed:
                break
        return done

    def apply_changes(
        self, loaded: loader.Loaded, changes: Sequence[Change], sender: throttled_client.ThrottledClient | None = None
    ) -> list[Outcome]:
        """Apply changes, and return once the cache shows them: the next plan must not repeat them."""
        self.informer.watch_kinds({change.key.kind for change in changes})
        inventory, _ = self._cluster.inventory()
        sender = sender or self.sender
        created = (change.key for change in changes if change.action is ChangeAction.CREATE)
        nodes = sum(key.kind == "Node" for key in (*inventory, *created))
        new_object = desired.creation_transform(loaded.tree, datetime.now(UTC), nodes)
        outcomes = apply.Applier(sender, new_object, self.policies, self.watcher).apply(changes, inventory)
        if not self.sender.limits.dry_run:
            stage_requeue.requeue_objects(sender, self._cluster, outcomes)
            self._wait_until_cached(outcomes)
        return outcomes

    def record_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        """Record field writes, to detect fields that another manager keeps changing."""
        self._reconciler.record_outcomes(outcomes, self._cluster.field_manager, datetime.now(UTC))

    def _wait_until_cached(self, outcomes: Iterable[Outcome]) -> None:
        """Wait until the cache shows the writes."""
        written = _Written.of(outcomes)
        if not written.known_to(self.informer.wait(written.visible_in, CACHE_SYNC_TIMEOUT_S)):
            self.informer.wait(written.known_to, self.sender.limits.retry_timeout_s)

    def write_status(self, loaded: loader.Loaded, done: SyncReport, about: fleet_status.StatusContext) -> bool:
        """Write Fleet.status where it changed; return whether that was possible."""
        inventory, _ = self._cluster.inventory()
        statuses = self.fleet_statuses(loaded, done.left, done.outcomes, about)
        writer = status_writer.StatusWriter(self.sender)
        alive = {live.fleet for live in inventory.values()} if loaded.usable and not loaded.partial else None
        return writer.load() and writer.write(statuses, alive)

    def fleet_statuses(
        self, loaded: loader.Loaded, left: Plan, outcomes: Sequence[Outcome], about: fleet_status.StatusContext
    ) -> dict[str, Manifest]:
        """Return the status of each Fleet."""
        inventory, _ = self._cluster.inventory()
        names = {fleet.name for fleet in loaded.tree.fleets} | {group.fleet for group in left.withheld} - {""}
        return fleet_status.statuses(sorted(names), self.policies, inventory, left, outcomes, about)

    def limit_to(self, names: Iterable[str]) -> None:
        """Plan only the named Fleets, without shared objects."""
        self._reconciler.limit_to(names)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until all desired nodes are Ready, and schedulable unless declared otherwise."""
        desired_nodes = self._reconciler.nodes()

        def not_ready(view: informer.CacheView) -> list[ObjectKey]:
            left = [key for key in desired_nodes if not _is_ready(view, key)]
            self.watcher("nodes ready", len(desired_nodes) - len(left), len(desired_nodes))
            return left

        left = not_ready(self.informer.wait(lambda view: not not_ready(view), timeout_s))
        if left:
            raise errors.DeadlineError(
                f"{len(left)} of {len(desired_nodes)} nodes are not ready and schedulable after {timeout_s:g} s, "
                f"for example {min(left).name}",
                hint="check that kwok is running; see kwokfleet status, and kubectl describe node",
            )


def _is_ready(view: informer.CacheView, key: ObjectKey) -> bool:
    node = view.objects.get(key)
    if node is None or not node.ready:
        return False
    return node.schedulable or bool(node.manifest["spec"].get("unschedulable"))


def exit_code(done: SyncReport, *, usable: bool = True) -> errors.ExitCode:
    """Return the exit code of the most severe result; *usable*: no file has errors."""
    results = {outcome.result for outcome in done.outcomes}
    causes = {group.cause for group in done.left.withheld}
    failed = results & {ChangeResult.FAILED, ChangeResult.REFUSED, ChangeResult.SKIPPED}
    for code, applies in (
        (errors.ExitCode.CLUSTER, failed or WithheldCause.UNKNOWN in causes),
        (errors.ExitCode.NOT_OURS, ChangeResult.CONFLICT in results or causes & NOT_OURS),
        (errors.ExitCode.DEADLINE, ChangeResult.DEADLINE in results),
        (errors.ExitCode.INPUT, WithheldCause.BROKEN in causes or not usable),
        (errors.ExitCode.WITHHELD, causes & {WithheldCause.APPROVAL, WithheldCause.OCCUPIED}),
        (errors.ExitCode.NO, done.left.changes and not results & {ChangeResult.CONFLICT}),
    ):
        if applies:
            return code
    return errors.ExitCode.DONE
