"""Renders the objects of a Run: the Wave's template with seeded variables, our labels and the placement."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api.wave import Wave
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import arrivals, lifecycles, usage, workload_placement, workload_template, workload_variables
from kwokfleet.render.seeded_random import SeededRandom

BUILT_IN = ("index", "run", "fleet", "wave", "name")
DEFAULT_NAME = "{{fleet}}-{{wave}}-{{run}}-{{index}}"
DEFAULT_NAMESPACE = "default"
CLUSTER_SCOPED = {
    "ClusterRole", "ClusterRoleBinding", "Namespace", "Node", "PersistentVolume", "PriorityClass", "StorageClass",
}  # fmt: skip

Row = Mapping[str, Any]
"""The variables of one object in a trace."""


@dataclass(frozen=True, slots=True)
class RecordedArrivals:
    """Recorded arrivals: seconds from the start, and the variables of each."""

    at: tuple[float, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class DueObject:
    """An object of a Run, and its due time."""

    at: datetime
    run: str
    index: int
    wave: str


@dataclass(frozen=True, slots=True)
class RunContext:
    """Inputs of a Run's objects."""

    fleet: fleet_api.Fleet
    wave: Wave
    run: str
    trace: RecordedArrivals | None = None
    taints: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    """Taints of the Fleet's pools, with those of node templates."""


def due_objects(context: RunContext, start: datetime) -> Iterator[DueObject]:
    """Yield the objects of a Run by due time."""
    wave = context.wave
    for index, offset in enumerate(arrivals.arrival_offsets(wave, *_arrivals(context))):
        yield DueObject(start + offset, context.run, index, wave.name)


def object_count(context: RunContext) -> int:
    """Return the number of objects of a Run."""
    return arrivals.object_count(context.wave, *_arrivals(context))


def _arrivals(context: RunContext) -> tuple[SeededRandom, tuple[float, ...]]:
    """Return the random numbers and recorded times for a Run's arrivals."""
    random = SeededRandom(context.fleet.spec.seed, context.fleet.name, context.wave.name, context.run, "arrivals")
    return random, context.trace.at if context.trace else ()


def object_factory(context: RunContext) -> Callable[[int], Manifest]:
    """Return a function from an index to the object of a Run."""
    fill, draw = workload_template.compiled(_prepared(context)), _drawing(context)
    return lambda index: fill(draw(index))


def namespace(context: RunContext) -> str:
    """Return the namespace of a Wave's objects; it may contain variables."""
    in_template = (context.wave.template.get("metadata") or {}).get("namespace")
    return context.wave.namespace or in_template or DEFAULT_NAMESPACE


def completes(context: RunContext) -> bool:
    """Return whether a Wave's objects complete; others are done when Ready.

    A Lifecycle decides. Without one, Jobs complete, and pods whose restartPolicy is not Always, if the Fleet has
    Stages that complete pods without a Job.
    """
    template, spec = context.wave.template, context.fleet.spec
    job = template["kind"] == "Job" and template["apiVersion"].startswith("batch/")
    if not job and template["kind"] != "Pod":
        return False
    lifecycle = spec.lifecycle(context.wave.lifecycle)
    if lifecycle is not None and (pod := lifecycle.pod) is not None:
        applies = job or pod.complete is None or pod.complete.when == "always"
        return applies and (pod.complete is not None or (pod.fail is not None and pod.fail.probability >= 1))
    pod_spec = template.get("spec")
    policy = pod_spec.get("restartPolicy", "Always") if isinstance(pod_spec, Mapping) else "Always"
    return job or (policy != "Always" and any(use.file or use.name == "job" for use in spec.stages))


def variable_names(wave: Wave, trace: RecordedArrivals | None = None) -> set[str]:
    """Return the variables that a Wave's template may use."""
    return {*BUILT_IN, *wave.vary, *(trace.rows[0] if trace and trace.rows else ())}


# variables


def _drawing(context: RunContext) -> Callable[[int], workload_template.Variables]:
    fleet, wave, run, rows = context.fleet, context.wave, context.run, context.trace.rows if context.trace else ()
    purpose = (fleet.spec.seed, fleet.name, wave.name, run)
    drawers = {
        name: workload_variables.drawer(variable, SeededRandom(*purpose, "vary", name))
        for name, variable in sorted(wave.vary.items())
    }
    lifecycle = fleet.spec.lifecycle(wave.lifecycle)
    delays = lifecycles.drawn_delays(lifecycle) if lifecycle else {}
    durations = [
        (_hidden(part), delay, SeededRandom(*purpose, "delay", part)) for part, delay in sorted(delays.items())
    ]
    fixed = {"run": run, "fleet": fleet.name, "wave": wave.name}
    object_name = workload_template.compiled(str((wave.template.get("metadata") or {}).get("name") or DEFAULT_NAME))

    def draw(index: int) -> workload_template.Variables:
        variables: dict[str, Any] = {**fixed, "index": index, **(rows[index] if index < len(rows) else {})}
        variables |= {name: drawer(index) for name, drawer in drawers.items()}
        variables |= {name: lifecycles.draw_delay(delay, random, index) for name, delay, random in durations}
        variables["name"], variables[_hidden("index")] = str(object_name(variables)), str(index)
        return variables

    return draw


def _hidden(part: str) -> str:
    """Return the name of an internal variable."""
    return f"kwokfleet_{part}"


# the template of a Run


def _prepared(context: RunContext) -> Manifest:
    """Return a Wave's template with our labels, annotations and placement; variables are not filled in."""
    wave, template = context.wave, context.wave.template
    metadata = {**(template.get("metadata") or {}), "name": "{{name}}"}
    labels = owner_labels(context)
    if template["kind"] not in CLUSTER_SCOPED:
        metadata["namespace"] = namespace(context)
    own_labels = {**wave.labels, objects.MANAGED_BY: objects.KWOKFLEET, **labels}
    metadata["labels"] = {**(metadata.get("labels") or {}), **own_labels}
    own_annotations = {**wave.annotations, objects.INDEX: "{{kwokfleet_index}}"}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **own_annotations}
    prepared: Manifest = {"apiVersion": template["apiVersion"], "kind": template["kind"], "metadata": metadata}
    rest = {key: item for key, item in template.items() if key not in prepared}
    if template["kind"] == "Pod":
        prepared |= _placed_pod({"metadata": metadata, "spec": rest.pop("spec", None) or {}}, context, labels)
    return {**prepared, **{key: _placed(item, context, labels) for key, item in rest.items()}}


def owner_labels(context: RunContext) -> dict[str, str]:
    """Return the labels that select all objects of a Run."""
    return {objects.FLEET: context.fleet.name, objects.WAVE: context.wave.name, objects.RUN: context.run}


def _placed(part: Any, context: RunContext, labels: Mapping[str, str]) -> Any:  # noqa: ANN401  # any part of a manifest
    """Return a part of a template with labels and placement in every pod template, of any kind."""
    if isinstance(part, Mapping):
        spec = part.get("spec")
        if isinstance(spec, Mapping) and isinstance(spec.get("containers"), list):
            return _placed_pod(part, context, labels)
        return {key: _placed(item, context, labels) for key, item in part.items()}
    return [_placed(item, context, labels) for item in part] if isinstance(part, list) else part


def _placed_pod(pod: Mapping[str, Any], context: RunContext, labels: Mapping[str, str]) -> Manifest:
    """Return a pod template with owner labels, Lifecycle, usage, affinity and tolerations."""
    wave, fleet = context.wave, context.fleet
    metadata = dict(pod.get("metadata") or {})
    added = {**wave.labels, **labels}
    lifecycle = fleet.spec.lifecycle(wave.lifecycle)
    if lifecycle is not None:
        added[objects.LIFECYCLE] = lifecycles.label(fleet.name, lifecycle.name)
        drawn = {
            lifecycles.delay_annotation(part): f"{{{{{_hidden(part)}}}}}" for part in lifecycles.drawn_delays(lifecycle)
        }
        if drawn:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **drawn}
    if wave.usage:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **usage.pod_annotations(wave.usage)}
    metadata["labels"] = {**(metadata.get("labels") or {}), **added}
    spec = dict(pod["spec"])
    if wave.place:
        spec["tolerations"] = workload_placement.tolerations(spec.get("tolerations") or [], fleet, wave, context.taints)
        spec["affinity"] = workload_placement.affinity(spec.get("affinity") or {}, fleet, wave)
    return {"metadata": metadata, "spec": spec} | {key: pod[key] for key in pod if key not in {"metadata", "spec"}}
