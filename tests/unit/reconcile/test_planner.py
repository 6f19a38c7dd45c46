"""Changes of a plan and their order."""

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


def test_equal_objects_give_an_empty_plan() -> None:
    """No change is planned."""
    assert plan.Planner().plan(PlanInput(desired(*nodes(3)), inventory(*nodes(3)), fleet_rules("gpu"))) == Plan()


def test_missing_changed_and_superfluous_objects_each_get_one_change() -> None:
    """Each change has a reason."""
    want = [*nodes(2), manifests.node("lab-gpu-9", labels={"a": "b"})]
    have = [*nodes(1), manifests.node("lab-gpu-9"), manifests.node("lab-gpu-7")]
    result = plan.Planner().plan(PlanInput(desired(*want), inventory(*have), fleet_rules("gpu")))
    assert {(change.action.value, change.key.name): change.reason for change in result.changes} == {
        ("create", "lab-gpu-1"): "is missing",
        ("update", "lab-gpu-9"): "differs",
        ("delete", "lab-gpu-7"): "pool gpu is scaled to 1",
    }


def test_an_immutable_field_needs_a_replacement() -> None:
    """The reason names the field."""
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
    """A desired one is created again; any other needs no change."""
    terminating = [
        manifests.observe(node, deletionTimestamp="2026-03-01T08:00:00Z")
        for node in (manifests.node("a"), manifests.node("b"))
    ]
    want = desired(manifests.node("a", labels={"x": "y"}))
    assert actions(plan.Planner().plan(PlanInput(want, inventory(*terminating), fleet_rules("gpu")))) == [
        ("create", "a")
    ]


def test_an_unchanged_pass_compares_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only changed nodes are compared."""
    compared: list[str] = []
    original = diff.differences

    def counting(want: Manifest, have: Observed) -> tuple[diff.Difference, ...]:
        compared.append(have.key.name)
        return original(want, have)

    monkeypatch.setattr(diff, "differences", counting)
    planner = plan.Planner()
    plan_input = PlanInput(desired(*nodes(50)), inventory(*nodes(50)), fleet_rules("gpu"))
    assert planner.plan(plan_input).empty
    assert len(compared) == 50
    compared.clear()
    assert planner.plan(plan_input).empty
    assert compared == []
    drifted = manifests.observe(manifests.node("lab-gpu-7", capacity={"cpu": "1"}))
    now = replace(plan_input, observed={**plan_input.observed, drifted.key: drifted})
    assert actions(planner.plan(now)) == actions(planner.plan(now)) == [("update", "lab-gpu-7")]
    assert set(compared) == {"lab-gpu-7"}


def test_unknown_addresses_are_not_changed() -> None:
    """The KwokController document may be unreadable; other fields are updated."""
    want = manifests.node(labels={"a": "b"}, status={"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]})
    have = manifests.node(status={"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]})
    [change] = (
        plan.Planner().plan(PlanInput(desired(want), inventory(have), fleet_rules("gpu"), addresses=False)).changes
    )
    assert [difference.path for difference in change.differences] == [("metadata", "labels", "a")]


# rules from files


def test_fleet_policies_follow_the_files(tmp_path: Path) -> None:
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
