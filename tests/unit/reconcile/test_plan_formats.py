"""Plans as JSON, Markdown and unified diffs."""

import json

from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.reconcile import diff, outcomes, plan_formats, planner
from kwokfleet.reconcile.changes import DIGEST_LENGTH, Change, ChangeAction, Plan
from kwokfleet.reconcile.plan_input import FleetPolicy, PlanInput, PoolPolicy
from tests.harness import manifests

SPOT = {"key": "spot", "value": "yes", "effect": "NoSchedule"}


def updated(before: Manifest, want: Manifest) -> Change:
    """Return the change from one node to another."""
    have = manifests.observe(before)
    return Change(ChangeAction.UPDATE, have.key, "lab", "gpu", "differs", want, have, diff.differences(want, have))


def example() -> Plan:
    """Return a plan with each kind of change and a withheld one."""
    want = [manifests.node("new"), manifests.node("old", labels={"a": "b"}), manifests.namespace("work")]
    have = [manifests.node("old"), manifests.node("gone"), *(manifests.node(f"x{n}", fleet="x") for n in range(2))]
    observed = {node.key: node for node in map(manifests.observe, have)}
    rules = {"lab": FleetPolicy(pools={"gpu": PoolPolicy(size=2)})}
    return planner.Planner().plan(PlanInput({objects.key(manifest): manifest for manifest in want}, observed, rules))


def test_json_has_summary_changes_and_withheld() -> None:
    """Changes list their differences, withheld entries their digest."""
    document = json.loads(plan_formats.to_json(example(), whole=False))
    assert document["differs"] is True
    assert document["summary"] == {"create": 2, "update": 1, "replace": 0, "delete": 1, "withheld": 2}
    [change] = [change for change in document["changes"] if change["name"] == "old"]
    assert change["differences"] == [{"path": ["metadata", "labels", "a"], "want": "b"}]
    assert (change["kind"], change["fleet"], change["pool"], change["action"]) == ("Node", "lab", "gpu", "update")
    [held] = document["withheld"]
    assert (held["cause"], held["fleet"], len(held["changes"])) == ("approval", "x", 2)
    assert len(held["digest"]) == DIGEST_LENGTH
    assert not any("want" in change for change in document["changes"])


def test_json_has_whole_objects_on_request() -> None:
    """For created and updated objects."""
    document = json.loads(plan_formats.to_json(example(), whole=True))
    assert {change["name"] for change in document["changes"] if "want" in change} == {"new", "old", "work"}


def test_an_empty_plan_has_no_differences_in_any_format() -> None:
    """JSON, Markdown and the summary agree."""
    assert json.loads(plan_formats.to_json(Plan(), whole=False))["differs"] is False
    assert plan_formats.to_markdown(Plan()) == "**kwokfleet:** no differences\n"
    assert outcomes.summary(Plan()) == "0 to create, 0 to change, 0 to replace, 0 to delete"


def test_markdown_has_a_table_and_the_approve_command() -> None:
    """For a pull request."""
    text = plan_formats.to_markdown(example())
    assert "| lab | pool gpu | 1 | 1 labels | 0 | 1 |" in text
    assert "| (shared) | namespaces | 1 | 0 | 0 | 0 |" in text
    assert f"kwokfleet approve {example().withheld[0].digest}" in text
    assert '~ node old: differs\n    metadata.labels.a: (none) -> "b"\n' in text
    assert text.count("```") == 2


def test_markdown_of_a_large_plan_fits_into_a_comment() -> None:
    """Further changes are only counted."""
    want = [manifests.node(f"lab-gpu-{number}") for number in range(5_000)]
    text = plan_formats.to_markdown(
        planner.Planner().plan(PlanInput({objects.key(manifest): manifest for manifest in want}))
    )
    assert len(text) < 65_536
    assert "… and 4800 more" in text


def test_groups_count_objects_and_kinds_of_field() -> None:
    """One line for each pool."""
    changes = [
        updated(manifests.node(f"n{n}"), manifests.node(f"n{n}", labels={"a": "b"}, taints=[SPOT])) for n in range(3)
    ]
    [group] = outcomes.groups(changes)
    assert outcomes.group_line(group) == "pool gpu: +0 nodes, ~3 annotations, ~3 labels, ~3 taints, -0"


def test_field_paths_quote_names_with_dots() -> None:
    """Other names are joined by dots."""
    assert plan_formats.field_text(("metadata", "labels", "app")) == "metadata.labels.app"
    assert plan_formats.field_text(("metadata", "labels", "a.b/c")) == 'metadata.labels["a.b/c"]'
    assert plan_formats.field_text(("spec", "taints", "spot:NoSchedule")) == 'spec.taints["spot:NoSchedule"]'


def test_a_unified_diff_shows_only_what_changes() -> None:
    """File names are those of kubectl diff."""
    before = manifests.node(capacity={"cpu": "32"}, taints=[objects.FAKE_NODE_TAINT])
    text = plan_formats.unified_diff(updated(before, manifests.node(taints=[objects.FAKE_NODE_TAINT, SPOT])))
    assert text.startswith("--- LIVE/v1.Node..lab-gpu-0\n+++ MERGED/v1.Node..lab-gpu-0\n")
    lines = [line for line in text.splitlines() if line[:1] in "+-" and line[:3] not in ("---", "+++")]
    assert {line[:1] for line in lines} == {"+"}
    assert any("spot" in line for line in lines)


def test_a_change_of_capacity_does_not_change_allocatable() -> None:
    """Equal parts of a live object are shared in memory."""
    want = manifests.node()
    want["status"] = {"capacity": {"cpu": "64"}, "allocatable": {"cpu": "32"}}
    assert plan_formats.merged_manifest(updated(manifests.node(), want))["status"] == want["status"]


def test_the_diff_of_a_created_or_deleted_object_has_one_empty_side() -> None:
    """Before for a created object, after for a deleted one."""
    texts = {change.key.name: plan_formats.before_and_after(change) for change in example().changes}
    assert texts["new"][0] == texts["gone"][1] == ""
    assert "name: new" in texts["new"][1]
    assert "name: gone" in texts["gone"][0]


def test_a_replaced_node_is_shown_as_desired() -> None:
    """Without fields of the old node."""
    want = manifests.node(spec={"providerID": "kwok://new"})
    have = manifests.observe(manifests.node(spec={"providerID": "kwok://old"}))
    change = Change(ChangeAction.REPLACE, have.key, "lab", "gpu", "", want, have, diff.differences(want, have))
    text = plan_formats.unified_diff(change)
    assert "-  providerID: kwok://old" in text
    assert "+  providerID: kwok://new" in text
