"""Guards of the commands: prune budget, approvals, change windows, foreign objects."""

from pathlib import Path
from typing import Any

import pytest

from kwokfleet.kube import objects
from tests.harness import faulty_proxy, fleet_folder

Manifest = dict[str, Any]


# ----------------------------------------------------------------------------------------
# the prune budget


def test_deletion_of_a_removed_pool_needs_an_approval_of_this_plan(fleets: fleet_folder.FleetFolder) -> None:
    """Exit code 3 and a digest; another plan is not approved by it."""
    fleets.write(fleets.a, big=3, small=1)
    fleets.sync()
    fleets.write(fleets.a, small=1)
    output = fleets.sync(code=3)
    [held] = fleets.plan()["withheld"]
    assert f"approve {held['digest']}" in output
    assert "3 of 4 objects" in output
    assert fleets.count(fleets.a) == 4
    refused = fleets.run("approve", "0123456789abcdef")
    assert refused.returncode == 2
    assert held["digest"] in refused.stderr
    assert fleets.run("approve", held["digest"]).returncode == 0
    fleets.write(fleets.a, small=2)
    assert held["digest"] not in fleets.sync(code=3)
    assert fleets.count(fleets.a) == 4
    fleets.write(fleets.a, small=1)
    fleets.sync()
    assert (fleets.count(fleets.a, "big"), fleets.count(fleets.a, "small")) == (0, 1)
    assert fleets.run("diff").returncode == 0


def test_sync_accepts_an_approval(fleets: fleet_folder.FleetFolder) -> None:
    """`--approve DIGEST`; a wrong digest approves nothing."""
    fleets.write(fleets.a, big=2, small=1)
    fleets.sync()
    fleets.write(fleets.a, small=1)
    digest = fleets.plan()["withheld"][0]["digest"]
    fleets.sync("--approve", digest[::-1], code=3)
    assert fleets.count(fleets.a) == 3
    fleets.sync("--approve", digest)
    assert fleets.count(fleets.a) == 1


def test_explicit_replicas_are_not_limited_by_the_budget(fleets: fleet_folder.FleetFolder) -> None:
    """The budget limits only deletions that no file asks for."""
    fleets.write(fleets.a, only=12)
    fleets.sync()
    fleets.write(fleets.a, only=0)
    fleets.sync()
    assert fleets.count(fleets.a) == 0


def test_deletion_of_a_file_needs_an_approval(fleets: fleet_folder.FleetFolder) -> None:
    """Other fleets are synced."""
    fleets.write(fleets.a, p=2)
    fleets.write(fleets.b, p=1)
    fleets.sync()
    fleets.file(fleets.a).unlink()
    fleets.write(fleets.b, p=3)
    assert f"fleet {fleets.a}" in fleets.sync(code=3)
    assert (fleets.count(fleets.a), fleets.count(fleets.b)) == (2, 3)


# ----------------------------------------------------------------------------------------
# suspended fleets, windows and dry runs


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"suspend": True}, "is suspended"),
        ({"windows": [{"deny": "* * * * *"}]}, "is outside its windows"),
        ({"nodePools": [{"name": "p", "replicas": 3, "suspend": True}]}, "pool p is suspended"),
    ],
)
def test_a_suspended_or_frozen_fleet_is_not_changed(
    fleets: fleet_folder.FleetFolder, spec: Manifest, words: str
) -> None:
    """Diff still shows the differences, and sync succeeds."""
    fleets.write(fleets.a, p=1)
    fleets.write(fleets.b, p=1)
    fleets.sync()
    before = fleets.state()
    fleets.write(fleets.a, {"nodePools": [{"name": "p", "replicas": 3}], **spec})
    assert words in fleets.sync()
    diff = fleets.run("diff")
    assert (diff.returncode, words in diff.stdout) == (1, True)
    assert fleets.state() == before


def test_no_prune_deletes_nothing(fleets: fleet_folder.FleetFolder) -> None:
    """Neither surplus nodes nor those of a removed pool; the rest is synced."""
    fleets.write(fleets.a, {"prune": {"maxPercent": 100}}, p=3, q=1)
    fleets.sync()
    fleets.write(fleets.a, {"prune": {"maxPercent": 100}}, p=1, r=2)
    assert "--no-prune forbids deletions" in fleets.sync("--no-prune")
    assert [fleets.count(fleets.a, pool) for pool in "pqr"] == [3, 1, 2]
    fleets.sync()
    assert [fleets.count(fleets.a, pool) for pool in "pqr"] == [1, 0, 2]


def test_a_dry_run_changes_nothing(fleets: fleet_folder.FleetFolder) -> None:
    """`server` sends every write as a dry run, `client` sends none."""
    fleets.write(fleets.a, p=2)
    assert "accepts" in fleets.sync("--dry-run=server")
    assert fleets.run("sync", "--dry-run=client").returncode == 1
    assert fleets.state() == {}
    fleets.sync()
    fleets.write(
        fleets.a, {"nodePools": [{"name": "p", "replicas": 1, "labels": {"a": "b"}}, {"name": "q", "replicas": 1}]}
    )
    before = fleets.state()
    assert "dry run: the API server accepts 3 of 3 changes" in fleets.sync("--dry-run=server")
    assert fleets.run("sync", "--dry-run=client").returncode == 1
    assert fleets.state() == before


def test_sync_of_one_fleet_does_not_change_others(fleets: fleet_folder.FleetFolder) -> None:
    """An unknown fleet is an error with the nearest name."""
    fleets.write(fleets.a, p=1)
    fleets.write(fleets.b, p=1)
    fleets.sync("--fleet", fleets.a)
    assert (fleets.count(fleets.a), fleets.count(fleets.b)) == (1, 0)
    assert fleets.run("diff", "--fleet", fleets.a).returncode == 0
    assert fleets.run("diff", "--fleet", fleets.b).returncode == 1
    for command in ("diff", "sync", "status"):
        unknown = fleets.run(command, "--fleet", f"{fleets.a}x")
        assert (unknown.returncode, fleets.a in unknown.stderr) == (2, True)


# ----------------------------------------------------------------------------------------
# delete


def test_delete_removes_one_fleet_only(fleets: fleet_folder.FleetFolder) -> None:
    """Only with a confirmation; shared Stages are deleted with the last fleet."""
    fleets.write(
        fleets.a, {"waves": [{"name": "w", "count": 1, "namespace": f"{fleets.a}-work", "template": JOB}]}, p=2
    )
    fleets.write(fleets.b, p=1)
    fleets.sync()
    unsure = fleets.run("delete", fleets.a)
    assert (unsure.returncode, fleets.count(fleets.a)) == (3, 2)
    assert "--yes" in unsure.stderr
    assert fleets.run("delete", fleets.a, "--yes").returncode == 0
    assert (fleets.count(fleets.a), fleets.count(fleets.b)) == (0, 1)
    records = fleets.cluster.kubectl("get", "fleets.kwokfleet.dev", "--output=name").split()
    assert records == [f"fleet.kwokfleet.dev/{fleets.b}"]
    fleets.file(fleets.a).unlink()
    fleets.sync()  # only now is it known that nobody needs the namespace any more
    assert fleets.run("diff").returncode == 0
    assert "pod-fast" in fleets.cluster.kubectl("get", "stages.kwok.x-k8s.io", "--output=name")
    assert fleets.run("delete", fleets.a, "--yes").returncode == 2
    assert fleets.run("delete", fleets.b, "--yes").returncode == 0
    assert fleets.state() == {}


JOB = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}


def test_a_terminating_namespace_is_created_again(fleets: fleet_folder.FleetFolder) -> None:
    """Diff shows it, and sync waits until it is deleted."""
    namespace = f"{fleets.a}-work"
    fleets.write(fleets.a, {"waves": [{"name": "w", "count": 1, "namespace": namespace, "template": JOB}]}, p=1)
    fleets.sync()
    before = fleets.cluster.get("namespace", namespace)["metadata"]["uid"]
    fleets.cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    diff = fleets.run("diff", "--details")
    assert (diff.returncode, f"namespace {namespace}: is being deleted" in diff.stdout) == (1, True)
    fleets.sync()
    after = fleets.cluster.get("namespace", namespace)
    assert (after["status"]["phase"], after["metadata"]["uid"] != before) == ("Active", True)
    assert fleets.run("diff").returncode == 0


def test_a_terminating_namespace_is_not_listed(fleets: fleet_folder.FleetFolder, tmp_path: Path) -> None:
    """Its content does not matter: it is deleted anyway."""
    namespace = f"{fleets.a}-work"
    fleets.write(fleets.a, {"waves": [{"name": "w", "count": 1, "namespace": namespace, "template": JOB}]}, p=1)
    fleets.sync()
    patch = ("patch", "namespace", namespace, "--type=merge", "--patch")
    fleets.cluster.kubectl(*patch, '{"metadata": {"finalizers": ["example.com/held"]}}')
    fleets.write(fleets.a, p=1)
    with faulty_proxy.proxy_to(fleets.cluster) as proxy:
        through = proxy.kubeconfig(tmp_path / "through.json")
        assert fleets.run("diff", KUBECONFIG=through).returncode == 1
        assert [request.path for request in proxy.requests if f"/namespaces/{namespace}/" in request.path]
        fleets.sync()
        proxy.requests.clear()
        assert fleets.run("diff", KUBECONFIG=through).returncode == 0
        assert not [request.path for request in proxy.requests if f"/namespaces/{namespace}/" in request.path]
    fleets.cluster.kubectl(*patch, '{"metadata": {"finalizers": null}}')


def test_a_namespace_with_foreign_objects_is_not_deleted(fleets: fleet_folder.FleetFolder) -> None:
    """Exit code 3 names the object."""
    namespace = f"{fleets.a}-work"
    fleets.write(fleets.a, {"waves": [{"name": "w", "count": 1, "namespace": namespace, "template": JOB}]}, p=1)
    fleets.sync()
    fleets.cluster.kubectl("create", "configmap", "precious", "--namespace", namespace)
    fleets.write(fleets.a, p=1)
    assert "configmaps/precious, which is not managed by kwokfleet" in fleets.sync(code=3)
    assert fleets.cluster.get("namespace", namespace)["status"]["phase"] == "Active"
    fleets.cluster.kubectl("delete", "configmap", "precious", "--namespace", namespace)
    fleets.sync()
    assert fleets.run("diff").returncode == 0


def test_a_foreign_stage_is_a_conflict_until_adopted(fleets: fleet_folder.FleetFolder) -> None:
    """Exit code 5 and the Stage is not changed; the rest is synced."""
    name = "pod-fast-ready"
    spec = {"resourceRef": {"apiGroup": "v1", "kind": "Pod"}, "selector": {"matchLabels": {"a": "b"}}, "weight": 7}
    fleets.cluster.apply({"apiVersion": objects.STAGE_API_VERSION, "kind": "Stage", "metadata": {"name": name},
                       "spec": {**spec, "next": {"delete": True}}})  # fmt: skip
    before = fleets.cluster.get("stages.kwok.x-k8s.io", name)
    fleets.write(fleets.a, p=1)
    assert f"stage {name} already exists and is not managed by kwokfleet" in fleets.sync(code=5)
    assert fleets.cluster.get("stages.kwok.x-k8s.io", name) == before
    assert fleets.count(fleets.a) == 1
    fleets.write(fleets.a, {"adopt": True}, p=1)
    fleets.sync()
    after = fleets.cluster.get("stages.kwok.x-k8s.io", name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["labels"][objects.MANAGED_BY] == objects.KWOKFLEET
    assert "matchLabels" not in after["spec"]["selector"]
    assert not after["spec"].get("next", {}).get("delete")
    assert fleets.run("diff").returncode == 0
