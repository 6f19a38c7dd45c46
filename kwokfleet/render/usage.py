"""What fake pods and nodes seem to use: told to kwok in annotations, and by kwok to metrics-server.

kwok asks its ClusterResourceUsages in no order, and takes the first that fits a pod by its name and
namespace: two of them side by side would be a matter of luck. So there is one, for all Fleets, and it
never changes: each pod carries its phases as annotations, each node what its pool says, and one CEL
expression for each resource reads them. One Metric shows the result as a kubelet would.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kwokfleet.api import fleet as fleet_api
from kwokfleet.api import units
from kwokfleet.api.wave import MAX_USAGE_PHASES, PodUsage, Usage
from kwokfleet.kube import objects
from kwokfleet.kube.objects import Manifest

NAME = "kwokfleet-usage"
PATH = "/metrics/nodes/{nodeName}/metrics/resource"
METRICS_PATH = "metrics.k8s.io/resource-metrics-path"
"""The annotation of a node by which metrics-server finds its figures: one kwok speaks for many nodes."""
RESOURCES = {"cpu": "1m", "memory": "1Mi"}
"""What can be used, and what a pod uses of which nobody has said: metrics-server passes over zeros."""

_OWN_CPU, _OWN_MEMORY = 0.01, 64 << 20
"""What a node uses for itself, in cores and bytes: an empty one would be passed over, too."""
_UNTIL = f"{objects.USAGE}-until."
"""The annotation that says how many seconds after its start a pod's phase ends; its number follows."""
_POD, _NODE = "pod.metadata.annotations", "node.metadata.annotations"


# ----------------------------------------------------------------------------------------
# annotations


def pod_annotations(phases: Sequence[Usage]) -> dict[str, str]:
    """Return what a pod uses, phase by phase, as its annotations; what a phase does not name stays as it was."""
    made: dict[str, str] = {}
    until = 0.0
    now: dict[str, str] = {}
    for number, phase in enumerate(phases):
        now |= _named(phase)
        made |= {f"{_key(name, said)}.{number}": _value(said) for name, said in now.items()}
        until += phase.for_.total_seconds()
        if number < len(phases) - 1:
            made[f"{_UNTIL}{number}"] = f"{until:.10g}"
    return made


def node_annotations(uses: PodUsage | None) -> dict[str, str]:
    """Return what pods use on a node, as its annotations."""
    return {_key(name, said): _value(said) for name, said in _named(uses).items()} if uses else {}


def _named(uses: PodUsage) -> dict[str, str]:
    said: Mapping[str, str | None] = {"cpu": uses.cpu, "memory": uses.memory}
    return {name: text for name, text in said.items() if text is not None}


def _key(resource: str, said: str) -> str:
    return f"{objects.USAGE}-{resource}" + ("" if units.request_share(said) is None else "-share")


def _value(said: str) -> str:
    share = units.request_share(said)
    return said if share is None else f"{share:.10g}"


# ----------------------------------------------------------------------------------------
# what kwok reads


def is_declared(fleets: Iterable[fleet_api.Fleet]) -> bool:
    """Return whether any Fleet says what its pods use."""
    return any(
        any(pool.usage for pool in fleet.spec.node_pools) or any(wave.usage for wave in fleet.spec.waves)
        for fleet in fleets
    )


def manifests(fleets: Iterable[fleet_api.Fleet]) -> Iterator[Manifest]:
    """Yield what kwok needs to show usage, if any Fleet declares some."""
    if is_declared(fleets):
        yield _object("ClusterResourceUsage", {"usages": [{"usage": _expressions()}]})
        yield _object("Metric", {"path": PATH, "metrics": list(_metrics())})


def _object(kind: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": objects.STAGE_API_VERSION,
        "kind": kind,
        "metadata": {"name": NAME, "labels": {objects.MANAGED_BY: objects.KWOKFLEET}},
        "spec": spec,
    }


def _expressions() -> Manifest:
    return {name: {"expression": _expression(name, least)} for name, least in RESOURCES.items()}


def _expression(resource: str, least: str) -> str:
    """Return what a container uses, in CEL: as the pod's phase says, else as the node says, else next to nothing.

    Only a few Go types can be read here, and a Quantity cannot become a number: amounts of the pod are
    shared out among its containers as quantities. Of the phases the first counts that has no end, or an end
    that has not come; a pod without phases has one that says nothing.
    """
    numbers = ", ".join(f'"{number}"' for number in range(MAX_USAGE_PHASES))
    ends = f'"{_UNTIL}" + n'
    since = "Now().UnixSecond() - pod.status.startTime.UnixSecond()"
    has_ended = f"{ends} in {_POD}\n  && double({_POD}[{ends}]) <= {since}"
    return (
        'pod.status.phase != "Running" ? Quantity("0") :\n'
        f"[[{numbers}].filter(n,\n  !({has_ended}))[0]].map(n,\n"
        f'{_told(_POD, resource, " + n")}{_told(_NODE, resource, "")}  Quantity("{least}"))[0]\n'
    )


def _told(annotations: str, resource: str, phase: str) -> str:
    """Return the two ways in which annotations can say it, as the head of a chain of conditions."""
    dot = "." if phase else ""
    amount, share = f'"{objects.USAGE}-{resource}{dot}"{phase}', f'"{objects.USAGE}-{resource}-share{dot}"{phase}'
    return (
        f"  {amount} in {annotations} ? Quantity({annotations}[{amount}]) / double(size(pod.spec.containers)) :\n"
        f'  {share} in {annotations} ? container.resources.requests["{resource}"] * double({annotations}[{share}]) :\n'
    )


def _metrics() -> Iterator[Manifest]:
    """Yield what a kubelet shows at /metrics/resource, by its names: metrics-server reads nothing else."""
    cpu, memory = "Cumulative cpu time consumed by the {} in core-seconds", "Current working set of the {} in bytes"
    born = "pod.metadata.creationTimestamp.UnixSecond()"
    started = f'pod.status.phase == "Pending" ? {born} : pod.status.startTime.UnixSecond()'
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
    "container": {
        "container": "container.name",
        "namespace": "pod.metadata.namespace",
        "pod": "pod.metadata.name",
    },
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
