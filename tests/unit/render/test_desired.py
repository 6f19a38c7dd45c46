"""Rendering of files to the desired objects."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kwokfleet.documents.problems import errors
from kwokfleet.kube import objects
from kwokfleet.render import desired as render
from kwokfleet.render import stage_sets
from kwokfleet.source import loader as source

NOW = datetime(2026, 3, 2, 7, 30, tzinfo=UTC)
HEAD = "apiVersion: kwokfleet.dev/v1alpha1\nkind: Fleet\nmetadata: {name: NAME}\nspec:\n"


def write_fleet(folder: Path, name: str, spec: str) -> None:
    """Write a Fleet file."""
    (folder / f"{name}.yaml").write_text(HEAD.replace("NAME", name) + spec)


def stage_names(tree: render.Tree) -> set[str]:
    """Return the names of the stage sets and Stages."""
    return {
        stage["metadata"]["labels"].get(objects.STAGE_SET, stage["metadata"]["name"]) for stage in render.stages(tree)
    }


def test_a_fleet_without_stages_has_the_default_sets(tmp_path: Path) -> None:
    """Nodes become Ready, pods run, and both recover."""
    write_fleet(tmp_path, "a", "  nodePools: [{name: p, replicas: 1}]\n")
    tree = source.Loader().load(tmp_path).tree
    assert stage_names(tree) == {"node-fast", "node-heartbeat-with-lease", "pod-fast", "pod-recover"}


def test_a_named_set_replaces_the_default_of_its_role(tmp_path: Path) -> None:
    """For all Fleets of the tree: Stages are cluster-wide."""
    write_fleet(tmp_path, "a", "  stages: [job]\n  nodePools: [{name: p, replicas: 1}]\n")
    write_fleet(tmp_path, "b", "  nodePools: [{name: p, replicas: 1}]\n")
    tree = source.Loader().load(tmp_path).tree
    assert stage_names(tree) == {"node-fast", "node-heartbeat-with-lease", "job", "pod-recover"}


def test_two_fleets_cannot_have_different_sets_in_one_role(tmp_path: Path) -> None:
    """The second Fleet has the Problem."""
    write_fleet(tmp_path, "a", "  stages: [job]\n")
    write_fleet(tmp_path, "b", "  stages: [pod-general]\n")
    problems = errors(source.Loader().load(tmp_path).problems)
    assert [(Path(problem.path).name, problem.rule) for problem in problems] == [("b.yaml", "rival-stages")]


def test_without_leases_nodes_have_heartbeats(tmp_path: Path) -> None:
    """A KwokController document without leases changes the default set."""
    write_fleet(tmp_path, "a", "  nodePools: [{name: p, replicas: 1}]\n")
    (tmp_path / "kwok.yaml").write_text(
        "apiVersion: kwokfleet.dev/v1alpha1\nkind: KwokController\nmetadata: {name: k}\nspec: {leaseDuration: 0s}\n"
    )
    assert "node-heartbeat" in stage_names(source.Loader().load(tmp_path).tree)


def test_stages_of_a_file_are_added_to_the_defaults(tmp_path: Path) -> None:
    """A Stage for all pods replaces pod-fast; a Stage with a label selector does not."""
    stage = (
        "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nmetadata: {name: own}\nspec:\n"
        "  resourceRef: {apiGroup: v1, kind: Pod}\n  selector: SELECTOR\n  steps: [{delete: true}]\n"
    )
    write_fleet(tmp_path, "a", "  stages: [{file: own.yaml}]\n  nodePools: [{name: p, replicas: 1}]\n")
    (tmp_path / "own.yaml").write_text(stage.replace("SELECTOR", "{matchLabels: {own: 'true'}}"))
    assert {"own", "pod-fast"} <= stage_names(source.Loader().load(tmp_path).tree)
    (tmp_path / "own.yaml").write_text(stage.replace("SELECTOR", "{}"))
    assert "pod-fast" not in stage_names(source.Loader().load(tmp_path).tree)


def test_an_invalid_file_does_not_affect_others(tmp_path: Path) -> None:
    """Its Fleet is marked as broken, so that its objects are not changed."""
    write_fleet(tmp_path, "good", "  nodePools: [{name: p, replicas: 1}]\n")
    write_fleet(tmp_path, "bad", "  nodePools: [{name: p, replicas: -1}]\n")
    (tmp_path / "worse.yaml").write_text("a: [\n")
    loaded = source.Loader().load(tmp_path)
    assert [fleet.name for fleet in loaded.tree.fleets] == ["good"]
    assert loaded.broken == {"bad"}
    assert {Path(path).name for path in loaded.unreadable} == {"worse.yaml"}
    assert not loaded.usable


def test_desired_objects_are_in_apply_order(tmp_path: Path) -> None:
    """Stages before namespaces before nodes."""
    write_fleet(
        tmp_path,
        "a",
        "  nodePools: [{name: p, replicas: 2}]\n"
        "  waves: [{name: w, namespace: n, template: {apiVersion: v1, kind: ConfigMap}}]\n",
    )
    desired = render.Renderer().desired(source.Loader().load(tmp_path).tree, NOW)
    ranks = [objects.apply_rank(key.kind) for key in desired]
    assert ranks == sorted(ranks)
    assert objects.ObjectKey("v1", "Namespace", "", "n") in desired


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "  nodePools: [{name: p, replicas: 2, nodeName: 'x-{index}'}]\n",
            "  nodePools: [{name: q, replicas: 2, nodeName: 'x-{index}'}]\n",
        ),
        ("  lifecycles: [{name: b-d, pod: {complete: 1s}}]\n", "  lifecycles: [{name: d, pod: {complete: 1s}}]\n"),
        (
            "  waves: [{name: w, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: 'x-{{index}}'}}}]\n",
            "  waves: [{name: v, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: 'x-{{index}}'}}}]\n",
        ),
    ],
    ids=["nodes", "stages", "objects"],
)
def test_two_fleets_cannot_have_the_same_object(tmp_path: Path, first: str, second: str) -> None:
    """The second Fleet has the Problem; it names the first."""
    write_fleet(tmp_path, "a", first)
    write_fleet(tmp_path, "a-b", second)
    problems = errors(source.Loader().load(tmp_path).problems)
    assert [(Path(problem.path).name, problem.rule) for problem in problems] == [("a-b.yaml", "same-name")]
    assert "'a'" in problems[0].what


def test_rendering_reuses_unchanged_nodes(tmp_path: Path) -> None:
    """Nodes of an unchanged pool are identical objects, also after a reload."""
    write_fleet(tmp_path, "a", "  nodePools: [{name: p, replicas: 50}, {name: q, replicas: 3}]\n")
    loader, renderer = source.Loader(), render.Renderer()
    first = renderer.desired(loader.load(tmp_path).tree, NOW)
    write_fleet(tmp_path, "a", "  nodePools: [{name: p, replicas: 50}, {name: q, replicas: 4}]\n")
    second = renderer.desired(loader.load(tmp_path).tree, NOW)
    same = [key for key in first if key.kind == "Node" and "-p-" in key.name]
    assert len(same) == 50
    assert all(second[key] is first[key] for key in same)
    assert sum("-q-" in key.name for key in second) == 4


def test_the_autoscaler_configuration_is_rendered(tmp_path: Path) -> None:
    """Both ConfigMaps, with a List of templates, in the configured namespace."""
    write_fleet(
        tmp_path, "a", "  nodeGroups: {namespace: scaling}\n  nodePools: [{name: p, autoscaler: {min: 1, max: 9}}]\n"
    )
    desired = render.Renderer().desired(source.Loader().load(tmp_path).tree, NOW)
    maps = {key.name: value for key, value in desired.items() if key.kind == "ConfigMap"}
    assert {key.namespace for key in desired if key.kind == "ConfigMap"} == {"scaling"}
    assert "fromNodeLabelKey: kwok-nodegroup" in maps["kwok-provider-config"]["data"]["config"]
    assert "kind: List" in maps["kwok-provider-templates"]["data"]["templates"]
    assert not any(key.kind == "Node" for key in desired)


def test_an_unchanged_file_is_not_decoded_again(tmp_path: Path) -> None:
    """Its model is the identical object."""
    write_fleet(tmp_path, "a", "  nodePools: [{name: p, replicas: 1}]\n")
    loader = source.Loader()
    assert loader.load(tmp_path).tree.fleets[0] is loader.load(tmp_path).tree.fleets[0]


@pytest.mark.parametrize("lease", [True, False])
def test_every_default_set_exists(lease: bool) -> None:  # noqa: FBT001  # a column of the table
    """The library has all default sets."""
    tree = source.Loader().load(Path(__file__).parents[3] / "fleets" / "quickstart.yaml").tree
    assert all(tree.library[name] for name in stage_sets.missing_sets([], lease=lease))


def test_an_invalid_referenced_file_breaks_its_fleets(tmp_path: Path) -> None:
    """A Stage or trace; other Fleets are not affected."""
    write_fleet(tmp_path, "good", "  nodePools: [{name: p, replicas: 1}]\n")
    write_fleet(tmp_path, "stage", "  stages: [{file: bad-stage.yaml}]\n")
    (tmp_path / "bad-stage.yaml").write_text(
        "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nmetadata: {name: s}\n"
        "spec: {resourceRef: {kind: Pod}, selector: null, steps: [{delete: true}]}\n"
    )
    write_fleet(
        tmp_path,
        "trace",
        "  waves: [{name: w, arrivals: {trace: {file: t.csv}}, template: {apiVersion: v1, kind: ConfigMap}}]\n",
    )
    (tmp_path / "t.csv").write_text("when\n1\n")
    loaded = source.Loader().load(tmp_path)
    assert [fleet.name for fleet in loaded.tree.fleets] == ["good"]
    assert loaded.broken == {"stage", "trace"}


def test_a_large_file_of_templates_must_be_json(tmp_path: Path) -> None:
    """JSON is parsed quickly; YAML would take minutes and is rejected."""
    write_fleet(tmp_path, "a", "  nodePools: [{name: p, replicas: 1, templateFrom: {file: ../nodes}}]\n")
    (tmp_path / "tree").mkdir()
    (tmp_path / "a.yaml").rename(tmp_path / "tree" / "a.yaml")
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"labels": {"kind": "x"}, "annotations": {"a": "x" * 5_000_000}},
    }
    (tmp_path / "nodes").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node]}))
    loaded = source.Loader().load(tmp_path / "tree")
    assert loaded.problems == ()
    assert loaded.tree.templates["a", "p"][0]["metadata"]["labels"] == {"kind": "x"}
    (tmp_path / "nodes").write_text("- a: 1\n" * 1_000_000)
    problems = errors(source.Loader().load(tmp_path / "tree").problems)
    assert "file-too-large" in [problem.rule for problem in problems]
