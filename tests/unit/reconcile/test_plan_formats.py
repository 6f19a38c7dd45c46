"""Plans as people and programs read them."""

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
    """Return a plan with a change of each kind, and one that waits."""
    want = [manifests.node("new"), manifests.node("old", labels={"a": "b"}), manifests.namespace("work")]
    have = [manifests.node("old"), manifests.node("gone"), *(manifests.node(f"x{n}", fleet="x") for n in range(2))]
    observed = {each.key: each for each in map(manifests.observe, have)}
    rules = {"lab": FleetPolicy(pools={"gpu": PoolPolicy(size=2)})}
    return planner.Planner().plan(PlanInput({objects.key(each): each for each in want}, observed, rules))


def test_json_says_everything_a_program_needs() -> None:
    """Counts, groups, each change with its fields, what waits and for which digest."""
    read = json.loads(plan_formats.to_json(example(), whole=False))
    assert read["differs"] is True
    assert read["summary"] == {"create": 2, "update": 1, "replace": 0, "delete": 1, "withheld": 2}
    [change] = [each for each in read["changes"] if each["name"] == "old"]
    assert change["differences"] == [{"path": ["metadata", "labels", "a"], "want": "b"}]
    assert (change["kind"], change["fleet"], change["pool"], change["action"]) == ("Node", "lab", "gpu", "update")
    [held] = read["withheld"]
    assert (held["cause"], held["fleet"], len(held["changes"])) == ("approval", "x", 2)
    assert len(held["digest"]) == DIGEST_LENGTH
    assert not any("want" in each for each in read["changes"])


def test_json_has_whole_objects_if_wanted() -> None:
    """Of what is created or changed."""
    read = json.loads(plan_formats.to_json(example(), whole=True))
    assert {each["name"] for each in read["changes"] if "want" in each} == {"new", "old", "work"}


def test_an_empty_plan_says_so_in_every_format() -> None:
    """Nothing differs."""
    assert json.loads(plan_formats.to_json(Plan(), whole=False))["differs"] is False
    assert plan_formats.to_markdown(Plan()) == "**kwokfleet:** no differences\n"
    assert outcomes.summary(Plan()) == "0 to create, 0 to change, 0 to replace, 0 to delete"


def test_markdown_has_a_table_and_how_to_release_what_waits() -> None:
    """For a pull request."""
    text = plan_formats.to_markdown(example())
    assert "| lab | pool gpu | 1 | 1 labels | 0 | 1 |" in text
    assert "| (shared) | namespaces | 1 | 0 | 0 | 0 |" in text
    assert f"kwokfleet approve {example().withheld[0].digest}" in text
    assert '~ node old: differs\n    metadata.labels.a: (none) -> "b"\n' in text
    assert text.count("```") == 2


def test_markdown_of_a_large_plan_fits_into_a_comment() -> None:
    """The rest is a number."""
    want = [manifests.node(f"lab-gpu-{number}") for number in range(5_000)]
    text = plan_formats.to_markdown(planner.Planner().plan(PlanInput({objects.key(each): each for each in want})))
    assert len(text) < 65_536
    assert "… and 4800 more" in text


def test_groups_count_objects_and_kinds_of_field() -> None:
    """One line for each pool."""
    changes = [
        updated(manifests.node(f"n{n}"), manifests.node(f"n{n}", labels={"a": "b"}, taints=[SPOT])) for n in range(3)
    ]
    [group] = outcomes.groups(changes)
    assert outcomes.group_line(group) == "pool gpu: +0 nodes, ~3 annotations, ~3 labels, ~3 taints, -0"


def test_fields_are_written_as_people_write_them() -> None:
    """Names with dots are quoted."""
    assert plan_formats.field_text(("metadata", "labels", "app")) == "metadata.labels.app"
    assert plan_formats.field_text(("metadata", "labels", "a.b/c")) == 'metadata.labels["a.b/c"]'
    assert plan_formats.field_text(("spec", "taints", "spot:NoSchedule")) == 'spec.taints["spot:NoSchedule"]'


def test_a_unified_diff_shows_only_what_changes() -> None:
    """With the names that kubectl diff gives both sides."""
    before = manifests.node(capacity={"cpu": "32"}, taints=[objects.FAKE_NODE_TAINT])
    text = plan_formats.unified_diff(updated(before, manifests.node(taints=[objects.FAKE_NODE_TAINT, SPOT])))
    assert text.startswith("--- LIVE/v1.Node..lab-gpu-0\n+++ MERGED/v1.Node..lab-gpu-0\n")
    lines = [line for line in text.splitlines() if line[:1] in "+-" and line[:3] not in ("---", "+++")]
    assert {line[:1] for line in lines} == {"+"}
    assert any("spot" in line for line in lines)


def test_a_change_of_what_there_is_does_not_show_in_what_can_be_had() -> None:
    """Though both were the same before, and a live object keeps equal parts once."""
    want = manifests.node()
    want["status"] = {"capacity": {"cpu": "64"}, "allocatable": {"cpu": "32"}}
    assert plan_formats.merged_manifest(updated(manifests.node(), want))["status"] == want["status"]


def test_a_created_object_is_all_new_and_a_deleted_one_all_gone() -> None:
    """One side of the diff is empty."""
    made = {change.key.name: plan_formats.before_and_after(change) for change in example().changes}
    assert made["new"][0] == made["gone"][1] == ""
    assert "name: new" in made["new"][1]
    assert "name: gone" in made["gone"][0]


def test_a_replaced_node_is_shown_as_it_will_be() -> None:
    """Everything that is asked for, and nothing that only the old one had."""
    want = manifests.node(spec={"providerID": "kwok://new"})
    have = manifests.observe(manifests.node(spec={"providerID": "kwok://old"}))
    change = Change(ChangeAction.REPLACE, have.key, "lab", "gpu", "", want, have, diff.differences(want, have))
    text = plan_formats.unified_diff(change)
    assert "-  providerID: kwok://old" in text
    assert "+  providerID: kwok://new" in text
