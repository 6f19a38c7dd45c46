"""Checks across all documents of a tree."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import wave as wave_api
from kwokfleet.documents import parser, problems
from kwokfleet.documents.problems import FieldPath, Finding
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import desired, nodes, schedule, stage_sets, workload_template, workloads
from kwokfleet.validate import fleet_checks, wave_checks


def check_document(value: object) -> list[Finding]:
    """Check apiVersion and kind of a document."""
    if not isinstance(value, Mapping):
        hint = "start with apiVersion, kind and metadata"
        return [Finding((), "must be a mapping", hint, rule="not-an-object")]
    version, kind = value.get("apiVersion"), value.get("kind")
    if version is None and kind is None and not {"spec", "metadata"} & value.keys():
        hint = "add apiVersion and kind if this is a Fleet file"
        return [problems.warning((), "is ignored: it has neither apiVersion nor kind", hint, "ignored")]
    for name, field_value, example in (("apiVersion", version, fleet_api.API_VERSION), ("kind", kind, "Fleet")):
        if not isinstance(field_value, str):
            missing = field_value is None
            what, hint = "is required" if missing else "must be a string", f"for example {name}: {example}"
            return [Finding((name,), what, hint, rule="missing-field", at_key=missing)]
    return _version(str(version), str(kind))


def _version(version: str, kind: str) -> list[Finding]:
    if version == fleet_api.API_VERSION:
        if kind in fleet_api.KINDS:
            return []
        hint = problems.suggestion(kind, sorted(fleet_api.KINDS))
        return [Finding(("kind",), f"unknown kind {kind!r}", hint, rule="unknown-kind")]
    close = problems.closest_name(version, [fleet_api.API_VERSION])
    if version.startswith(fleet_api.GROUP):
        what = f"unknown version {version}"
    elif kind in fleet_api.KINDS or (close and kind.lower() in {"fleet", "kwokcontroller"}):
        what = f"kind {kind!r} does not belong to {version!r}"
    else:
        return []
    return [Finding(("apiVersion",), what, f"use {fleet_api.API_VERSION}", rule="unknown-version")]


def has_name(value: Mapping[str, Any]) -> bool:
    """Return whether an object has a name."""
    metadata = value.get("metadata")
    return isinstance(metadata, Mapping) and isinstance(metadata.get("name"), str) and bool(metadata["name"])


def node_templates(values: Sequence[Any]) -> tuple[list[Manifest], str]:
    """Return the Nodes in documents, Lists and the autoscaler's ConfigMap, or an error message."""
    templates: list[Manifest] = []
    for value in values:
        if not isinstance(value, dict):
            continue
        if value.get("kind") == "Node":
            templates.append(value)
        elif value.get("kind") in ("List", "NodeList") and isinstance(value.get("items"), list):
            items = [{"kind": "Node", **item} for item in value["items"] if isinstance(item, dict)]
            templates += [item for item in items if item["kind"] == "Node"]
        elif value.get("kind") == "ConfigMap":
            inner, error = _config_map(value)
            if error:
                return [], error
            templates += inner
    error = next(filter(None, map(fleet_checks.template_problem, templates)), "")
    if error:
        return [], f"contains a Node that cannot be a template: {error}"
    return templates, "" if templates else "contains no Node"


def _config_map(value: Manifest) -> tuple[list[Manifest], str]:
    data = value.get("data")
    text = data.get(desired.TEMPLATES_KEY) if isinstance(data, dict) else None
    if not isinstance(text, str):
        return [], f"contains a ConfigMap without the key {desired.TEMPLATES_KEY!r}"
    documents, yaml_problems = parser.parse(desired.TEMPLATES_KEY, text)
    if yaml_problems:
        line = yaml_problems[0].line
        return [], f"contains a ConfigMap with invalid YAML (line {line} of key {desired.TEMPLATES_KEY!r})"
    inner = [document.value for document in documents if isinstance(document.value, dict)]
    return node_templates([manifest for manifest in inner if manifest.get("kind") != "ConfigMap"])


def check_conflicts(
    fleets: Iterable[fleet_api.Fleet], sets: Mapping[str, Sequence[stage_sets.NamedStageSet]]
) -> Iterator[tuple[str, Finding]]:
    """Yield conflicts between Fleets, by name of the Fleet to change."""
    ordered = sorted(fleets, key=lambda fleet: fleet.name)
    named = [(fleet.name, index, one) for fleet in ordered for index, one in enumerate(sets.get(fleet.name, ()))]
    for first, second in stage_sets.conflicting_pairs([one for _, _, one in named]):
        other_fleet, _, other = named[first]
        name, index, one = named[second]
        rival = f"{other.name!r} (Fleet {other_fleet!r})"
        what = f"{one.name!r} and {rival} act on the same objects: Stages are cluster-wide"
        yield name, Finding(("spec", "stages", index), what, "remove one of them", rule="rival-stages")
    yield from _same_groups(ordered)
    yield from _same_names(ordered)


def _same_names(fleets: Sequence[fleet_api.Fleet]) -> Iterator[tuple[str, Finding]]:
    """Yield pools, Lifecycles and Waves that create objects with the same name."""
    owners: dict[tuple[str, ...], tuple[str, FieldPath]] = {}
    for fleet in fleets:
        for claim, where in _claims(fleet):
            owner, first = owners.setdefault(claim, (fleet.name, where))
            within = owner == fleet.name and claim[0] != "object"  # already reported by fleet_checks
            if first is not where and not within:
                what = f"{claim[-1]!r} is also created by Fleet {owner!r}"
                yield fleet.name, Finding(where, what, "rename one of them", rule="same-name")


def _claims(fleet: fleet_api.Fleet) -> Iterator[tuple[tuple[str, ...], FieldPath]]:
    """Yield the object names that a Fleet uses, with their paths."""
    for index, pool in enumerate(fleet.spec.node_pools):
        yield ("node", nodes.node_name(pool, fleet.name, 0)), ("spec", "nodePools", index, "nodeName")
    for index, lifecycle in enumerate(fleet.spec.lifecycles):
        yield ("stage", f"{fleet.name}-{lifecycle.name}"), ("spec", "lifecycles", index, "name")
    for index, wave in enumerate(fleet.spec.waves):
        template_metadata = wave.template.get("metadata")
        metadata = template_metadata if isinstance(template_metadata, Mapping) else {}
        name = metadata.get("name")
        if isinstance(name, str) and not workload_template.template_variables(name) & {"fleet", "wave", "name"}:
            namespace = wave.namespace or metadata.get("namespace") or ""
            claim = ("object", str(wave.template.get("kind")), str(namespace), name)
            yield claim, ("spec", "waves", index, "template", "metadata", "name")


def _same_groups(fleets: Sequence[fleet_api.Fleet]) -> Iterator[tuple[str, Finding]]:
    seen: dict[str, fleet_api.Fleet] = {}
    for fleet in fleets:
        if not any(pool.autoscaler for pool in fleet.spec.node_pools):
            continue
        groups = fleet.spec.node_groups
        first = seen.setdefault(groups.namespace, fleet)
        if first.spec.node_groups != groups:
            what = f"differs from Fleet {first.name!r}, but one autoscaler reads both"
            hint = "use the same nodeGroups in both Fleets"
            yield fleet.name, Finding(("spec", "nodeGroups"), what, hint, rule="conflict")


def check_stage_coverage(tree: desired.Tree) -> Iterator[tuple[str, Finding]]:
    """Yield Jobs that no Stage completes, and missing heartbeats."""
    for fleet in tree.fleets:
        for index, wave in enumerate(fleet.spec.waves):
            where = ("spec", "waves", index, "template")
            own = _own_lifecycle(fleet, wave, where) if wave.lifecycle else _custom_stages(tree, fleet, wave, where)
            yield from ((fleet.name, finding) for finding in own)
    if tree.fleets:
        yield from _heartbeats(tree)


def _own_lifecycle(fleet: fleet_api.Fleet, wave: wave_api.Wave, where: FieldPath) -> Iterator[Finding]:
    """Yield a Job with a Lifecycle that never completes. Rendered Stages need no selector check."""
    lifecycle = next(entry for entry in fleet.spec.lifecycles if entry.name == wave.lifecycle)
    ends = lifecycle.pod is not None and (lifecycle.pod.complete or lifecycle.pod.fail)
    if wave.template["kind"] == "Job" and not ends:
        what = f"the Job never ends: lifecycle {wave.lifecycle!r} has no complete"
        hint = "add complete to the lifecycle, for example complete: args"
        yield Finding(where, what, hint, rule="workload-never-completes")


def _custom_stages(
    tree: desired.Tree, fleet: fleet_api.Fleet, wave: wave_api.Wave, where: FieldPath
) -> Iterator[Finding]:
    """Check the Wave against the user's own Stages. Library sets complete all Jobs."""
    named = [one for uses in tree.stage_sets.values() for one in uses]
    if all(one.from_library for one in named if "pod" in stage_sets.roles(one)):
        return
    from kwokfleet.stagelint import coverage  # noqa: PLC0415  # slow to import, rarely needed

    context = desired.run_context(tree, fleet, wave, "0")
    obj = workloads.object_factory(context)(0)
    stages = [stage for stage in desired.stages(tree) if stage_sets.target_kind(stage) == "Pod"]
    for path, pod in wave_checks.pod_templates(obj, where):
        yield from coverage.pod_findings(stages, pod, path, str(obj["kind"]))


def _heartbeats(tree: desired.Tree) -> Iterator[tuple[str, Finding]]:
    """Check that kwok can keep the nodes Ready."""
    named = [one for uses in tree.stage_sets.values() for one in uses]
    if tree.lease and not any("heartbeat" in stage_sets.roles(one) for one in named):
        return
    from kwokfleet.stagelint import coverage  # noqa: PLC0415  # slow to import, rarely needed

    total = sum(schedule.max_replicas(pool) for fleet in tree.fleets for pool in fleet.spec.node_pools)
    stages = [stage for stage in desired.stages(tree) if stage_sets.target_kind(stage) == "Node"]
    last = tree.fleets[-1]
    path = ("spec", "stages") if last.spec.stages else ("spec", "nodePools")
    for finding in coverage.heartbeat_findings(stages, total, lease=tree.lease, where=path):
        yield last.name, finding
