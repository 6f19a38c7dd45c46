"""Rendered objects of the shipped examples at a fixed time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

from kwokfleet.api.fleet import Fleet
from kwokfleet.api.wave import Wave
from kwokfleet.documents import writer
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import desired as render
from kwokfleet.render import schedule, workloads
from kwokfleet.source import loader
from tests.harness.golden_files import GoldenFiles

FLEETS = Path(__file__).parents[2] / "fleets"
NOW = datetime(2026, 3, 2, 7, 30, tzinfo=UTC)
EXAMPLES = sorted(path.stem for path in FLEETS.glob("*.yaml") if path.stem != "kwok-controller")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, golden_file: GoldenFiles) -> None:
    """All names, one node per pool, the selectors of Stages, the first objects."""
    loaded = loader.Loader().load(FLEETS / f"{name}.yaml")
    assert loaded.problems == ()
    golden_file.check(f"example-{name}.yaml", "".join(_summary(loaded.tree)))


def _summary(tree: render.Tree) -> Iterator[str]:
    desired = render.Renderer().desired(tree, NOW)
    manifests = list(render.objects_to_create(tree, desired, NOW))
    yield from (f"# {line}\n" for line in _names(manifests))
    listed_pools: set[str] = set()
    for manifest in manifests:
        pool = manifest["metadata"].get("labels", {}).get(objects.POOL)
        if manifest["kind"] == "Stage":
            if objects.STAGE_SET not in manifest["metadata"]["labels"]:
                yield "---\n" + writer.to_yaml(_without_steps(manifest))
        elif pool is None or pool not in listed_pools:
            listed_pools.add(pool or "")
            yield "---\n" + writer.to_yaml(manifest)
    for fleet in tree.fleets:
        for wave in fleet.spec.waves:
            yield from _wave(tree, fleet, wave)


def _names(manifests: list[Manifest]) -> Iterator[str]:
    """Yield each object's name; of a pool, the first and the last."""
    named = [
        f"{manifest['kind']} {manifest['metadata']['name']}" for manifest in manifests if manifest["kind"] != "Node"
    ]
    yield from named
    pools: dict[str, list[str]] = {}
    for manifest in manifests:
        if manifest["kind"] == "Node":
            pools.setdefault(manifest["metadata"]["labels"][objects.POOL], []).append(manifest["metadata"]["name"])
    yield from (f"{len(names)} Nodes {names[0]} to {names[-1]}" for names in pools.values())


def _without_steps(stage: Manifest) -> Manifest:
    """Return a Stage without its patches, which belong to the library."""
    return {**stage, "spec": {key: value for key, value in stage["spec"].items() if key != "steps"}}


def _wave(tree: render.Tree, fleet: Fleet, wave: Wave) -> Iterator[str]:
    run = next(schedule.runs_between(wave.start, NOW, NOW - timedelta(seconds=1), NOW + timedelta(days=8)))
    context = render.run_context(tree, fleet, wave, run.name)
    instants = list(workloads.due_objects(context, run.start))
    make = workloads.object_factory(context)
    until = instants[-1].at.isoformat()
    yield f"---\n# wave {wave.name}: run {run.name}, {len(instants)} objects until {until}\n"
    for instant in islice(instants, 2):
        yield f"---\n# due {instant.at.isoformat()}\n" + writer.to_yaml(make(instant.index))
