"""What the commands do not do, and what they say instead: budgets, approvals, windows, what belongs to others."""

from pathlib import Path
from typing import Any

import pytest

from kwokfleet.kube import objects
from tests.harness import faulty_proxy, fleet_folder

Manifest = dict[str, Any]


# ----------------------------------------------------------------------------------------
# the prune budget


def test_a_pool_that_vanished_waits_until_exactly_that_is_approved(desk: fleet_folder.FleetFolder) -> None:
    """Exit code 3 and a digest; another plan is not released by it, and the same plan is."""
    desk.write(desk.a, big=3, small=1)
    desk.sync()
    desk.write(desk.a, small=1)
    said = desk.sync(code=3)
    [held] = desk.plan()["withheld"]
    assert f"approve {held['digest']}" in said
    assert "3 of 4 objects" in said
    assert desk.count(desk.a) == 4
    refused = desk.run("approve", "0123456789abcdef")
    assert refused.returncode == 2
    assert held["digest"] in refused.stderr
    assert desk.run("approve", held["digest"]).returncode == 0
    desk.write(desk.a, small=2)
    assert held["digest"] not in desk.sync(code=3)
    assert desk.count(desk.a) == 4
    desk.write(desk.a, small=1)
    desk.sync()
    assert (desk.count(desk.a, "big"), desk.count(desk.a, "small")) == (0, 1)
    assert desk.run("diff").returncode == 0


def test_an_approval_can_be_given_with_the_sync(desk: fleet_folder.FleetFolder) -> None:
    """`--approve DIGEST`; a wrong one releases nothing."""
    desk.write(desk.a, big=2, small=1)
    desk.sync()
    desk.write(desk.a, small=1)
    digest = desk.plan()["withheld"][0]["digest"]
    desk.sync("--approve", digest[::-1], code=3)
    assert desk.count(desk.a) == 3
    desk.sync("--approve", digest)
    assert desk.count(desk.a) == 1


def test_a_number_that_was_written_is_followed(desk: fleet_folder.FleetFolder) -> None:
    """The budget guards against what vanished, not against an order."""
    desk.write(desk.a, only=12)
    desk.sync()
    desk.write(desk.a, only=0)
    desk.sync()
    assert desk.count(desk.a) == 0


def test_a_deleted_file_is_no_order(desk: fleet_folder.FleetFolder) -> None:
    """Its fleet waits for an approval; the others go on."""
    desk.write(desk.a, p=2)
    desk.write(desk.b, p=1)
    desk.sync()
    desk.file(desk.a).unlink()
    desk.write(desk.b, p=3)
    assert f"fleet {desk.a}" in desk.sync(code=3)
    assert (desk.count(desk.a), desk.count(desk.b)) == (2, 3)


# ----------------------------------------------------------------------------------------
# not now


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"suspend": True}, "is suspended"),
        ({"windows": [{"deny": "* * * * *"}]}, "is outside its windows"),
        ({"nodePools": [{"name": "p", "replicas": 3, "suspend": True}]}, "pool p is suspended"),
    ],
)
def test_a_fleet_that_may_not_change_stays_as_it_is(desk: fleet_folder.FleetFolder, spec: Manifest, words: str) -> None:
    """It is said; diff goes on showing the difference, and sync is no failure."""
    desk.write(desk.a, p=1)
    desk.write(desk.b, p=1)
    desk.sync()
    before = desk.state()
    desk.write(desk.a, {"nodePools": [{"name": "p", "replicas": 3}], **spec})
    assert words in desk.sync()
    diff = desk.run("diff")
    assert (diff.returncode, words in diff.stdout) == (1, True)
    assert desk.state() == before


def test_without_pruning_nothing_goes(desk: fleet_folder.FleetFolder) -> None:
    """Too many nodes stay, as do those of a pool that vanished; the rest is done."""
    desk.write(desk.a, {"prune": {"maxPercent": 100}}, p=3, q=1)
    desk.sync()
    desk.write(desk.a, {"prune": {"maxPercent": 100}}, p=1, r=2)
    assert "nothing is to be deleted" in desk.sync("--no-prune")
    assert [desk.count(desk.a, pool) for pool in "pqr"] == [3, 1, 2]
    desk.sync()
    assert [desk.count(desk.a, pool) for pool in "pqr"] == [1, 0, 2]


def test_a_dry_run_keeps_nothing(desk: fleet_folder.FleetFolder) -> None:
    """The server's checks every write, the client's makes none: of creations, changes and deletions."""
    desk.write(desk.a, p=2)
    assert "accepts" in desk.sync("--dry-run=server")
    assert desk.run("sync", "--dry-run=client").returncode == 1
    assert desk.state() == {}
    desk.sync()
    desk.write(
        desk.a, {"nodePools": [{"name": "p", "replicas": 1, "labels": {"a": "b"}}, {"name": "q", "replicas": 1}]}
    )
    before = desk.state()
    assert "dry run: the API server accepts 3 of 3 changes" in desk.sync("--dry-run=server")
    assert desk.run("sync", "--dry-run=client").returncode == 1
    assert desk.state() == before


def test_one_fleet_can_be_synced_alone(desk: fleet_folder.FleetFolder) -> None:
    """The others are not looked at; one that nobody knows is refused, with what was meant."""
    desk.write(desk.a, p=1)
    desk.write(desk.b, p=1)
    desk.sync("--fleet", desk.a)
    assert (desk.count(desk.a), desk.count(desk.b)) == (1, 0)
    assert desk.run("diff", "--fleet", desk.a).returncode == 0
    assert desk.run("diff", "--fleet", desk.b).returncode == 1
    for command in ("diff", "sync", "status"):
        unknown = desk.run(command, "--fleet", f"{desk.a}x")
        assert (unknown.returncode, desk.a in unknown.stderr) == (2, True)


# ----------------------------------------------------------------------------------------
# delete


def test_delete_removes_one_fleet_and_nothing_of_others(desk: fleet_folder.FleetFolder) -> None:
    """Not without a yes; Stages that the others need stay, and go with the last."""
    desk.write(desk.a, {"waves": [{"name": "w", "count": 1, "namespace": f"{desk.a}-work", "template": JOB}]}, p=2)
    desk.write(desk.b, p=1)
    desk.sync()
    unsure = desk.run("delete", desk.a)
    assert (unsure.returncode, desk.count(desk.a)) == (3, 2)
    assert "--yes" in unsure.stderr
    assert desk.run("delete", desk.a, "--yes").returncode == 0
    assert (desk.count(desk.a), desk.count(desk.b)) == (0, 1)
    records = desk.cluster.kubectl("get", "fleets.kwokfleet.dev", "--output=name").split()
    assert records == [f"fleet.kwokfleet.dev/{desk.b}"]
    desk.file(desk.a).unlink()
    desk.sync()  # only now is it known that nobody needs the namespace any more
    assert desk.run("diff").returncode == 0
    assert "pod-fast" in desk.cluster.kubectl("get", "stages.kwok.x-k8s.io", "--output=name")
    assert desk.run("delete", desk.a, "--yes").returncode == 2
    assert desk.run("delete", desk.b, "--yes").returncode == 0
    assert desk.state() == {}


JOB = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}


def test_what_is_just_going_is_made_anew(desk: fleet_folder.FleetFolder) -> None:
    """A namespace takes seconds to go: diff says that it will be missing, and sync waits for its place."""
    namespace = f"{desk.a}-work"
    desk.write(desk.a, {"waves": [{"name": "w", "count": 1, "namespace": namespace, "template": JOB}]}, p=1)
    desk.sync()
    before = desk.cluster.get("namespace", namespace)["metadata"]["uid"]
    desk.cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    diff = desk.run("diff", "--details")
    assert (diff.returncode, f"namespace {namespace}: is being deleted" in diff.stdout) == (1, True)
    desk.sync()
    after = desk.cluster.get("namespace", namespace)
    assert (after["status"]["phase"], after["metadata"]["uid"] != before) == ("Active", True)
    assert desk.run("diff").returncode == 0


def test_a_namespace_that_is_going_is_not_looked_into(desk: fleet_folder.FleetFolder, tmp_path: Path) -> None:
    """Whoever has something in it: it goes, and asking each kind of object for its contents decides nothing."""
    namespace = f"{desk.a}-work"
    desk.write(desk.a, {"waves": [{"name": "w", "count": 1, "namespace": namespace, "template": JOB}]}, p=1)
    desk.sync()
    patch = ("patch", "namespace", namespace, "--type=merge", "--patch")
    desk.cluster.kubectl(*patch, '{"metadata": {"finalizers": ["example.com/held"]}}')
    desk.write(desk.a, p=1)
    with faulty_proxy.proxy_to(desk.cluster) as proxy:
        through = proxy.kubeconfig(tmp_path / "through.json")
        assert desk.run("diff", KUBECONFIG=through).returncode == 1
        assert [asked.path for asked in proxy.requests if f"/namespaces/{namespace}/" in asked.path]
        desk.sync()
        proxy.requests.clear()
        assert desk.run("diff", KUBECONFIG=through).returncode == 0
        assert not [asked.path for asked in proxy.requests if f"/namespaces/{namespace}/" in asked.path]
    desk.cluster.kubectl(*patch, '{"metadata": {"finalizers": null}}')


def test_a_namespace_in_which_others_have_something_stays(desk: fleet_folder.FleetFolder) -> None:
    """It would go with the namespace: exit code 3, and what it is."""
    namespace = f"{desk.a}-work"
    desk.write(desk.a, {"waves": [{"name": "w", "count": 1, "namespace": namespace, "template": JOB}]}, p=1)
    desk.sync()
    desk.cluster.kubectl("create", "configmap", "precious", "--namespace", namespace)
    desk.write(desk.a, p=1)
    assert "configmaps/precious, which is not ours" in desk.sync(code=3)
    assert desk.cluster.get("namespace", namespace)["status"]["phase"] == "Active"
    desk.cluster.kubectl("delete", "configmap", "precious", "--namespace", namespace)
    desk.sync()
    assert desk.run("diff").returncode == 0


def test_a_stage_of_others_is_a_conflict_until_it_is_adopted(desk: fleet_folder.FleetFolder) -> None:
    """Exit code 5, and it stays as it is; the rest is done."""
    name = "pod-fast-ready"
    spec = {"resourceRef": {"apiGroup": "v1", "kind": "Pod"}, "selector": {"matchLabels": {"a": "b"}}, "weight": 7}
    desk.cluster.apply({"apiVersion": objects.STAGE_API_VERSION, "kind": "Stage", "metadata": {"name": name},
                       "spec": {**spec, "next": {"delete": True}}})  # fmt: skip
    before = desk.cluster.get("stages.kwok.x-k8s.io", name)
    desk.write(desk.a, p=1)
    assert f"stage {name} is there and is not ours" in desk.sync(code=5)
    assert desk.cluster.get("stages.kwok.x-k8s.io", name) == before
    assert desk.count(desk.a) == 1
    desk.write(desk.a, {"adopt": True}, p=1)
    desk.sync()
    after = desk.cluster.get("stages.kwok.x-k8s.io", name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["labels"][objects.MANAGED_BY] == objects.KWOKFLEET
    assert "matchLabels" not in after["spec"]["selector"]
    assert not after["spec"].get("next", {}).get("delete")
    assert desk.run("diff").returncode == 0
