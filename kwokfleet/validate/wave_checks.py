"""Checks of one Wave: arrivals, variables, template, object names, gates."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import units
from kwokfleet.api import wave as wave_api
from kwokfleet.api.fields import MAX_LABEL_LENGTH
from kwokfleet.api.wave import Wave
from kwokfleet.documents import problems
from kwokfleet.documents.problems import FieldPath, Finding, warning
from kwokfleet.kube.objects import Manifest
from kwokfleet.render import arrivals, workload_template, workloads
from kwokfleet.validate import fleet_checks

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_RECURRING = {"cron", "every"}
_SERVER_FIELDS = (
    "uid", "resourceVersion", "creationTimestamp", "managedFields", "ownerReferences", "selfLink", "generation",
)  # fmt: skip
"""Metadata that the API server sets."""
_CRON_RUN_DIGITS = 8
_PLACEMENT: dict[str, Any] = {
    "tolerations": [{"key": str, "effect": str}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{}]}]}
        }
    },
}
"""Parts of a pod spec that placement extends."""
_TEMPLATE_STEPS = len(("spec", "waves", 0, "template"))


def check(
    fleet: fleet_api.Fleet, wave: Wave, where: FieldPath, trace: workloads.RecordedArrivals | None
) -> Iterator[Finding]:
    """Yield the Findings of one Wave."""
    yield from fleet_checks.check_lifecycle_reference(fleet, wave.lifecycle, "pod", where)
    yield from _pools(fleet, wave, where)
    yield from _amount(wave, where, trace)
    yield from _variables(wave, where, trace)
    yield from _template(wave, (*where, "template"))
    yield from _names(fleet, wave, where, trace)
    yield from _namespace(wave, where)
    yield from _gates(fleet, wave, where, trace)


def _pools(fleet: fleet_api.Fleet, wave: Wave, where: FieldPath) -> Iterator[Finding]:
    known = [pool.name for pool in fleet.spec.node_pools]
    for index, name in enumerate(wave.pools):
        if name not in known:
            hint = problems.suggestion(name, known) if known else "add it to spec.nodePools"
            yield Finding((*where, "pools", index), f"pool {name!r} not found", hint, rule="unknown-reference")
    if wave.place and not known:
        what = "its pods cannot be scheduled: the Fleet has no pool"
        hint = "add a pool, or set place: false and select nodes in the template"
        yield warning((*where, "name"), what, hint, "no-pool")


def _amount(wave: Wave, where: FieldPath, trace: workloads.RecordedArrivals | None) -> Iterator[Finding]:
    if wave.arrivals is None:
        if wave.duration is not None:
            what = "requires arrivals: without arrivals, all objects arrive at once"
            yield Finding((*where, "duration"), what, "add arrivals, or use count", rule="no-arrivals", at_key=True)
        return
    if wave.arrivals.trace is None and wave.count is None and wave.duration is None:
        what = "requires count or duration: the wave would never end"
        yield Finding((*where, "arrivals"), what, "add count or duration", rule="endless", at_key=True)
        return
    longest = units.MAX_DURATION.total_seconds()
    if wave.arrivals.trace is not None:
        too_long = trace is not None and trace.at[-1] / wave.arrivals.trace.speed > longest
    elif wave.duration is not None:
        most = arrivals.expected_arrivals(wave.arrivals, wave.duration.total_seconds())
        if min(most, wave.count or most) > wave_api.MAX_COUNT:
            what = f"causes about {most:,.0f} objects; the limit is {wave_api.MAX_COUNT:,}"
            yield Finding((*where, "duration"), what, "reduce the duration or the rate, or add count", rule="too-many")
        return
    else:
        too_long = arrivals.expected_arrivals(wave.arrivals, longest) < (wave.count or 1) - 1
    if too_long:
        what = f"the last object arrives after more than {units.MAX_DURATION.days} days"
        yield Finding((*where, "arrivals"), what, "increase the rate, or reduce count", rule="too-long", at_key=True)


def _variables(wave: Wave, where: FieldPath, trace: workloads.RecordedArrivals | None) -> Iterator[Finding]:
    for name in wave.vary:
        if not _IDENTIFIER.fullmatch(name):
            what, hint = f"{name!r} is not a valid variable name", "use letters, digits and '_'"
        elif name in workloads.BUILT_IN:
            what, hint = f"{name!r} is a built-in variable", "use another name"
        else:
            continue
        yield Finding((*where, "vary", name), what, hint, rule="invalid-name", at_key=True)
    for name in sorted(set(trace.rows[0] if trace and trace.rows else ()) & {*workloads.BUILT_IN, *wave.vary}):
        what = f"the trace column {name!r} has the name of another variable"
        yield Finding((*where, "arrivals", "trace", "file"), what, "rename the column", rule="invalid-name")
    known = workloads.variable_names(wave, trace)
    from_trace = wave.arrivals is not None and wave.arrivals.trace is not None and trace is None
    used: set[str] = set()
    namespace_texts = [(("namespace",), wave.namespace)] if wave.namespace else []
    for path, text in (*namespace_texts, *_texts_in(wave.template, ("template",))):
        for name in sorted(workload_template.template_variables(text)):
            used.add(name)
            if name not in known and not from_trace:
                what = f"unknown variable {name!r}"
                yield Finding((*where, *path), what, problems.suggestion(name, sorted(known)), rule="unknown-variable")
    for name in sorted(set(wave.vary) - used):
        what = f"variable {name!r} is not used in the template"
        hint = f"add {{{{{name}}}}} to the template, or remove the variable"
        yield warning((*where, "vary", name), what, hint, "unused-variable")


def _texts_in(part: Any, where: FieldPath) -> Iterator[tuple[FieldPath, str]]:  # noqa: ANN401  # any part of a manifest
    """Yield each string that may contain variables, with its path."""
    if isinstance(part, str):
        yield where, part
    elif isinstance(part, Mapping):
        for key, item in part.items():
            yield (*where, key), key
            yield from _texts_in(item, (*where, key))
    elif isinstance(part, list):
        for index, item in enumerate(part):
            yield from _texts_in(item, (*where, index))


def _invalid(where: FieldPath, what: str, hint: str = "", *, at_key: bool = False) -> Finding:
    return Finding(where, what, hint, rule="invalid-template", at_key=at_key)


def _template(wave: Wave, where: FieldPath) -> Iterator[Finding]:
    template = wave.template
    hint = "for example apiVersion: batch/v1, kind: Job"
    for name in ("apiVersion", "kind"):
        if not isinstance(template.get(name), str) or not template[name]:
            missing = name not in template
            path, what = (where, f"{name} is required") if missing else ((*where, name), "must be a string")
            yield _invalid(path, what, hint, at_key=missing)
    metadata = template.get("metadata")
    yield from _metadata(metadata, (*where, "metadata"))
    if template.get("kind") == "Pod" and not any(True for _ in pod_templates(template, where)):
        yield _invalid((*where, "kind"), "spec.containers is required in a Pod", "add containers")
    if isinstance(metadata, Mapping) and "generateName" in metadata:
        what = "is not allowed: names must be the same each time, or objects would be created twice"
        yield _invalid((*where, "metadata", "generateName"), what, "use name with {{index}}")
    if "status" in template:
        yield _invalid((*where, "status"), "is set by the cluster", "remove status", at_key=True)
    for name in _SERVER_FIELDS:
        if isinstance(metadata, Mapping) and name in metadata:
            yield _invalid((*where, "metadata", name), f"{name!r} is set by the API server", "remove it", at_key=True)
    for path, pod in pod_templates(template, where):
        yield from _pod(pod, path)
        policy = pod["spec"].get("restartPolicy", "Always")
        valid = policy in ("Never", "OnFailure") or workload_template.template_variables(policy)
        if template.get("kind") == "Job" and not valid:
            what, hint = "must be Never or OnFailure in a Job", "set restartPolicy: Never"
            yield _invalid((*path, "spec", "restartPolicy"), what, hint, at_key=True)


def _metadata(metadata: Any, where: FieldPath) -> Iterator[Finding]:  # noqa: ANN401  # any part of a manifest
    """Check the types in the metadata of an object."""
    if metadata is not None and not isinstance(metadata, Mapping):
        yield _invalid(where, "must be a mapping")
        return
    for name in ("name", "namespace"):
        if metadata and not isinstance(metadata.get(name, ""), str | None):
            yield _invalid((*where, name), "must be a string", "put it in quotes")
    for name in ("labels", "annotations"):
        part = (metadata or {}).get(name)
        if part is not None and not isinstance(part, Mapping):
            yield _invalid((*where, name), "must be a mapping")
        for key, item in part.items() if isinstance(part, Mapping) else ():
            if not isinstance(item, str | None):
                yield _invalid((*where, name, key), "must be a string", "put it in quotes")


def pod_templates(template: Manifest, where: FieldPath) -> Iterator[tuple[FieldPath, Manifest]]:
    """Yield each pod template in an object of any kind, with its path."""
    spec = template.get("spec")
    if isinstance(spec, Mapping) and "containers" in spec:
        yield where, template
        return
    for key, item in template.items():
        if isinstance(item, Mapping):
            yield from pod_templates(dict(item), (*where, key))
        elif isinstance(item, list):
            for index, entry in enumerate(item):
                if isinstance(entry, Mapping):
                    yield from pod_templates(dict(entry), (*where, key, index))


def _pod(pod: Manifest, where: FieldPath) -> Iterator[Finding]:
    if len(where) > _TEMPLATE_STEPS:  # the metadata of the object itself is already checked
        yield from _metadata(pod.get("metadata"), (*where, "metadata"))
    spec = pod["spec"]
    containers = spec["containers"]
    if not isinstance(containers, list) or not containers:
        yield _invalid((*where, "spec", "containers"), "must be a list of at least one container")
        return
    for index, container in enumerate(containers):
        path = (*where, "spec", "containers", index)
        if not isinstance(container, Mapping):
            yield _invalid(path, "must be a mapping")
        elif not container.get("name"):
            yield _invalid(path, "name is required in a container", "add name")
    for name, shape in _PLACEMENT.items():
        yield from _check_shape(spec.get(name), shape, (*where, "spec", name))


def _check_shape(part: Any, shape: Any, where: FieldPath) -> Iterator[Finding]:  # noqa: ANN401  # any part of a manifest
    """Check for mappings, lists and strings where placement needs them."""
    if part is None:
        return
    expected: Any = str if shape is str else type(shape)
    if not isinstance(part, expected):
        type_name = "string" if expected is str else "list" if expected is list else "mapping"
        yield _invalid(where, f"must be a {type_name}")
    elif expected is dict:
        for name, inner in shape.items():
            yield from _check_shape(part.get(name), inner, (*where, name))
    elif expected is list:
        for index, item in enumerate(part):
            yield from _check_shape(() if item is None else item, shape[0], (*where, index))


def _names(
    fleet: fleet_api.Fleet, wave: Wave, where: FieldPath, trace: workloads.RecordedArrivals | None
) -> Iterator[Finding]:
    """Check that object names are unique and not too long."""
    metadata = wave.template.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    many = (wave.count or 0) > 1 or wave.duration is not None or trace is not None
    if name is not None:
        path = (*where, "template", "metadata", "name")
        used = workload_template.template_variables(name)
        if many and not used & {"index", "name"}:
            yield Finding(path, "all objects have the same name", "add {{index}}, or remove name", rule="same-name")
        elif wave.start.variant in _RECURRING and not used & {"run", "name"}:
            what = "the objects of all runs have the same names"
            yield Finding(path, what, "add {{run}}, or remove name", rule="same-name")
        return
    most = max(wave.count or 1, len(trace.at) if trace else 1)
    run = _CRON_RUN_DIGITS if wave.start.variant in _RECURRING else 1
    length = len(f"{fleet.name}-{wave.name}--") + run + max(1, math.ceil(math.log10(most)) if most > 1 else 1)
    if length > MAX_LABEL_LENGTH:
        names = f"its objects' names ({fleet.name}-{wave.name}-RUN-INDEX)"
        what = f"{names} would be longer than {MAX_LABEL_LENGTH} characters"
        yield Finding((*where, "name"), what, "use shorter names", rule="name-too-long")


def _namespace(wave: Wave, where: FieldPath) -> Iterator[Finding]:
    name = wave.namespace
    if name is not None and not workload_template.template_variables(name) and not _NAMESPACE.fullmatch(name):
        what = f"must be a namespace name of lower-case letters, digits and '-', got {name!r}"
        yield Finding((*where, "namespace"), what, "for example load-test", rule="invalid-name")


def _gates(
    fleet: fleet_api.Fleet, wave: Wave, where: FieldPath, trace: workloads.RecordedArrivals | None
) -> Iterator[Finding]:
    """Warn about gates that no Run can pass. The Wave runs nevertheless."""
    kind = wave.template.get("kind")
    if wave.expect is None or not isinstance(kind, str) or not isinstance(wave.template.get("apiVersion"), str):
        return
    from kwokfleet.measure import gates  # noqa: PLC0415  # slow to import

    ends = workloads.completes(workloads.RunContext(fleet, wave, "0"))
    for message in gates.impossible_gates(wave.expect, ends=ends, kind=kind):
        gate, _, why = message.partition(": ")
        path = (*where, "expect", *gate.split("."))
        yield warning(path, why, "change the gate: no run can pass it", "impossible-gate")
    last = _last_arrival(wave, trace)
    if wave.expect.deadline is not None and last >= wave.expect.deadline.total_seconds() > 0:
        what = f"the last object arrives after {last:g} s, so no run can pass"
        hint = "increase the deadline, or the arrival rate"
        yield warning((*where, "expect", "deadline"), what, hint, "impossible-gate")


def _last_arrival(wave: Wave, trace: workloads.RecordedArrivals | None) -> float:
    """Return the seconds until the last arrival, or 0 if unknown."""
    if wave.arrivals is None:
        return 0.0
    if wave.arrivals.trace is not None:
        at = (trace.at if trace else ())[: wave.count]
        return at[-1] / wave.arrivals.trace.speed if at else 0.0
    if wave.arrivals.rate is not None and wave.count is not None and wave.duration is None:
        return (wave.count - 1) / wave.arrivals.rate
    return 0.0
