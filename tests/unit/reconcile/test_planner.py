"""What a plan does, and in which order."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kwokfleet.kube.objects import Manifest
from kwokfleet.kube.observed import Observed
from kwokfleet.reconcile import diff
from kwokfleet.reconcile import planner as plan
from kwokfleet.reconcile.changes import ChangeAction, Plan
from kwokfleet.reconcile.plan_input import PlanInput, fleet_policies
from kwokfleet.source import loader
from tests.harness import manifests
from tests.harness.plan_inputs import actions, desired, fleet_rules, inventory, nodes

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)


def test_what_is_as_asked_for_needs_nothing() -> None:
    """The plan is empty."""
    assert plan.Planner().plan(PlanInput(desired(*nodes(3)), inventory(*nodes(3)), fleet_rules("gpu"))) == Plan()


def test_missing_changed_and_superfluous_objects_each_get_one_change() -> None:
    """With the reason, in words."""
    want = [*nodes(2), manifests.node("lab-gpu-9", labels={"a": "b"})]
    have = [*nodes(1), manifests.node("lab-gpu-9"), manifests.node("lab-gpu-7")]
    made = plan.Planner().plan(PlanInput(desired(*want), inventory(*have), fleet_rules("gpu")))
    assert {(change.action.value, change.key.name): change.reason for change in made.changes} == {
        ("create", "lab-gpu-1"): "is missing",
        ("update", "lab-gpu-9"): "differs",
        ("delete", "lab-gpu-7"): "pool gpu is scaled to 1",
    }


def test_a_field_that_cannot_change_takes_a_new_object() -> None:
    """The node is replaced, and the field is named."""
    want, have = (manifests.node(spec={"providerID": f"kwok://{name}"}) for name in "ab")
    [change] = plan.Planner().plan(PlanInput(desired(want), inventory(have), fleet_rules("gpu"))).changes
    assert (change.action, change.reason) == (ChangeAction.REPLACE, "spec.providerID of a live node is immutable")


def test_changes_are_made_in_the_order_of_their_kinds() -> None:
    """Stages, namespaces, nodes; then deletes in reverse."""
    want = desired(manifests.node("new"), manifests.namespace("new"), manifests.stage("new"))
    have = inventory(manifests.stage("old"), manifests.namespace("old"), manifests.node("old"))
    assert actions(plan.Planner().plan(PlanInput(want, have, fleet_rules("gpu")))) == [
        ("create", "new"), ("create", "new"), ("create", "new"),
        ("delete", "old"), ("delete", "old"), ("delete", "old"),
    ]  # fmt: skip
    kinds = [change.key.kind for change in plan.Planner().plan(PlanInput(want, have, fleet_rules("gpu"))).changes]
    assert kinds == ["Stage", "Namespace", "Node", "Node", "Namespace", "Stage"]


def test_an_object_that_is_being_deleted_is_not_deleted_or_changed() -> None:
    """One that is asked for has to be made anew, one that is not goes by itself."""
    going = [
        manifests.observe(each, deletionTimestamp="2026-03-01T08:00:00Z")
        for each in (manifests.node("a"), manifests.node("b"))
    ]
    want = desired(manifests.node("a", labels={"x": "y"}))
    assert actions(plan.Planner().plan(PlanInput(want, inventory(*going), fleet_rules("gpu")))) == [("create", "a")]


def test_an_unchanged_pass_compares_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs what changed: one node of many."""
    compared: list[str] = []
    original = diff.differences

    def counting(want: Manifest, have: Observed) -> tuple[diff.Difference, ...]:
        compared.append(have.key.name)
        return original(want, have)

    monkeypatch.setattr(diff, "differences", counting)
    planner = plan.Planner()
    situation = PlanInput(desired(*nodes(50)), inventory(*nodes(50)), fleet_rules("gpu"))
    assert planner.plan(situation).empty
    assert len(compared) == 50
    compared.clear()
    assert planner.plan(situation).empty
    assert compared == []
    drifted = manifests.observe(manifests.node("lab-gpu-7", capacity={"cpu": "1"}))
    now = replace(situation, observed={**situation.observed, drifted.key: drifted})
    assert actions(planner.plan(now)) == actions(planner.plan(now)) == [("update", "lab-gpu-7")]
    assert set(compared) == {"lab-gpu-7"}


def test_addresses_are_left_alone_while_nobody_knows_them() -> None:
    """A file that may say how kwok runs cannot be read; all else goes on."""
    want = manifests.node(labels={"a": "b"}, status={"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]})
    have = manifests.node(status={"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]})
    [change] = (
        plan.Planner().plan(PlanInput(desired(want), inventory(have), fleet_rules("gpu"), addresses=False)).changes
    )
    assert [each.path for each in change.differences] == [("metadata", "labels", "a")]


# rules from files


def test_rules_are_what_the_files_say_now(tmp_path: Path) -> None:
    """Suspension, adoption, budget, windows and sizes, of the Fleet and of each pool."""
    (tmp_path / "lab.yaml").write_text(
        """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: lab}
spec:
  prune: {maxPercent: 10%}
  windows: [{allow: "* 9-17 * * *"}]
  nodePools:
    - {name: a, replicas: 3, suspend: true}
    - {name: b, replicas: 3, adopt: true, schedule: [{cron: "0 7 * * *", replicas: 5}]}
"""
    )
    tree = loader.Loader().load(tmp_path).tree
    lab = fleet_policies(tree, NOW)["lab"]
    assert (lab.suspended, lab.adopt, lab.max_percent, lab.open) == (False, False, 10.0, False)
    assert (lab.pools["a"].suspended, lab.pools["a"].adopt, lab.pools["a"].size) == (True, False, 3)
    assert (lab.pools["b"].suspended, lab.pools["b"].adopt, lab.pools["b"].size) == (False, True, 5)
    assert fleet_policies(tree, NOW.replace(hour=12))["lab"].open
