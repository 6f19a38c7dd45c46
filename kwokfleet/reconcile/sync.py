"""From a plan to a cluster that is as the files say: pass after pass, until nothing is left to do.

One pass is usually enough. Another one follows if something changed under our hands: an object that
somebody deleted, a creation that met a dying namesake. A field that comes back changed every time is
given up and named.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kwokfleet import errors
from kwokfleet.kube import objects, requests, throttled_client
from kwokfleet.kube.informer import informer
from kwokfleet.kube.objects import Manifest, ObjectKey
from kwokfleet.kwok import requeue
from kwokfleet.reconcile import applier as apply
from kwokfleet.reconcile import cluster_state, fleet_status, reconciler, status_writer
from kwokfleet.reconcile import outcomes as report
from kwokfleet.reconcile.changes import Change, ChangeAction, Plan, WithheldCause
from kwokfleet.reconcile.outcomes import ChangeResult, Outcome
from kwokfleet.reconcile.plan_input import FleetPolicy
from kwokfleet.render import desired
from kwokfleet.source import loader

MAX_PASSES = 5
STAGE_WATCH_DELAY_S = 0.3
"""How long kwok takes to hear of a changed Stage."""
NOT_OURS = {WithheldCause.CONFLICT, WithheldCause.NOT_FAKE, WithheldCause.STALLED}
CACHE_SYNC_TIMEOUT_S = 10.0
"""How long the mirror may take to show what was written."""


@dataclass(slots=True)
class SyncReport:
    """What became of a sync."""

    outcomes: list[Outcome] = field(default_factory=list)
    """Of every change of every pass; of an object that was tried again, the last."""
    left: Plan = field(default_factory=Plan)
    """What is still to be done, or withheld."""
    passes: int = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Take in what became of one pass."""
        newer = {each.change.key: each for each in outcomes}
        self.outcomes = [each for each in self.outcomes if each.change.key not in newer] + list(newer.values())
        self.passes += 1


@dataclass(slots=True)
class _Written:
    """What a pass has done, as a mirror must come to show it."""

    versions: dict[str, int] = field(default_factory=dict)
    """The highest version that was written of each kind."""
    gone: dict[ObjectKey, str] = field(default_factory=dict)
    """What was deleted, and its UID."""
    going: set[ObjectKey] = field(default_factory=set)
    """What could not be created because its place is taken by something that is being deleted."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> "_Written":
        made = cls()
        for each in outcomes:
            change, done = each.change, each.result in (ChangeResult.DONE, ChangeResult.ALREADY)
            if each.result is ChangeResult.AGAIN and change.action is ChangeAction.CREATE:
                made.going.add(change.key)
            elif done and change.action is ChangeAction.DELETE and change.live is not None:
                made.gone[change.key] = change.live.uid
            elif done and each.version:
                made.versions[change.key.kind] = max(each.version, made.versions.get(change.key.kind, 0))
        return made

    def known_to(self, view: informer.CacheView) -> bool:
        """Return whether these kinds are known at all; of others, somebody may have no right to know anything."""
        kinds = {*self.versions, *(key.kind for key in (*self.gone, *self.going))}
        return kinds.isdisjoint(view.unknown)

    def shown_by(self, view: informer.CacheView) -> bool:
        """Return whether everything has arrived."""
        if not self.known_to(view) or any(view.versions[kind] < version for kind, version in self.versions.items()):
            return False
        left = [each for key, uid in self.gone.items() if (each := view.objects.get(key)) and each.uid == uid]
        waiting = [each for key in self.going if (each := view.objects.get(key)) and each.deleting]
        return not waiting and all(each.deleting for each in left)


class Sync:
    """Makes a cluster what files say."""

    def __init__(
        self,
        api: throttled_client.SendApi,
        follower: informer.Informer,
        options: reconciler.ReconcileOptions,
        limits: throttled_client.ClientLimits,
        mended_s: float = cluster_state.STALE_CACHE_GRACE_S,
    ) -> None:
        self.stop = threading.Event()
        self.api, self.informer = api, follower
        self.sender = throttled_client.ThrottledClient(api, limits, self.stop)
        self.watcher: apply.ProgressCallback = lambda _title, _done, _total: None
        self._cluster = cluster_state.LiveCluster(self.sender, follower, mended_s)
        self._reconciler = reconciler.Reconciler(self._cluster, options)

    @property
    def policies(self) -> Mapping[str, FleetPolicy]:
        """What the files of the last plan say about changes."""
        return self._reconciler.policies

    def plan(self, loaded: loader.Loaded) -> Plan:
        """Return what is to be done."""
        return self._reconciler.plan(loaded, datetime.now(UTC))

    def converge(self, loaded: loader.Loaded, first: Plan) -> SyncReport:
        """Do it, and look again until there is nothing left that could be done."""
        done = SyncReport(left=first)
        while done.left.changes and done.passes < MAX_PASSES:
            outcomes = self.apply_changes(loaded, done.left.changes)
            done.add(outcomes)
            if self.sender.limits.dry_run:
                done.left = Plan(withheld=done.left.withheld)
                break
            self.record_outcomes(outcomes)
            hopeless = {each.change.key for each in report.failures(outcomes)}
            done.left = self.plan(loaded)
            if {change.key for change in done.left.changes} <= hopeless:
                break
        return done

    def apply_changes(
        self, loaded: loader.Loaded, changes: Sequence[Change], sender: throttled_client.ThrottledClient | None = None
    ) -> list[Outcome]:
        """Make some changes, and return once the mirror shows them: the next plan must not repeat them."""
        self.informer.watch_kinds({change.key.kind for change in changes})
        inventory, _ = self._cluster.inventory()
        size = sum(key.kind == "Node" for key in inventory) + sum(
            change.action is ChangeAction.CREATE and change.key.kind == "Node" for change in changes
        )
        birth = desired.creation_transform(loaded.tree, datetime.now(UTC), size)
        applier = apply.Applier(sender or self.sender, birth, self._reconciler.policies, self.watcher)
        outcomes = applier.apply(changes, inventory)
        if not self.sender.limits.dry_run:
            self._show_again(changed_stages(outcomes), sender or self.sender)
            self._wait_until_seen(outcomes)
        return outcomes

    def record_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        """Remember which fields somebody else keeps changing."""
        self._reconciler.record_outcomes(outcomes, self._cluster.field_manager, datetime.now(UTC))

    def _show_again(self, stages: list[Manifest], sender: throttled_client.ThrottledClient) -> None:
        """Let kwok look again at the objects that changed Stages may act on; by itself it would not."""
        on_nodes, on_pods = requeue.of_kind(stages, "Node"), requeue.of_kind(stages, "Pod")
        inventory, _ = self._cluster.inventory()
        nodes = [each for each in inventory.values() if each.key.kind == "Node" and objects.is_managed(each.manifest)]
        if not nodes or not (on_nodes or on_pods):
            return
        sender.stop.wait(STAGE_WATCH_DELAY_S)
        work = [(each, requeue.requeue_patch(each, on_nodes)) for each in requeue.affected(on_nodes, nodes)]
        if on_pods:
            pods = self._cluster.pods_on({each.key.name for each in nodes})
            work += [(each, requeue.requeue_patch(each, on_pods)) for each in requeue.affected(on_pods, pods)]
        throttled_client.send_all(sender, [requests.patch(each.key, what) for each, what in work])

    def _wait_until_seen(self, outcomes: Iterable[Outcome]) -> None:
        """Wait until the mirror shows what was written."""
        written = _Written.of(outcomes)
        if not written.known_to(self.informer.wait(written.shown_by, CACHE_SYNC_TIMEOUT_S)):
            self.informer.wait(written.known_to, self.sender.limits.retry_timeout_s)

    def write_status(
        self, loaded: loader.Loaded, done: SyncReport, about: fleet_status.StatusContext | None = None
    ) -> bool:
        """Tell the cluster how each Fleet stands; return whether that was possible. What is the same is not written."""
        inventory, _ = self._cluster.inventory()
        made = self.fleet_statuses(loaded, done.left, done.outcomes, about)
        known = status_writer.StatusWriter(self.sender)
        if not known.load():
            return False
        whole = loaded.usable and not loaded.partial
        return known.write(made, {each.fleet for each in inventory.values()} if whole else None)

    def fleet_statuses(
        self,
        loaded: loader.Loaded,
        left: Plan,
        outcomes: Sequence[Outcome],
        about: fleet_status.StatusContext | None = None,
    ) -> dict[str, Manifest]:
        """Return how each Fleet stands."""
        inventory, _ = self._cluster.inventory()
        names = {fleet.name for fleet in loaded.tree.fleets} | {each.fleet for each in left.withheld} - {""}
        return fleet_status.statuses(sorted(names), self.policies, inventory, left, outcomes, about)

    def limit_to(self, names: Iterable[str]) -> None:
        """Look at nothing but what belongs to some Fleets alone."""
        self._reconciler.limit_to(names)

    def delete_fleet(self, fleet: str) -> None:
        """Remove a Fleet's own record from the cluster."""
        status_writer.StatusWriter(self.sender).delete(fleet)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until all nodes are Ready, and open to pods unless they were declared closed."""
        wanted = self._reconciler.nodes()

        def waiting(view: informer.CacheView) -> list[ObjectKey]:
            return [key for key in wanted if not _is_ready(view, key)]

        def is_so(view: informer.CacheView) -> bool:
            left = len(waiting(view))
            self.watcher("nodes ready", len(wanted) - left, len(wanted))
            return not left

        view = self.informer.wait(is_so, timeout_s)
        left = waiting(view)
        if left:
            raise errors.DeadlineError(
                f"{len(left)} of {len(wanted)} nodes are not ready and schedulable after {timeout_s:g} s, "
                f"such as {min(left).name}",
                hint="is kwok running? kwokfleet status shows each pool; kubectl describe node, what a node lacks",
            )


def _is_ready(view: informer.CacheView, key: ObjectKey) -> bool:
    there = view.objects.get(key)
    if there is None or not there.ready:
        return False
    return there.schedulable or bool(there.manifest["spec"].get("unschedulable"))


def changed_stages(outcomes: Iterable[Outcome]) -> list[Manifest]:
    """Return the Stages that were just made or changed."""
    return [
        each.change.desired
        for each in outcomes
        if each.change.key.kind == "Stage"
        and each.change.action is not ChangeAction.DELETE
        and each.result is ChangeResult.DONE
        and each.change.desired is not None
    ]


def exit_code(done: SyncReport, *, usable: bool = True) -> errors.ExitCode:
    """Return the exit code that tells of the gravest thing that happened; *usable*: whether all files were."""
    results = {each.result for each in done.outcomes}
    causes = {each.cause for each in done.left.withheld}
    for code, found in (
        (
            errors.ExitCode.CLUSTER,
            results & {ChangeResult.FAILED, ChangeResult.REFUSED, ChangeResult.SKIPPED}
            or WithheldCause.UNKNOWN in causes,
        ),
        (errors.ExitCode.NOT_OURS, ChangeResult.CONFLICT in results or causes & NOT_OURS),
        (errors.ExitCode.DEADLINE, ChangeResult.DEADLINE in results),
        (errors.ExitCode.INPUT, WithheldCause.BROKEN in causes or not usable),
        (errors.ExitCode.WITHHELD, causes & {WithheldCause.APPROVAL, WithheldCause.OCCUPIED}),
        (errors.ExitCode.NO, done.left.changes and not results & {ChangeResult.CONFLICT}),
    ):
        if found:
            return code
    return errors.ExitCode.DONE
