"""After a sync the diff is empty: for the examples, for random fleets, and for random changes of them."""

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
SYNC_TIMEOUT_S = 30.0
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def shared_session(session_cluster: ControlPlane, kinds: ControlPlane) -> Iterator[in_process_sync.InProcessSync]:
    """Connect to the session's cluster once for all tests here."""
    with in_process_sync.running(session_cluster) as session:
        yield session


@pytest.fixture
def session(
    shared_session: in_process_sync.InProcessSync, cluster: ControlPlane
) -> Iterator[in_process_sync.InProcessSync]:
    """Return the session; delete the managed objects at the end."""
    yield shared_session
    in_process_sync.delete_managed_objects(cluster)
    shared_session.informer.wait(
        lambda view: all(cached.key.kind == "Namespace" for cached in view.objects.values()), SYNC_TIMEOUT_S
    )


@pytest.fixture
def program(kwokfleet: cli.Cli, cluster: ControlPlane) -> cli.Cli:
    """Return the CLI for the session's cluster."""
    return cli.Cli(kwokfleet.data_dir, kwokfleet.environment | {"KUBECONFIG": str(cluster.kubeconfig)})


# ----------------------------------------------------------------------------------------
# defaults


def defaults(schema: Manifest, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the paths and values of a schema's defaults."""
    if "default" in schema:
        yield path, schema["default"]
    for name, inner in (schema.get("properties") or {}).items():
        yield from defaults(inner, *path, name)
    if "items" in schema:
        yield from defaults(schema["items"], *path, "[]")


def test_defaults_of_the_stage_crd_are_no_difference(cluster: ControlPlane) -> None:
    """All defaults of the pinned version of kwok; none of them is inside a list."""
    files = crds.files(settings.from_environment(os.environ), progress.discard)
    [stage] = [crd for crd in map(YAML(typ="safe").load, files) if crd["spec"]["names"]["kind"] == "Stage"]
    default_values = dict(defaults(stage["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))
    assert default_values
    assert not any("[]" in path for path in default_values)
    live = manifests.stage(next={})
    del live["spec"]["resourceRef"]["apiGroup"]
    want = json.loads(json.dumps(live))
    for path, value in default_values.items():
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
    """Copy the examples and their references; remove the change window that denies changes on Sundays."""
    for folder in ("fleets", "stages"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    week = tmp_path / "fleets" / "week.yaml"
    text = week.read_text()
    week.write_text("".join(line for line in text.splitlines(keepends=True) if "deny:" not in line))
    assert week.read_text() != text
    return tmp_path / "fleets"


@pytest.mark.parametrize("name", EXAMPLES)
def test_after_a_sync_an_example_has_no_difference(
    session: in_process_sync.InProcessSync, examples: Path, name: str
) -> None:
    """Each file alone."""
    done = session.sync(examples / name)
    assert done.left.empty
    assert session.diff(examples / name).empty


def test_after_a_sync_all_examples_together_have_no_difference(
    session: in_process_sync.InProcessSync, program: cli.Cli, examples: Path, cluster: ControlPlane
) -> None:
    """With the commands: sync and diff exit with 0, and a second sync changes nothing."""
    program.ok("sync", "--yes", str(examples))
    done = program.run("diff", str(examples))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "no differences" in done.stderr
    with cluster.counted_requests() as counted:
        assert "no differences" in program.run("sync", "--yes", str(examples)).stderr
    # The node controllers also write to nodes.
    assert [counted.writes(kind) for kind in ("stages", "namespaces", "configmaps", "fleets/status")] == [0] * 4
    names = {f"node/{node['metadata']['name']}" for node in cluster.get("nodes", *in_process_sync.OURS[:2])["items"]}
    assert names == set(program.ok("render", str(examples), "--kind", "Node", "-o", "name").splitlines())


# ----------------------------------------------------------------------------------------
# random fleets

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


class FleetGenerator:
    """Generates random fleets from a seed."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng = random.Random(seed)  # noqa: S311  # no secret: the same examples each time
        self.name = name

    def chance(self, share: float = 0.5) -> bool:
        """Return True with a probability."""
        return self.rng.random() < share

    def mapping(self, keys: tuple[str, ...], values: tuple[str, ...]) -> dict[str, str]:
        """Return random labels or annotations."""
        return {key: self.rng.choice(values) for key in self.rng.sample(keys, self.rng.randint(1, len(keys)))}

    def amounts(self) -> dict[str, str]:
        """Return random resources."""
        return {name: self.rng.choice(AMOUNTS[name]) for name in self.rng.sample(sorted(AMOUNTS), 3)}

    def taints(self) -> list[Manifest]:
        """Return random taints, some with one key and several effects."""
        pairs = self.rng.sample([(key, effect) for key in ("spot", "example.com/t") for effect in EFFECTS], 3)
        return [
            {"key": key, "effect": effect} | ({"value": self.rng.choice(("", "yes"))} if self.chance() else {})
            for key, effect in pairs
        ]

    def template(self) -> Manifest:
        """Return a random partial Node."""
        info = {name: self.rng.choice(NODE_INFO[name]) for name in self.rng.sample(sorted(NODE_INFO), 3)}
        parts: dict[str, list[tuple[str, Any]]] = {
            "metadata": [
                ("labels", self.mapping(KEYS, VALUES)),
                ("annotations", self.mapping(KEYS, (*VALUES, "two\nlines: {}"))),
            ],
            "spec": [("unschedulable", self.chance()), ("taints", self.taints())],
            "status": [
                ("capacity", self.amounts()),
                ("allocatable", self.amounts()),
                ("nodeInfo", info),
                ("features", {"supplementalGroupsPolicy": self.chance()}),
                ("runtimeHandlers", [{"name": "runc", "features": {"userNamespaces": self.chance()}}]),
                ("images", [{"names": ["a/b:1"], "sizeBytes": self.rng.randint(0, 9)}]),
            ],
        }
        return {part: {name: value for name, value in fields if self.chance()} for part, fields in parts.items()}

    def pool_fields(self, number: int) -> Manifest:
        """Return random fields of a pool, except name and size."""
        zones = {"topology.kubernetes.io/zone": ["a", "b", "c"][: self.rng.randint(1, 3)]}
        return {
            "labels": self.mapping(KEYS, VALUES),
            "annotations": self.mapping(KEYS, VALUES),
            "taints": self.taints(),
            "taint": self.chance(),
            "resources": self.amounts(),
            "spread": zones,
            "template": self.template(),
            "podCIDR": f"10.{100 + number}.{64 * self.rng.randint(0, 3)}.0/18",
            "providerID": self.chance(),
            "lifecycle": self.rng.choice(("booting", "failing")),
            "scaleDown": self.rng.choice(("highestIndex", "emptiest", "newest")),
        }

    def pool(self, number: int) -> Manifest:
        """Return a random pool."""
        if self.chance(0.1):
            return {"name": f"p{number}", "autoscaler": {"min": 0, "max": 3}, "spread": {"zone": ["a"]}}
        fields = {name: value for name, value in self.pool_fields(number).items() if self.chance()}
        return {"name": f"p{number}", "replicas": self.rng.randint(0, 5), **fields}

    def wave(self, number: int) -> Manifest:
        """Return a random Wave; a sync creates only its namespace."""
        place = {"namespace": f"{self.name}-{self.rng.randint(0, 2)}"} if self.chance(0.8) else {}
        return {"name": f"w{number}", "count": 2, "template": WORKLOAD, **place}

    def fleet(self) -> Manifest:
        """Return a random Fleet."""
        spec: Manifest = {
            "seed": self.rng.randint(0, 9),
            "nodePools": [self.pool(number) for number in range(self.rng.randint(1, 3))],
            "lifecycles": [
                {"name": "booting", "node": {"boot": self.rng.choice(("5s", "1s..30s"))}},
                {"name": "failing", "node": {"notReady": {"every": "2h", "for": "1m"}}},
                {"name": "short", "pod": {"ready": self.rng.choice(("0s", "1s..2s")), "complete": "10s"}},
            ],
            "stages": list(self.rng.choice(STAGES)),
            "waves": [self.wave(number) for number in range(self.rng.randint(0, 2))],
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

    def changed_fleet(self, before: Manifest) -> Manifest:
        """Return a random change of a Fleet: pools and fields are added, changed and removed."""
        drawn = self.fleet()["spec"]
        pools = [
            self.changed_pool(pool, int(pool["name"][1:])) for pool in before["spec"]["nodePools"] if self.chance(0.85)
        ]
        names = {pool["name"] for pool in pools}
        pools += [pool for pool in drawn["nodePools"] if pool["name"] not in names and self.chance()]
        return self.document({**drawn, "nodePools": pools})

    def changed_pool(self, pool: Manifest, number: int) -> Manifest:
        """Return a random change of a pool."""
        if "autoscaler" in pool:
            return pool if self.chance() else {"name": pool["name"], "replicas": 2}
        drawn = self.pool_fields(number)
        fields = {"name": pool["name"], "replicas": self.rng.randint(0, 5)}
        for name, value in drawn.items():
            fate = self.rng.random()
            if name in pool and fate < 0.35:
                fields[name] = pool[name]
            elif fate < 0.65:
                fields[name] = value
        return fields


def write_fleet(path: Path, fleet: Manifest) -> Path:
    """Write a Fleet to a file."""
    path.write_text(json.dumps(fleet))
    return path


def assert_nodes_as_desired(cluster: ControlPlane, path: Path, fleet: str) -> None:
    """Compare the live nodes of a fleet with the rendered ones, field by field."""
    tree = loader.Loader().load(path).tree
    desired_nodes = {
        key.name: node
        for key, node in desired.Renderer().desired(tree, datetime.now(UTC)).items()
        if key.kind == "Node" and objects.labels(node)[objects.FLEET] == fleet
    }
    live = cluster.get("nodes", "--selector", f"{objects.FLEET}={fleet}")["items"]
    sizes = {pool.name: desired.pool_size(pool, datetime.now(UTC)) for pool in tree.fleets[0].spec.node_pools}
    assert len(live) == sum(sizes.values())
    for node in live:
        desired_node = desired_nodes.get(node["metadata"]["name"])
        if desired_node is None:  # the pool kept nodes with other indexes
            continue
        assert node_fields(node) == node_fields(desired_node)


def node_fields(node: Manifest) -> Manifest:
    """Return the fields of a node that a file decides, normalized."""
    metadata, spec, status = node["metadata"], node["spec"], node["status"]
    ignored = ("node.alpha.kubernetes.io/ttl", objects.REQUEUE)  # written by the node controllers and by a requeue
    annotations = {key: value for key, value in metadata["annotations"].items() if key not in ignored}
    taints = {
        (taint["key"], taint.get("value", ""), taint["effect"])
        for taint in spec.get("taints", ())
        if not taint["key"].startswith("node.kubernetes.io/")
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
        "handlers": [handler["name"] for handler in status.get("runtimeHandlers") or ()],
        "images": [image["names"] for image in status.get("images") or ()],
        "addresses": {(address["type"], address["address"]) for address in status["addresses"]},
    }


@pytest.mark.parametrize("seed", range(12))
def test_after_a_sync_a_random_fleet_and_a_change_of_it_have_no_difference(
    session: in_process_sync.InProcessSync, cluster: ControlPlane, tmp_path: Path, seed: int
) -> None:
    """Nothing of the first fleet is left that the second does not declare."""
    generator = FleetGenerator(seed, f"t-{secrets.token_hex(4)}")
    first = generator.fleet()
    path = tmp_path / "fleet.yaml"
    for fleet in (first, generator.changed_fleet(first)):
        write_fleet(path, fleet)
        session.sync(path)
        remaining = session.diff(path)
        assert remaining.empty, (remaining.changes, remaining.withheld)
        assert_nodes_as_desired(cluster, path, generator.name)


def test_after_a_change_the_commands_find_no_difference(
    session: in_process_sync.InProcessSync, program: cli.Cli, cluster: ControlPlane, tmp_path: Path
) -> None:
    """Each command is a new process: all state is in the cluster."""
    generator = FleetGenerator(4711, f"t-{secrets.token_hex(4)}")
    first = generator.fleet()
    path = tmp_path / "fleet.yaml"
    for fleet in (first, generator.changed_fleet(first)):
        write_fleet(path, fleet)
        program.ok("sync", "--yes", str(path))
        assert program.run("diff", str(path)).returncode == 0
        assert_nodes_as_desired(cluster, path, generator.name)
    program.ok("delete", generator.name, "--yes")
    assert cluster.get("nodes", "--selector", f"{objects.FLEET}={generator.name}")["items"] == []


def test_status_written_by_kwok_is_no_difference(
    session: in_process_sync.InProcessSync, cluster: ControlPlane, tmp_path: Path
) -> None:
    """Nodes that are created Ready and nodes that boot; removed fields are removed from the status."""
    generator = FleetGenerator(1, f"t-{secrets.token_hex(4)}")
    template = {"status": {"nodeInfo": {"osImage": "Linux"}, "features": {"supplementalGroupsPolicy": True}}}
    rich = {"resources": {"cpu": "4", "nvidia.com/gpu": "8"}, "taints": ["spot:NoSchedule"], "template": template}
    pools = [{"name": "born", "replicas": 2}, {"name": "boots", "replicas": 2, "lifecycle": "slow"}]
    lifecycles = [{"name": "slow", "node": {"boot": "100ms"}}]
    path = tmp_path / "fleet.yaml"
    selector = f"{objects.FLEET}={generator.name}"
    with kwok.running(cluster, tmp_path / "kwok", selector=selector, lease_s=40):
        for fields in (rich, {}, rich):
            spec = {"nodePools": [{**pool, **fields} for pool in pools], "lifecycles": lifecycles}
            write_fleet(path, generator.document(spec))
            session.sync(path)
            waiting.until(lambda: ready_nodes(cluster, selector) == 4)
            remaining = session.diff(path)
            assert remaining.empty, remaining.changes
            assert_nodes_as_desired(cluster, path, generator.name)


def ready_nodes(cluster: ControlPlane, selector: str) -> int:
    """Return the number of Ready nodes."""
    nodes = cluster.get("nodes", "--selector", selector)["items"]
    conditions = [condition for node in nodes for condition in node["status"]["conditions"]]
    return sum((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)
