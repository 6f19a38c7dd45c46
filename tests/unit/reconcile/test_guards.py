"""What a plan does not do, and why."""

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
def test_no_more_vanishes_than_the_budget_allows(vanishing: int, percent: float, released: bool) -> None:  # noqa: FBT001  # the example
    """Of four nodes; exactly the limit is within it."""
    here = nodes(4 - vanishing, "stays")
    gone = nodes(vanishing, "gone")
    situation = PlanInput(desired(*here), inventory(*here, *gone), fleet_rules("stays", max_percent=percent))
    made = planner.Planner().plan(situation)
    assert (len(made.changes), causes(made)) == (
        (vanishing, []) if released else (0, [(WithheldCause.APPROVAL, "lab", vanishing)])
    )


def test_a_number_that_was_written_is_an_order() -> None:
    """The budget guards against what vanished; a pool that is scaled to nothing is followed."""
    made = planner.Planner().plan(PlanInput({}, inventory(*nodes(10)), fleet_rules("gpu")))
    assert [action for action, _ in actions(made)] == ["delete"] * 10


def test_a_fleet_that_is_not_in_the_files_has_the_default_budget() -> None:
    """It vanished whole: that waits."""
    [held] = planner.Planner().plan(PlanInput({}, inventory(*nodes(4)), {})).withheld
    assert (held.cause, held.fleet, len(held.changes)) == (WithheldCause.APPROVAL, "lab", 4)
    assert held.why == "4 of 4 objects of fleet lab would be pruned; the budget is 25 %"


def test_a_fleet_over_its_budget_waits_whole_and_others_go_on() -> None:
    """Creations and changes too: the digest is of all of it."""
    other = manifests.node("other-a-0", fleet="other", pool="a")
    want = desired(*nodes(1, "new"), other)
    have = inventory(*nodes(4, "gone"))
    made = planner.Planner().plan(PlanInput(want, have, fleet_rules("new") | {"other": FleetPolicy()}))
    assert actions(made) == [("create", "other-a-0")]
    assert causes(made) == [(WithheldCause.APPROVAL, "lab", 5)]


def over_budget(count: int = 4) -> PlanInput:
    """Return a Fleet of which more vanishes than it allows."""
    return PlanInput({}, inventory(*nodes(count, "gone")), fleet_rules("stays"))


def test_an_approval_releases_exactly_its_plan() -> None:
    """Named by its digest."""
    situation = over_budget()
    digest = planner.Planner().plan(situation).withheld[0].digest
    made = planner.Planner().plan(replace(situation, approved=frozenset({digest})))
    assert (len(made.changes), made.withheld) == (4, ())


def test_another_plans_digest_releases_nothing() -> None:
    """One node more, a namesake that is another object, one more change: each is another plan."""
    situation = over_budget()
    approved = frozenset({planner.Planner().plan(situation).withheld[0].digest})
    again = manifests.observe(manifests.node("lab-gone-0", pool="gone"), uid="another")
    others = [
        over_budget(5),
        over_budget(3),
        replace(situation, observed={**situation.observed, again.key: again}),
        replace(situation, desired=desired(*nodes(1, "stays"))),
    ]
    digests = set()
    for other in others:
        made = planner.Planner().plan(replace(other, approved=approved))
        assert causes(made)[0][0] is WithheldCause.APPROVAL
        assert not made.changes
        digests.add(made.withheld[0].digest)
    assert len(digests | approved) == 5


def test_a_digest_depends_on_what_is_done_not_on_its_order() -> None:
    """The same changes found in another order have the same digest."""
    there = inventory(*nodes(4, "gone"))
    turned = dict(reversed(there.items()))
    first, second = (
        planner.Planner().plan(PlanInput({}, each, fleet_rules("stays"))).withheld[0].digest for each in (there, turned)
    )
    assert first == second
    assert len(first) == DIGEST_LENGTH


# files that cannot be used


def test_a_broken_fleet_is_left_alone() -> None:
    """Nothing of it is created, changed or deleted; the others go on."""
    want = desired(*nodes(1, labels={"a": "b"}), manifests.node("other-a-0", fleet="other", pool="a"))
    have = inventory(*nodes(3))
    made = planner.Planner().plan(
        PlanInput(want, have, {"other": FleetPolicy()}, broken={"lab": "its file has errors"})
    )
    assert actions(made) == [("create", "other-a-0")]
    assert causes(made) == [(WithheldCause.BROKEN, "lab", 3)]
    assert made.withheld[0].why == "its file has errors"


def test_in_doubt_nothing_vanishes() -> None:
    """A file that cannot be read may say that it stays; what was written elsewhere is done."""
    have = inventory(*nodes(2), *nodes(2, "gone"))
    made = planner.Planner().plan(
        PlanInput(desired(*nodes(1)), have, fleet_rules("gpu", max_percent=100), doubt="b.yaml has errors")
    )
    assert actions(made) == [("delete", "lab-gpu-1")]
    assert causes(made) == [(WithheldCause.BROKEN, "lab", 2)]


def test_what_all_share_stays_while_it_is_open_what_one_needs() -> None:
    """A Fleet that is broken, in doubt, or vanishing beyond its budget may still need these Stages."""
    base = PlanInput(desired(*nodes(1)), inventory(*nodes(1), manifests.stage("old")), fleet_rules("gpu"))
    assert actions(planner.Planner().plan(base)) == [("delete", "old")]
    gone = manifests.observe(manifests.node("x-a-0", fleet="x", pool="a"))
    for situation in (
        replace(base, broken={"x": "has errors"}),
        replace(base, doubt="has errors"),
        replace(base, observed={**base.observed, gone.key: gone}),
    ):
        made = planner.Planner().plan(situation)
        assert (WithheldCause.FOLLOWS, "", 1) in causes(made)
        assert not made.changes


def test_stages_are_made_where_there_are_none_yet() -> None:
    """Also while a file is broken: without any, nothing would happen on the nodes of the good ones."""
    want = desired(*nodes(1), manifests.stage("new"))
    made = planner.Planner().plan(PlanInput(want, {}, fleet_rules("gpu"), broken={"x": "has errors"}))
    assert actions(made) == [("create", "new"), ("create", "lab-gpu-0")]
    played = inventory(manifests.stage("other"))
    made = planner.Planner().plan(PlanInput(want, played, fleet_rules("gpu"), broken={"x": "has errors"}))
    assert actions(made) == [("create", "lab-gpu-0")]


def test_while_it_is_unknown_how_kwok_runs_nothing_is_done() -> None:
    """All nodes depend on that document."""
    made = planner.Planner().plan(
        PlanInput(desired(*nodes(2)), inventory(*nodes(1, "x")), fleet_rules("gpu"), frozen="kwok.yaml:3")
    )
    assert made.changes == ()
    assert {(each.cause, each.why) for each in made.withheld} == {(WithheldCause.BROKEN, "kwok.yaml:3")}


def test_of_a_kind_that_could_not_be_listed_nothing_is_done() -> None:
    """Unknown is not absent."""
    want = desired(*nodes(2), manifests.stage("new"))
    made = planner.Planner().plan(PlanInput(want, {}, fleet_rules("gpu"), unknown={"Node": "may not list nodes"}))
    assert actions(made) == [("create", "new")]
    assert causes(made) == [(WithheldCause.UNKNOWN, "lab", 2)]


# now, or ever


def test_a_suspended_fleet_is_left_alone() -> None:
    """Whatever its files say otherwise."""
    made = planner.Planner().plan(
        PlanInput(desired(*nodes(1)), inventory(*nodes(3, "x")), fleet_rules("gpu", suspended=True))
    )
    assert (made.changes, causes(made)) == ((), [(WithheldCause.SUSPENDED, "lab", 4)])


def test_a_suspended_pool_is_left_alone() -> None:
    """The Fleet's others are not."""
    pools = {"lab": FleetPolicy(pools={"gpu": PoolPolicy(suspended=True), "cpu": PoolPolicy()})}
    made = planner.Planner().plan(PlanInput(desired(*nodes(1), *nodes(1, "cpu")), inventory(*nodes(3)[1:]), pools))
    assert actions(made) == [("create", "lab-cpu-0")]
    assert causes(made) == [(WithheldCause.SUSPENDED, "lab", 3)]


def test_outside_its_windows_nothing_of_a_fleet_changes() -> None:
    """It is said, and done later."""
    made = planner.Planner().plan(
        PlanInput(desired(*nodes(1)), inventory(*nodes(1, "x")), fleet_rules("gpu", open=False))
    )
    assert (made.changes, causes(made)) == ((), [(WithheldCause.WINDOW, "lab", 2)])


def test_a_node_that_changes_hands_needs_both_owners_to_be_free() -> None:
    """A pool that is suspended does not lose a node to another pool of the same node name."""
    pools = {"lab": FleetPolicy(pools={"old": PoolPolicy(suspended=True), "new": PoolPolicy()})}
    want, have = (manifests.node("shared-0", pool=name) for name in ("new", "old"))
    assert causes(planner.Planner().plan(PlanInput(desired(want), inventory(have), pools))) == [
        (WithheldCause.SUSPENDED, "lab", 1)
    ]
    broken = manifests.observe(manifests.node("shared-0", fleet="x", pool="old"))
    made = planner.Planner().plan(PlanInput(desired(want), inventory(broken), pools, broken={"x": "has errors"}))
    assert causes(made) == [(WithheldCause.BROKEN, "lab", 1)]


def test_without_pruning_nothing_is_deleted_or_replaced() -> None:
    """Creations and changes are made."""
    want = [
        manifests.node("a", labels={"x": "y"}),
        manifests.node("b", spec={"providerID": "kwok://new"}),
        manifests.node("c"),
    ]
    have = [manifests.node("a"), manifests.node("b", spec={"providerID": "kwok://old"}), manifests.node("d")]
    made = planner.Planner().plan(PlanInput(desired(*want), inventory(*have), fleet_rules("gpu"), prune=False))
    assert sorted(actions(made)) == [("create", "c"), ("update", "a")]
    assert causes(made) == [(WithheldCause.NO_PRUNE, "lab", 2)]


def test_only_some_fleets_are_looked_at() -> None:
    """Others are not even withheld."""
    want = desired(*nodes(1), manifests.node("o", fleet="other"), manifests.stage("s"))
    situation = PlanInput(want, inventory(manifests.node("x", fleet="third")), fleet_rules("gpu"))
    assert actions(planner.Planner().plan(replace(situation, only=frozenset({"lab"})))) == [("create", "lab-gpu-0")]
    assert actions(planner.Planner().plan(replace(situation, only=frozenset({"lab", ""})))) == [
        ("create", "s"),
        ("create", "lab-gpu-0"),
    ]


# objects of others


def foreign(*, fake: bool = True, **parts: Any) -> dict[ObjectKey, Observed]:  # noqa: ANN401  # of a manifest
    """Return a node that is not ours, by the name of one that is asked for."""
    node = manifests.node(**parts)
    node["metadata"]["labels"] = {"kubernetes.io/hostname": "theirs"}
    if not fake:
        node["metadata"]["annotations"] = {}
    return inventory(node)


def test_an_object_of_somebody_else_is_a_conflict() -> None:
    """It is reported, not taken."""
    made = planner.Planner().plan(PlanInput(desired(*nodes(2)), {}, fleet_rules("gpu"), foreign=foreign()))
    assert actions(made) == [("create", "lab-gpu-1")]
    assert causes(made) == [(WithheldCause.CONFLICT, "lab", 1)]
    assert "lab-gpu-0 already exists and is not managed by kwokfleet" in made.withheld[0].why


@pytest.mark.parametrize("who", ["fleet", "pool"])
def test_a_fake_node_can_be_adopted(who: str) -> None:
    """By the word of its pool or of the whole Fleet: then it gets our labels."""
    pools = {"gpu": PoolPolicy(adopt=who == "pool")}
    adopting = {"lab": FleetPolicy(adopt=who == "fleet", pools=pools)}
    [change] = planner.Planner().plan(PlanInput(desired(*nodes(1)), {}, adopting, foreign=foreign())).changes
    assert change.action is ChangeAction.UPDATE
    assert ("metadata", "labels", objects.MANAGED_BY) in {each.path for each in change.differences}


def test_a_node_that_cannot_become_what_is_asked_for_is_not_adopted() -> None:
    """Only a new one could: what others made is not deleted for that."""
    want = manifests.node(spec={"providerID": "kwok://a"})
    there = foreign(spec={"providerID": "aws:///a"})
    made = planner.Planner().plan(PlanInput(desired(want), {}, fleet_rules("gpu", adopt=True), foreign=there))
    assert (made.changes, causes(made)) == ((), [(WithheldCause.CONFLICT, "lab", 1)])
    assert "cannot be adopted: spec.providerID is immutable" in made.withheld[0].why


def test_a_real_node_is_never_adopted() -> None:
    """Whatever the file says."""
    made = planner.Planner().plan(
        PlanInput(desired(*nodes(1)), {}, fleet_rules("gpu", adopt=True), foreign=foreign(fake=False))
    )
    assert (made.changes, causes(made)) == ((), [(WithheldCause.CONFLICT, "lab", 1)])
    assert "is a real node: kwokfleet never changes real nodes" in made.withheld[0].why


@pytest.mark.parametrize("wanted", [True, False])
def test_a_node_with_our_label_alone_is_not_touched(wanted: bool) -> None:  # noqa: FBT001  # the example
    """Neither changed nor deleted: the annotation that makes it a fake one is missing."""
    node = manifests.node()
    del node["metadata"]["annotations"]
    want = desired(*nodes(1)) if wanted else {}
    made = planner.Planner().plan(PlanInput(want, inventory(node), fleet_rules("gpu", adopt=True, max_percent=100)))
    assert (made.changes, causes(made)) == ((), [(WithheldCause.NOT_FAKE, "lab", 1)])


def test_a_namespace_of_somebody_else_will_do() -> None:
    """It stays theirs."""
    theirs = manifests.namespace()
    theirs["metadata"]["labels"] = {}
    assert (
        planner.Planner()
        .plan(PlanInput(desired(manifests.namespace()), {}, fleet_rules(), foreign=inventory(theirs)))
        .empty
    )


def test_a_namespace_that_others_use_is_not_deleted() -> None:
    """What is in it would go with it."""
    have = inventory(manifests.namespace("busy"), manifests.namespace("idle"))
    made = planner.Planner().plan(PlanInput({}, have, fleet_rules(), occupied={"busy": "pods/web, which is not ours"}))
    assert actions(made) == [("delete", "idle")]
    assert causes(made) == [(WithheldCause.OCCUPIED, "", 1)]
    assert made.withheld[0].why == "namespace busy contains pods/web, which is not ours"


def test_a_field_that_somebody_keeps_changing_back_is_given_up() -> None:
    """It is named, with who does it; what else differs is still mended."""
    want = manifests.node(labels={"a": "ours", "b": "ours"})
    have = manifests.node(labels={"a": "theirs", "b": "ours"})
    path: diff.Path = ("metadata", "labels", "a")
    stalled = {(objects.key(want), path): "manager 'rival'"}
    made = planner.Planner().plan(PlanInput(desired(want), inventory(have), fleet_rules("gpu"), stalled=stalled))
    assert (made.changes, causes(made)) == ((), [(WithheldCause.STALLED, "lab", 1)])
    assert "manager 'rival' keeps changing metadata.labels.a of node lab-gpu-0" in made.withheld[0].why
    both = manifests.node(labels={"a": "theirs", "b": "theirs"})
    [change] = (
        planner.Planner().plan(PlanInput(desired(want), inventory(both), fleet_rules("gpu"), stalled=stalled)).changes
    )
    assert [each.path[-1] for each in change.differences] == ["b"]
