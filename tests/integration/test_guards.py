"""What the commands do not do, and what they say instead: budgets, approvals, broken sources, windows, rights."""

import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kwokfleet.core import objects
from tests.harness import cli, faulty, kwok, sandbox, sessions
from tests.harness.control_plane import ControlPlane

Manifest = dict[str, Any]
Done = subprocess.CompletedProcess[str]


class Lab:
    """A folder of fleet files, and the commands on them."""

    def __init__(self, cluster: ControlPlane, program: cli.Cli, folder: Path) -> None:
        self.cluster, self.program, self.folder = cluster, program, folder
        token = secrets.token_hex(3)
        self.a, self.b = f"t-{token}-a", f"t-{token}-b"
        folder.mkdir()

    def file(self, fleet: str) -> Path:
        """Return where a fleet's file is."""
        return self.folder / f"{fleet}.yaml"

    def write(self, fleet: str, spec: Manifest | None = None, **sizes: int) -> None:
        """Write a fleet with pools of these sizes."""
        pools = [{"name": name, "replicas": size} for name, size in sizes.items()]
        content = {
            "apiVersion": "kwokfleet.dev/v1alpha1",
            "kind": "Fleet",
            "metadata": {"name": fleet},
            "spec": {"nodePools": pools, **(spec or {})},
        }
        self.file(fleet).write_text(json.dumps(content))

    def run(self, command: str, *arguments: str, **variables: str) -> Done:
        """Run a command; those that read files get the folder."""
        where = [str(self.folder)] if command in ("diff", "sync", "status") else []
        done = self.program.run(command, *where, *arguments, **variables)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def sync(self, *arguments: str, code: int = 0) -> str:
        """Sync, and return all that was said."""
        done = self.run("sync", "--yes", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def count(self, fleet: str, pool: str = "") -> int:
        """Return how many nodes of a fleet, or of one of its pools, the cluster has."""
        chosen = f"{objects.FLEET}={fleet}" + (f",{objects.POOL}={pool}" if pool else "")
        return len(self.cluster.kubectl("get", "nodes", "--selector", chosen, "--output=name").splitlines())

    def plan(self, *arguments: str) -> Manifest:
        """Return what differs, as a program reads it."""
        made: Manifest = json.loads(self.run("diff", "-o", "json", *arguments).stdout)
        return made

    def state(self) -> dict[str, str]:
        """Return the version of every object of ours."""
        found = self.cluster.get("nodes,stages.kwok.x-k8s.io", *sessions.OURS[:2])["items"]
        return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}


@pytest.fixture(scope="module")
def kinds(session_cluster: ControlPlane) -> None:
    """Give the cluster kwok's kinds."""
    kwok.install_crds(session_cluster)


@pytest.fixture
def lab(kwokfleet: cli.Cli, cluster: ControlPlane, tmp_path: Path, kinds: None) -> Iterator[Lab]:
    """Prepare an empty folder; clear away what a test has made."""
    program = cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})
    yield Lab(cluster, program, tmp_path / "fleets")
    sessions.clear(cluster)


# ----------------------------------------------------------------------------------------
# the prune budget


def test_a_pool_that_vanished_waits_until_exactly_that_is_approved(lab: Lab) -> None:
    """Exit code 3 and a digest; another plan is not released by it, and the same plan is."""
    lab.write(lab.a, big=3, small=1)
    lab.sync()
    lab.write(lab.a, small=1)
    said = lab.sync(code=3)
    [held] = lab.plan()["withheld"]
    assert f"approve {held['digest']}" in said
    assert "3 of 4 objects" in said
    assert lab.count(lab.a) == 4
    refused = lab.run("approve", "0123456789abcdef")
    assert refused.returncode == 2
    assert held["digest"] in refused.stderr
    assert lab.run("approve", held["digest"]).returncode == 0
    lab.write(lab.a, small=2)
    assert held["digest"] not in lab.sync(code=3)
    assert lab.count(lab.a) == 4
    lab.write(lab.a, small=1)
    lab.sync()
    assert (lab.count(lab.a, "big"), lab.count(lab.a, "small")) == (0, 1)
    assert lab.run("diff").returncode == 0


def test_an_approval_can_be_given_with_the_sync(lab: Lab) -> None:
    """`--approve DIGEST`; a wrong one releases nothing."""
    lab.write(lab.a, big=2, small=1)
    lab.sync()
    lab.write(lab.a, small=1)
    digest = lab.plan()["withheld"][0]["digest"]
    lab.sync("--approve", digest[::-1], code=3)
    assert lab.count(lab.a) == 3
    lab.sync("--approve", digest)
    assert lab.count(lab.a) == 1


def test_a_number_that_was_written_is_followed(lab: Lab) -> None:
    """The budget guards against what vanished, not against an order."""
    lab.write(lab.a, only=12)
    lab.sync()
    lab.write(lab.a, only=0)
    lab.sync()
    assert lab.count(lab.a) == 0


def test_a_deleted_file_is_no_order(lab: Lab) -> None:
    """Its fleet waits for an approval; the others go on."""
    lab.write(lab.a, p=2)
    lab.write(lab.b, p=1)
    lab.sync()
    lab.file(lab.a).unlink()
    lab.write(lab.b, p=3)
    assert f"fleet {lab.a}" in lab.sync(code=3)
    assert (lab.count(lab.a), lab.count(lab.b)) == (2, 3)


# ----------------------------------------------------------------------------------------
# sources that cannot be used


def test_an_empty_or_missing_folder_is_no_order(lab: Lab) -> None:
    """Exit code 2, what was not done, and how a fleet is removed."""
    lab.write(lab.a, p=2)
    lab.sync()
    lab.file(lab.a).unlink()
    before = lab.state()
    for command in (["sync", "--yes"], ["diff"], ["status"]):
        done = lab.run(*command)
        assert done.returncode == 2, command
        assert "nothing was changed" in done.stderr
        assert "kwokfleet delete" in done.stderr
    lab.folder.rmdir()
    assert lab.run("sync", "--yes").returncode == 2
    assert lab.state() == before


def syntax(path: Path) -> None:
    """Leave a file half written."""
    path.write_text(path.read_text()[:60])


def value(path: Path) -> None:
    """Write something that is not a number of nodes."""
    path.write_text(path.read_text().replace('"replicas": 2', '"replicas": -2'))


def encoding(path: Path) -> None:
    """Write it in another encoding."""
    path.write_bytes(b"# gr\xfc\xdfe\n" + path.read_bytes())


def link(path: Path) -> None:
    """Replace it by a link to nowhere."""
    path.unlink()
    path.symlink_to("gone.yaml")


def rights(path: Path) -> None:
    """Take away the right to read it."""
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path.chmod(0)


@pytest.mark.parametrize("breaking", [syntax, value, encoding, link, rights])
def test_a_broken_file_holds_back_only_what_it_owns(lab: Lab, breaking: Callable[[Path], None]) -> None:
    """The good one beside it goes on, nothing vanishes, and the exit code is 2."""
    lab.write(lab.a, p=1, q=1)
    lab.write(lab.b, p=2)
    lab.sync()
    breaking(lab.file(lab.b))
    lab.write(lab.a, {"prune": {"maxPercent": 100}}, p=3)
    said = lab.sync(code=2)
    assert lab.file(lab.b).name in said
    assert (lab.count(lab.a, "p"), lab.count(lab.a, "q"), lab.count(lab.b)) == (3, 1, 2)
    assert lab.run("diff").returncode == 2


def test_a_broken_file_of_a_new_fleet_is_not_passed_over(lab: Lab) -> None:
    """Nothing of it is in the cluster yet, and still diff and sync end with 2."""
    lab.write(lab.a, p=1)
    lab.write(lab.b, p=2)
    value(lab.file(lab.b))
    lab.sync(code=2)
    assert (lab.count(lab.a), lab.count(lab.b)) == (1, 0)
    assert lab.run("status").returncode == 1


def test_diff_does_not_say_that_nothing_differs_where_it_could_not_compare(lab: Lab) -> None:
    """Beside a broken file it says what it knows nothing of, whether or not something else differs."""
    lab.write(lab.a, p=1)
    lab.sync()
    lab.write(lab.b, p=2)
    value(lab.file(lab.b))
    unknown = f"what {lab.file(lab.b)} asks for could not be compared"
    same = lab.run("diff")
    assert (same.returncode, "no differences" in same.stderr) == (2, False)
    assert f"nothing else differs; {unknown}" in same.stderr
    lab.write(lab.a, p=2)
    other = lab.run("diff")
    assert (other.returncode, unknown in other.stderr) == (2, True)
    assert "1 to create" in other.stderr


def test_while_it_is_unclear_how_kwok_runs_nothing_is_done(lab: Lab) -> None:
    """A KwokController document with an error holds back everything."""
    lab.write(lab.a, p=1)
    lab.sync()
    (lab.folder / "kwok.yaml").write_text(
        "apiVersion: kwokfleet.dev/v1alpha1\nkind: KwokController\nmetadata: {name: k}\nspec: {shards: -1}\n"
    )
    lab.write(lab.a, p=2)
    assert "kwok.yaml" in lab.sync(code=2)
    assert lab.count(lab.a) == 1


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
def test_a_fleet_that_may_not_change_stays_as_it_is(lab: Lab, spec: Manifest, words: str) -> None:
    """It is said; diff goes on showing the difference, and sync is no failure."""
    lab.write(lab.a, p=1)
    lab.write(lab.b, p=1)
    lab.sync()
    before = lab.state()
    lab.write(lab.a, {"nodePools": [{"name": "p", "replicas": 3}], **spec})
    assert words in lab.sync()
    diff = lab.run("diff")
    assert (diff.returncode, words in diff.stdout) == (1, True)
    assert lab.state() == before


def test_without_pruning_nothing_goes(lab: Lab) -> None:
    """Too many nodes stay, as do those of a pool that vanished; the rest is done."""
    lab.write(lab.a, {"prune": {"maxPercent": 100}}, p=3, q=1)
    lab.sync()
    lab.write(lab.a, {"prune": {"maxPercent": 100}}, p=1, r=2)
    assert "nothing is to be deleted" in lab.sync("--no-prune")
    assert [lab.count(lab.a, pool) for pool in "pqr"] == [3, 1, 2]
    lab.sync()
    assert [lab.count(lab.a, pool) for pool in "pqr"] == [1, 0, 2]


def test_a_dry_run_keeps_nothing(lab: Lab) -> None:
    """The server's checks every write, the client's makes none: of creations, changes and deletions."""
    lab.write(lab.a, p=2)
    assert "accepts" in lab.sync("--dry-run=server")
    assert lab.run("sync", "--dry-run=client").returncode == 1
    assert lab.state() == {}
    lab.sync()
    lab.write(lab.a, {"nodePools": [{"name": "p", "replicas": 1, "labels": {"a": "b"}}, {"name": "q", "replicas": 1}]})
    before = lab.state()
    assert "dry run: the API server accepts 3 of 3 changes" in lab.sync("--dry-run=server")
    assert lab.run("sync", "--dry-run=client").returncode == 1
    assert lab.state() == before


def test_one_fleet_can_be_synced_alone(lab: Lab) -> None:
    """The others are not looked at; one that nobody knows is refused, with what was meant."""
    lab.write(lab.a, p=1)
    lab.write(lab.b, p=1)
    lab.sync("--fleet", lab.a)
    assert (lab.count(lab.a), lab.count(lab.b)) == (1, 0)
    assert lab.run("diff", "--fleet", lab.a).returncode == 0
    assert lab.run("diff", "--fleet", lab.b).returncode == 1
    for command in ("diff", "sync", "status"):
        unknown = lab.run(command, "--fleet", f"{lab.a}x")
        assert (unknown.returncode, lab.a in unknown.stderr) == (2, True)


# ----------------------------------------------------------------------------------------
# delete


def test_delete_removes_one_fleet_and_nothing_of_others(lab: Lab) -> None:
    """Not without a yes; Stages that the others need stay, and go with the last."""
    lab.write(lab.a, {"waves": [{"name": "w", "count": 1, "namespace": f"{lab.a}-work", "template": JOB}]}, p=2)
    lab.write(lab.b, p=1)
    lab.sync()
    unsure = lab.run("delete", lab.a)
    assert (unsure.returncode, lab.count(lab.a)) == (3, 2)
    assert "--yes" in unsure.stderr
    assert lab.run("delete", lab.a, "--yes").returncode == 0
    assert (lab.count(lab.a), lab.count(lab.b)) == (0, 1)
    records = lab.cluster.kubectl("get", "fleets.kwokfleet.dev", "--output=name").split()
    assert records == [f"fleet.kwokfleet.dev/{lab.b}"]
    lab.file(lab.a).unlink()
    lab.sync()  # only now is it known that nobody needs the namespace any more
    assert lab.run("diff").returncode == 0
    assert "pod-fast" in lab.cluster.kubectl("get", "stages.kwok.x-k8s.io", "--output=name")
    assert lab.run("delete", lab.a, "--yes").returncode == 2
    assert lab.run("delete", lab.b, "--yes").returncode == 0
    assert lab.state() == {}


JOB = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}


def test_what_is_just_going_is_made_anew(lab: Lab) -> None:
    """A namespace takes seconds to go: diff says that it will be missing, and sync waits for its place."""
    namespace = f"{lab.a}-work"
    lab.write(lab.a, {"waves": [{"name": "w", "count": 1, "namespace": namespace, "template": JOB}]}, p=1)
    lab.sync()
    before = lab.cluster.get("namespace", namespace)["metadata"]["uid"]
    lab.cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    diff = lab.run("diff", "--details")
    assert (diff.returncode, f"namespace {namespace}: is being deleted" in diff.stdout) == (1, True)
    lab.sync()
    after = lab.cluster.get("namespace", namespace)
    assert (after["status"]["phase"], after["metadata"]["uid"] != before) == ("Active", True)
    assert lab.run("diff").returncode == 0


def test_a_namespace_that_is_going_is_not_looked_into(lab: Lab, tmp_path: Path) -> None:
    """Whoever has something in it: it goes, and asking each kind of object for its contents decides nothing."""
    namespace = f"{lab.a}-work"
    lab.write(lab.a, {"waves": [{"name": "w", "count": 1, "namespace": namespace, "template": JOB}]}, p=1)
    lab.sync()
    patch = ("patch", "namespace", namespace, "--type=merge", "--patch")
    lab.cluster.kubectl(*patch, '{"metadata": {"finalizers": ["example.com/held"]}}')
    lab.write(lab.a, p=1)
    with faulty.proxied(lab.cluster) as proxy:
        through = proxy.kubeconfig(tmp_path / "through.json")
        assert lab.run("diff", KUBECONFIG=through).returncode == 1
        assert [asked.path for asked in proxy.asked if f"/namespaces/{namespace}/" in asked.path]
        lab.sync()
        proxy.asked.clear()
        assert lab.run("diff", KUBECONFIG=through).returncode == 0
        assert not [asked.path for asked in proxy.asked if f"/namespaces/{namespace}/" in asked.path]
    lab.cluster.kubectl(*patch, '{"metadata": {"finalizers": null}}')


def test_a_namespace_in_which_others_have_something_stays(lab: Lab) -> None:
    """It would go with the namespace: exit code 3, and what it is."""
    namespace = f"{lab.a}-work"
    lab.write(lab.a, {"waves": [{"name": "w", "count": 1, "namespace": namespace, "template": JOB}]}, p=1)
    lab.sync()
    lab.cluster.kubectl("create", "configmap", "precious", "--namespace", namespace)
    lab.write(lab.a, p=1)
    assert "configmaps/precious, which is not ours" in lab.sync(code=3)
    assert lab.cluster.get("namespace", namespace)["status"]["phase"] == "Active"
    lab.cluster.kubectl("delete", "configmap", "precious", "--namespace", namespace)
    lab.sync()
    assert lab.run("diff").returncode == 0


def test_a_stage_of_others_is_a_conflict_until_it_is_adopted(lab: Lab) -> None:
    """Exit code 5, and it stays as it is; the rest is done."""
    name = "pod-fast-ready"
    spec = {"resourceRef": {"apiGroup": "v1", "kind": "Pod"}, "selector": {"matchLabels": {"a": "b"}}, "weight": 7}
    lab.cluster.apply({"apiVersion": objects.STAGE_API_VERSION, "kind": "Stage", "metadata": {"name": name},
                       "spec": {**spec, "next": {"delete": True}}})  # fmt: skip
    before = lab.cluster.get("stages.kwok.x-k8s.io", name)
    lab.write(lab.a, p=1)
    assert f"stage {name} is there and is not ours" in lab.sync(code=5)
    assert lab.cluster.get("stages.kwok.x-k8s.io", name) == before
    assert lab.count(lab.a) == 1
    lab.write(lab.a, {"adopt": True}, p=1)
    lab.sync()
    after = lab.cluster.get("stages.kwok.x-k8s.io", name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["labels"][objects.MANAGED_BY] == objects.US
    assert "matchLabels" not in after["spec"]["selector"]
    assert not after["spec"].get("next", {}).get("delete")
    assert lab.run("diff").returncode == 0


# ----------------------------------------------------------------------------------------
# what diff shows


@pytest.fixture
def differing(lab: Lab) -> Lab:
    """Make a cluster and files that differ in every way: to create, change, replace, delete, and withheld."""
    labels = {"old": "yes"}
    pools = [{"name": "p", "replicas": 2}, {"name": "q", "replicas": 3, "labels": labels}, {"name": "r", "replicas": 1}]
    lab.write(lab.a, {"nodePools": pools})
    lab.write(lab.b, p=2)
    lab.sync()
    pools = [
        {"name": "p", "replicas": 3, "labels": {"example.com/a": "b"}},
        {"name": "q", "replicas": 1},
        {"name": "r", "replicas": 1, "providerID": False},
    ]
    lab.write(lab.a, {"nodePools": pools})
    lab.file(lab.b).unlink()
    lab.write(f"{lab.b}-new", p=1)
    return lab


def test_diff_tells_people_and_programs_the_same(differing: Lab) -> None:
    """Text, JSON, Markdown and a unified diff of one plan; none of them changes anything."""
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
    made = differing.plan()
    assert made["summary"] == {"create": 2, "update": 3, "replace": 1, "delete": 2, "withheld": 2}
    assert made["withheld"][0]["digest"] in text.stdout
    markdown = differing.run("diff", "-o", "markdown").stdout
    assert f"| {differing.a} | pool p | 1 | 2 labels | 0 | 0 |" in markdown
    unified = differing.run("diff", "-o", "unified").stdout
    assert f"--- LIVE/v1.Node..{differing.a}-p-0\n" in unified
    assert "+    example.com/a: b\n" in unified
    assert differing.state() == before


def test_a_saved_cluster_gives_the_same_diff(differing: Lab, tmp_path: Path) -> None:
    """`kubectl get -o json`, and no cluster at all: the same bytes and the same exit code."""
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


def test_the_diff_program_of_ones_choice_is_shown_both_sides(differing: Lab, tmp_path: Path) -> None:
    """Two folders with a file for each object, as kubectl diff has it; its own failure is an error."""
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
def entitled(cluster: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return what makes a kubeconfig of a service account with some rights and no others."""
    name = f"t-{secrets.token_hex(4)}"

    def made(**verbs_of: str) -> str:
        """Make one: verbs by kind, in kubectl's words."""
        cluster.kubectl("create", "serviceaccount", name, "--namespace=default")
        for number, (kind, verbs) in enumerate(verbs_of.items()):
            role, resource = f"{name}-{number}", kind.replace("__", ".").replace("_", "-")
            cluster.kubectl("create", "clusterrole", role, f"--verb={verbs}", f"--resource={resource}")
            account = f"--serviceaccount=default:{name}"
            cluster.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", account)
            cluster.kubectl("label", "clusterrole,clusterrolebinding", role, f"{sandbox.LABEL}={name}")
        return str(cluster.kubeconfig_of(name, tmp_path / "entitled.json"))

    yield made
    cluster.kubectl("delete", "clusterroles,clusterrolebindings", "--selector", f"{sandbox.LABEL}={name}")
    cluster.kubectl("delete", "serviceaccount", name, "--namespace=default", "--ignore-not-found")


READ = "get,list,watch"
WRITE = f"{READ},create,patch,delete"


def test_read_only_rights_are_enough_for_a_diff(differing: Lab, entitled: Callable[..., str]) -> None:
    """The same answer as with all rights; a sync is refused, and has changed nothing."""
    who = entitled(
        nodes=READ, namespaces=READ, configmaps=READ, storageclasses__storage__k8s__io=READ,
        stages__kwok__x_k8s__io=READ, fleets__kwokfleet__dev=READ,
    )  # fmt: skip
    assert differing.run("diff", KUBECONFIG=who).stdout == differing.run("diff").stdout
    assert differing.run("status", KUBECONFIG=who).returncode == 1
    before = differing.state()
    refused = differing.run("sync", "--yes", KUBECONFIG=who)
    assert refused.returncode == 4
    assert "403" in refused.stderr
    assert differing.state() == before


def test_rights_for_what_is_asked_for_are_enough_for_a_sync(lab: Lab, entitled: Callable[..., str]) -> None:
    """Of a kind that the files do not ask for nothing needs to be known."""
    who = entitled(nodes=WRITE, stages__kwok__x_k8s__io=WRITE)
    lab.write(lab.a, p=2)
    lab.sync()
    lab.write(lab.a, p=3)
    done = lab.run("sync", "--yes", KUBECONFIG=who)
    assert done.returncode == 0, done.stderr
    assert lab.count(lab.a) == 3
    assert "configmaps" in done.stderr


# ----------------------------------------------------------------------------------------
# get, status


def test_get_lists_what_is_there(lab: Lab) -> None:
    """Fleets, pools, nodes and stages, as tables, JSON and names; no files are needed."""
    nothing = lab.run("get")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no pools of ours" in nothing.stderr
    lab.write(lab.a, p=2, q=1)
    lab.write(lab.b, p=1)
    lab.sync()
    lines = lab.run("get").stdout.splitlines()
    assert lines[0].split() == ["FLEET", "POOL", "NODES", "READY", "SCHEDULABLE", "AGE"]
    assert [line.split()[:5] for line in lines[1:]] == [
        [lab.a, "p", "2", "2", "2"],
        [lab.a, "q", "1", "1", "1"],
        [lab.b, "p", "1", "1", "1"],
    ]
    fleets = json.loads(lab.run("get", "fleets", "-o", "json").stdout)
    assert [(each["fleet"], each["nodes"]) for each in fleets] == [(lab.a, 3), (lab.b, 1)]
    assert lab.run("get", "nodes", "-o", "name", "--fleet", lab.b).stdout.split() == [f"{lab.b}-p-0"]
    assert lab.run("get", "pools", "-o", "name", "--fleet", lab.b).stdout.split() == [f"{lab.b}/p"]
    stages = json.loads(lab.run("get", "stages", "-o", "json").stdout)
    assert {each["fleet"] for each in stages} == {"(shared)"}
    assert {each["kind"] for each in stages} == {"Node", "Pod"}


def test_status_says_whether_all_is_as_the_files_say(lab: Lab) -> None:
    """Exit code 0 if it is, 1 if something differs, is missing, is withheld or is not Ready."""
    lab.write(lab.a, p=2)
    assert lab.run("status").returncode == 1
    lab.sync("--wait", "--timeout", "30s")
    settled = lab.run("status")
    assert (settled.returncode, settled.stdout.splitlines()[1].split()) == (0, [lab.a, "p", "2", "2", "2", "2", "0"])
    lab.write(lab.a, p=3)
    differing = lab.run("status", "-o", "json")
    assert differing.returncode == 1
    assert json.loads(differing.stdout) == [
        {"fleet": lab.a, "pool": "p", "desired": 3, "nodes": 2, "ready": 2, "schedulable": 2, "differences": 1}
    ]
    lab.write(lab.a, p=2)
    lab.cluster.kubectl(
        "patch", "node", f"{lab.a}-p-0", "--subresource=status", "--patch",
        json.dumps({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Test"}]}}),
    )  # fmt: skip
    unready = lab.run("status", "-o", "json")
    assert (unready.returncode, json.loads(unready.stdout)[0]["ready"]) == (1, 1)
    lab.write(lab.a, q=2)
    withheld = lab.run("status")
    assert withheld.returncode == 1
    assert "approve" in withheld.stderr


def test_what_is_withheld_stands_in_the_cluster(lab: Lab) -> None:
    """The Fleet's status has conditions as kstatus reads them, and the digest."""
    lab.write(lab.a, p=3, q=1)
    lab.sync()
    status = lab.cluster.get("fleets.kwokfleet.dev", lab.a)["status"]
    assert {each["type"]: each["status"] for each in status["conditions"]}["Ready"] == "True"
    lab.write(lab.a, q=1)
    lab.sync(code=3)
    status = lab.cluster.get("fleets.kwokfleet.dev", lab.a)["status"]
    [ready] = [each for each in status["conditions"] if each["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "PruneWithheld")
    assert status["withheld"][0]["digest"] == lab.plan()["withheld"][0]["digest"]
