"""Resource requests of pods, as numbers."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kwokfleet.api import units
from kwokfleet.kube.objects import Manifest

PodRequests = tuple[tuple[str, float], ...]
"""Resource and amount, sorted."""


def total_requests(manifest: Manifest) -> PodRequests:
    """Return the requests that the scheduler reserves for a pod, including the resource `pods`."""
    spec = manifest.get("spec") or {}
    return _sum_requests(
        _container_requests(spec.get("containers")),
        _container_requests(spec.get("initContainers")),
        _quantities(spec.get("overhead")),
    )


Quantities = tuple[tuple[str, str], ...]
ContainerRequests = tuple[tuple[bool, Quantities], ...]
"""Of each container: whether it is a sidecar, and its requests."""


def _container_requests(containers: Any) -> ContainerRequests:  # noqa: ANN401  # a part of a manifest
    return tuple(
        (container.get("restartPolicy") == "Always", _quantities((container.get("resources") or {}).get("requests")))
        for container in containers or ()
    )


def _quantities(amounts: Mapping[str, object] | None) -> Quantities:
    return tuple((name, str(value)) for name, value in (amounts or {}).items())


@lru_cache(maxsize=4096)
def _sum_requests(
    containers: ContainerRequests, init_containers: ContainerRequests, overhead: Quantities
) -> PodRequests:
    """Return the sum of containers and sidecars, or the peak of an init container beside its sidecars."""
    running: dict[str, float] = {}
    peak: dict[str, float] = {}
    for is_sidecar, quantities in init_containers:
        if is_sidecar:
            _add(running, quantities)
        for name, text in () if is_sidecar else quantities:
            peak[name] = max(peak.get(name, 0.0), running.get(name, 0.0) + amount(text))
    for _, quantities in containers:
        _add(running, quantities)
    total = {name: max(running.get(name, 0.0), peak.get(name, 0.0)) for name in running.keys() | peak.keys()}
    _add(total, overhead)
    return tuple(sorted({**total, "pods": 1.0}.items()))


def _add(total: dict[str, float], quantities: Quantities) -> None:
    for name, text in quantities:
        total[name] = total.get(name, 0.0) + amount(text)


@lru_cache(maxsize=10_000)
def amount(text: str) -> float:
    """Return a quantity as a number, 0 if it is invalid."""
    try:
        return float(units.quantity_value(text))
    except (ArithmeticError, ValueError):
        return 0.0
