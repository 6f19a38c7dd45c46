"""After a sync a diff is empty: for every example, for fleets that nobody wrote, and for any step between two."""

import json
import os
import random
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from kwokfleet import settings
from kwokfleet.api import units
from kwokfleet.embedded import crds, progress
from kwokfleet.kube import objects
from kwokfleet.reconcile import diff
from kwokfleet.render import desired
from kwokfleet.source import loader
from tests.harness import cli, in_process_sync, kwok, manifests, waiting
from tests.harness.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "fleets").glob("*.yaml"))
KNOWN_S = 30.0
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def followed(session_cluster: ControlPlane, kinds: ControlPlane) -> Iterator[in_process_sync.InProcessSync]:
    """Follow the session's cluster, for all tests here."""
    with in_process_sync.running(session_cluster) as opened:
        yield opened


@pytest.fixture
def session(followed: in_process_sync.InProcessSync, cluster: ControlPlane) -> Iterator[in_process_sync.InProcessSync]:
    """Return the followed cluster; nothing of ours is left in it."""
    yield followed
    in_process_sync.delete_managed_objects(cluster)
    followed.informer.wait(lambda view: all(each.key.kind == "Namespace" for each in view.objects.values()), KNOWN_S)


@pytest.fixture
def program(kwokfleet: cli.Cli, cluster: ControlPlane) -> cli.Cli:
    """Run the command line for the session's cluster."""
    return cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})


# ----------------------------------------------------------------------------------------
# defaults


def defaults(schema: Manifest, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what a definition fills in where nothing is said."""
    if "default" in schema:
        yield path, schema["default"]
    for name, inner in (schema.get("properties") or {}).items():
        yield from defaults(inner, *path, name)
    if "items" in schema:
        yield from defaults(schema["items"], *path, "[]")


def test_what_kwoks_definition_fills_in_is_no_difference(cluster: ControlPlane) -> None:
    """Every default of a Stage, as the pinned version of kwok has them; none of them is inside a list."""
    files = crds.files(settings.from_environment(os.environ), progress.discard)
    [stage] = [each for each in map(YAML(typ="safe").load, files) if each["spec"]["names"]["kind"] == "Stage"]
    found = dict(defaults(stage["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))
    assert found
    assert not any("[]" in path for path in found)
    live = manifests.stage(next={})
    del live["spec"]["resourceRef"]["apiGroup"]
    want = json.loads(json.dumps(live))
    for path, value in found.items():
        place = live
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
    assert live != want
    assert diff.differences(want, manifests.observe(live)) == ()


# ----------------------------------------------------------------------------------------
# the examples


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """Copy the examples with what they refer to; one of them allows no change on Sundays, when tests run too."""
    for folder in ("fleets", "stages"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    week = tmp_path / "fleets" / "week.yaml"
    text = week.read_text()
    week.write_text("".join(line for line in text.splitlines(keepends=True) if "deny:" not in line))
    assert week.read_text() != text
    return tmp_path / "fleets"


@pytest.mark.parametrize("name", EXAMPLES)
def test_after_a_sync_an_example_is_as_it_says(
    session: in_process_sync.InProcessSync, examples: Path, name: str
) -> None:
    """Each file alone."""
    done = session.sync(examples / name)
    assert done.left.empty
    assert session.diff(examples / name).empty


def test_after_a_sync_all_examples_together_are_as_they_say(
    session: in_process_sync.InProcessSync, program: cli.Cli, examples: Path, cluster: ControlPlane
) -> None:
    """By the commands: sync ends with 0, so does diff, and another sync has nothing to do."""
    program.ok("sync", "--yes", str(examples))
    done = program.run("diff", str(examples))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "no differences" in done.stderr
    with cluster.counted_requests() as counted:
        assert "no differences" in program.run("sync", "--yes", str(examples)).stderr
    # The node controllers write to nodes too.
    assert [counted.writes(kind) for kind in ("stages", "namespaces", "configmaps", "fleets/status")] == [0] * 4
    names = {f"node/{each['metadata']['name']}" for each in cluster.get("nodes", *in_process_sync.OURS[:2])["items"]}
    assert names == set(program.ok("render", str(examples), "--kind", "Node", "-o", "name").splitlines())


# ----------------------------------------------------------------------------------------
# fleets that nobody wrote

KEYS = ("tier", "example.com/rack", "a-b.c/D_e.f", "zone", "x")
VALUES = ("", "1", "true", "gold", "A.b_c-9")
AMOUNTS = {
    "cpu": ("1", "0.5", "1500m", "64", "0"),
    "memory": ("1024Gi", "1Ti", "0.5Gi", "1e9", "123456Ki", "0"),
    "pods": ("10", "110"),
    "nvidia.com/gpu": ("8", "0"),
    "example.com/nic": ("1k", "2"),
    "ephemeral-storage": ("1.5Gi", "100G"),
}
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
NODE_INFO = {
    "architecture": ("arm64", "amd64"), "osImage": ("Linux", ""), "kubeletVersion": ("v1.30.0",), "bootID": ("b",),
    "machineID": ("m", ""), "kernelVersion": ("6.1",), "containerRuntimeVersion": ("containerd://2",),
}  # fmt: skip
STAGES = ((), ("pod-fast",), ("pod-general", "node-fast"), ("node-chaos", "pod-chaos"), ("pod-general", "volume"))
WORKLOAD = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "data": {"a": "b"},
}


class Maker:
    """Draws fleets; the same ones for the same seed."""

    def __init__(self, seed: int, name: str) -> None:
        self.dice = random.Random(seed)  # noqa: S311  # no secret: the same examples each time
        self.name = name

    def maybe(self, share: float = 0.5) -> bool:
        """Toss a coin."""
        return self.dice.random() < share

    def some(self, keys: tuple[str, ...], values: tuple[str, ...]) -> dict[str, str]:
        """Draw labels or annotations."""
        return {key: self.dice.choice(values) for key in self.dice.sample(keys, self.dice.randint(1, len(keys)))}

    def amounts(self) -> dict[str, str]:
        """Draw resources."""
        return {name: self.dice.choice(AMOUNTS[name]) for name in self.dice.sample(sorted(AMOUNTS), 3)}

    def taints(self) -> list[Manifest]:
        """Draw taints, some with one key and several effects."""
        pairs = self.dice.sample([(key, effect) for key in ("spot", "example.com/t") for effect in EFFECTS], 3)
        return [
            {"key": key, "effect": effect} | ({"value": self.dice.choice(("", "yes"))} if self.maybe() else {})
            for key, effect in pairs
        ]

    def template(self) -> Manifest:
        """Draw a partial Node."""
        info = {name: self.dice.choice(NODE_INFO[name]) for name in self.dice.sample(sorted(NODE_INFO), 3)}
        parts: dict[str, list[tuple[str, Any]]] = {
            "metadata": [
                ("labels", self.some(KEYS, VALUES)),
                ("annotations", self.some(KEYS, (*VALUES, "two\nlines: {}"))),
            ],
            "spec": [("unschedulable", self.maybe()), ("taints", self.taints())],
            "status": [
                ("capacity", self.amounts()),
                ("allocatable", self.amounts()),
                ("nodeInfo", info),
                ("features", {"supplementalGroupsPolicy": self.maybe()}),
                ("runtimeHandlers", [{"name": "runc", "features": {"userNamespaces": self.maybe()}}]),
                ("images", [{"names": ["a/b:1"], "sizeBytes": self.dice.randint(0, 9)}]),
            ],
        }
        return {part: {name: value for name, value in fields if self.maybe()} for part, fields in parts.items()}

    def pool_fields(self, number: int) -> Manifest:
        """Draw everything that a pool can say beside its name and size."""
        zones = {"topology.kubernetes.io/zone": ["a", "b", "c"][: self.dice.randint(1, 3)]}
        return {
            "labels": self.some(KEYS, VALUES),
            "annotations": self.some(KEYS, VALUES),
            "taints": self.taints(),
            "taint": self.maybe(),
            "resources": self.amounts(),
            "spread": zones,
            "template": self.template(),
            "podCIDR": f"10.{100 + number}.{64 * self.dice.randint(0, 3)}.0/18",
            "providerID": self.maybe(),
            "lifecycle": self.dice.choice(("booting", "failing")),
            "scaleDown": self.dice.choice(("highestIndex", "emptiest", "newest")),
        }

    def pool(self, number: int) -> Manifest:
        """Draw a pool."""
        if self.maybe(0.1):
            return {"name": f"p{number}", "autoscaler": {"min": 0, "max": 3}, "spread": {"zone": ["a"]}}
        fields = {name: value for name, value in self.pool_fields(number).items() if self.maybe()}
        return {"name": f"p{number}", "replicas": self.dice.randint(0, 5), **fields}

    def wave(self, number: int) -> Manifest:
        """Draw a Wave: all that a sync makes of it is its namespace."""
        place = {"namespace": f"{self.name}-{self.dice.randint(0, 2)}"} if self.maybe(0.8) else {}
        return {"name": f"w{number}", "count": 2, "template": WORKLOAD, **place}

    def fleet(self) -> Manifest:
        """Draw a Fleet."""
        spec: Manifest = {
            "seed": self.dice.randint(0, 9),
            "nodePools": [self.pool(number) for number in range(self.dice.randint(1, 3))],
            "lifecycles": [
                {"name": "booting", "node": {"boot": self.dice.choice(("5s", "1s..30s"))}},
                {"name": "failing", "node": {"notReady": {"every": "2h", "for": "1m"}}},
                {"name": "short", "pod": {"ready": self.dice.choice(("0s", "1s..2s")), "complete": "10s"}},
            ],
            "stages": list(self.dice.choice(STAGES)),
            "waves": [self.wave(number) for number in range(self.dice.randint(0, 2))],
        }
        return self.document(spec)

    def document(self, spec: Manifest) -> Manifest:
        """Return a Fleet with a budget that withholds nothing."""
        return {
            "apiVersion": "kwokfleet.dev/v1alpha1",
            "kind": "Fleet",
            "metadata": {"name": self.name},
            "spec": {**spec, "prune": {"maxPercent": 100}},
        }

    def step(self, before: Manifest) -> Manifest:
        """Draw what somebody makes of a Fleet: pools come and go, fields are added, changed and removed."""
        drawn = self.fleet()["spec"]
        pools = [self.changed(pool, int(pool["name"][1:])) for pool in before["spec"]["nodePools"] if self.maybe(0.85)]
        names = {pool["name"] for pool in pools}
        pools += [pool for pool in drawn["nodePools"] if pool["name"] not in names and self.maybe()]
        return self.document({**drawn, "nodePools": pools})

    def changed(self, pool: Manifest, number: int) -> Manifest:
        """Draw another state of one pool."""
        if "autoscaler" in pool:
            return pool if self.maybe() else {"name": pool["name"], "replicas": 2}
        drawn = self.pool_fields(number)
        made = {"name": pool["name"], "replicas": self.dice.randint(0, 5)}
        for name, value in drawn.items():
            fate = self.dice.random()
            if name in pool and fate < 0.35:
                made[name] = pool[name]
            elif fate < 0.65:
                made[name] = value
        return made


def written(path: Path, fleet: Manifest) -> Path:
    """Write a Fleet to a file of its own."""
    path.write_text(json.dumps(fleet))
    return path


def assert_as_asked_for(cluster: ControlPlane, path: Path, fleet: str) -> None:
    """Hold the nodes of a fleet, as kubectl shows them, against those that its file stands for, field by field."""
    tree = loader.Loader().load(path).tree
    wanted = {
        key.name: node
        for key, node in desired.Renderer().desired(tree, datetime.now(UTC)).items()
        if key.kind == "Node" and objects.labels(node)[objects.FLEET] == fleet
    }
    live = cluster.get("nodes", "--selector", f"{objects.FLEET}={fleet}")["items"]
    sizes = {pool.name: desired.pool_size(pool, datetime.now(UTC)) for pool in tree.fleets[0].spec.node_pools}
    assert len(live) == sum(sizes.values())
    for node in live:
        want = wanted.get(node["metadata"]["name"])
        if want is None:  # a pool that kept other nodes than the first so many
            continue
        assert facts(node) == facts(want)


def facts(node: Manifest) -> Manifest:
    """Return everything of a node that a file decides, in one way to write it."""
    metadata, spec, status = node["metadata"], node["spec"], node["status"]
    passing = ("node.alpha.kubernetes.io/ttl", objects.REQUEUE)  # a controller's, and what only makes kwok look again
    annotations = {key: value for key, value in metadata["annotations"].items() if key not in passing}
    taints = {
        (each["key"], each.get("value", ""), each["effect"])
        for each in spec.get("taints", ())
        if not each["key"].startswith("node.kubernetes.io/")
    }
    return {
        "labels": metadata["labels"],
        "annotations": annotations,
        "taints": taints,
        "unschedulable": spec.get("unschedulable", False),
        "network": (spec.get("podCIDR"), spec.get("providerID")),
        "capacity": {name: units.quantity_value(value) for name, value in status["capacity"].items()},
        "allocatable": {name: units.quantity_value(value) for name, value in status["allocatable"].items()},
        "info": {name: value for name, value in status["nodeInfo"].items() if value},
        "features": {name: on for name, on in (status.get("features") or {}).items() if on},
        "handlers": [each["name"] for each in status.get("runtimeHandlers") or ()],
        "images": [each["names"] for each in status.get("images") or ()],
        "addresses": {(each["type"], each["address"]) for each in status["addresses"]},
    }


@pytest.mark.parametrize("seed", range(12))
def test_after_a_sync_any_fleet_is_as_it_says_and_after_any_step_too(
    session: in_process_sync.InProcessSync, cluster: ControlPlane, tmp_path: Path, seed: int
) -> None:
    """Nothing differs after either, and nothing of the first is left that the second does not ask for."""
    maker = Maker(seed, f"t-{secrets.token_hex(4)}")
    first = maker.fleet()
    path = tmp_path / "fleet.yaml"
    for fleet in (first, maker.step(first)):
        written(path, fleet)
        session.sync(path)
        left = session.diff(path)
        assert left.empty, (left.changes, left.withheld)
        assert_as_asked_for(cluster, path, maker.name)


def test_after_a_step_by_the_commands_nothing_differs(
    session: in_process_sync.InProcessSync, program: cli.Cli, cluster: ControlPlane, tmp_path: Path
) -> None:
    """Another process for each: what one has done is known to the next from the cluster alone."""
    maker = Maker(4711, f"t-{secrets.token_hex(4)}")
    first = maker.fleet()
    path = tmp_path / "fleet.yaml"
    for fleet in (first, maker.step(first)):
        written(path, fleet)
        program.ok("sync", "--yes", str(path))
        assert program.run("diff", str(path)).returncode == 0
        assert_as_asked_for(cluster, path, maker.name)
    program.ok("delete", maker.name, "--yes")
    assert cluster.get("nodes", "--selector", f"{objects.FLEET}={maker.name}")["items"] == []


def test_what_kwok_writes_to_a_node_is_no_difference_and_keeps_nothing_alive(
    session: in_process_sync.InProcessSync, cluster: ControlPlane, tmp_path: Path
) -> None:
    """Nodes that are born Ready and nodes that boot; after a step nothing is left of what they had before."""
    maker = Maker(1, f"t-{secrets.token_hex(4)}")
    template = {"status": {"nodeInfo": {"osImage": "Linux"}, "features": {"supplementalGroupsPolicy": True}}}
    rich = {"resources": {"cpu": "4", "nvidia.com/gpu": "8"}, "taints": ["spot:NoSchedule"], "template": template}
    pools = [{"name": "born", "replicas": 2}, {"name": "boots", "replicas": 2, "lifecycle": "slow"}]
    lifecycles = [{"name": "slow", "node": {"boot": "100ms"}}]
    path = tmp_path / "fleet.yaml"
    selector = f"{objects.FLEET}={maker.name}"
    with kwok.running(cluster, tmp_path / "kwok", selector=selector, lease_s=40):
        for fields in (rich, {}, rich):
            spec = {"nodePools": [{**pool, **fields} for pool in pools], "lifecycles": lifecycles}
            written(path, maker.document(spec))
            session.sync(path)
            waiting.until(lambda: ready(cluster, selector) == 4)
            left = session.diff(path)
            assert left.empty, left.changes
            assert_as_asked_for(cluster, path, maker.name)


def ready(cluster: ControlPlane, selector: str) -> int:
    """Count the nodes that are Ready."""
    nodes = cluster.get("nodes", "--selector", selector)["items"]
    conditions = [each for node in nodes for each in node["status"]["conditions"]]
    return sum((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
