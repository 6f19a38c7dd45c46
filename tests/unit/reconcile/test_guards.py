"""Withheld changes of a plan, and their causes."""

from dataclasses import replace
from typing import Any

import pytest

from kwokfleet.kube import objects
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile import diff, planner
from kwokfleet.reconcile.changes import DIGEST_LENGTH, ChangeAction, WithheldCause
from kwokfleet.reconcile.plan_input import FleetPolicy, PlanInput, PoolPolicy
from tests.harness import manifests
from tests.harness.plan_inputs import actions, causes, desired, fleet_rules, inventory, nodes

# the prune budget


@pytest.mark.parametrize(
    ("vanishing", "percent", "released"),
    [(1, 25, True), (2, 25, False), (2, 50, True), (3, 50, False), (4, 99, False), (4, 100, True), (1, 0, False)],
)
def test_the_prune_budget_limits_deletions(vanishing: int, percent: float, released: bool) -> None:  # noqa: FBT001  # the example
    """Four nodes; the limit itself is allowed."""
    remaining = nodes(4 - vanishing, "stays")
    removed = nodes(vanishing, "gone")
    plan_input = PlanInput(
        desired(*remaining), inventory(*remaining, *removed), fleet_rules("stays", max_percent=percent)
    )
    plan = planner.Planner().plan(plan_input)
    assert (len(plan.changes), causes(plan)) == (
        (vanishing, []) if released else (0, [(WithheldCause.APPROVAL, "lab", vanishing)])
    )


def test_scaling_a_pool_to_zero_ignores_the_prune_budget() -> None:
    """The budget applies only to objects removed from the files."""
    plan = planner.Planner().plan(PlanInput({}, inventory(*nodes(10)), fleet_rules("gpu")))
    assert [action for action, _ in actions(plan)] == ["delete"] * 10


def test_a_fleet_that_is_not_in_the_files_has_the_default_budget() -> None:
    """Deleting the whole Fleet needs approval."""
    [held] = planner.Planner().plan(PlanInput({}, inventory(*nodes(4)), {})).withheld
    assert (held.cause, held.fleet, len(held.changes)) == (WithheldCause.APPROVAL, "lab", 4)
    assert held.why == "4 of 4 objects of fleet lab would be pruned; the budget is 25 %"


def test_all_changes_of_a_fleet_over_its_budget_are_withheld() -> None:
    """The digest covers creations and updates too; other Fleets continue."""
    other = manifests.node("other-a-0", fleet="other", pool="a")
    want = desired(*nodes(1, "new"), other)
    have = inventory(*nodes(4, "gone"))
    plan = planner.Planner().plan(PlanInput(want, have, fleet_rules("new") | {"other": FleetPolicy()}))
    assert actions(plan) == [("create", "other-a-0")]
    assert causes(plan) == [(WithheldCause.APPROVAL, "lab", 5)]


def over_budget(count: int = 4) -> PlanInput:
    """Return the PlanInput of a Fleet over its prune budget."""
    return PlanInput({}, inventory(*nodes(count, "gone")), fleet_rules("stays"))


def test_an_approval_releases_exactly_its_plan() -> None:
    """The digest identifies the plan."""
    plan_input = over_budget()
    digest = planner.Planner().plan(plan_input).withheld[0].digest
    plan = planner.Planner().plan(replace(plan_input, approved=frozenset({digest})))
    assert (len(plan.changes), plan.withheld) == (4, ())


def test_another_plans_digest_releases_nothing() -> None:
    """One more node, another UID or one more change is another plan."""
    plan_input = over_budget()
    approved = frozenset({planner.Planner().plan(plan_input).withheld[0].digest})
    again = manifests.observe(manifests.node("lab-gone-0", pool="gone"), uid="another")
    others = [
        over_budget(5),
        over_budget(3),
        replace(plan_input, observed={**plan_input.observed, again.key: again}),
        replace(plan_input, desired=desired(*nodes(1, "stays"))),
    ]
    digests = set()
    for other in others:
        plan = planner.Planner().plan(replace(other, approved=approved))
        assert causes(plan)[0][0] is WithheldCause.APPROVAL
        assert not plan.changes
        digests.add(plan.withheld[0].digest)
    assert len(digests | approved) == 5


def test_a_digest_does_not_depend_on_the_order_of_changes() -> None:
    """Reordered objects give the same digest."""
    observed = inventory(*nodes(4, "gone"))
    reordered = dict(reversed(observed.items()))
    first, second = (
        planner.Planner().plan(PlanInput({}, objects_by_key, fleet_rules("stays"))).withheld[0].digest
        for objects_by_key in (observed, reordered)
    )
    assert first == second
    assert len(first) == DIGEST_LENGTH


# invalid files


def test_a_broken_fleet_is_not_changed() -> None:
    """Other Fleets continue."""
    want = desired(*nodes(1, labels={"a": "b"}), manifests.node("other-a-0", fleet="other", pool="a"))
    have = inventory(*nodes(3))
    plan = planner.Planner().plan(
        PlanInput(want, have, {"other": FleetPolicy()}, broken={"lab": "its file has errors"})
    )
    assert actions(plan) == [("create", "other-a-0")]
    assert causes(plan) == [(WithheldCause.BROKEN, "lab", 3)]
    assert plan.withheld[0].why == "its file has errors"


def test_an_unreadable_file_withholds_deletions() -> None:
    """The file may contain the missing objects; scaling in other files is applied."""
    have = inventory(*nodes(2), *nodes(2, "gone"))
    plan = planner.Planner().plan(
        PlanInput(desired(*nodes(1)), have, fleet_rules("gpu", max_percent=100), doubt="b.yaml has errors")
    )
    assert actions(plan) == [("delete", "lab-gpu-1")]
    assert causes(plan) == [(WithheldCause.BROKEN, "lab", 2)]


def test_shared_objects_are_kept_while_a_fleet_is_withheld() -> None:
    """The withheld Fleet may still need these Stages."""
    base = PlanInput(desired(*nodes(1)), inventory(*nodes(1), manifests.stage("old")), fleet_rules("gpu"))
    assert actions(planner.Planner().plan(base)) == [("delete", "old")]
    removed = manifests.observe(manifests.node("x-a-0", fleet="x", pool="a"))
    for plan_input in (
        replace(base, broken={"x": "has errors"}),
        replace(base, doubt="has errors"),
        replace(base, observed={**base.observed, removed.key: removed}),
    ):
        plan = planner.Planner().plan(plan_input)
        assert (WithheldCause.FOLLOWS, "", 1) in causes(plan)
        assert not plan.changes


def test_the_first_stages_are_created_despite_a_broken_file() -> None:
    """Nodes of valid Fleets need Stages."""
    want = desired(*nodes(1), manifests.stage("new"))
    plan = planner.Planner().plan(PlanInput(want, {}, fleet_rules("gpu"), broken={"x": "has errors"}))
    assert actions(plan) == [("create", "new"), ("create", "lab-gpu-0")]
    existing = inventory(manifests.stage("other"))
    plan = planner.Planner().plan(PlanInput(want, existing, fleet_rules("gpu"), broken={"x": "has errors"}))
    assert actions(plan) == [("create", "lab-gpu-0")]


def test_an_invalid_kwok_document_withholds_all_changes() -> None:
    """All nodes depend on it."""
    plan = planner.Planner().plan(
        PlanInput(desired(*nodes(2)), inventory(*nodes(1, "x")), fleet_rules("gpu"), frozen="kwok.yaml:3")
    )
    assert plan.changes == ()
    assert {(held.cause, held.why) for held in plan.withheld} == {(WithheldCause.BROKEN, "kwok.yaml:3")}


def test_changes_of_an_unlisted_kind_are_withheld() -> None:
    """Its objects may exist."""
    want = desired(*nodes(2), manifests.stage("new"))
    plan = planner.Planner().plan(PlanInput(want, {}, fleet_rules("gpu"), unknown={"Node": "may not list nodes"}))
    assert actions(plan) == [("create", "new")]
    assert causes(plan) == [(WithheldCause.UNKNOWN, "lab", 2)]


# suspension and windows


def test_a_suspended_fleet_is_not_changed() -> None:
    """All its changes are withheld."""
    plan = planner.Planner().plan(
        PlanInput(desired(*nodes(1)), inventory(*nodes(3, "x")), fleet_rules("gpu", suspended=True))
    )
    assert (plan.changes, causes(plan)) == ((), [(WithheldCause.SUSPENDED, "lab", 4)])


def test_a_suspended_pool_is_not_changed() -> None:
    """Other pools of the Fleet are changed."""
    pools = {"lab": FleetPolicy(pools={"gpu": PoolPolicy(suspended=True), "cpu": PoolPolicy()})}
    plan = planner.Planner().plan(PlanInput(desired(*nodes(1), *nodes(1, "cpu")), inventory(*nodes(3)[1:]), pools))
    assert actions(plan) == [("create", "lab-cpu-0")]
    assert causes(plan) == [(WithheldCause.SUSPENDED, "lab", 3)]


def test_a_fleet_outside_its_windows_is_not_changed() -> None:
    """The changes are withheld until a window opens."""
    plan = planner.Planner().plan(
        PlanInput(desired(*nodes(1)), inventory(*nodes(1, "x")), fleet_rules("gpu", open=False))
    )
    assert (plan.changes, causes(plan)) == ((), [(WithheldCause.WINDOW, "lab", 2)])


def test_a_node_moves_between_pools_only_if_both_can_change() -> None:
    """A suspended pool or broken Fleet keeps its node."""
    pools = {"lab": FleetPolicy(pools={"old": PoolPolicy(suspended=True), "new": PoolPolicy()})}
    want, have = (manifests.node("shared-0", pool=name) for name in ("new", "old"))
    assert causes(planner.Planner().plan(PlanInput(desired(want), inventory(have), pools))) == [
        (WithheldCause.SUSPENDED, "lab", 1)
    ]
    broken = manifests.observe(manifests.node("shared-0", fleet="x", pool="old"))
    plan = planner.Planner().plan(PlanInput(desired(want), inventory(broken), pools, broken={"x": "has errors"}))
    assert causes(plan) == [(WithheldCause.BROKEN, "lab", 1)]


def test_without_pruning_nothing_is_deleted_or_replaced() -> None:
    """Creations and updates are applied."""
    want = [
        manifests.node("a", labels={"x": "y"}),
        manifests.node("b", spec={"providerID": "kwok://new"}),
        manifests.node("c"),
    ]
    have = [manifests.node("a"), manifests.node("b", spec={"providerID": "kwok://old"}), manifests.node("d")]
    plan = planner.Planner().plan(PlanInput(desired(*want), inventory(*have), fleet_rules("gpu"), prune=False))
    assert sorted(actions(plan)) == [("create", "c"), ("update", "a")]
    assert causes(plan) == [(WithheldCause.NO_PRUNE, "lab", 2)]


def test_a_plan_can_be_limited_to_some_fleets() -> None:
    """Other Fleets are ignored, not withheld."""
    want = desired(*nodes(1), manifests.node("o", fleet="other"), manifests.stage("s"))
    plan_input = PlanInput(want, inventory(manifests.node("x", fleet="third")), fleet_rules("gpu"))
    assert actions(planner.Planner().plan(replace(plan_input, only=frozenset({"lab"})))) == [("create", "lab-gpu-0")]
    assert actions(planner.Planner().plan(replace(plan_input, only=frozenset({"lab", ""})))) == [
        ("create", "s"),
        ("create", "lab-gpu-0"),
    ]


# foreign objects


def foreign(*, fake: bool = True, **parts: Any) -> dict[ObjectKey, Observed]:  # noqa: ANN401  # of a manifest
    """Return an unmanaged node with the name of a desired node."""
    node = manifests.node(**parts)
    node["metadata"]["labels"] = {"kubernetes.io/hostname": "theirs"}
    if not fake:
        node["metadata"]["annotations"] = {}
    return inventory(node)


def test_an_unmanaged_object_is_a_conflict() -> None:
    """It is reported and not adopted."""
    plan = planner.Planner().plan(PlanInput(desired(*nodes(2)), {}, fleet_rules("gpu"), foreign=foreign()))
    assert actions(plan) == [("create", "lab-gpu-1")]
    assert causes(plan) == [(WithheldCause.CONFLICT, "lab", 1)]
    assert "lab-gpu-0 already exists and is not managed by kwokfleet" in plan.withheld[0].why


@pytest.mark.parametrize("who", ["fleet", "pool"])
def test_a_fake_node_can_be_adopted(who: str) -> None:
    """The pool or the Fleet sets adopt; the node gets our labels."""
    pools = {"gpu": PoolPolicy(adopt=who == "pool")}
    adopting = {"lab": FleetPolicy(adopt=who == "fleet", pools=pools)}
    [change] = planner.Planner().plan(PlanInput(desired(*nodes(1)), {}, adopting, foreign=foreign())).changes
    assert change.action is ChangeAction.UPDATE
    assert ("metadata", "labels", objects.MANAGED_BY) in {difference.path for difference in change.differences}


def test_a_node_with_other_immutable_fields_is_not_adopted() -> None:
    """Foreign nodes are never replaced."""
    want = manifests.node(spec={"providerID": "kwok://a"})
    observed = foreign(spec={"providerID": "aws:///a"})
    plan = planner.Planner().plan(PlanInput(desired(want), {}, fleet_rules("gpu", adopt=True), foreign=observed))
    assert (plan.changes, causes(plan)) == ((), [(WithheldCause.CONFLICT, "lab", 1)])
    assert "cannot be adopted: spec.providerID is immutable" in plan.withheld[0].why


def test_a_real_node_is_never_adopted() -> None:
    """Even with adopt set."""
    plan = planner.Planner().plan(
        PlanInput(desired(*nodes(1)), {}, fleet_rules("gpu", adopt=True), foreign=foreign(fake=False))
    )
    assert (plan.changes, causes(plan)) == ((), [(WithheldCause.CONFLICT, "lab", 1)])
    assert "is a real node: kwokfleet never changes real nodes" in plan.withheld[0].why


@pytest.mark.parametrize("is_desired", [True, False])
def test_a_managed_node_without_the_fake_annotation_is_not_changed(is_desired: bool) -> None:  # noqa: FBT001  # the example
    """It may be a real node."""
    node = manifests.node()
    del node["metadata"]["annotations"]
    want = desired(*nodes(1)) if is_desired else {}
    plan = planner.Planner().plan(PlanInput(want, inventory(node), fleet_rules("gpu", adopt=True, max_percent=100)))
    assert (plan.changes, causes(plan)) == ((), [(WithheldCause.NOT_FAKE, "lab", 1)])


def test_an_unmanaged_namespace_is_used_unchanged() -> None:
    """It is not adopted."""
    foreign_namespace = manifests.namespace()
    foreign_namespace["metadata"]["labels"] = {}
    assert (
        planner.Planner()
        .plan(PlanInput(desired(manifests.namespace()), {}, fleet_rules(), foreign=inventory(foreign_namespace)))
        .empty
    )


def test_an_occupied_namespace_is_not_deleted() -> None:
    """Its contents would be deleted too."""
    have = inventory(manifests.namespace("busy"), manifests.namespace("idle"))
    plan = planner.Planner().plan(PlanInput({}, have, fleet_rules(), occupied={"busy": "pods/web, which is not ours"}))
    assert actions(plan) == [("delete", "idle")]
    assert causes(plan) == [(WithheldCause.OCCUPIED, "", 1)]
    assert plan.withheld[0].why == "namespace busy contains pods/web, which is not ours"


def test_a_stalled_field_is_withheld() -> None:
    """The field and its manager are reported; other fields are still updated."""
    want = manifests.node(labels={"a": "ours", "b": "ours"})
    have = manifests.node(labels={"a": "theirs", "b": "ours"})
    path: diff.Path = ("metadata", "labels", "a")
    stalled = {(objects.key(want), path): "manager 'rival'"}
    plan = planner.Planner().plan(PlanInput(desired(want), inventory(have), fleet_rules("gpu"), stalled=stalled))
    assert (plan.changes, causes(plan)) == ((), [(WithheldCause.STALLED, "lab", 1)])
    assert "manager 'rival' keeps changing metadata.labels.a of node lab-gpu-0" in plan.withheld[0].why
    both = manifests.node(labels={"a": "theirs", "b": "theirs"})
    [change] = (
        planner.Planner().plan(PlanInput(desired(want), inventory(both), fleet_rules("gpu"), stalled=stalled)).changes
    )
    assert [difference.path[-1] for difference in change.differences] == ["b"]
