"""Output of diff, get and status, and the rights that they need."""

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import fleet_folder, sandbox
from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]


# ----------------------------------------------------------------------------------------
# diff


@pytest.fixture
def differing(fleets: fleet_folder.FleetFolder) -> fleet_folder.FleetFolder:
    """Return a folder that differs from the cluster: create, update, replace, delete and withheld."""
    labels = {"old": "yes"}
    pools = [{"name": "p", "replicas": 2}, {"name": "q", "replicas": 3, "labels": labels}, {"name": "r", "replicas": 1}]
    fleets.write(fleets.a, {"nodePools": pools})
    fleets.write(fleets.b, p=2)
    fleets.sync()
    pools = [
        {"name": "p", "replicas": 3, "labels": {"example.com/a": "b"}},
        {"name": "q", "replicas": 1},
        {"name": "r", "replicas": 1, "providerID": False},
    ]
    fleets.write(fleets.a, {"nodePools": pools})
    fleets.file(fleets.b).unlink()
    fleets.write(f"{fleets.b}-new", p=1)
    return fleets


def test_all_formats_of_diff_show_the_same_plan(differing: fleet_folder.FleetFolder) -> None:
    """Text, JSON, Markdown and unified diff; none of them changes anything."""
    before = differing.state()
    text = differing.run("diff")
    assert text.returncode == 1
    assert "pool p: +1 nodes, ~2 labels, -0" in text.stdout
    assert "pool q: +0 nodes, ~1 labels, -2" in text.stdout
    assert "pool r: +0 nodes, ~0, ±1 replaced, -0" in text.stdout
    assert "2 of 2 objects" in text.stdout
    details = differing.run("diff", "--details").stdout
    assert f"~ node {differing.a}-p-0: differs" in details
    assert 'metadata.labels["example.com/a"]: (none) -> "b"' in details
    plan = differing.plan()
    assert plan["summary"] == {"create": 2, "update": 3, "replace": 1, "delete": 2, "withheld": 2}
    assert plan["withheld"][0]["digest"] in text.stdout
    markdown = differing.run("diff", "-o", "markdown").stdout
    assert f"| {differing.a} | pool p | 1 | 2 labels | 0 | 0 |" in markdown
    unified = differing.run("diff", "-o", "unified").stdout
    assert f"--- LIVE/v1.Node..{differing.a}-p-0\n" in unified
    assert "+    example.com/a: b\n" in unified
    assert differing.state() == before


def test_a_saved_cluster_gives_the_same_diff(differing: fleet_folder.FleetFolder, tmp_path: Path) -> None:
    """`kubectl get -o json` replaces the cluster: the same output and exit code."""
    saved = tmp_path / "live.json"
    kinds = "nodes,namespaces,configmaps,storageclasses,stages.kwok.x-k8s.io"
    get = ("get", kinds, "--all-namespaces", "--output=json")
    saved.write_text(differing.cluster.kubectl(*get, "--show-managed-fields"))
    for form in ("json", "text", "unified"):
        live = differing.run("diff", "-o", form)
        offline = differing.run("diff", "-o", form, "--live", str(saved), KUBECONFIG="/no/such/file")
        assert (offline.returncode, offline.stdout) == (live.returncode, live.stdout)
        assert "note:" not in offline.stderr
    saved.write_text(differing.cluster.kubectl(*get))
    doubtful = differing.run("diff", "--live", str(saved), KUBECONFIG="/no/such/file")
    assert "note:" in doubtful.stderr
    assert "--show-managed-fields" in doubtful.stderr


def test_an_external_diff_program_gets_two_folders(differing: fleet_folder.FleetFolder, tmp_path: Path) -> None:
    """One file per object, as with kubectl diff; its failure is an error."""
    script = tmp_path / "show"
    script.write_text('#!/bin/sh\necho "options: $1"\ncd "$2" && ls\ncd "$3" && grep -h example.com/a *\nexit 1\n')
    script.chmod(0o755)
    done = differing.run("diff", KUBECTL_EXTERNAL_DIFF=f"{script} -u")
    assert done.returncode == 1
    assert "options: -u" in done.stdout
    assert f"v1.Node..{differing.a}-p-0" in done.stdout
    assert "example.com/a: b" in done.stdout
    script.write_text("#!/bin/sh\nexit 3\n")
    assert differing.run("diff", KUBECTL_EXTERNAL_DIFF=str(script)).returncode == 6
    assert differing.run("diff", KUBECTL_EXTERNAL_DIFF="/no/such/program").returncode == 6


# ----------------------------------------------------------------------------------------
# rights


@pytest.fixture
def kubeconfig_with_rights(cluster: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a function that creates a ServiceAccount with some rights and returns its kubeconfig."""
    name = f"t-{secrets.token_hex(4)}"

    def create(**verbs_of: str) -> str:
        """Create it with verbs by kind, as in kubectl."""
        cluster.kubectl("create", "serviceaccount", name, "--namespace=default")
        for number, (kind, verbs) in enumerate(verbs_of.items()):
            role, resource = f"{name}-{number}", kind.replace("__", ".").replace("_", "-")
            cluster.kubectl("create", "clusterrole", role, f"--verb={verbs}", f"--resource={resource}")
            account = f"--serviceaccount=default:{name}"
            cluster.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", account)
            cluster.kubectl("label", "clusterrole,clusterrolebinding", role, f"{sandbox.LABEL}={name}")
        return str(cluster.kubeconfig_of(name, tmp_path / "rights.json"))

    yield create
    cluster.kubectl("delete", "clusterroles,clusterrolebindings", "--selector", f"{sandbox.LABEL}={name}")
    cluster.kubectl("delete", "serviceaccount", name, "--namespace=default", "--ignore-not-found")


READ = "get,list,watch"
WRITE = f"{READ},create,patch,delete"


def test_read_only_rights_are_enough_for_a_diff(
    differing: fleet_folder.FleetFolder, kubeconfig_with_rights: Callable[..., str]
) -> None:
    """The same output as with all rights; a sync is rejected and changes nothing."""
    kubeconfig = kubeconfig_with_rights(
        nodes=READ, namespaces=READ, configmaps=READ, storageclasses__storage__k8s__io=READ,
        stages__kwok__x_k8s__io=READ, fleets__kwokfleet__dev=READ,
    )  # fmt: skip
    assert differing.run("diff", KUBECONFIG=kubeconfig).stdout == differing.run("diff").stdout
    assert differing.run("status", KUBECONFIG=kubeconfig).returncode == 1
    before = differing.state()
    refused = differing.run("sync", "--yes", KUBECONFIG=kubeconfig)
    assert refused.returncode == 4
    assert "403" in refused.stderr
    assert differing.state() == before


def test_a_sync_needs_rights_only_for_the_kinds_of_its_files(
    fleets: fleet_folder.FleetFolder, kubeconfig_with_rights: Callable[..., str]
) -> None:
    """Other kinds are not read."""
    kubeconfig = kubeconfig_with_rights(nodes=WRITE, stages__kwok__x_k8s__io=WRITE)
    fleets.write(fleets.a, p=2)
    fleets.sync()
    fleets.write(fleets.a, p=3)
    done = fleets.run("sync", "--yes", KUBECONFIG=kubeconfig)
    assert done.returncode == 0, done.stderr
    assert fleets.count(fleets.a) == 3
    assert "configmaps" in done.stderr


# ----------------------------------------------------------------------------------------
# get, status


def test_get_lists_fleets_pools_nodes_and_stages(fleets: fleet_folder.FleetFolder) -> None:
    """As tables, JSON and names; no files are needed."""
    nothing = fleets.run("get")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no pools of kwokfleet" in nothing.stderr
    fleets.write(fleets.a, p=2, q=1)
    fleets.write(fleets.b, p=1)
    fleets.sync()
    lines = fleets.run("get").stdout.splitlines()
    assert lines[0].split() == ["FLEET", "POOL", "NODES", "READY", "SCHEDULABLE", "AGE"]
    assert [line.split()[:5] for line in lines[1:]] == [
        [fleets.a, "p", "2", "2", "2"],
        [fleets.a, "q", "1", "1", "1"],
        [fleets.b, "p", "1", "1", "1"],
    ]
    listed = json.loads(fleets.run("get", "fleets", "-o", "json").stdout)
    assert [(item["fleet"], item["nodes"]) for item in listed] == [(fleets.a, 3), (fleets.b, 1)]
    assert fleets.run("get", "nodes", "-o", "name", "--fleet", fleets.b).stdout.split() == [f"{fleets.b}-p-0"]
    assert fleets.run("get", "pools", "-o", "name", "--fleet", fleets.b).stdout.split() == [f"{fleets.b}/p"]
    stages = json.loads(fleets.run("get", "stages", "-o", "json").stdout)
    assert {item["fleet"] for item in stages} == {"(shared)"}
    assert {item["kind"] for item in stages} == {"Node", "Pod"}


def test_the_exit_code_of_status_shows_differences(fleets: fleet_folder.FleetFolder) -> None:
    """0 if in sync, 1 if something differs, is missing, withheld or not Ready."""
    fleets.write(fleets.a, p=2)
    assert fleets.run("status").returncode == 1
    fleets.sync("--wait", "--timeout", "30s")
    settled = fleets.run("status")
    assert (settled.returncode, settled.stdout.splitlines()[1].split()) == (0, [fleets.a, "p", "2", "2", "2", "2", "0"])
    fleets.write(fleets.a, p=3)
    differing = fleets.run("status", "-o", "json")
    assert differing.returncode == 1
    assert json.loads(differing.stdout) == [
        {"fleet": fleets.a, "pool": "p", "desired": 3, "nodes": 2, "ready": 2, "schedulable": 2, "differences": 1}
    ]
    fleets.write(fleets.a, p=2)
    fleets.cluster.kubectl(
        "patch", "node", f"{fleets.a}-p-0", "--subresource=status", "--patch",
        json.dumps({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Test"}]}}),
    )  # fmt: skip
    unready = fleets.run("status", "-o", "json")
    assert (unready.returncode, json.loads(unready.stdout)[0]["ready"]) == (1, 1)
    fleets.write(fleets.a, q=2)
    withheld = fleets.run("status")
    assert withheld.returncode == 1
    assert "approve" in withheld.stderr


def test_withheld_changes_are_in_the_fleet_status(fleets: fleet_folder.FleetFolder) -> None:
    """Conditions in the form of kstatus, and the digest."""
    fleets.write(fleets.a, p=3, q=1)
    fleets.sync()
    status = fleets.cluster.get("fleets.kwokfleet.dev", fleets.a)["status"]
    assert {condition["type"]: condition["status"] for condition in status["conditions"]}["Ready"] == "True"
    fleets.write(fleets.a, q=1)
    fleets.sync(code=3)
    status = fleets.cluster.get("fleets.kwokfleet.dev", fleets.a)["status"]
    [ready] = [condition for condition in status["conditions"] if condition["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "PruneWithheld")
    assert status["withheld"][0]["digest"] == fleets.plan()["withheld"][0]["digest"]
