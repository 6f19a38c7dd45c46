"""What shows only when all documents of a tree are held together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kwokfleet.core import documents, problems, render, schedule, stage_effects, stagesets, wave_checks, workloads
from kwokfleet.core import fleet as model
from kwokfleet.core.objects import Manifest
from kwokfleet.core.problems import Finding

AUTOSCALER_KEY = "templates"


def document(value: object) -> list[Finding]:
    """Return what keeps a document from being sorted by apiVersion and kind."""
    if not isinstance(value, Mapping):
        hint = "begin with apiVersion, kind and metadata"
        return [Finding((), "is not an object: a mapping is expected", hint, rule="not-an-object")]
    version, kind = value.get("apiVersion"), value.get("kind")
    if version is None and kind is None and not {"spec", "metadata"} & value.keys():
        hint = "if it is a fleet file, begin with apiVersion and kind"
        return [
            Finding((), "has neither apiVersion nor kind, and is ignored", hint, problems.Severity.WARNING, "ignored")
        ]
    for name, given in (("apiVersion", version), ("kind", kind)):
        if not isinstance(given, str):
            what = "is missing" if given is None else "must be a text"
            return [
                Finding((name,), what, f"as in {name}: {_SAMPLE[name]}", rule="missing-field", at_key=given is None)
            ]
    return _version(str(version), str(kind))


_SAMPLE = {"apiVersion": model.API_VERSION, "kind": "Fleet"}


def _version(version: str, kind: str) -> list[Finding]:
    if version == model.API_VERSION:
        if kind in model.KINDS:
            return []
        return [
            Finding(
                ("kind",), f"there is no kind {kind!r}", problems.meant(kind, sorted(model.KINDS)), rule="unknown-kind"
            )
        ]
    close = problems.nearest(version, [model.API_VERSION])
    if (
        kind in model.KINDS
        or version.startswith(model.GROUP)
        or (close and kind.lower() in {"fleet", "kwokcontroller"})
    ):
        what = f"there is no {version}" if version.startswith(model.GROUP) else f"{version!r} has no kind {kind!r}"
        return [Finding(("apiVersion",), what, f"write {model.API_VERSION}", rule="unknown-version")]
    return []


def has_name(value: Mapping[str, Any]) -> bool:
    """Return whether an object has a name."""
    metadata = value.get("metadata")
    return isinstance(metadata, Mapping) and isinstance(metadata.get("name"), str) and bool(metadata["name"])


def node_templates(values: Sequence[Any]) -> tuple[list[Manifest], str]:
    """Return the Nodes among documents, in Lists and in the autoscaler's ConfigMap, or why there are none."""
    found: list[Manifest] = []
    for value in values:
        if not isinstance(value, dict):
            continue
        if value.get("kind") == "Node":
            found.append(value)
        elif value.get("kind") in {"List", "NodeList"} and isinstance(value.get("items"), list):
            items = [{"kind": "Node", **item} for item in value["items"] if isinstance(item, dict)]
            found += [item for item in items if item["kind"] == "Node"]
        elif value.get("kind") == "ConfigMap":
            inner, trouble = _config_map(value)
            if trouble:
                return [], trouble
            found += inner
    return found, "" if found else "holds no Node"


def _config_map(value: Manifest) -> tuple[list[Manifest], str]:
    data = value.get("data")
    text = data.get(AUTOSCALER_KEY) if isinstance(data, dict) else None
    if not isinstance(text, str):
        return [], f"holds a ConfigMap without the key {AUTOSCALER_KEY!r}"
    parsed, wrong = documents.parse(AUTOSCALER_KEY, text)
    if wrong:
        return [], f"holds a ConfigMap whose templates are not YAML (line {wrong[0].line} of the text)"
    return node_templates([each.value for each in parsed if not _is_config_map(each.value)])


def _is_config_map(value: object) -> bool:
    return isinstance(value, dict) and value.get("kind") == "ConfigMap"


def together(
    fleets: Iterable[model.Fleet], sets: Mapping[str, Sequence[stagesets.Named]]
) -> Iterator[tuple[str, Finding]]:
    """Yield what Fleets cannot both have, with the name of the Fleet at which to mend it."""
    ordered = sorted(fleets, key=lambda fleet: fleet.name)
    named = [(fleet.name, index, one) for fleet in ordered for index, one in enumerate(sets.get(fleet.name, ()))]
    for first, second in stagesets.rivals([one for _, _, one in named]):
        name, index, one = named[second]
        other = named[first]
        rival = f"{other[2].name!r} (Fleet {other[0]!r})"
        what = f"{one.name!r} and {rival} would act on the same objects: Stages are cluster-wide"
        yield name, Finding(("spec", "stages", index), what, "keep one of them", rule="rival-stages")
    yield from _same_groups(ordered)


def _same_groups(fleets: Sequence[model.Fleet]) -> Iterator[tuple[str, Finding]]:
    seen: dict[str, model.Fleet] = {}
    for fleet in fleets:
        if not any(pool.autoscaler for pool in fleet.spec.node_pools):
            continue
        groups = fleet.spec.node_groups
        first = seen.setdefault(groups.namespace, fleet)
        if first.spec.node_groups != groups:
            what = f"differs from Fleet {first.name!r}, and one autoscaler reads both"
            yield fleet.name, Finding(("spec", "nodeGroups"), what, "make them equal", rule="conflict")


def played(tree: render.Tree) -> Iterator[tuple[str, Finding]]:
    """Yield workload that no Stage would bring to its end, and heartbeats that would not do."""
    stages = list(render.stages(tree))
    for fleet in tree.fleets:
        for index in range(len(fleet.spec.waves)):
            where = ("spec", "waves", index, "template")
            for finding in _workload(tree, fleet, index, stages, where):
                yield fleet.name, finding
    total = sum(schedule.most_replicas(pool) for fleet in tree.fleets for pool in fleet.spec.node_pools)
    if tree.fleets:
        last = tree.fleets[-1]
        place = ("spec", "stages") if last.spec.stages else ("spec", "nodePools")
        for finding in stage_effects.heartbeat_findings(stages, total, lease=tree.lease, where=place):
            yield last.name, finding


def _workload(
    tree: render.Tree, fleet: model.Fleet, index: int, stages: Sequence[Manifest], where: problems.Where
) -> Iterator[Finding]:
    wave = fleet.spec.waves[index]
    context = workloads.Context(fleet, wave, "0", tree.traces.get((fleet.name, wave.name)))
    made = workloads.maker(context)(0)
    owner = str(made["kind"])
    for place, pod in wave_checks.pods(made, where):
        yield from stage_effects.pod_findings(stages, pod, place, owner)
