"""From files to Desired."""

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


def write(folder: Path, name: str, spec: str) -> None:
    """Write a Fleet file."""
    (folder / f"{name}.yaml").write_text(HEAD.replace("NAME", name) + spec)


def stage_names(tree: render.Tree) -> set[str]:
    """Return which sets and Lifecycles are played."""
    return {
        stage["metadata"]["labels"].get(objects.STAGE_SET, stage["metadata"]["name"]) for stage in render.stages(tree)
    }


def test_a_fleet_that_names_no_stages_gets_what_most_need(tmp_path: Path) -> None:
    """Nodes that start, pods that run, and both survive a blip."""
    write(tmp_path, "a", "  nodePools: [{name: p, replicas: 1}]\n")
    tree = source.Loader().load(tmp_path).tree
    assert stage_names(tree) == {"node-fast", "node-heartbeat-with-lease", "pod-fast", "pod-recover"}


def test_naming_a_set_replaces_the_one_in_its_role(tmp_path: Path) -> None:
    """For all fleets of the tree, since Stages are cluster-wide."""
    write(tmp_path, "a", "  stages: [job]\n  nodePools: [{name: p, replicas: 1}]\n")
    write(tmp_path, "b", "  nodePools: [{name: p, replicas: 1}]\n")
    tree = source.Loader().load(tmp_path).tree
    assert stage_names(tree) == {"node-fast", "node-heartbeat-with-lease", "job", "pod-recover"}


def test_two_fleets_cannot_want_different_sets_in_one_role(tmp_path: Path) -> None:
    """One of them is told, with the name of the other."""
    write(tmp_path, "a", "  stages: [job]\n")
    write(tmp_path, "b", "  stages: [pod-general]\n")
    found = errors(source.Loader().load(tmp_path).problems)
    assert [(Path(problem.path).name, problem.rule) for problem in found] == [("b.yaml", "rival-stages")]


def test_without_leases_heartbeats_take_their_place(tmp_path: Path) -> None:
    """A KwokController document without leases changes the default set."""
    write(tmp_path, "a", "  nodePools: [{name: p, replicas: 1}]\n")
    (tmp_path / "kwok.yaml").write_text(
        "apiVersion: kwokfleet.dev/v1alpha1\nkind: KwokController\nmetadata: {name: k}\nspec: {leaseDuration: 0s}\n"
    )
    assert "node-heartbeat" in stage_names(source.Loader().load(tmp_path).tree)


def test_stages_of_a_file_are_played_beside_the_defaults(tmp_path: Path) -> None:
    """A file that acts on pods at large replaces pod-fast; one that pods must ask for does not."""
    stage = (
        "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nmetadata: {name: own}\nspec:\n"
        "  resourceRef: {apiGroup: v1, kind: Pod}\n  selector: SELECTOR\n  steps: [{delete: true}]\n"
    )
    write(tmp_path, "a", "  stages: [{file: own.yaml}]\n  nodePools: [{name: p, replicas: 1}]\n")
    (tmp_path / "own.yaml").write_text(stage.replace("SELECTOR", "{matchLabels: {own: 'true'}}"))
    assert {"own", "pod-fast"} <= stage_names(source.Loader().load(tmp_path).tree)
    (tmp_path / "own.yaml").write_text(stage.replace("SELECTOR", "{}"))
    assert "pod-fast" not in stage_names(source.Loader().load(tmp_path).tree)


def test_a_broken_file_leaves_the_others_usable(tmp_path: Path) -> None:
    """It is named as broken, so that nothing of it is touched; the rest goes on."""
    write(tmp_path, "good", "  nodePools: [{name: p, replicas: 1}]\n")
    write(tmp_path, "bad", "  nodePools: [{name: p, replicas: -1}]\n")
    (tmp_path / "worse.yaml").write_text("a: [\n")
    loaded = source.Loader().load(tmp_path)
    assert [fleet.name for fleet in loaded.tree.fleets] == ["good"]
    assert loaded.broken == {"bad"}
    assert {Path(path).name for path in loaded.unreadable} == {"worse.yaml"}
    assert not loaded.usable


def test_desired_comes_in_the_order_of_applying(tmp_path: Path) -> None:
    """Stages before namespaces before nodes."""
    write(
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
def test_two_fleets_cannot_make_the_same_object(tmp_path: Path, first: str, second: str) -> None:
    """One of them is told, with the name of the other."""
    write(tmp_path, "a", first)
    write(tmp_path, "a-b", second)
    found = errors(source.Loader().load(tmp_path).problems)
    assert [(Path(problem.path).name, problem.rule) for problem in found] == [("a-b.yaml", "same-name")]
    assert "'a'" in found[0].what


def test_rendering_again_makes_only_what_changed(tmp_path: Path) -> None:
    """Nodes of an untouched pool are the very same objects, also after its file was loaded again."""
    write(tmp_path, "a", "  nodePools: [{name: p, replicas: 50}, {name: q, replicas: 3}]\n")
    loader, renderer = source.Loader(), render.Renderer()
    first = renderer.desired(loader.load(tmp_path).tree, NOW)
    write(tmp_path, "a", "  nodePools: [{name: p, replicas: 50}, {name: q, replicas: 4}]\n")
    second = renderer.desired(loader.load(tmp_path).tree, NOW)
    same = [key for key in first if key.kind == "Node" and "-p-" in key.name]
    assert len(same) == 50
    assert all(second[key] is first[key] for key in same)
    assert sum("-q-" in key.name for key in second) == 4


def test_the_autoscaler_s_configuration_is_written(tmp_path: Path) -> None:
    """Both ConfigMaps, with a List of templates, in the namespace that was named."""
    write(tmp_path, "a", "  nodeGroups: {namespace: scaling}\n  nodePools: [{name: p, autoscaler: {min: 1, max: 9}}]\n")
    desired = render.Renderer().desired(source.Loader().load(tmp_path).tree, NOW)
    maps = {key.name: value for key, value in desired.items() if key.kind == "ConfigMap"}
    assert {key.namespace for key in desired if key.kind == "ConfigMap"} == {"scaling"}
    assert "fromNodeLabelKey: kwok-nodegroup" in maps["kwok-provider-config"]["data"]["config"]
    assert "kind: List" in maps["kwok-provider-templates"]["data"]["templates"]
    assert not any(key.kind == "Node" for key in desired)


def test_loading_again_reads_no_model_twice(tmp_path: Path) -> None:
    """A file that did not change keeps its model."""
    write(tmp_path, "a", "  nodePools: [{name: p, replicas: 1}]\n")
    loader = source.Loader()
    assert loader.load(tmp_path).tree.fleets[0] is loader.load(tmp_path).tree.fleets[0]


@pytest.mark.parametrize("lease", [True, False])
def test_every_default_set_exists(lease: bool) -> None:  # noqa: FBT001  # a column of the table
    """What is needed beside the named sets is in the library."""
    tree = source.Loader().load(Path(__file__).parents[3] / "fleets" / "quickstart.yaml").tree
    assert all(tree.library[name] for name in stage_sets.missing_sets([], lease=lease))


def test_a_fleet_is_no_better_than_what_it_refers_to(tmp_path: Path) -> None:
    """A broken Stage, template or trace breaks the Fleets that use it, and no other."""
    write(tmp_path, "good", "  nodePools: [{name: p, replicas: 1}]\n")
    write(tmp_path, "stage", "  stages: [{file: bad-stage.yaml}]\n")
    (tmp_path / "bad-stage.yaml").write_text(
        "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nmetadata: {name: s}\n"
        "spec: {resourceRef: {kind: Pod}, selector: null, steps: [{delete: true}]}\n"
    )
    write(
        tmp_path,
        "trace",
        "  waves: [{name: w, arrivals: {trace: {file: t.csv}}, template: {apiVersion: v1, kind: ConfigMap}}]\n",
    )
    (tmp_path / "t.csv").write_text("when\n1\n")
    loaded = source.Loader().load(tmp_path)
    assert [fleet.name for fleet in loaded.tree.fleets] == ["good"]
    assert loaded.broken == {"stage", "trace"}


def test_a_large_file_of_templates_must_be_json(tmp_path: Path) -> None:
    """As JSON it is read in no time; as YAML it would take minutes, and is refused."""
    write(tmp_path, "a", "  nodePools: [{name: p, replicas: 1, templateFrom: {file: ../nodes}}]\n")
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
    found = errors(source.Loader().load(tmp_path / "tree").problems)
    assert "file-too-large" in [problem.rule for problem in found]
