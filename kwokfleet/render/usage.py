"""Simulated CPU and memory usage: annotations on pods and nodes, read by kwok, served to metrics-server.

kwok uses the first ClusterResourceUsage that matches a pod, in no defined order, so there is a single, constant one
for all Fleets. Pods have their phases as annotations, nodes the usage of their pool, and one CEL expression per
resource reads them. One Metric serves the result like a kubelet.
"""

from collections.abc import Iterable, Iterator, Sequence

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import units
from kwokfleet.api.wave import MAX_USAGE_PHASES, PodUsage, Usage
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

NAME = "kwokfleet-usage"
PATH = "/metrics/nodes/{nodeName}/metrics/resource"
METRICS_PATH = "metrics.k8s.io/resource-metrics-path"
"""Node annotation with the metrics path for metrics-server: one kwok serves many nodes."""
RESOURCES = {"cpu": "1m", "memory": "1Mi"}
"""Resources, and the usage of a pod without one: metrics-server skips zeros."""

_OWN_CPU, _OWN_MEMORY = 0.01, 64 << 20
"""Usage of a node itself, in cores and bytes: metrics-server skips zeros."""
_UNTIL = f"{objects.USAGE}-until."
"""Annotation with the end of a pod's phase, in seconds after its start; the phase number follows."""
_POD, _NODE = "pod.metadata.annotations", "node.metadata.annotations"


# annotations


def pod_annotations(phases: Sequence[Usage]) -> dict[str, str]:
    """Return the annotations for a pod's phases; a phase keeps the values that it does not set."""
    annotations: dict[str, str] = {}
    until = 0.0
    current: dict[str, str] = {}
    for number, phase in enumerate(phases):
        current |= _amounts(phase)
        annotations |= {f"{_key(name, amount)}.{number}": _value(amount) for name, amount in current.items()}
        until += phase.for_.total_seconds()
        if number < len(phases) - 1:
            annotations[f"{_UNTIL}{number}"] = f"{until:.10g}"
    return annotations


def node_annotations(uses: PodUsage | None) -> dict[str, str]:
    """Return the annotations for the usage of a node's pods."""
    return {_key(name, amount): _value(amount) for name, amount in _amounts(uses).items()} if uses else {}


def _amounts(uses: PodUsage) -> dict[str, str]:
    return {name: amount for name in RESOURCES if (amount := getattr(uses, name)) is not None}


def _key(resource: str, amount: str) -> str:
    return f"{objects.USAGE}-{resource}" + ("" if units.percent_share(amount) is None else "-share")


def _value(amount: str) -> str:
    share = units.percent_share(amount)
    return amount if share is None else f"{share:.10g}"


# kwok objects


def is_declared(fleets: Iterable[fleet_api.Fleet]) -> bool:
    """Return whether any Fleet declares usage."""
    return any(
        any(pool.usage for pool in fleet.spec.node_pools) or any(wave.usage for wave in fleet.spec.waves)
        for fleet in fleets
    )


def manifests(fleets: Iterable[fleet_api.Fleet]) -> Iterator[Manifest]:
    """Yield the kwok objects for usage, if any Fleet declares usage."""
    if is_declared(fleets):
        usage = {name: {"expression": _expression(name, least)} for name, least in RESOURCES.items()}
        yield _object("ClusterResourceUsage", {"usages": [{"usage": usage}]})
        yield _object("Metric", {"path": PATH, "metrics": list(_metrics())})


def _object(kind: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": objects.STAGE_API_VERSION,
        "kind": kind,
        "metadata": {"name": NAME, "labels": {objects.MANAGED_BY: objects.KWOKFLEET}},
        "spec": spec,
    }


def _expression(resource: str, least: str) -> str:
    """Return the CEL expression of a container's usage: by the pod's phase, else by the node, else *least*.

    kwok's CEL reads few Go types, and a Quantity cannot become a number: a pod's amount is divided among its
    containers as a Quantity. The current phase is the first without an end, or with an end in the future. A
    pod without phases has one empty phase.
    """
    numbers = ", ".join(f'"{number}"' for number in range(MAX_USAGE_PHASES))
    ends = f'"{_UNTIL}" + n'
    since = "Now().UnixSecond() - pod.status.startTime.UnixSecond()"
    has_ended = f"{ends} in {_POD}\n  && double({_POD}[{ends}]) <= {since}"
    return (
        'pod.status.phase != "Running" ? Quantity("0") :\n'
        f"[[{numbers}].filter(n,\n  !({has_ended}))[0]].map(n,\n"
        f'{_conditions(_POD, resource, " + n")}{_conditions(_NODE, resource, "")}  Quantity("{least}"))[0]\n'
    )


def _conditions(annotations: str, resource: str, phase: str) -> str:
    """Return the head of a conditional chain: the amount or the share in the annotations."""
    dot = "." if phase else ""
    amount, share = f'"{objects.USAGE}-{resource}{dot}"{phase}', f'"{objects.USAGE}-{resource}-share{dot}"{phase}'
    return (
        f"  {amount} in {annotations} ? Quantity({annotations}[{amount}]) / double(size(pod.spec.containers)) :\n"
        f'  {share} in {annotations} ? container.resources.requests["{resource}"] * double({annotations}[{share}]) :\n'
    )


def _metrics() -> Iterator[Manifest]:
    """Yield the metrics of a kubelet's /metrics/resource: metrics-server reads no others."""
    cpu, memory = "Cumulative cpu time consumed by the {} in core-seconds", "Current working set of the {} in bytes"
    created = "pod.metadata.creationTimestamp.UnixSecond()"
    started = f'pod.status.phase == "Pending" ? {created} : pod.status.startTime.UnixSecond()'
    yield _metric("container_start_time_seconds", "Start time of the container in unix seconds", started)
    yield _metric("container_cpu_usage_seconds_total", cpu, 'pod.CumulativeUsage("cpu", container.name)')
    yield _metric("container_memory_working_set_bytes", memory, 'pod.Usage("memory", container.name)')
    yield _metric("pod_cpu_usage_seconds_total", cpu, 'pod.CumulativeUsage("cpu")')
    yield _metric("pod_memory_working_set_bytes", memory, 'pod.Usage("memory")')
    own = f"node.SinceSecond() * {_OWN_CPU}"
    yield _metric("node_cpu_usage_seconds_total", cpu, f'node.CumulativeUsage("cpu") + {own}')
    yield _metric("node_memory_working_set_bytes", memory, f'node.Usage("memory") + {_OWN_MEMORY}.0')
    yield {**_metric("resource_scrape_error", "1 if the figures could not be had, else 0", "0"), "dimension": "node"}


_LABELS = {
    "container": {"container": "container.name", "namespace": "pod.metadata.namespace", "pod": "pod.metadata.name"},
    "pod": {"namespace": "pod.metadata.namespace", "pod": "pod.metadata.name"},
}


def _metric(name: str, meaning: str, value: str) -> Manifest:
    dimension = name.partition("_")[0]
    labels = [{"name": label, "value": where} for label, where in _LABELS.get(dimension, {}).items()]
    return {
        "name": name,
        "help": meaning.format(dimension),
        "kind": "counter" if name.endswith("_total") else "gauge",
        "dimension": dimension,
        **({"labels": labels} if labels else {}),
        "value": value,
    }
